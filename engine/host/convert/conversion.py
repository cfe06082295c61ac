"""From a source to DST/<name>.gguf and DST/<name>/, its shards: both are whole, or not there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine.host import shards
from engine.host.convert import families, writing
from engine.host.convert.folder import open_folder
from engine.host.convert.gguf_source import open_gguf
from engine.host.convert.model import Model
from engine.host.convert.results import results
from engine.host.errors import HostError
from engine.host.files import parts_of
from engine.host.progress import Step
from engine.models import ARCHITECTURES

COPIED = 1 << 22  # bytes at a time
KNOWN = {*ARCHITECTURES, *(family.architecture for family in families.FAMILIES.values())}


@dataclass(frozen=True)
class Places:
    """The GGUF file and the folder of its shards."""

    gguf: Path
    shards: Path


def convert(source: Path, destination: Path, quant: str | None = None) -> Places:
    """Converts `source`, a folder of Hugging Face or a GGUF file; `quant` is one of
    `quants.QUANTS`, or None to keep the weights as they are.

    Raises HostError for a source that cannot be converted, for results that exist already, and
    where there is no room.
    """
    return write_model(_open(source), source, destination, quant)


def write_model(model: Model, source: Path, destination: Path, quant: str | None = None) -> Places:
    """As `convert`, for a model that is open."""
    name = re.sub(r"[^\w.-]+", "-", f"{model.name}-{quant}" if quant else model.name)
    label = f"{model.name} ({quant.upper()})" if quant else model.name
    about = shards.About(name, label, f"{name}.gguf", source.resolve().name, model.license)
    with results(destination, f"{name}.gguf", name) as (file, folder):
        if quant is None and source.suffix == ".gguf" and len(parts_of(source)) == 1:
            _copy(source, file)
        else:
            writing.write(file, model, quant)
        shards.cut_unpinned(file, folder, about)
    return Places(destination / f"{name}.gguf", destination / name)


def _open(source: Path) -> Model:
    if source.is_dir():
        return open_folder(source)
    if not source.is_file():
        raise HostError(f"{source} is missing.")
    if source.suffix != ".gguf":
        raise HostError(f"{source} is neither a folder nor a GGUF file.")
    model = open_gguf(source)
    if model.architecture not in KNOWN:
        raise HostError(
            f"{source}: the architecture {model.architecture!r} is not supported. "
            f"Supported: {', '.join(sorted(KNOWN))}."
        )
    return model


def _copy(source: Path, target: Path) -> None:
    size = source.stat().st_size
    writing.check_loadable(source, size)
    writing.check_room(target.parent, writing.COPIES * size)
    with Step(f"Copying {source.name}") as step, source.open("rb") as old, target.open("wb") as new:
        while data := old.read(COPIED):
            new.write(data)
            step.update(new.tell(), size)
