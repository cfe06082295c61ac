"""Octavo beside its peers: what is measured, and the table of it.

    python3 -m engine.host.comparison FILE

prints the table of a FILE with one JSON text a line: what pages opened with `report=1` have sent.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Chromium has shader-f16 off for NVIDIA under Vulkan; wllama computes on the CPU without it.
F16_FLAG = "--enable-dawn-features=vulkan_enable_f16_on_nvidia"


@dataclass(frozen=True)
class Job:
    """One setting of a peer: parameters of bench.html's address, and Chromium's flags."""

    parameters: Mapping[str, str]
    flags: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The job in words, before its page has said more."""
        return " ".join(self.parameters.values())


@dataclass(frozen=True)
class Entry:
    """What was measured of one engine; `error` says why it was not."""

    name: str
    device: str = ""
    note: str = ""
    values: Mapping[str, float] = field(default_factory=dict)  # by row, see COLUMNS
    error: str = ""


TOKENIZERS = Job({"engine": "tokenizers"})
# On the CPU the builds of onnxruntime-web lack the operator of the embedding's four bits.
JOBS = {
    "gpu": (
        Job({"engine": "wllama"}, flags=(F16_FLAG,)),
        Job({"engine": "transformers"}),
        Job({"engine": "onnxruntime", "graph": "model_q4.onnx"}),
        Job({"engine": "onnxruntime", "graph": "model_q4a0.onnx"}),
        TOKENIZERS,
    ),
    "cpu": (
        Job({"engine": "wllama", "threads": "1"}),
        Job({"engine": "wllama", "threads": "2"}),
        TOKENIZERS,
    ),
}
# Units of the rows; of all others more is better.
LESS_IS_BETTER = {"ttft": "ms", "load": "s"}


def jobs(kind: str) -> Sequence[Job]:
    """The peers to measure where Octavo computes on a device of `kind`."""
    return JOBS["cpu" if kind == "cpu" else "gpu"]


def entry(runs: Sequence[Mapping[str, Any]]) -> Entry:
    """The medians of some runs of one engine."""
    first = runs[0]["compared"]
    values: dict[str, list[float]] = {}
    for run in runs:
        for row in run["compared"]["rows"]:
            values.setdefault(row["id"], []).append(row["value"])
    return Entry(
        first["name"],
        first["device"],
        first["note"],
        {id: statistics.median(found) for id, found in values.items()},
    )


def failed(job: Job, message: str) -> Entry:
    """The entry of a peer that could not be measured."""
    return Entry(job.title, error=message)


def ratios(octavo: Entry, peers: Sequence[Entry]) -> dict[str, dict[str, Any]]:
    """For each row: how many times as fast Octavo is as the best peer, and which that is."""
    found = {}
    for row, own in octavo.values.items():
        rivals = [peer for peer in peers if row in peer.values]
        if not rivals:
            continue
        if _unit(row):
            best = min(rivals, key=lambda peer: peer.values[row])
            ratio = best.values[row] / own
        else:
            best = max(rivals, key=lambda peer: peer.values[row])
            ratio = own / best.values[row]
        found[row] = {"ratio": ratio, "peer": best.name}
    return found


def table(octavo: Entry, peers: Sequence[Entry]) -> list[str]:
    """The lines of the comparison: figures, ratios, then what each engine ran on."""
    rows = list(octavo.values)
    headings = [f"{row} {_unit(row)}".rstrip() for row in rows]
    lines = ["The same weights in one run; tokens/s where no unit is said", _line("", headings)]
    for engine in (octavo, *peers):
        if not engine.error:
            cells = [_number(engine.values[row]) if row in engine.values else "-" for row in rows]
            lines.append(_line(engine.name, cells))
    compared = ratios(octavo, peers)
    if compared:
        shown = [f"{compared[row]['ratio']:.2f} x" if row in compared else "-" for row in rows]
        lines.append(_line("Octavo / best peer", shown))
    for engine in (octavo, *peers):
        if engine.error:
            lines.append(f"{engine.name}: not measured: {engine.error}")
        else:
            facts = "; ".join(filter(None, (engine.device, engine.note)))
            lines.append(f"{engine.name}: {facts}")
    return lines


def _unit(row: str) -> str:
    return LESS_IS_BETTER.get(row.partition("_")[0], "")


def _line(name: str, cells: Sequence[str]) -> str:
    return f"{name:<36}" + "".join(f"{cell:>14}" for cell in cells)


def _number(value: float) -> str:
    """Three digits that count."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def document(octavo: Entry, peers: Sequence[Entry]) -> dict[str, Any]:
    """The comparison for the JSON file."""
    engines = [dict(vars(engine)) for engine in (octavo, *peers)]
    return {"engines": engines, "ratios": ratios(octavo, peers)}


def from_log(lines: Iterable[str]) -> list[Entry]:
    """The engines of which `lines` hold results; several results of one are its runs."""
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line.startswith("{") and "compared" in (sent := json.loads(line)):
            runs.setdefault(sent["compared"]["name"], []).append(sent)
    return [entry(found) for found in runs.values()]


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        own, *others = sorted(from_log(file), key=lambda engine: engine.name != "Octavo")
    print("\n".join(table(own, others)))
