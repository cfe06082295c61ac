"""What can be said of a tensor's values in six numbers, for people who look inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Summary:
    """Of ``count`` values, of which ``not_finite`` are not a number or infinite; the others are
    between ``low`` and ``high``, with this ``mean`` and root mean square (0, if there are none)."""

    count: int
    not_finite: int
    low: float
    high: float
    mean: float
    rms: float

    def to_wire(self) -> dict[str, float]:
        """As it crosses to the page."""
        return vars(self)


def summarize(values: Any) -> Summary:
    """Of a NumPy array."""
    import numpy as np

    flat = values.reshape(-1).astype(np.float64)
    finite = flat[np.isfinite(flat)]
    if not len(finite):
        return Summary(len(flat), len(flat), 0.0, 0.0, 0.0, 0.0)
    low, high, mean = float(finite.min()), float(finite.max()), float(finite.mean())
    rms = float(np.sqrt((finite * finite).mean()))
    return Summary(len(flat), len(flat) - len(finite), low, high, mean, rms)
