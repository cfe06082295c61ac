"""The tokenizer as the site ships it, WebAssembly in a worker, gives the ids of the native one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.host import npm
from engine.host.paths import DIST
from engine.tokenizer.spec import tokenizer_json
from tests.conftest import ROOT
from tests.tokens import RECORDED, Rows, golden, kind_metadata, kind_rows, piece_metadata

CASES: dict[str, tuple[str, Rows]] = {
    **{kind: (tokenizer_json(kind_metadata(kind)), kind_rows(kind)) for kind in RECORDED},
    **{
        name: (tokenizer_json(piece_metadata(name == "prefix")), golden("tokens_pieces.json")[name])
        for name in ("prefix", "plain")
    },
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[int]]]:
    folder = tmp_path_factory.mktemp("worker")
    for name in ("tokenizer.mjs", "remote.mjs", "web-tokenizers.js"):
        shutil.copyfile(DIST / "worker" / name, folder / name)
    Path(folder, "package.json").write_text('{"type": "module"}')
    lines = [
        json.dumps({"json": text, "texts": [row[0] for row in rows]})
        for text, rows in CASES.values()
    ]
    command = [npm.node(), ROOT / "tests/kernels/tokenizer.mjs", folder]
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_the_shipped_tokenizer_gives_the_recorded_ids(
    answers: dict[str, list[list[int]]], case: str
) -> None:
    assert answers[case] == [ids for _, ids in CASES[case][1]]
