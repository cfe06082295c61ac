"""`bench`: measures the page in real Chromium, prints a table, writes JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import uvicorn

from engine.host import assemble, chromium, comparison, peers, pip, serve
from engine.host.errors import HostError
from engine.host.paths import CACHE, INSTALLED, LOCK_TEST

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page, Playwright

RESULTS = CACHE / "bench.json"
WEBGPU_FLAG = "--enable-unsafe-webgpu"  # where Chromium has WebGPU off, or only in software
STILL_S = 300.0  # without a word from the page for so long, it hangs
NO_ADAPTER = "gpu.unavailable"  # error code

Row = Mapping[str, Any]  # as web/bench.mjs makes it: id, label, value, unit, note


@dataclass(frozen=True)
class Way:
    """One way to run the page: a device asked for, and Chromium's flags."""

    title: str
    device: str
    flags: tuple[str, ...] = ()


PLAIN = Way("Chromium without flags", "auto")
WAYS = {
    "auto": (PLAIN, Way(f"Chromium with {WEBGPU_FLAG}", "gpu", (WEBGPU_FLAG,))),
    "gpu": (Way(f"Chromium with {WEBGPU_FLAG}", "gpu", (WEBGPU_FLAG,)),),
    "cpu": (Way("Chromium, CPU device", "cpu"),),
}


@dataclass(frozen=True)
class Aim:
    """What a figure should be, on the kinds of device that `devices` names, for models whose name
    has `model` in it. What depends on the machine is meant for the ones in tests/bench/LOG.md:
    an H200, and two slow cores."""

    row: str  # its id
    limit: float
    at_least: bool
    devices: tuple[str, ...] = ("gpu", "software", "cpu")
    model: str = ""

    def text(self, unit: str) -> str:
        """For the table: `>= 2 tokens/s`."""
        return f"{'>=' if self.at_least else '<='} {self.limit:g} {unit}".rstrip()

    def is_met(self, value: float) -> bool:
        """Whether `value` is on the right side of the limit."""
        return value >= self.limit if self.at_least else value <= self.limit


SMALL, LARGE = "SmolLM2 135M", "Qwen2.5-1.5B"
AIMS = (
    # four times the best peer without a flag, and native llama.cpp on the same GPU
    Aim("decode_64_tokens_per_s", 600, True, ("gpu",), SMALL),
    Aim("decode_1024_tokens_per_s", 600, True, ("gpu",), SMALL),
    Aim("decode_64_tokens_per_s", 400, True, ("gpu",), LARGE),
    Aim("decode_1024_tokens_per_s", 400, True, ("gpu",), LARGE),
    Aim("decode_far_to_near", 1.5, False, ("gpu",)),
    Aim("token_to_skeleton", 1.3, False, ("gpu",)),
    Aim("sampled_to_greedy", 1.05, False, ("gpu",)),
    Aim("all_options_to_greedy", 1.05, False, ("gpu",)),
    # 1.6 times the best peer without a flag
    Aim("prefill_512_tokens_per_s", 46_000, True, ("gpu",), SMALL),
    Aim("prefill_512_tokens_per_s", 14_500, True, ("gpu",), LARGE),
    Aim("weights_cached_mb_per_s", 1500, True, ("gpu",)),
    Aim("host_64_percent", 5, False, ("gpu",)),
    Aim("host_1024_percent", 5, False, ("gpu",)),
    Aim("dispatches_a_layer", 6, False, ("gpu",)),
    Aim("decode_64_tokens_per_s", 4, True, ("software",), SMALL),
    # twice what wllama does with one thread, and more than with two
    Aim("decode_64_tokens_per_s", 12, True, ("cpu",), SMALL),
    Aim("prefill_512_tokens_per_s", 19, True, ("cpu",), SMALL),
    Aim("tokenizer_tokens_per_s", 64_000, True),
    Aim("ttft_first_to_second", 1.1, False),
    # two bursts of 20 ms are in flight; a prefill chunk takes 50 ms
    Aim("stop_decode_ms", 60, False, ("gpu", "cpu")),
    Aim("stop_prefill_ms", 60, False, ("gpu", "cpu")),
    Aim("reuse", 5, True),
    Aim("kv_utilization_percent", 95, True),
    Aim("kv_context_times", 4, True),
    # a software adapter decodes too few tokens here to tell
    Aim("paged_to_contiguous", 1.03, False, ("gpu", "cpu")),
    # sentences a second, to transformers.js
    *(
        Aim(f"octavo_to_peer_{length}x{batch}", 1.5, True, ("gpu",))
        for length in (16, 128, 512)
        for batch in (1, 32)
    ),
    *(Aim(f"octavo_to_peer_16x{batch}", 1, True, ("cpu",)) for batch in (1, 4)),
)
PAGE, EMBEDDINGS_PAGE = "bench.html", "bench_embeddings.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which devices, how often, and where the result goes."""
    parser.add_argument(
        "--device",
        choices=tuple(WAYS),
        default="auto",
        help="auto: what Chromium offers without a flag, then its WebGPU with a flag",
    )
    parser.add_argument(
        "--chromium-flag",
        action="append",
        default=[],
        metavar="FLAG",
        help="another flag for Chromium, as in --chromium-flag=--enable-features=Vulkan",
    )
    parser.add_argument("--runs", type=int, default=1, help="whole runs; medians are shown")
    parser.add_argument(
        "--kernels", action="store_true", help="also the time of every kernel and of its variants"
    )
    parser.add_argument(
        "--peers", action="store_true", help="then measure other engines on the same weights"
    )
    parser.add_argument(
        "--peers-site",
        type=Path,
        metavar="DIR",
        help="only write the folder that --peers serves, for a machine without a network",
    )
    parser.add_argument(
        "--embeddings",
        action="store_true",
        help="instead: sentences a second, beside transformers.js on the same weights",
    )
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="the result")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an address parameter of bench.html, such as quick=1 or contexts=64,4096",
    )


def main(arguments: argparse.Namespace) -> int:
    """The command; 1 if nothing could be measured."""
    if arguments.runs < 1:
        raise HostError("--runs should be at least 1.")
    parameters = {"tune": "1"} if arguments.kernels else {}
    parameters |= _parameters(arguments.set)
    if INSTALLED and (arguments.peers or arguments.peers_site or arguments.embeddings):
        raise HostError("Peers are measured out of the repository only.")
    if arguments.peers_site:
        peers.write(arguments.peers_site)
        print(f"Written to {arguments.peers_site}", flush=True)
        return 0
    if arguments.peers:
        parameters = {"compare": "1", **parameters}
    if arguments.embeddings:
        parameters = {"peer": "embeddings", **parameters}
    pip.install(LOCK_TEST, "Installing the test tools")
    browser = chromium.ensure()
    measured: list[dict[str, Any]] = []
    folder, headers = _site(arguments)
    with _served(folder, headers) as url:
        for way in _ways(arguments):
            if measured and _kind(measured[0]["runs"][0]) == "gpu":
                break  # the real GPU needed no flag: the flag would bring the same one
            runs = _runs(way, browser, url, arguments, parameters)
            if runs:
                measured.append({"title": way.title, "flags": list(way.flags), "runs": runs})
                kernels = kernel_table(runs[-1]) if arguments.kernels else []
                kernels += variant_table(runs[0]) if arguments.kernels else []
                print("\n".join(["", *table(way.title, runs), *kernels, ""]), flush=True)
                if arguments.peers:
                    found = _compared(way, runs, browser, url, arguments, parameters)
                    measured[-1]["comparison"] = found
    if not measured:
        return 1
    _write(arguments.json, browser, measured)
    return 0


def _site(arguments: argparse.Namespace) -> tuple[Path, Mapping[str, str] | None]:
    """What is served, and the headers that it needs."""
    if arguments.embeddings:
        return peers.build_embeddings(), None
    return (peers.build(), peers.ISOLATED) if arguments.peers else (assemble.build(), None)


def _ways(arguments: argparse.Namespace) -> Sequence[Way]:
    """How the page is run. A peer that finds no GPU does not take the CPU by itself."""
    ways = WAYS[arguments.device]
    if not arguments.embeddings:
        return ways
    return [replace(way, device="gpu") if way.device == "auto" else way for way in ways]


def _parameters(words: Sequence[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise HostError("--set takes NAME=VALUE.")
    return {name: value for name, _, value in pairs}


def _runs(
    way: Way, browser: str, url: str, arguments: argparse.Namespace, parameters: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The results of all runs; none where this way has no device to measure."""
    from playwright.sync_api import sync_playwright

    flags = [*way.flags, *arguments.chromium_flag]
    query = urlencode({"device": way.device, "start": "1", **parameters})
    page = EMBEDDINGS_PAGE if arguments.embeddings else PAGE
    runs = []
    with sync_playwright() as playwright:
        for number in range(arguments.runs):
            print(f"{way.title}, run {number + 1} of {arguments.runs}", flush=True)
            result = _run(playwright, browser, flags, f"{url}/{page}?{query}")
            if result.get("error", {}).get("code") == NO_ADAPTER and way.device == "gpu":
                print("This Chromium offers no WebGPU adapter: nothing to measure.", flush=True)
                return []
            if "error" in result:
                raise HostError(f"The bench page failed: {result['error']['message']}")
            runs.append(result)
    return runs


def _compared(
    way: Way,
    runs: Sequence[Mapping[str, Any]],
    browser: str,
    url: str,
    arguments: argparse.Namespace,
    parameters: Mapping[str, str],
) -> dict[str, Any]:
    """Measures the peers where Octavo was measured, prints the table, returns it for the file."""
    kind = _kind(runs[0])
    fixed = {"device": "cpu" if kind == "cpu" else "gpu", "start": "1"}
    found = []
    for job in comparison.jobs(kind):
        print(job.title, flush=True)
        flags = [*way.flags, *job.flags, *arguments.chromium_flag]
        query = urlencode({**fixed, **parameters, **job.parameters})
        found.append(_peer(job, browser, flags, f"{url}/{PAGE}?{query}", arguments.runs))
    octavo = comparison.entry(runs)
    print("\n".join(["", *comparison.table(octavo, found), ""]), flush=True)
    return comparison.document(octavo, found)


def _peer(
    job: comparison.Job, browser: str, flags: Sequence[str], url: str, count: int
) -> comparison.Entry:
    """One peer, measured `count` times; its failure is a line of the table, not the end."""
    from playwright.sync_api import sync_playwright

    results = []
    with sync_playwright() as playwright:
        for _ in range(count):
            try:
                result = _run(playwright, browser, flags, url)
            except HostError as error:
                return comparison.failed(job, str(error))
            if "error" in result:
                return comparison.failed(job, result["error"]["message"])
            results.append(result)
    return comparison.entry(results)


def _run(playwright: Playwright, browser: str, flags: Sequence[str], url: str) -> dict[str, Any]:
    """One page in a fresh profile on the disk, so that its caches are those of a visitor."""
    with tempfile.TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile, executable_path=browser, headless=True, args=list(flags)
        )
        try:
            return _follow(context.new_page(), url)
        finally:
            context.close()


def _follow(page: Page, url: str) -> dict[str, Any]:
    """Prints what the page says; returns its result."""
    started = time.monotonic()
    last = [started]

    def show(message: ConsoleMessage) -> None:
        last[0] = time.monotonic()
        if message.text.startswith("bench: "):
            print(f"  {last[0] - started:6.1f} s  {message.text[7:]}", flush=True)

    page.on("console", show)
    page.add_init_script("window.losesGpu = true")  # as soon as the page wants it
    page.goto(url)
    lost = False
    while time.monotonic() - last[0] < STILL_S:
        if not lost and page.evaluate("Boolean(window.wantsLoss)"):
            page.context.new_cdp_session(page).send("Browser.crashGpuProcess")
            lost = True
        result: dict[str, Any] | None = page.evaluate("window.benchResult")
        if result is not None:
            return result
        page.wait_for_timeout(500)
    raise HostError(f"The bench page has been silent for {STILL_S:.0f} seconds.")


@contextmanager
def _served(folder: Path, headers: Mapping[str, str] | None) -> Iterator[str]:
    """Serves `folder` in a thread; yields the address without a closing slash."""
    listener = serve.listen("127.0.0.1", 0)
    config = uvicorn.Config(serve.application(folder, headers), log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def _kind(result: Mapping[str, Any]) -> str:
    """`gpu`, `software` (a GPU adapter that the CPU computes) or `cpu`."""
    device = result["device"]
    if device["kind"] == "cpu":
        return "cpu"
    return "software" if device["software"] else "gpu"


def medians(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the first run, each with the median of the runs that have it."""
    rows = []
    for row in runs[0]["rows"]:
        same = [other["value"] for run in runs for other in run["rows"] if other["id"] == row["id"]]
        rows.append({**row, "value": statistics.median(same)})
    return rows


def table(title: str, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table: figure, unit, aim and whether it is met, note."""
    first = runs[0]
    count = f", medians of {len(runs)} runs" if len(runs) > 1 else ""
    lines = [f"{title}: {first['model']['name']} on {first['device']['name']}{count}"]
    if first["device"].get("reason"):
        lines.append(first["device"]["reason"])
    for row in medians(runs):
        value = f"{row['label']:<46}{_number(row['value']):>9} {row['unit']:<9}"
        aim = _aim(row, _kind(first), first["model"]["name"])
        lines.append(f"{value}{aim:<30}{row['note']}".rstrip())
    return lines


def kernel_table(result: Mapping[str, Any]) -> list[str]:
    """Time of every kernel of a plan, each dispatch timed alone, the longest first."""
    lines = []
    for context, plans in result.get("kernels", {}).items():
        for plan, rows in plans.items():
            lines.append(f"{plan}, {context}: {sum(row[2] for row in rows):.2f} ms")
            for label, count, ms in sorted(rows, key=lambda row: -row[2]):
                lines.append(f"  {label:<36}{count:>4} x {ms / count * 1e3:>9.1f} us{ms:>9.2f} ms")
    return lines


def variant_table(result: Mapping[str, Any]) -> list[str]:
    """Time and bytes of every variant of a kernel; the chosen one has a star."""
    variants = result.get("variants", [])
    lines = ["Variants of kernels:"] if variants else []
    label = ""
    for row in variants:
        lines += [f"  {row['label']}"] if row["label"] != label else []
        label = row["label"]
        mark = "*" if row["chosen"] else " " if row["right"] else "wrong"
        figures = f"{row['us']:>9.1f} us{row['gb_per_s']:>8.0f} GB/s"
        lines.append(f"    {row['variant']:<24}{figures}  {mark}".rstrip())
    return lines


def _aim(row: Row, kind: str, model: str) -> str:
    for aim in AIMS:
        if aim.row == row["id"] and kind in aim.devices and aim.model in model:
            return f"{aim.text(row['unit'])}: {'met' if aim.is_met(row['value']) else 'MISSED'}"
    return ""


def _number(value: float) -> str:
    """Three digits that count, without an exponent."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.{1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3}f}"


def _write(path: Path, browser: str, measured: Sequence[Mapping[str, Any]]) -> None:
    document = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        },
        "browser": browser,
        "aims": [{**vars(aim)} for aim in AIMS],
        "measured": measured,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"Written to {path}", flush=True)
