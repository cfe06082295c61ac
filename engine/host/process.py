"""Running another program inside a step: its output is shown only when it fails."""

from __future__ import annotations

import os
import re
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.host.errors import HostError
from engine.host.paths import ROOT
from engine.host.progress import Step

SHOWN_LINES = 30
PIP_PROGRESS = re.compile(r"^Progress (\d+) of (\d+)$")  # of `pip --progress-bar raw`


def run(
    title: str,
    command: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
) -> None:
    """Runs `command` to its end; raises HostError with the last lines of its output if it fails."""
    tail: deque[str] = deque(maxlen=SHOWN_LINES)
    with Step(title) as step:
        try:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise HostError(f"{title}: {command[0]} could not be started: {error}") from None
        _follow(process, step, tail)
        if process.returncode:
            raise HostError(f"{title} failed:\n" + "\n".join(tail))


def _follow(process: subprocess.Popen[str], step: Step, tail: deque[str]) -> None:
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            progress = PIP_PROGRESS.match(line.rstrip())
            if progress:
                step.update(int(progress[1]), int(progress[2]))
            else:
                tail.append(line.rstrip())
