"""Archives of bytecode: what becomes of sources, what stays, and when it is made anew."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from engine.host import bytecode
from engine.host.errors import HostError
from engine.host.paths import DIST

MAGIC = (3531).to_bytes(2, "little") + b"\r\n"  # of CPython 3.12's bytecode
UNCHECKED = 0b01.to_bytes(4, "little")  # its source is never looked for (PEP 552)


def members(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as source:
        return {name: source.read(name) for name in source.namelist()}


def an_archive(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_sources_become_bytecode_once(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(bytecode, "FOLDER", tmp_path / "kept")
    info = "soft-1.dist-info/"
    texts = {"soft/a.py": "x = 1", "soft/data.txt": "kept", f"{info}RECORD": "soft/a.py,,"}
    wheel = an_archive(tmp_path / "soft-1-py3-none-any.whl", texts)
    plain = an_archive(tmp_path / "lib.zip", {"b.py": "y = 2", "deep/c.py": "z = 3"})
    first, second = bytecode.compiled([wheel, plain])
    found = members(first)
    assert set(found) == {"soft/a.pyc", "soft/data.txt", f"{info}RECORD"}
    assert found["soft/a.pyc"][:8] == MAGIC + UNCHECKED
    assert b"/lib/python3.12/site-packages/soft/a.py" in found["soft/a.pyc"], "tracebacks say it"
    assert found[f"{info}RECORD"].startswith(b"soft/a.pyc,sha256=")
    assert set(members(second)) == {"b.pyc", "deep/c.pyc"}
    assert b"/lib/python312.zip/deep/c.py" in members(second)["deep/c.pyc"]

    monkeypatch.setattr(bytecode, "run", lambda *_: pytest.fail("it is there already"))
    assert bytecode.compiled([wheel, plain]) == [first, second]
    assert bytecode.compiled([wheel]) == [first]
    assert not second.exists(), "what is not wanted any more is not kept"

    monkeypatch.undo()
    monkeypatch.setattr(bytecode, "FOLDER", tmp_path / "kept")
    an_archive(wheel, {"soft/a.py": "x = ("})
    with pytest.raises(HostError, match="Not compiled: soft-1"):
        bytecode.compiled([wheel])
    assert [path for path in (tmp_path / "kept").rglob("*") if path.is_file()] == []


def test_the_site_has_no_sources_of_python() -> None:
    archives = [*DIST.glob("pyodide/*.whl"), *DIST.glob("pyodide/*.zip")]
    assert len(archives) == 7
    for archive in archives:
        found = members(archive)
        assert not [name for name in found if name.endswith(".py")]
        assert all(data[:8] == MAGIC + UNCHECKED for n, data in found.items() if n.endswith(".pyc"))
