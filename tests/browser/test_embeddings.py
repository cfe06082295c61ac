"""`octavo.embeddings.create` in the page: an encoder that `convert` made, on both devices."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.host.convert.onnx_graph.conversion import convert_graph
from tests.browser.conftest import link_site
from tests.conftest import StaticServer
from tests.unit.test_embedding import expected
from tests.unit.test_encoder import BERT, tokenizer

pytestmark = pytest.mark.browser
TEXTS = ["w3 w7 w7", "w1", " ".join(["w5", "w6"] * 12), "w3 nonsense w7"]
EMBED = """async ({ device, input }) => {
  const { Octavo } = await import('/client.mjs');
  globalThis.octavo ??= new Octavo();
  const model = 'models/encoder/manifest.json';
  const answer = await octavo.embeddings.create({ model, input, device });
  const failure = await octavo.embeddings.create({ model, input: 3 }).catch((error) => error.code);
  return { answer, failure };
}"""


def encoder(root: Path, work: Path) -> None:
    """An encoder in a site's models."""
    work.mkdir()
    shutil.copy(BERT, work / "encoder.onnx")
    tokenizer().save(str(work / "tokenizer.json"))
    (work / "config.json").write_text(json.dumps({"max_position_embeddings": 32}))
    convert_graph(work / "encoder.onnx", root / "models")


def test_embeddings_on_both_devices(tmp_path: Path, gpu_chromium: Any) -> None:
    root = link_site(tmp_path / "root")
    encoder(root, tmp_path / "work")
    plain = tokenizer()
    plain.no_padding()
    plain.enable_truncation(32)
    wanted = [expected(BERT, plain.encode(text).ids) for text in TEXTS]
    server = StaticServer(root)
    context = gpu_chromium.new_context(service_workers="block")
    try:
        page = context.new_page()
        page.goto(f"{server.url}/models.json")
        for device in ("gpu", "cpu"):  # only the second has NumPy
            result = page.evaluate(EMBED, {"device": device, "input": TEXTS})
            assert result["failure"] == "request.invalid"
            found = [entry["embedding"] for entry in result["answer"]["data"]]
            np.testing.assert_allclose(found, wanted, atol=1e-3)
    finally:
        context.close()
        server.close()
