"""The command line, its progress lines, and how it finds what it needs."""

from __future__ import annotations

import re
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from engine.host import bootstrap, chromium, cli, pip, process, progress
from engine.host.errors import HostError


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_every_command_has_its_two_functions(command: cli.Command) -> None:
    module = import_module(f"engine.host.{command.module}")
    assert callable(module.add_arguments) and callable(module.main)


def test_arguments_reach_their_command() -> None:
    assert cli._parse(["serve", "--port", "0"]).port == 0
    assert cli._parse(["test", "-k", "x", "tests/unit"]).rest == ["-k", "x", "tests/unit"]


@pytest.mark.parametrize("words", [[], ["nothing"], ["build", "--fast"]])
def test_wrong_arguments_end_with_status_two(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    assert stopped.value.code == 2


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    assert all(command.name in shown for command in cli.COMMANDS)


def test_a_short_step_shows_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.Step("Quick"):
        pass
    assert capsys.readouterr().out == "Quick: 0.0 s\n"


def test_a_long_step_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.01)
    shown = ""
    with progress.Step("Cutting") as step:
        assert step.line() == "Cutting: 0 s"
        step.update(16_800_000, 98_400_000)
        assert step.line() == "Cutting: 16.8 of 98.4 MB (17 %)"
        deadline = time.monotonic() + 10
        while not shown and time.monotonic() < deadline:
            time.sleep(0.01)
            shown = capsys.readouterr().out
    assert shown.startswith("Cutting: ")
    assert re.fullmatch(r"Cutting: \d+\.\d s\n", capsys.readouterr().out.splitlines(True)[-1])


def test_a_failing_program_shows_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    script = "import sys; print('Progress 5 of 10'); print('the reason'); sys.exit(3)"
    with pytest.raises(HostError, match="Trying failed:\nthe reason"):
        process.run("Trying", [sys.executable, "-c", script])
    assert "failed after" in capsys.readouterr().out
    with pytest.raises(HostError, match="could not be started"):
        process.run("Trying", ["/no/such/program"])


def test_a_lock_file_is_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(pip, "VENV", tmp_path)
    monkeypatch.setattr(pip, "run", lambda title, command: ran.append(title))
    lock = tmp_path / "some.lock"
    lock.write_text("one")
    pip.install(lock, "first")
    pip.install(lock, "again")
    lock.write_text("two")
    pip.install(lock, "changed")
    assert ran == ["first", "changed"]


def test_without_apt_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bootstrap, chromium):
        monkeypatch.setattr(module, "apt_install", lambda package: False)
    monkeypatch.setattr(chromium, "find", lambda: None)
    monkeypatch.delenv(chromium.VARIABLE, raising=False)
    with pytest.raises(HostError, match="Install one"):
        chromium.ensure()
    with pytest.raises(HostError, match=r"apt-get install python3\.\d+-venv"):
        bootstrap._install_venv_package()


def test_the_chromium_named_in_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(chromium.VARIABLE, sys.executable)
    assert chromium.ensure() == sys.executable
    monkeypatch.setenv(chromium.VARIABLE, "/no/such/browser")
    with pytest.raises(HostError, match="/no/such/browser"):
        chromium.ensure()
