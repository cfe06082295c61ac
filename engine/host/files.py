"""Small helpers for files: whole or not at all, and their hashes."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.host.errors import HostError

CHUNK = 1 << 20
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, data: bytes) -> bool:
    """Writes `data` beside `path`, then renames: a reader sees the old file or the new one.

    Returns False, and leaves the file alone, if it holds `data` already.
    """
    if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)
    return True


def tree(folder: Path, keep: Callable[[Path], bool] = lambda path: True) -> Iterator[Path]:
    """The files under `folder` for which `keep` holds, sorted, relative to it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and keep(path):
            yield path.relative_to(folder)


def fingerprint(root: Path, paths: Iterable[Path]) -> str:
    """One hash over the names and contents of `paths` (relative to `root`), in the order given."""
    total = hashlib.sha256()
    for path in paths:
        total.update(f"{path.as_posix()}\0{file_sha256(root / path)}\n".encode())
    return total.hexdigest()


def parts_of(path: Path) -> list[Path]:
    """All files of the model that `path` is, or is a part of; HostError if one is missing."""
    split = _PART.fullmatch(path.name)
    count = int(split[3]) if split else 1
    names = [f"{split[1]}-{i + 1:05}-of-{split[3]}.gguf" for i in range(count)] if split else []
    parts = [path.with_name(name) for name in names] or [path]
    for part in parts:
        if not part.is_file():
            of = f": the model is in {count} files" if split else ""
            raise HostError(f"There is no file {part}{of}.")
    return parts


def name_of(path: Path) -> str:
    """A model's file name without what says that it is a part."""
    split = _PART.fullmatch(path.name)
    return split[1] if split else path.name.removesuffix(".gguf")


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Waits until no other process is inside with the same `path`; a no-op on Windows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        if os.name != "nt":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
