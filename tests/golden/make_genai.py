"""Writes small random models as the model builder of onnxruntime-genai does, which makes most
language models for the web: in blocks of 4 bits, with its operators for attention and norms.

``python make_genai.py NAME...``: genai_gemma3 and genai_phi3 with onnxruntime-genai 0.11.4 and
transformers 4.57.3, genai_qwen3 with onnxruntime-genai 0.18.0 and transformers 5.24.0. What
onnxruntime computes from them is what tests compare with.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers
from make_onnx import without_traces
from onnx import numpy_helper
from tokenizers import Tokenizer, models

HERE = Path(__file__).resolve().parent
SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8],
    "long_factor": [1.1, 1.3, 1.8, 2.5, 4.0, 6.0, 8.0, 10.0],
}
# Products in f32, not in 8 bits.
EXACT = {
    "gemma3": "int4_accuracy_level=1",
    "phi3": "int4_accuracy_level=1",
    "qwen3": "accuracy_level=1",
}


def model(name: str) -> Any:
    """A random model of a family."""
    if name == "gemma3":
        # The sixth layer sees everything, and the builder knows of no other.
        more = {"num_hidden_layers": 6, "head_dim": 16, "query_pre_attn_scalar": 16}
        rope = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": 20}
        config = transformers.Gemma3TextConfig(**{**SIZES, **more}, **rope)
        return transformers.Gemma3ForCausalLM(config)
    if name == "phi3":
        more = {"original_max_position_embeddings": 32, "rope_scaling": LONGROPE}
        more |= {"num_attention_heads": 2, "num_key_value_heads": 1}
        return transformers.Phi3ForCausalLM(transformers.Phi3Config(**{**SIZES, **more}))
    config = transformers.Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)
    return transformers.Qwen3ForCausalLM(config)


def spread(made: Any) -> None:
    """Weights that are so far from each other that it shows in the logits."""
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() == 1:
                weight.add_(0.2 * torch.randn_like(weight))
            else:
                weight.copy_(1.5 * torch.randn_like(weight) / weight.shape[1] ** 0.5)


def write(name: str) -> None:
    """Builds one model."""
    torch.manual_seed(0)
    made = model(name)
    spread(made)
    with tempfile.TemporaryDirectory() as text:
        folder, built = Path(text) / "model", Path(text) / "built"
        made.save_pretrained(folder)
        vocabulary = {f"t{i}": i for i in range(SIZES["vocab_size"])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, "t0"))
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
        builder = [
            sys.executable,
            "-m",
            "onnxruntime_genai.models.builder",
            "-p",
            "int4",
            "-e",
            "cpu",
        ]
        places = ["-i", str(folder), "-o", str(built), "-c", str(Path(text) / "cache")]
        subprocess.run([*builder, *places, "--extra_options", EXACT[name]], check=True)
        found, path = onnx.load(built / "model.onnx"), HERE / f"genai_{name}.onnx"
    for tensor in found.graph.initializer:
        if tensor.name.endswith("_scales"):
            # As in models for WebGPU, which are in halves.
            halves = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(halves.astype(np.float32), tensor.name))
    onnx.save(found, path)
    without_traces(path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(name)
