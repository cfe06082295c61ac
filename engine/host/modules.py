"""Small changes that make other people's JavaScript files fit for the page."""

from __future__ import annotations

import re

SOURCE_MAP = re.compile(rb"\n//# sourceMappingURL=\S+\s*$")


def without_source_map(script: bytes) -> bytes:
    """Drops the last line's pointer to a source map, which the site does not have."""
    return SOURCE_MAP.sub(b"\n", script)


def from_umd(script: bytes, place: str, names: tuple[str, ...]) -> bytes:
    """Makes an ES module out of a UMD script, which by itself exports nothing.

    Run as a module, the script puts its names on the global object `place`; they are exported
    from there.
    """
    exports = "".join(f"export const {name} = globalThis.{place}.{name};\n" for name in names)
    return without_source_map(script) + exports.encode()
