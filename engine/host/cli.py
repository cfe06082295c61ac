"""The commands of build.py. A new one is a module with `add_arguments` and `main`, and a line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib import import_module

from engine.host.paths import INSTALLED


@dataclass(frozen=True)
class Command:
    """`module` lies in engine/host/; it is imported only when its command is run."""

    name: str
    module: str
    help: str
    passes_rest: bool = False  # all its arguments are handed on, in `arguments.rest`
    is_packed: bool = False  # the installed package has it too


COMMANDS = (
    Command("build", "assemble", "assemble dist/, the static site"),
    Command("serve", "serve", "serve the site, with a model", is_packed=True),
    Command("test", "testing", "install what the tests need, then run all of them", True),
    Command("bench", "bench", "measure speed in Chromium", is_packed=True),
    Command(
        "convert",
        "convert.command",
        "convert a Hugging Face folder, a GGUF file or an ONNX file",
        is_packed=True,
    ),
    Command("package", "package.command", "make the npm package and the Python wheel"),
    Command("debug", "debug.command", "run a prompt call by call beside the NumPy references"),
    Command("check", "check", "ruff, mypy and tsc"),
)


def main(words: list[str]) -> int:
    """Runs the command that `words` name; returns the exit status."""
    arguments = _parse(words)
    status: int = import_module(f"engine.host.{arguments.command.module}").main(arguments)
    return status


def _parse(words: list[str]) -> argparse.Namespace:
    known = [command for command in COMMANDS if command.is_packed or not INSTALLED]
    for command in known:
        wants_help = words[1:] in (["-h"], ["--help"])
        if command.passes_rest and words[:1] == [command.name] and not wants_help:
            return argparse.Namespace(command=command, rest=words[1:])
    program = "octavo" if INSTALLED else "build.py"
    parser = argparse.ArgumentParser(program, description="An LLM in a browser tab.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in known:
        sub = commands.add_parser(command.name, help=command.help, description=command.help)
        sub.set_defaults(command=command)
        if words[:1] == [command.name]:
            import_module(f"engine.host.{command.module}").add_arguments(sub)
    return parser.parse_args(words)
