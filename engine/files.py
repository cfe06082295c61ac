"""Where the files are that come with the package."""

from __future__ import annotations

from pathlib import Path


def golden() -> Path:
    """The folder of what other implementations computed: in the wheel, or in a checkout."""
    here = Path(__file__).parent
    packed = here / "golden"
    return packed if packed.is_dir() else here.parent / "tests" / "golden"
