"""WGSL sources: joins a kernel file, library pieces and the generated binding header."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

Access = Literal["read", "read_write"]
Number = int | float


@cache
def wgsl_root() -> Path:
    """The folder of the WGSL files: inside the wheel, or beside the package in a checkout."""
    here = Path(__file__).parent
    packed = here / "wgsl"
    return packed if packed.is_dir() else here.parent / "wgsl"


@cache
def fingerprint() -> str:
    """Changes with any kernel: what was learned about others holds no longer."""
    digest = hashlib.sha256()
    for path in sorted(wgsl_root().rglob("*.wgsl")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def piece(name: str) -> str:
    """The text of ``wgsl/<name>.wgsl``."""
    return (wgsl_root() / f"{name}.wgsl").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Slot:
    """One storage binding of a kernel: its WGSL name, store type and access."""

    name: str
    type: str
    access: Access = "read"


@dataclass(frozen=True)
class Shader:
    """A compute kernel.

    ``consts`` become WGSL constants (they size arrays); ``overrides`` are pipeline constants
    declared in the kernel file (shapes and switches).
    """

    name: str
    slots: tuple[Slot, ...]
    lib: tuple[str, ...] = ()
    consts: Mapping[str, int] = field(default_factory=dict)
    overrides: Mapping[str, Number] = field(default_factory=dict)
    enable: tuple[str, ...] = ()

    def code(self) -> str:
        """The whole module, valid WGSL on its own."""
        head = [f"enable {name};" for name in self.enable]
        head += [f"const {name}: u32 = {value}u;" for name, value in self.consts.items()]
        head += [
            f"@group(0) @binding({i}) var<storage, {s.access}> {s.name}: {s.type};"
            for i, s in enumerate(self.slots)
        ]
        pieces = [piece(f"lib/{name}") for name in self.lib]
        return "\n".join([*head, *pieces, piece(self.name)])
