"""Writes the small random models that torch.onnx.export makes, and, with the folder of a sentence
encoder, that one.

With PyTorch 1.13 and transformers 4.40: onnx_bert, onnx_llama and onnx_qwen2, by the exporter that
most files on the hub are from. With PyTorch 2 and transformers 5: onnx_dynamo_bert and
onnx_dynamo_llama, by the one that has taken its place. What onnxruntime computes from them is what
tests compare with, so nothing else is recorded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
NEW = int(torch.__version__.split(".")[0]) >= 2
OPSET = 18 if NEW else 14
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
DECODER = {**SMALL, "num_key_value_heads": 2}
OLD_ATTENTION = {} if NEW else {"attn_implementation": "eager"}


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
    if NEW:
        axes = {i: torch.export.Dim(name) for i, name in AXES.items()}
        more = {"dynamo": True, "dynamic_shapes": (axes,) * len(inputs), "external_data": False}
    else:
        more = {"dynamic_axes": {**dict.fromkeys(inputs, AXES), **outputs}}
    torch.onnx.export(
        model.eval(),
        (ids,) * len(inputs),
        path,
        input_names=list(inputs),
        output_names=list(outputs),
        opset_version=OPSET,
        **more,
    )
    without_traces(path)


def without_traces(path: Path) -> None:
    """Takes out where in the source each node comes from, and shapes that the exporter has
    inferred."""
    model = onnx.load(path)
    del model.metadata_props[:], model.graph.metadata_props[:], model.graph.value_info[:]
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
    onnx.save(model, path)


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
    prefix = "onnx_dynamo" if NEW else "onnx"
    export_encoder(transformers.BertConfig(**SMALL), HERE / f"{prefix}_bert.onnx")
    sizes = {**DECODER, **OLD_ATTENTION}
    models = {"llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))}
    if not NEW:
        models["qwen2"] = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes))
    for name, model in models.items():
        path = HERE / f"{prefix}_{name}.onnx"
        export(Logits(model), path, ENCODER_INPUTS[:2], {"logits": AXES})


if __name__ == "__main__":
    main(sys.argv[1:])
