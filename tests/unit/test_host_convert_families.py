"""What each family has of its own, by names and values of its tensors and by its metadata."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine.host.convert.conversion import convert
from engine.host.convert.families import FAMILIES
from engine.host.errors import HostError
from tests import hugging_face
from tests.golden import make_tiny
from tests.hugging_face import Weights, write_folder, write_json, write_weights

HIDDEN, FFN, ROWS, DIM, HEADS, KV_HEADS = 64, 96, 600, 32, 4, 2
GEMMA3_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def written(folder: Path, config: dict[str, Any], found: Weights) -> tuple[Weights, dict[str, Any]]:
    """Tensors and metadata of what becomes of a folder."""
    write_folder(folder, "tiny")
    write_json(folder / "config.json", config)
    write_weights(folder, found)
    reader = gguf.GGUFReader(convert(folder, folder / "out").gguf)
    fields = {field.name: field.contents() for field in reader.fields.values()}
    return {tensor.name: np.array(tensor.data) for tensor in reader.tensors}, fields


def base(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "architectures": [name],
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "max_position_embeddings": 512,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        **fields,
    }


def gemma3() -> Weights:
    layer = "model.layers.0"
    found = {
        "model.embed_tokens.weight": random(1, ROWS, HIDDEN),
        "model.norm.weight": random(2, HIDDEN),
        f"{layer}.self_attn.q_proj.weight": random(3, HEADS * DIM, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": random(4, KV_HEADS * DIM, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": random(5, KV_HEADS * DIM, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": random(6, HIDDEN, HEADS * DIM),
        f"{layer}.mlp.gate_proj.weight": random(7, FFN, HIDDEN),
        f"{layer}.mlp.up_proj.weight": random(8, FFN, HIDDEN),
        f"{layer}.mlp.down_proj.weight": random(9, HIDDEN, FFN),
    }
    for seed, name in enumerate(GEMMA3_NORMS, 10):
        found[f"{layer}.{name}.weight"] = random(seed, DIM if "self_attn" in name else HIDDEN)
    return found


GEMMA3 = base("Gemma3ForCausalLM", head_dim=DIM, sliding_window=32, query_pre_attn_scalar=DIM)
OLD_ROPE = {"rope_theta": 1e6, "rope_local_base_freq": 5e3, "sliding_window_pattern": 4}
NEW_ROPE = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
    },
    "_sliding_window_pattern": 4,
}


@pytest.mark.parametrize("rope", [OLD_ROPE, NEW_ROPE], ids=["old", "new"])
def test_gemma3(rope: dict[str, Any], tmp_path: Path) -> None:
    found = gemma3()
    tensors, fields = written(tmp_path / "x", GEMMA3 | rope, found)
    wanted = {
        "token_embd.weight": found["model.embed_tokens.weight"],
        "output_norm.weight": found["model.norm.weight"] + 1,
    }
    for name, own in GEMMA3_NORMS.items():
        wanted[f"blk.0.{own}.weight"] = found[f"model.layers.0.{name}.weight"] + 1
    for part, own in {"q": "q", "k": "k", "v": "v", "o": "output"}.items():
        source = f"model.layers.0.self_attn.{part}_proj.weight"
        wanted[f"blk.0.attn_{own}.weight"] = found[source]
    for part in ("gate", "up", "down"):
        wanted[f"blk.0.ffn_{part}.weight"] = found[f"model.layers.0.mlp.{part}_proj.weight"]
    assert set(tensors) == set(wanted)
    assert all(np.array_equal(tensors[name], wanted[name]) for name in wanted)
    expected = {
        "general.architecture": "gemma3",
        "gemma3.attention.head_count": HEADS,
        "gemma3.attention.head_count_kv": KV_HEADS,
        "gemma3.attention.key_length": DIM,
        "gemma3.attention.value_length": DIM,
        "gemma3.attention.sliding_window": 32,
        "gemma3.attention.sliding_window_pattern": 4,
        "gemma3.rope.freq_base": 1e6,
        "gemma3.rope.freq_base_swa": 5e3,
    }
    assert {key: fields[key] for key in expected} == expected
    assert fields.get("gemma3.rope.scaling.factor") == (8.0 if rope is NEW_ROPE else None)
    assert "gemma3.attention.scale" not in fields


@pytest.mark.parametrize(
    ("wide", "period"), [((3, 6), 3), ((2, 4, 6), 2), ((6,), 6), ((), 8), ((5,), 5), ((3,), 0)]
)
def test_the_layers_of_gemma3_that_see_everything(
    wide: tuple[int, ...], period: int, tmp_path: Path
) -> None:
    kinds = ["full_attention" if i in wide else "sliding_attention" for i in range(1, 8)]
    config = GEMMA3 | NEW_ROPE | {"layer_types": kinds}
    if not period:
        with pytest.raises(HostError, match="full_attention every n layers"):
            written(tmp_path / "x", config, gemma3())
        return
    _, fields = written(tmp_path / "x", config, gemma3())
    assert fields["gemma3.attention.sliding_window_pattern"] == period


def test_gemma3_may_scale_scores_by_another_width(tmp_path: Path) -> None:
    _, fields = written(tmp_path / "x", GEMMA3 | {"query_pre_attn_scalar": 100}, gemma3())
    assert fields["gemma3.attention.scale"] == pytest.approx(0.1)


def phi3() -> Weights:
    layer = "model.layers.0"
    return {
        "model.embed_tokens.weight": random(1, ROWS, HIDDEN),
        "model.norm.weight": random(2, HIDDEN),
        "lm_head.weight": random(3, ROWS, HIDDEN),
        f"{layer}.input_layernorm.weight": random(4, HIDDEN),
        f"{layer}.post_attention_layernorm.weight": random(5, HIDDEN),
        f"{layer}.self_attn.qkv_proj.weight": random(6, 2 * HIDDEN, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": random(7, HIDDEN, HIDDEN),
        f"{layer}.mlp.gate_up_proj.weight": random(8, 2 * FFN, HIDDEN),
        f"{layer}.mlp.down_proj.weight": random(9, HIDDEN, FFN),
    }


PHI3_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "model.layers.0.self_attn.qkv_proj.weight": "blk.0.attn_qkv.weight",
    "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "model.layers.0.mlp.gate_up_proj.weight": "blk.0.ffn_up.weight",
    "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
}


def test_phi3_keeps_its_fused_matrices(tmp_path: Path) -> None:
    found = phi3()
    tensors, fields = written(tmp_path / "x", base("Phi3ForCausalLM", sliding_window=47), found)
    assert set(tensors) == set(PHI3_NAMES.values())
    for source, name in PHI3_NAMES.items():
        assert np.array_equal(tensors[name], found[source])
    assert fields["phi3.rope.dimension_count"] == 16
    assert fields["phi3.attention.sliding_window"] == 47


LONG, SHORT = [1.0 + i for i in range(6)], [1.0 + i / 8 for i in range(6)]
LONGROPE = {"long_factor": LONG, "short_factor": SHORT}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": {"type": "longrope", **LONGROPE}, "partial_rotary_factor": 0.75},
        {"rope_scaling": {"type": "su", **LONGROPE}, "partial_rotary_factor": 0.75},
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "partial_rotary_factor": 0.75,
                "rope_theta": 10000.0,
                **LONGROPE,
            }
        },
    ],
)
def test_phi3_with_two_lists_of_factors(rope: dict[str, Any], tmp_path: Path) -> None:
    config = base("Phi3ForCausalLM", original_max_position_embeddings=64, **rope)
    tensors, fields = written(tmp_path / "x", config, phi3())
    assert tensors["rope_factors_long.weight"].tolist() == LONG
    assert tensors["rope_factors_short.weight"].tolist() == SHORT
    assert fields["phi3.rope.dimension_count"] == 12
    assert fields["phi3.rope.scaling.original_context_length"] == 64
    # sqrt(1 + ln(512 / 64) / ln 64), as in Microsoft's LongRoPE.
    assert fields["phi3.rope.scaling.attn_factor"] == pytest.approx(math.sqrt(1.5))


def test_factors_that_are_no_list(tmp_path: Path) -> None:
    scaling = {"type": "longrope", "long_factor": "many", "short_factor": SHORT}
    config = base("Phi3ForCausalLM", original_max_position_embeddings=64, rope_scaling=scaling)
    with pytest.raises(HostError, match="rope_factors_long"):
        written(tmp_path / "x", config, phi3())


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM"])
def test_rows_of_q_and_k_are_interleaved(name: str, tmp_path: Path) -> None:
    """Row i of a head and row i + 8 become neighbours; biases too, V and all else stay."""
    found = hugging_face.weights("tiny")
    config = hugging_face.config("tiny") | {"architectures": [name], "sliding_window": 77}
    tensors, fields = written(tmp_path / "x", config, found)
    for part in "qk":
        rows = found[f"model.layers.2.self_attn.{part}_proj.weight"]
        mine = tensors[f"blk.2.attn_{part}.weight"]
        assert np.array_equal(mine[16:20], rows[[16, 24, 17, 25]])
    source = found["model.layers.2.self_attn.v_proj.weight"]
    assert np.array_equal(tensors["blk.2.attn_v.weight"], source)
    assert fields["general.architecture"] == "llama"
    assert fields["llama.attention.sliding_window"] == 77


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaling_that_is_metadata(key: str, kind: str, tmp_path: Path) -> None:
    scaling = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 128}
    scaling |= {"rope_theta": 50000.0} if key == "rope_parameters" else {}
    config = hugging_face.config("tiny") | {key: scaling}
    _, fields = written(tmp_path / "x", config, hugging_face.weights("tiny"))
    assert fields["llama.rope.scaling.type"] == kind
    assert fields["llama.rope.scaling.factor"] == 4.0
    original = fields.get("llama.rope.scaling.original_context_length")
    assert original == (128 if kind == "yarn" else None)
    assert fields["llama.rope.freq_base"] == (50000.0 if key == "rope_parameters" else 10000.0)


def test_llama3_factors_of_a_new_config(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "rope_theta": 10000.0, **make_tiny.LLAMA3_ROPE}
    config = hugging_face.config("tiny") | {"rope_parameters": scaling, "rope_theta": None}
    tensors, _ = written(tmp_path / "x", config, hugging_face.weights("tiny"))
    assert np.array_equal(tensors["rope_freqs.weight"], make_tiny.llama3_factors(10000.0))


def test_computed_tensors_are_left_out(tmp_path: Path) -> None:
    found = hugging_face.weights("tiny")
    found["model.layers.0.self_attn.rotary_emb.inv_freq"] = random(1, 8)
    tensors, _ = written(tmp_path / "x", hugging_face.config("tiny"), found)
    assert not any("rot" in name for name in tensors)


def test_a_tensor_without_a_place_is_named(tmp_path: Path) -> None:
    found = hugging_face.weights("tiny") | {"model.vision.patch.weight": random(1, 8, 8)}
    with pytest.raises(HostError, match=r"no use for the tensor model\.vision\.patch\.weight"):
        written(tmp_path / "x", hugging_face.config("tiny"), found)


def test_the_model_card_gives_name_and_licence(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "My-Model", "tiny")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    places = convert(folder, tmp_path / "out", "q8_0")
    assert places.gguf.name == "My-Model-q8_0.gguf"
    fields = gguf.GGUFReader(places.gguf).fields
    assert fields["general.license"].contents() == "mit"
    assert '"license": "mit"' in (places.shards / "manifest.json").read_text()
    (folder / "README.md").write_text("---\n: [\n---\n")
    convert(folder, tmp_path / "again")


def test_all_families_are_tested() -> None:
    classes = {*hugging_face.CLASSES.values(), "MistralForCausalLM"}
    assert set(FAMILIES) == classes | {"Gemma3ForCausalLM", "Phi3ForCausalLM"}
