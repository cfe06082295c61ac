"""Models that are split over several GGUF files (``-00001-of-0000N``), as llama.cpp writes them.

Each file has a header of its own and the data of its tensors; the first one has the metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.errors import OctavoError
from engine.weights.gguf import GGUF, TensorInfo

COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"


def join(parts: Sequence[GGUF]) -> GGUF:
    """The headers of all files of a model, in order, as one of the files laid end to end: offsets
    count from the beginning of the first. OctavoError gguf.invalid if they do not belong together.
    """
    metadata = parts[0].metadata
    count = metadata.get(COUNT, 1)
    if count != len(parts):
        raise OctavoError(
            "gguf.invalid",
            f"The model is split into {count!r} files, but there are {len(parts)}.",
            "Open all of its files together.",
        )
    tensors: dict[str, TensorInfo] = {}
    start = 0
    for number, part in enumerate(parts):
        if len(parts) > 1 and part.metadata.get(NUMBER) != number:
            raise _mixed(f"File {number + 1} says that it is another one.")
        for name, info in part.tensors.items():
            if name in tensors:
                raise _mixed(f"The tensor {name!r} is in two files.")
            tensors[name] = replace(info, offset=start + info.offset)
        start += part.size
    expected: Any = metadata.get(TENSORS, len(tensors))
    if expected != len(tensors):
        raise _mixed(f"The files have {len(tensors)} tensors of {expected!r}.")
    return replace(parts[0], tensors=tensors, size=start)


def _mixed(message: str) -> OctavoError:
    return OctavoError("gguf.invalid", message, "The files seem to be of different models.")
