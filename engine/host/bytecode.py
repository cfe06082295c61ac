"""Archives of Python whose sources have become bytecode: half of a tab's start was compiling."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from engine.host import npm, pins, wheels
from engine.host.files import file_sha256, sha256
from engine.host.paths import CACHE, NODE_MODULES
from engine.host.process import run

FOLDER = CACHE / "bytecode"
SCRIPT = Path(__file__).with_suffix(".mjs")


def compiled(archives: Sequence[Path]) -> list[Path]:
    """The same wheels and zip files, with x.pyc in the place of each x.py, compiled by the Python
    in Pyodide. They are kept in FOLDER as long as nothing has changed, and others are not."""
    kept = {archive: FOLDER / _key(archive) / archive.name for archive in archives}
    _remove_others({target.parent.name for target in kept.values()})
    missing = {archive: target for archive, target in kept.items() if not target.is_file()}
    if missing:
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER.parent) as work:
            _compile(list(missing), Path(work))
            for archive, target in missing.items():
                wheels.write_archive(target, _members(archive, Path(work) / archive.name))
    return list(kept.values())


def _key(archive: Path) -> str:
    return sha256(f"{pins.PYODIDE} {file_sha256(SCRIPT)} {file_sha256(archive)}".encode())[:16]


def _remove_others(keys: set[str]) -> None:
    for folder in FOLDER.glob("*"):
        if folder.name not in keys:
            shutil.rmtree(folder)


def _compile(archives: Sequence[Path], work: Path) -> None:
    """Puts x.pyc beside x.py in a folder for each archive, of its name, in ``work``."""
    for archive in archives:
        with zipfile.ZipFile(archive) as source:
            members = [name for name in source.namelist() if name.endswith(".py")]
            source.extractall(work / archive.name, members)
    command = [npm.node(), str(SCRIPT), str(NODE_MODULES / pins.PYODIDE_FOLDER), str(work)]
    run("Compiling Python to bytecode", command)


def _members(archive: Path, folder: Path) -> dict[str, bytes]:
    """What the new archive holds: as ``archive``, with the bytecode of ``folder``."""
    members: dict[str, bytes] = {}
    with zipfile.ZipFile(archive) as source:
        for name in source.namelist():
            if name.endswith(".py"):
                members[f"{name}c"] = (folder / f"{name}c").read_bytes()
            elif not name.endswith("/"):
                members[name] = source.read(name)
    for name in [name for name in members if name.endswith(".dist-info/RECORD")]:
        del members[name]
        members[name] = wheels.record(members, name)
    return members
