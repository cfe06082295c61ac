"""Writes the small random models that torch.onnx.export makes, and, with the folder of a sentence
encoder, that one.

With PyTorch 1.13 and transformers 4.40: onnx_bert, onnx_llama, onnx_qwen2 and onnx_cached_qwen2, by
the exporter that most files on the hub are from. With PyTorch 2 and transformers 5:
onnx_dynamo_bert, onnx_dynamo_llama, onnx_dynamo_gemma3, onnx_dynamo_phi3, onnx_dynamo_cached_llama
and onnx_dynamo_cached_phi3, by the one that has taken its place; the argument ``families`` makes
those of Gemma 3 and Phi-3 alone. Those that are cached take keys and values of earlier tokens. What
onnxruntime computes from them is what tests compare with, so nothing else is recorded.
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
CACHE_AXES = {0: "batch", 2: "past"}
PAST = 5  # tokens
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
FAMILIES = "families"  # an argument
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


class Cached(torch.nn.Module):
    """A language model of one layer with its cache: (batch, heads, tokens, width)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Any, mask: Any, positions: Any, key: Any, value: Any) -> Any:
        """The logits of the new tokens, and all keys and values."""
        kind = transformers.DynamicCache
        past = kind([(key, value)]) if NEW else kind.from_legacy_cache([(key, value)])
        found = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=past,
            use_cache=True,
        )
        if NEW:
            layer = found.past_key_values.layers[0]
            return found.logits, layer.keys, layer.values
        return found.logits, *found.past_key_values[0]


def export(model: Any, path: Path, inputs: tuple[str, ...], outputs: dict[str, Any]) -> None:
    """Writes a model whose inputs are ids (batch, sequence)."""
    ids = torch.ones(2, 7, dtype=torch.long)
    export_all(model, path, dict.fromkeys(inputs, (ids, AXES)), outputs)


def export_cached(model: Any, path: Path) -> None:
    """Writes a language model of one layer with its cache."""
    ids = torch.ones(2, 7, dtype=torch.long)
    past = torch.randn(2, 2, PAST, 8)
    inputs = {
        "input_ids": (ids, AXES),
        "attention_mask": (
            torch.ones(2, 7 + PAST, dtype=torch.long),
            {0: "batch", 1: "past + sequence"},
        ),
        "position_ids": (torch.arange(PAST, PAST + 7).expand(2, 7).contiguous(), AXES),
        "past_key_values.0.key": (past, CACHE_AXES),
        "past_key_values.0.value": (past.clone(), CACHE_AXES),
    }
    present = dict.fromkeys(("present.0.key", "present.0.value"), CACHE_AXES)
    export_all(Cached(model), path, inputs, {"logits": AXES, **present})


def export_all(
    model: Any, path: Path, inputs: dict[str, tuple[Any, dict[int, str]]], outputs: dict[str, Any]
) -> None:
    """Writes a model with inputs like those given, whose axes have names."""
    if NEW:
        names = {name for _, axes in inputs.values() for name in axes.values() if "+" not in name}
        sizes = {name: torch.export.Dim(name) for name in sorted(names)}
        shapes = tuple(
            {i: sizes.get(name, torch.export.Dim.DYNAMIC) for i, name in axes.items()}
            for _, axes in inputs.values()
        )
        more = {"dynamo": True, "dynamic_shapes": shapes, "external_data": False}
    else:
        more = {"dynamic_axes": {name: axes for name, (_, axes) in inputs.items()} | outputs}
    torch.onnx.export(
        model.eval(),
        tuple(tensor for tensor, _ in inputs.values()),
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


def gemma3() -> Any:
    """A layer with a window and one without, whose rotary embeddings have bases of their own."""
    bases = {"sliding_attention": 1e4, "full_attention": 1e6}
    rope = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}
    sizes = {**DECODER, "num_hidden_layers": 2, "head_dim": 16, "query_pre_attn_scalar": 16}
    more = {"layer_types": list(bases), "sliding_window": 8, "rope_parameters": rope}
    return spread(transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**sizes, **more)))


def phi3(**fields: Any) -> Any:
    """A Phi-3; ``fields`` of its configuration."""
    config = transformers.Phi3Config(**DECODER, pad_token_id=0, **fields)
    return spread(transformers.Phi3ForCausalLM(config))


def spread(model: Any) -> Any:
    """The model with weights that are so far from each other that it shows in its logits."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.2 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) / weight.shape[1] ** 0.5)
    return model


def export_families() -> None:
    """Gemma 3, and Phi-3: with factors for short and for long contexts, and with a window."""
    torch.manual_seed(0)
    original = {"original_max_position_embeddings": 32}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **original}
    rope |= {"short_factor": [1.0, 1.1, 1.2, 1.4], "long_factor": [1.1, 1.5, 3.0, 6.0]}
    models = {"gemma3": gemma3(), "phi3": phi3(rope_parameters=rope, **original)}
    for name, model in models.items():
        # Tensors of their own: one that is given twice becomes one input.
        inputs = {n: (torch.ones(2, 7, dtype=torch.long), AXES) for n in ENCODER_INPUTS[:2]}
        export_all(Logits(model), HERE / f"onnx_dynamo_{name}.onnx", inputs, {"logits": AXES})
    export_cached(phi3(sliding_window=8), HERE / "onnx_dynamo_cached_phi3.onnx")


def main(folders: list[str]) -> None:
    """The small models, or those of FAMILIES, or `FOLDER FILE.onnx` of an encoder."""
    if folders == [FAMILIES]:
        export_families()
        return
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
    name = "llama" if NEW else "qwen2"
    export_cached(models[name], HERE / f"{prefix}_cached_{name}.onnx")
    if NEW:
        export_families()


if __name__ == "__main__":
    main(sys.argv[1:])
