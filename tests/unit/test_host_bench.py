"""The bench command: its table, its aims, and what it does where there is nothing to measure."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine.host import bench, cli
from engine.host.errors import HostError
from engine.host.paths import ROOT

BY_HAND = sorted([*ROOT.glob("tests/bench/*.py"), *ROOT.glob("tests/bench/peers/*.py")])


@pytest.mark.parametrize("path", BY_HAND, ids=lambda path: path.stem)
def test_what_is_measured_by_hand_can_be_started(path: Path) -> None:
    importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def row(id: str, value: float, unit: str = "", note: str = "") -> dict[str, Any]:
    return {"id": id, "label": id, "value": value, "unit": unit, "note": note}


def result(
    *rows: dict[str, Any], kind: str = "webgpu", software: bool = False, model: str = "Some model"
) -> dict[str, Any]:
    device = {"kind": kind, "name": "Some device", "software": software, "reason": ""}
    return {"device": device, "model": {"name": model}, "rows": list(rows)}


def line_of(lines: list[str], start: str) -> str:
    return next(line for line in lines if line.startswith(start))


def test_an_aim_stands_beside_its_figure_on_the_device_it_is_for() -> None:
    rows = (row("decode_64_tokens_per_s", 1.5, "tokens/s"), row("host_64_percent", 25.0, "%"))
    small = "SmolLM2 135M Instruct (Q4_1)"
    software = bench.table("t", [result(*rows, software=True, model=small)])
    gpu = bench.table("t", [result(*rows, model=small)])
    assert ">= 4 tokens/s: MISSED" in line_of(software, "decode_64")
    assert ":" not in line_of(software, "host_64")
    assert ">= 600 tokens/s: MISSED" in line_of(gpu, "decode_64")
    assert "<= 5 %: MISSED" in line_of(gpu, "host_64")
    other = bench.table("t", [result(*rows)])
    assert ":" not in line_of(other, "decode_64"), "an aim for one model is none for another"
    assert "<= 5 %: MISSED" in line_of(other, "host_64")


@pytest.mark.parametrize("value, outcome", [(1.1, "met"), (1.2, "MISSED")])
def test_a_limit_itself_is_met(value: float, outcome: str) -> None:
    lines = bench.table("t", [result(row("ttft_first_to_second", value, "times"), kind="cpu")])
    assert lines[-1].endswith(f"<= 1.1 times: {outcome}")


def test_several_runs_show_medians_and_why_the_cpu_computes() -> None:
    runs = [result(row("a", value), kind="cpu") for value in (1.0, 9.0, 2.0)]
    runs[2]["rows"].append(row("only here", 1.0))
    runs[0]["device"]["reason"] = "There is no GPU."
    lines = bench.table("Title", runs)
    assert lines[:2] == [
        "Title: Some model on Some device, medians of 3 runs",
        "There is no GPU.",
    ]
    assert lines[2].split() == ["a", "2"]
    assert len(lines) == 3


@pytest.mark.parametrize(
    "value, shown",
    [(0.0464, "0.046"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1234"), (8.0, "8")],
)
def test_numbers_show_the_digits_that_count(value: float, shown: str) -> None:
    assert bench._number(value) == shown


def test_parameters_are_name_and_value() -> None:
    assert bench._parameters(["quick=1", "contexts=64,128"]) == {
        "quick": "1",
        "contexts": "64,128",
    }
    with pytest.raises(HostError, match="NAME=VALUE"):
        bench._parameters(["quick"])


PAGES = ("bench.mjs", "bench_embeddings.mjs", "bench_kv.mjs", "bench_stops.mjs", "bench_text.mjs")


def test_every_aim_names_a_row_that_the_page_makes() -> None:
    page = "".join((ROOT / "web" / name).read_text() for name in PAGES)
    made = re.findall(r'add\([`"]((?:\w|\$\{\w+\})+)[`"]', page)
    assert len(made) > 10
    patterns = [re.sub(r"\$\{\w+\}", r"\\w+", id) for id in made]
    for aim in bench.AIMS:
        assert any(re.fullmatch(pattern, aim.row) for pattern in patterns), aim.row


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed, built or served."""

    @contextmanager
    def served(folder: Path, headers: Mapping[str, str]) -> Iterator[str]:
        yield "http://there"

    monkeypatch.setattr(bench.pip, "install", lambda lock, title: None)
    monkeypatch.setattr(bench.chromium, "ensure", lambda: "chromium")
    monkeypatch.setattr(bench.assemble, "build", lambda: Path())
    monkeypatch.setattr(bench, "_served", served)


def arguments(*words: str) -> argparse.Namespace:
    return cli._parse(["bench", *words])


@pytest.mark.usefixtures("prepared")
def test_auto_measures_both_ways_unless_the_first_found_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = {"auto": result(kind="cpu"), "gpu": result(software=True)}
    asked: list[str] = []

    def run(playwright: Any, browser: str, flags: list[str], url: str) -> dict[str, Any]:
        asked.append(url)
        return found["gpu" if "device=gpu" in url else "auto"]

    monkeypatch.setattr(bench, "_run", run)
    file = tmp_path / "new" / "result.json"
    command = arguments("--json", str(file), "--set", "quick=1")
    assert bench.main(command) == 0
    written = json.loads(file.read_text())
    assert [m["runs"][0]["device"]["kind"] for m in written["measured"]] == ["cpu", "webgpu"]
    assert asked[0] == "http://there/bench.html?device=auto&start=1&quick=1"
    found["auto"] = result()
    assert bench.main(command) == 0
    assert len(asked) == 3


@pytest.mark.usefixtures("prepared")
def test_embeddings_are_measured_on_a_page_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked: list[str] = []

    def run(playwright: Any, browser: str, flags: list[str], url: str) -> dict[str, Any]:
        asked.append(url)
        return result(row("octavo_to_peer_16x1", 1.4, "times"), model="MiniLM")

    monkeypatch.setattr(bench, "_run", run)
    monkeypatch.setattr(bench.peers, "build_embeddings", lambda: Path())
    assert bench.main(arguments("--embeddings", "--json", str(tmp_path / "result.json"))) == 0
    # By "auto" a peer would not say that there is no GPU.
    page = "http://there/bench_embeddings.html"
    assert asked == [f"{page}?device=gpu&start=1&peer=embeddings"]
    assert "MISSED" in capsys.readouterr().out


@pytest.mark.usefixtures("prepared")
def test_no_adapter_is_said_and_another_failure_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    failure = {"error": {"code": bench.NO_ADAPTER, "message": "None here."}}
    monkeypatch.setattr(bench, "_run", lambda *_: failure)
    file = tmp_path / "result.json"
    assert bench.main(arguments("--device", "gpu", "--json", str(file))) == 1
    assert "no WebGPU adapter" in capsys.readouterr().out
    assert not file.exists()
    failure["error"]["code"] = "shard.hash"
    with pytest.raises(HostError, match=r"None here\."):
        bench.main(arguments("--device", "gpu"))
    with pytest.raises(HostError, match="--runs"):
        bench.main(arguments("--runs", "0"))


def test_kernel_table_puts_the_longest_first() -> None:
    rows = [["rmsnorm", 2, 0.5], ["linear 64x64", 4, 2.0]]
    assert bench.kernel_table({"kernels": {"context 64": {"decode": rows}}}) == [
        "decode, context 64: 2.50 ms",
        "  linear 64x64                           4 x     500.0 us     2.00 ms",
        "  rmsnorm                                2 x     250.0 us     0.50 ms",
    ]
    assert bench.kernel_table({}) == []
