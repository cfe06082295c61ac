"""Hugging Face folders made of the golden GGUF files, by rules of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from tests.conftest import ROOT
from tests.golden import make_tiny

GOLDEN = ROOT / "tests/golden"
CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# As the families publish them: with what the engine writes in another way, or leaves out.
SMOLLM = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
    ],
}
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
QWEN2 = {
    "type": "Sequence",
    "pretokenizers": [
        {
            "type": "Split",
            "pattern": {"Regex": QWEN2_PATTERN},
            "behavior": "Isolated",
            "invert": False,
        },
        BYTES,
    ],
}

Weights = dict[str, "np.ndarray[Any, Any]"]


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def weights(name: str) -> Weights:
    """What the golden model holds, float32, with the original's names and order of rows."""
    found: Weights = {}
    for tensor in gguf.GGUFReader(GOLDEN / f"{name}.gguf").tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name == "rope_freqs.weight":
            continue
        if tensor.name in OUTER:
            found[OUTER[tensor.name]] = values
            continue
        _, layer, part, kind = tensor.name.split(".")
        if "qwen" not in name and part in ("attn_q", "attn_k"):
            values = in_halves(values, make_tiny.HEAD_DIM)
        found[f"model.layers.{layer}.{INNER[part]}.{kind}"] = values
    return found


def in_halves(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows whose rotary pairs are neighbours, with the pairs half a head apart."""
    result = np.empty_like(rows)
    for head in range(0, len(rows), head_dim):
        for i in range(head_dim // 2):
            result[head + i] = rows[head + 2 * i]
            result[head + head_dim // 2 + i] = rows[head + 2 * i + 1]
    return result


def config(name: str) -> dict[str, Any]:
    """The config.json of a golden model."""
    family = {
        "tiny_qwen2": make_tiny.QWEN2,
        "tiny_qwen3": make_tiny.QWEN3,
        "tiny_llama3": make_tiny.LLAMA3,
    }.get(name, make_tiny.LLAMA)
    fields: dict[str, Any] = {
        "architectures": [CLASSES[family.architecture]],
        "hidden_size": make_tiny.HIDDEN,
        "intermediate_size": make_tiny.FFN,
        "max_position_embeddings": make_tiny.CONTEXT,
        "num_attention_heads": make_tiny.HEADS,
        "num_hidden_layers": make_tiny.LAYERS,
        "num_key_value_heads": make_tiny.KV_HEADS,
        "rms_norm_eps": family.eps,
        "rope_theta": family.rope_base,
        "tie_word_embeddings": name != "tiny_untied",
        "vocab_size": make_tiny.VOCAB,
    }
    if family.head_dim != make_tiny.HEAD_DIM:
        fields["head_dim"] = family.head_dim
    if family.llama3_rope:
        fields["rope_scaling"] = {"rope_type": "llama3", **make_tiny.LLAMA3_ROPE}
    if "qwen" in name:
        fields |= {"use_sliding_window": False, "sliding_window": 128}
    return fields


def tokenizer(name: str) -> dict[str, Any]:
    """The tokenizer.json of a golden model."""
    tokens, merges = make_tiny.learn_bpe()
    qwen = "qwen" in name
    return {
        "version": "1.0",
        "truncation": {
            "direction": "Right",
            "max_length": 4,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "added_tokens": [
            {
                "id": tokens.index(text),
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for text in make_tiny.SPECIALS
        ],
        "normalizer": {"type": "NFC"} if qwen else None,
        "pre_tokenizer": QWEN2 if qwen else SMOLLM,
        "post_processor": None,
        "decoder": {**BYTES, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def write_folder(folder: Path, name: str, files: int = 1) -> Path:
    """A golden model as it would lie on Hugging Face, its weights in one file or several."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config(name))
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 0]})
    write_json(folder / "tokenizer.json", tokenizer(name))
    special = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
    template = {"chat_template": make_tiny.TEMPLATE, "add_bos_token": False}
    write_json(folder / "tokenizer_config.json", {**special, **template})
    write_weights(folder, weights(name), files)
    return folder


def write_weights(folder: Path, found: Weights, files: int = 1) -> None:
    """model.safetensors, or several files with an index."""
    if files == 1:
        save_file(found, folder / "model.safetensors")
        return
    places = {
        key: f"model-{i % files + 1:05}-of-{files:05}.safetensors" for i, key in enumerate(found)
    }
    for place in set(places.values()):
        save_file({key: found[key] for key in found if places[key] == place}, folder / place)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": places})
