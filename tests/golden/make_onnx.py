"""Writes the small random models that torch.onnx.export makes: onnx_bert, onnx_llama and
onnx_qwen2, and, with the folder of a sentence encoder, that one.

Needs PyTorch 1.13 and transformers 4.40 (README.md): the exporter that most files on the hub are
from. What onnxruntime computes from them is what tests compare with, so nothing else is recorded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
OPSET = 14
AXES = {0: "batch", 1: "sequence"}
ENCODER_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
DECODER = {**SMALL, "num_key_value_heads": 2, "attn_implementation": "eager"}


class Logits(torch.nn.Module):
    """A language model without a cache, from ids and mask to logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        """The logits of all tokens."""
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False, return_dict=False
        )[0]


def export(model: Any, path: Path, inputs: tuple[str, ...], outputs: dict[str, Any]) -> None:
    """Writes a model whose inputs are ids (batch, sequence)."""
    ids = torch.ones(2, 7, dtype=torch.long)
    torch.onnx.export(
        model.eval(),
        (ids,) * len(inputs),
        path,
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_axes={**dict.fromkeys(inputs, AXES), **outputs},
        opset_version=OPSET,
    )


def export_encoder(config: Any, path: Path, weights: dict[str, Any] | None = None) -> None:
    """Writes a BERT: all hidden states, and the pooled first one."""
    model = transformers.BertModel(config)
    if weights:
        model.load_state_dict(weights, strict=False)
    model.config.return_dict = False
    outputs = {"last_hidden_state": AXES, "pooled": {0: "batch"}}
    export(model, path, ENCODER_INPUTS, outputs)


def main(folders: list[str]) -> None:
    """The small models, and `FOLDER FILE.onnx` of an encoder if they are given."""
    if folders:
        folder, target = map(Path, folders)
        config = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        export_encoder(transformers.BertConfig(**config), target, weights)
        return
    torch.manual_seed(0)
    export_encoder(transformers.BertConfig(**SMALL), HERE / "onnx_bert.onnx")
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER))
    qwen2 = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**DECODER))
    for name, model in (("llama", llama), ("qwen2", qwen2)):
        path = HERE / f"onnx_{name}.onnx"
        export(Logits(model), path, ENCODER_INPUTS[:2], {"logits": AXES})


if __name__ == "__main__":
    main(sys.argv[1:])
