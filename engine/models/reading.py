"""Reading metadata and weights out of a GGUF file, checked."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from engine.errors import OctavoError, shown
from engine.ops.linear import Stack
from engine.plan import Weight
from engine.weights.gguf import GGUF
from engine.weights.loading import check_sources
from engine.weights.quants import make_weight


def required(metadata: Mapping[str, Any], key: str) -> Any:
    """A metadata value, or OctavoError gguf.invalid."""
    if key not in metadata:
        raise OctavoError("gguf.invalid", f"The file does not say {key}.")
    return metadata[key]


def positive(metadata: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A metadata value that must be a positive integer, or OctavoError gguf.invalid."""
    value = metadata.get(key, default) if default is not None else required(metadata, key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise OctavoError("gguf.invalid", f"{key} should be a positive number, not {shown(value)}.")
    return value


def number(metadata: Mapping[str, Any], key: str, default: float) -> float:
    """A metadata value that must be a positive number, or OctavoError gguf.invalid."""
    value = metadata.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
        raise OctavoError("gguf.invalid", f"{key} should be a number above 0, not {shown(value)}.")
    return float(value)


def weight(gguf: GGUF, source: str, *shape: int) -> Weight:
    """The weight in one GGUF tensor."""
    return stacked(gguf, source, {source: shape[0]}, *shape[1:])


def stacked(gguf: GGUF, name: str, parts: Mapping[str, int], *row: int) -> Weight:
    """One matrix (sum of rows, k) made of several, or one vector (sum of rows,): ``parts`` maps
    tensor names to rows, ``row`` is the shape of a row. OctavoError model.quantization if they are
    quantized differently."""
    first, *others = stack(gguf, name, parts, *row)
    if others:
        quants = sorted({first.quant, *(other.quant for other in others)})
        raise OctavoError(
            "model.quantization", f"{name}: parts are quantized differently ({quants})."
        )
    return first


def stack(gguf: GGUF, name: str, parts: Mapping[str, int], *row: int) -> Stack:
    """As `stacked`, but neighbours that are quantized differently make matrices of their own."""
    quants = {s: check_sources(gguf, s, (rows, *row)).quant for s, rows in parts.items()}
    if not row and set(quants.values()) != {"F32"}:
        raise OctavoError(
            "model.quantization", f"{name}: a vector should be F32, not {set(quants.values())}."
        )
    groups = [(quant, tuple(sources)) for quant, sources in groupby(parts, key=quants.__getitem__)]
    names = [name] if len(groups) == 1 else [f"{name}.{i}" for i in range(len(groups))]
    return tuple(
        make_weight(own, row, quant, {source: parts[source] for source in sources})
        for own, (quant, sources) in zip(names, groups, strict=True)
    )
