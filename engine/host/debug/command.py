"""`debug`: runs a prompt call by call, and finds the first tensor that is not what it should be."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from engine.errors import OctavoError
from engine.host import pip
from engine.host.errors import HostError
from engine.host.paths import LOCK_TEST

PROMPT = "What is the capital of France?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the prompt, what computes, and what is told."""
    parser.add_argument(
        "model",
        type=Path,
        nargs="?",
        metavar="MODEL",
        help="a .gguf, a folder of shards, or an .onnx; the default model without it",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="with the NumPy reference of every call; without, only what is not finite is found",
    )
    parser.add_argument("--prompt", default=PROMPT, metavar="TEXT", help=f"default: {PROMPT!r}")
    parser.add_argument("--raw", action="store_true", help="the prompt as it is, without template")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="default: gpu")
    parser.add_argument("--layer", type=int, metavar="N", help="only the calls of this layer")
    parser.add_argument("--all", action="store_true", help="a table of all calls")
    parser.add_argument("--steps", type=int, default=1, help="tokens to decode after the prompt")
    parser.add_argument("--context", type=int, default=2048, help="tokens; default: 2048")
    parser.add_argument("--activations", choices=("auto", "f32", "q16", "q8"), default="auto")
    parser.add_argument("--kv-precision", choices=("f16", "q8"), default="f16", help="default: f16")
    parser.add_argument(
        "--looser", type=float, default=1.0, metavar="FACTOR", help="of all tolerances"
    )
    parser.add_argument(
        "--chromium-flag",
        action="append",
        default=[],
        metavar="FLAG",
        help="another flag for Chromium, as in --chromium-flag=--enable-features=Vulkan",
    )


def main(arguments: argparse.Namespace) -> int:
    """The command; 1 if something differs, or is not finite."""
    if arguments.steps < 0 or arguments.looser <= 0:
        raise HostError("--steps should be at least 0, --looser more than 0.")
    if arguments.model and not arguments.model.exists():
        raise HostError(f"There is no {arguments.model}.")
    pip.install(LOCK_TEST, "Installing the test tools")
    from engine.host.debug import graphs, running  # only now are their imports there

    is_graph = arguments.model and graphs.is_graph(arguments.model)
    try:
        return asyncio.run(graphs.run(arguments) if is_graph else running.run(arguments))
    except OctavoError as error:
        raise HostError(f"{error.message} {error.hint}".strip()) from None
