"""What a conversion makes gets its names only when it is whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.host.errors import HostError


@contextmanager
def results(destination: Path, *names: str) -> Iterator[list[Path]]:
    """Where to write files and folders that will have `names` in `destination`; what is there at
    the end gets its name, the first one last, and is removed after a failure.

    Raises HostError if one exists already, or cannot be written.
    """
    finals = [destination / name for name in names]
    parts = [destination / f"{name}.part" for name in names]
    for place in finals:
        if place.exists():
            raise HostError(f"{place} exists: delete it, or choose another folder.")
    try:
        destination.mkdir(parents=True, exist_ok=True)
        _remove(parts)  # what a conversion that was killed has left
        yield parts
        for part, final in reversed(list(zip(parts, finals, strict=True))):
            part.replace(final)
    except OSError as error:
        raise HostError(f"{destination} cannot be written: {error}") from None
    finally:
        _remove(parts)


def _remove(places: list[Path]) -> None:
    for place in places:
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)
