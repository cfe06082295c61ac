"""`convert`: a model of Hugging Face, a GGUF file or an ONNX file, as the page loads it."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.host import pip
from engine.host.errors import HostError
from engine.host.paths import LOCK_CONVERT
from engine.host.progress import megabytes

# As `quants.QUANTS`, which can be imported only once the packages are there.
QUANTS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The source, the folder for the results, and the type of weights."""
    parser.add_argument(
        "source", type=Path, metavar="SRC", help="a Hugging Face folder, a .gguf or an .onnx"
    )
    parser.add_argument("destination", type=Path, metavar="DST", help="the folder for the results")
    parser.add_argument(
        "--quant",
        choices=QUANTS,
        help="the type of matrices; embedding and output get a more precise one (Q6_K beside K "
        "types, Q8_0 beside other small ones). Without it, weights stay as they are",
    )


def main(arguments: argparse.Namespace) -> int:
    """The command."""
    pip.install(LOCK_CONVERT, "Installing what converting needs")
    if arguments.source.suffix == ".onnx":
        return _convert_graph(arguments)
    from engine.host.convert.conversion import convert  # only now are its imports there

    places = convert(arguments.source, arguments.destination, arguments.quant)
    size = megabytes(places.gguf.stat().st_size)
    print(f"{places.gguf} and {places.shards}/ are ready ({size} each).")
    print(f"The page loads it by the address of {places.shards / 'manifest.json'}: ?model=...")
    return 0


def _convert_graph(arguments: argparse.Namespace) -> int:
    from engine.host.convert.onnx_graph.conversion import convert_graph

    if arguments.quant not in (None, "q8_0"):
        raise HostError("ONNX files take --quant q8_0 only, or their weights stay as they are.")
    in_blocks = arguments.quant == "q8_0"
    folder = convert_graph(arguments.source, arguments.destination, in_blocks)
    print(f"{folder}/ is ready.")
    return 0
