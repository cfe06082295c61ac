"""Rows of tensors as they lie in files: read some at a time, never mapped into memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.host.convert.model import Bytes
from engine.host.errors import HostError


@dataclass(frozen=True)
class Range:
    """Rows of `row_bytes` bytes each, which begin at `offset` in a file."""

    path: Path
    offset: int
    row_bytes: int

    def rows(self, first: int, last: int) -> Bytes:
        """(last - first, row_bytes). Raises HostError if the file ends before them."""
        count = (last - first) * self.row_bytes
        offset = self.offset + first * self.row_bytes
        try:
            data = np.fromfile(self.path, np.uint8, count, offset=offset)
        except OSError as error:
            raise HostError(f"{self.path} cannot be read: {error}") from None
        if len(data) < count:
            raise HostError(f"{self.path} ends too early: download it again.")
        return data.reshape(last - first, self.row_bytes)
