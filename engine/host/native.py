"""The CPU device's kernels: C compiled to WebAssembly for the site, and for this very machine, by
the pinned compiler."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.host import pip
from engine.host.errors import HostError
from engine.host.files import fingerprint
from engine.host.paths import CACHE, LOCK_COMPILER, ROOT
from engine.host.process import run

SOURCE = Path("engine/backends/cpu.c")
HEADERS = tuple(
    Path("engine/backends", name) for name in ("cpu_quants.h", "cpu_attention.h", "cpu_floats.h")
)
LIBRARY = Path(".cache/native/cpu.wasm")  # pyproject.toml puts it into the engine's wheel
COMMON = ("-O3", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-s")
# SSE4.2 is what rounding and conversions need; elsewhere every processor has enough.
BASELINE = {"x86_64": ("-mcpu=x86_64_v2",), "AMD64": ("-mcpu=x86_64_v2",)}


@dataclass(frozen=True)
class Target:
    """What SOURCE is compiled for: the file that comes of it (relative to ROOT), the compiler's
    flags, and headers of ours that it takes."""

    library: Path
    flags: tuple[str, ...]
    headers: tuple[Path, ...] = ()


# -shared makes a side module, which Pyodide loads into its own memory by ctypes.
WASM = Target(
    LIBRARY,
    (
        *("-target", "wasm32-freestanding", "-mcpu=generic+simd128+nontrapping_fptoint"),
        *(*COMMON, "-nostdlib"),
    ),
)
# WebAssembly fuses no products with sums, so the numbers are the same here.
HERE = Target(
    Path(".cache/native/cpu.so"),
    (
        *BASELINE.get(platform.machine(), ()),
        *(*COMMON, "-fvisibility=hidden", "-ffp-contract=off", "-I", "engine/host/simd"),
    ),
    (Path("engine/host/simd/wasm_simd128.h"),),
)


def build(target: Target = WASM) -> Path:
    """Compiles SOURCE, unless that is done already; returns the library, relative to ROOT."""
    stamp = CACHE / "native" / ("source" if target is WASM else "source.here")
    sources = [SOURCE, *HEADERS, *target.headers, Path(LOCK_COMPILER.name)]
    wanted = f"{fingerprint(ROOT, sources)} {' '.join(target.flags)}"
    if stamp.is_file() and stamp.read_text() == wanted and (ROOT / target.library).is_file():
        return target.library
    stamp.parent.mkdir(parents=True, exist_ok=True)
    part = ROOT / target.library.with_suffix(".part")
    try:
        pip.install(LOCK_COMPILER, "Installing the C compiler")
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            *target.flags,
            "-o",
            part,
            SOURCE,
        ]
        run("Compiling the CPU kernels", command, {"ZIG_GLOBAL_CACHE_DIR": str(CACHE / "zig")})
    except HostError as error:
        raise HostError(
            f"{error}\nThe CPU kernels were not compiled. The compiler is PyPI's ziglang; it runs "
            f"on Linux, macOS and Windows. A copy of {target.library} and "
            f"{stamp.relative_to(ROOT)} from a machine that built this very source will do too."
        ) from None
    part.replace(ROOT / target.library)
    stamp.write_text(wanted)
    return target.library
