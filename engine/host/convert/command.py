"""`convert`: a model of Hugging Face, a GGUF file or an ONNX file, as the page loads it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from engine.host import pip
from engine.host.errors import HostError
from engine.host.paths import LOCK_CONVERT
from engine.host.progress import megabytes

if TYPE_CHECKING:
    from engine.host.convert.conversion import Places

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
        return _convert_onnx(arguments)
    from engine.host.convert.conversion import convert  # only now are its imports there

    return _tell(convert(arguments.source, arguments.destination, arguments.quant))


def _convert_onnx(arguments: argparse.Namespace) -> int:
    """A language model becomes what a GGUF file of it would; all else stays a graph."""
    from engine.host.convert.conversion import write_model
    from engine.host.convert.onnx_graph.conversion import read_graph, write_graph
    from engine.host.convert.onnx_graph.language_model import language_model

    source, destination = arguments.source, arguments.destination
    graph = read_graph(source)
    model = language_model(source, graph)
    if model:
        return _tell(write_model(model, source, destination, arguments.quant))
    if arguments.quant not in (None, "q8_0"):
        raise HostError("A graph takes --quant q8_0 only, or its weights stay as they are.")
    folder = write_graph(source, graph, destination, in_blocks=arguments.quant == "q8_0")
    print(f"{folder}/ is ready.")
    return 0


def _tell(places: Places) -> int:
    size = megabytes(places.gguf.stat().st_size)
    print(f"{places.gguf} and {places.shards}/ are ready ({size} each).")
    print(f"The page loads it by the address of {places.shards / 'manifest.json'}: ?model=...")
    return 0
