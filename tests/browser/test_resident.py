"""Two models in one page, which answer in turn in a budget of memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chat import Chat
from tests.browser.conftest import TINY_SHARD, cut, link_site
from tests.conftest import ROOT, StaticServer

GOLDEN = ROOT / "tests/golden"
NAMES = ["tiny", "tiny_qwen2"]
STAGING = 2 * (512 + 2 * TINY_SHARD + (1 << 18))
pytestmark = [pytest.mark.browser, pytest.mark.golden]

# Loads both and lets them answer; `fit` says how many have room.
IN_TURN = """async ([names, prompts, device, staging, fit]) => {
  const url = (name) => `models/${name}/manifest.json`;
  const options = {device, context: 512};
  const sizes = [];
  for (const name of names) {
    sizes.push((await octavo.load({...options, model: url(name)})).memory_bytes);
  }
  await octavo.unload();
  const sum = sizes[0] + sizes[1];
  const memory_bytes = staging + (fit === 2 ? sum : Math.max(...sizes));
  for (const name of names) await octavo.load({...options, memory_bytes, model: url(name)});
  await window.mark();
  const ask = (i, more = {}) => octavo.chat.completions.create(
    {model: url(names[i]), messages: prompts[i], max_tokens: 40, ...more});
  const seen = [];
  for (const i of [0, 1, 0]) {
    const {model, octavo: {ids}} = await ask(i);
    const {models, memory_bytes: held} = await octavo.status();
    seen.push({model, ids, resident: models.map((m) => m.resident), held});
  }
  const together = await Promise.all([0, 1, 0].map((i) => ask(i)));
  const unknown = await ask(0, {model: 'nobody'}).catch((error) => error.code);
  await octavo.unload({model: url(names[0])});
  const gone = await ask(0).catch((error) => error.code);
  const rest = await ask(1, {model: undefined});
  const needed = sizes[0] + staging;
  const little = await octavo.load({...options, model: url(names[0]), memory_bytes: needed - 1})
    .catch((error) => error.code);
  const still = await ask(1);
  const idsOf = (answer) => answer.octavo.ids;
  return {
    seen, together: together.map(idsOf), unknown, gone, rest: idsOf(rest), little,
    still: idsOf(still), sizes,
  };
}"""


@pytest.mark.parametrize(
    ("device", "fit"), [("cpu", 1), ("gpu", 1), ("gpu", 2)], ids=["cpu", "gpu", "gpu, both"]
)
def test_two_models_answer_in_turn(
    device: str, fit: int, tmp_path: Path, plain_chromium: Any, gpu_chromium: Any
) -> None:
    root = link_site(tmp_path / "root")
    cut(GOLDEN / f"{NAMES[1]}.gguf", root / "models" / NAMES[1])
    chats = []
    for name in NAMES:
        document = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
        chats.append(next(p for p in document["prompts"] if "messages" in p))
    server = StaticServer(root)
    browser = gpu_chromium if device == "gpu" else plain_chromium
    context = browser.new_context(service_workers="block")
    try:
        query = f"model=models/tiny/manifest.json&device={device}&context=512"
        page = context.new_page()
        page.expose_function("mark", lambda: server.requests.clear())
        Chat(page, server, f"{server.url}/?{query}").open().wait_for("ready")
        messages = [chat["messages"] for chat in chats]
        staging = STAGING if device == "gpu" else 0
        got = page.evaluate(IN_TURN, [NAMES, messages, device, staging, fit])
    finally:
        context.close()
        server.close()
    wanted = [chat["ids"][:40] for chat in chats]
    assert [s["ids"] for s in got["seen"]] == [wanted[i] for i in (0, 1, 0)]
    assert [s["model"] for s in got["seen"]] == [NAMES[i] for i in (0, 1, 0)]
    resident = [[True, fit == 2], [fit == 2, True], [True, fit == 2]]
    assert [s["resident"] for s in got["seen"]] == resident
    assert [s["held"] for s in got["seen"]] == [got["sizes"][i] for i in (0, 1, 0)]
    assert got["together"] == [wanted[i] for i in (0, 1, 0)]
    assert (got["unknown"], got["gone"]) == ("engine.not_loaded", "engine.not_loaded")
    assert got["little"] == "memory.budget"
    assert got["rest"] == got["still"] == wanted[1]
    assert not [path for path in server.requests if ".bin" in path], "it was in the cache"
