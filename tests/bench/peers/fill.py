"""Fills a folder's model files with the random weights that weights.json beside this file names.

    python3 fill.py

For a machine without a network: the files are sent with zeros in place of the matrices. Needs
NumPy alone; the same numbers come out everywhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

LARGEST = 0.08  # uniform up to here: about the deviation of a trained BERT


def matrix(seed: int, shape: tuple[int, ...]) -> Any:
    """Random weights, f32; the legacy generator's numbers never change."""
    values = np.random.RandomState(seed).random_sample(shape)
    return ((values - 0.5) * (2 * LARGEST)).astype(np.float32)


def main() -> None:
    """Writes the matrices into the files, which are read as one where they were cut."""
    here = Path(__file__).parent
    for group in json.loads((here / "weights.json").read_text()):
        paths = [here / name for name in group["files"]]
        sizes = [path.stat().st_size for path in paths]
        data = bytearray(b"".join(path.read_bytes() for path in paths))
        for start, seed, shape, transposed in group["matrices"]:
            values = matrix(seed, tuple(shape))
            raw = np.ascontiguousarray(values.T if transposed else values).tobytes()
            data[start : start + len(raw)] = raw
        at = 0
        for path, size in zip(paths, sizes, strict=True):
            path.write_bytes(data[at : at + size])
            at += size


if __name__ == "__main__":
    main()
