"""The CPU device's kernels: C compiled to WebAssembly by the pinned compiler."""

from __future__ import annotations

import sys
from pathlib import Path

from engine.host import pip
from engine.host.errors import HostError
from engine.host.files import fingerprint
from engine.host.paths import CACHE, LOCK_COMPILER, ROOT
from engine.host.process import run

SOURCE = Path("engine/backends/cpu.c")
HEADER = Path("engine/backends/cpu_quants.h")
LIBRARY = Path(".cache/native/cpu.wasm")  # pyproject.toml puts it into the engine's wheel
# -shared makes a side module, which Pyodide loads into its own memory by ctypes.
FLAGS = (
    *("-target", "wasm32-freestanding", "-mcpu=generic+simd128+nontrapping_fptoint"),
    *("-O3", "-Wall", "-Wextra", "-Werror", "-nostdlib", "-fPIC", "-shared", "-s"),
)


def build() -> Path:
    """Compiles SOURCE, unless that is done already; returns LIBRARY, relative to ROOT."""
    stamp = CACHE / "native" / "source"
    inputs = [SOURCE, HEADER, Path(LOCK_COMPILER.name)]
    wanted = f"{fingerprint(ROOT, inputs)} {' '.join(FLAGS)}"
    if stamp.is_file() and stamp.read_text() == wanted and (ROOT / LIBRARY).is_file():
        return LIBRARY
    stamp.parent.mkdir(parents=True, exist_ok=True)
    part = ROOT / LIBRARY.with_suffix(".part")
    try:
        pip.install(LOCK_COMPILER, "Installing the C compiler")
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            *FLAGS,
            "-o",
            part,
            SOURCE,
        ]
        run("Compiling the CPU kernels", command, {"ZIG_GLOBAL_CACHE_DIR": str(CACHE / "zig")})
    except HostError as error:
        raise HostError(
            f"{error}\nThe CPU kernels were not compiled. The compiler is PyPI's ziglang; it runs "
            f"on Linux, macOS and Windows. A copy of {LIBRARY} and {stamp.relative_to(ROOT)} from "
            "a machine that built this very source will do too."
        ) from None
    part.replace(ROOT / LIBRARY)
    stamp.write_text(wanted)
    return LIBRARY
