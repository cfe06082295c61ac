"""Compiling the CPU kernels: once for the same source, and said clearly where it cannot be done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.backends.native import LIBRARY
from engine.host import native
from engine.host.errors import HostError
from engine.host.paths import ROOT


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own with the source and the lock; the compiler is left out."""
    for name in (native.SOURCE, *native.HEADERS, Path("requirements-compiler.lock")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(native, "ROOT", tmp_path)
    monkeypatch.setattr(native, "CACHE", tmp_path / ".cache")
    monkeypatch.setattr(native.pip, "install", lambda *_: None)
    return tmp_path


def test_the_same_source_is_compiled_once(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile(title: str, command: list[Any], env: dict[str, str]) -> None:
        compiled.append(command)
        command[command.index("-o") + 1].write_bytes(b"library")

    monkeypatch.setattr(native, "run", compile)
    assert (elsewhere / native.build()).read_bytes() == b"library"
    native.build()
    assert len(compiled) == 1
    sources = (native.SOURCE, *native.HEADERS)
    for source in sources:
        (elsewhere / source).write_text("// another")
        native.build()
    (elsewhere / native.LIBRARY).unlink()
    native.build()
    assert len(compiled) == 1 + len(sources) + 1


def test_a_machine_without_the_compiler_is_told_what_to_do(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise HostError("No matching distribution found for ziglang")

    monkeypatch.setattr(native.pip, "install", refuse)
    with pytest.raises(HostError, match=r"No matching.*\n.*kernels were not compiled.*ziglang"):
        native.build()
    assert not (elsewhere / native.LIBRARY).exists()


def test_the_wheel_has_the_library_where_the_engine_looks() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    place = LIBRARY.relative_to(ROOT).as_posix()
    assert f'"{native.LIBRARY.as_posix()}" = "{place}"' in text
