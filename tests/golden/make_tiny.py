"""Writes the tiny models of MODELS, tiny.gguf and others beside it: random models from a seed.

Run with the packages of the test group: ``python tests/golden/make_tiny.py``. The sizes are
chosen to be awkward: a feed-forward width that is no power of two, three layers, grouped
heads. Weights are wide enough that greedy text varies instead of settling on one token.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
SEED = 1
LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, CONTEXT = 3, 64, 4, 2, 160, 512
HEAD_DIM = HIDDEN // HEADS
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = 341
VOCAB = len(SPECIALS) + 256 + MERGES
WIDTH = 1.5  # weights are normal with this over the square root of their inputs
BIAS = 0.5
HEAD_GAIN = 1.5  # around which the gains of the heads lie
# As in a Llama 3 config.json, with a context so short that 16 dimensions have all kinds of factors.
LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
EMBEDDING = 0.5
POST_GAIN = 8.0  # around which the gains of norms lie that come before a residual
# As in Phi-3's config.json: the divisors of the 6 frequencies of 12 rotated elements.
LONGROPE = {
    "short_factor": [1.0, 1.0625, 1.125, 1.25, 1.5, 1.75],
    "long_factor": [1.125, 1.5, 2.5, 4.0, 7.0, 10.0],
    "attention_factor": 1.1875,
    "original_max_position_embeddings": 64,
}
GLOBAL_SCALE = 2.0  # of positions in Gemma's layers that see everything
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# What the merges are learned from: prose, code, numbers, accents, CJK, emoji and white space.
TEXT = """
A small lamp burned in the harbour office, and the clerk wrote down every ship that came in from
the sea. Some carried salt, some carried oranges, and one carried nothing but letters. She read
the names aloud while the rain fell on the roof and on the stones and on the slow green water.
When the morning came the clerk opened the window, counted the masts, and began another page.
The question was simple: who had sent the letters, and who was waiting for them on the shore?
Nobody answered. The bell rang twice, the door opened, and a child asked for the time of day.
What is the capital of the country? What is the sum of the numbers? How do you write the code?
def total(values):
    result = 0
    for value in values:
        result = result + value
    return result

if __name__ == "__main__":
    print(total([1, 2, 3]))
The user asked; the assistant answered. The system said: you are a helpful assistant.
Le café était déjà fermé, la fenêtre ouverte, et l'été finissait. Où êtes-vous allés ? Là-bas.
Die Straße führt über die Brücke; später fährt kein Zug mehr. Schöne Grüße!
你好，世界。今天的天气很好，我们去海边看船。你好吗？我很好。世界很大。
Bonjour 🙂 hello 🙂 goodbye 🚢🚢
"""


@dataclass(frozen=True)
class Family:
    """What a model family has of its own; ``biased`` says that Q, K and V add a bias,
    ``llama3_rope`` that its rotary frequencies are scaled by LLAMA3_ROPE, ``head_norm`` that every
    head of Q and K is normalized, ``post_norms`` that what is added to the residual is too.
    ``fused`` puts Q, K and V into one tensor, gate and up into another. ``chat`` are the tokens
    before and behind a turn, of a vocabulary of pieces; ``lines`` its runs of line ends. Tokens see
    ``window`` tokens, if it is given, and the first ``rotary`` elements of a head are rotated."""

    architecture: str
    pre: str
    rope_base: float
    eps: float
    biased: bool = False
    llama3_rope: bool = False
    head_norm: bool = False
    head_dim: int = HEAD_DIM
    layers: int = LAYERS
    post_norms: bool = False
    fused: bool = False
    window: int = 0
    rotary: int = 0
    chat: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


LLAMA = Family("llama", "smollm", 10000.0, 1e-5)
LLAMA3 = Family("llama", "smollm", 10000.0, 1e-5, llama3_rope=True)
QWEN2 = Family("qwen2", "qwen2", 1e6, 1e-6, biased=True)
QWEN3 = Family("qwen3", "qwen2", 1e6, 1e-6, head_norm=True, head_dim=24)
GEMMA3 = Family(
    *("gemma3", "default", 1e6, 1e-6),
    head_norm=True,
    head_dim=24,
    layers=7,  # the sixth sees everything
    post_norms=True,
    window=20,
    chat=("<start_of_turn>", "<end_of_turn>"),
    lines=("\n", "\n\n"),
)
PHI3 = Family(
    *("phi3", "default", 10000.0, 1e-5),
    fused=True,
    window=24,
    rotary=12,
    chat=("<|assistant|>", "<|end|>"),
)


def learn_bpe() -> tuple[list[str], list[str]]:
    """Tokens by id and merges ("left right") of a byte-level BPE over TEXT."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return tokens, [" ".join(pair) for pair in merges]


def pieces(family: Family) -> tuple[list[str], list[float], list[int]]:
    """The SentencePiece vocabulary in pieces.json with a family's own tokens: texts, scores and
    types."""
    learned = json.loads((HERE / "pieces.json").read_text(encoding="utf-8"))
    added = dict.fromkeys(family.chat, gguf.TokenType.CONTROL)
    added |= dict.fromkeys(family.lines, gguf.TokenType.USER_DEFINED)
    return (
        [*learned["tokens"], *added],
        [*learned["scores"], *[-1000.0] * len(added)],
        [*learned["types"], *map(int, added.values())],
    )


def vocab(family: Family) -> int:
    """How many tokens a family's model has."""
    return len(pieces(family)[0]) if family.chat else VOCAB


def control_ids(name: str) -> set[int]:
    """The tokens of a golden model that are no text."""
    family = MODELS[name][2]
    if not family.chat:
        return set(range(len(SPECIALS)))
    return {i for i, kind in enumerate(pieces(family)[2]) if kind in (2, 3)}


def matrices(rng: np.random.Generator, family: Family) -> dict[str, np.ndarray]:
    """Random weights by GGUF name, float32, (rows, columns)."""
    heads, kv_heads = HEADS * family.head_dim, KV_HEADS * family.head_dim
    shapes = {
        "attn_q": (heads, HIDDEN),
        "attn_k": (kv_heads, HIDDEN),
        "attn_v": (kv_heads, HIDDEN),
        "attn_output": (HIDDEN, heads),
        "ffn_gate": (FFN, HIDDEN),
        "ffn_up": (FFN, HIDDEN),
        "ffn_down": (HIDDEN, FFN),
    }
    if family.fused:
        shapes = {
            "attn_qkv": (heads + 2 * kv_heads, HIDDEN),
            "attn_output": shapes["attn_output"],
            "ffn_up": (2 * FFN, HIDDEN),
            "ffn_down": shapes["ffn_down"],
        }
    return {
        f"blk.{layer}.{name}.weight": normal(rng, shape, WIDTH / shape[1] ** 0.5)
        for layer in range(family.layers)
        for name, shape in shapes.items()
    }


def biases(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random biases of Q, K and V by GGUF name, float32."""
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS, "attn_v": KV_HEADS}
    return {
        f"blk.{layer}.{name}.bias": normal(rng, (count * HEAD_DIM,), BIAS)
        for layer in range(LAYERS)
        for name, count in heads.items()
    }


def llama3_factors(base: float) -> np.ndarray:
    """What llama.cpp's converter writes as rope_freqs.weight: the divisors of the frequencies,
    (HEAD_DIM / 2,) float32."""
    rope = LLAMA3_ROPE
    factors = []
    for i in range(HEAD_DIM // 2):
        turns = rope["original_max_position_embeddings"] * base ** (-2 * i / HEAD_DIM) / math.tau
        if turns > rope["high_freq_factor"]:
            factors.append(1.0)
        elif turns < rope["low_freq_factor"]:
            factors.append(rope["factor"])
        else:
            spread = rope["high_freq_factor"] - rope["low_freq_factor"]
            smooth = (turns - rope["low_freq_factor"]) / spread
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def normal(rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    """Normally distributed float32 values around 0."""
    return (rng.standard_normal(shape) * deviation).astype(np.float32)


def add_metadata(writer: gguf.GGUFWriter, family: Family) -> None:
    """The hyperparameters, the tokenizer and the chat template."""
    writer.add_name("Octavo tiny")
    writer.add_license("apache-2.0")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(family.layers)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(family.rope_base)
    if family.head_dim != HEAD_DIM:
        writer.add_key_length(family.head_dim)
        writer.add_value_length(family.head_dim)
    writer.add_rope_dimension_count(family.rotary or family.head_dim)
    if family.window:
        writer.add_sliding_window(family.window)
    if family == GEMMA3:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(GLOBAL_SCALE)
    if family == PHI3:
        writer.add_rope_scaling_orig_ctx_len(LONGROPE["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(LONGROPE["attention_factor"])
    writer.add_layer_norm_rms_eps(family.eps)
    writer.add_vocab_size(vocab(family))
    (add_pieces if family.chat else add_tokenizer)(writer, family)
    writer.add_chat_template(template(family))


def template(family: Family) -> str:
    """The chat template, as short as it can be for the family."""
    match family.architecture:
        case "gemma3":
            return (
                "{{ bos_token }}{% for message in messages %}"
                "{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] | trim }}"
                "{{ '<end_of_turn>\n' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
            )
        case "phi3":
            return (
                "{% for message in messages %}"
                "{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}"
                "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
            )
    return TEMPLATE


def add_tokenizer(writer: gguf.GGUFWriter, family: Family) -> None:
    """The vocabulary and the special tokens."""
    tokens, merges = learn_bpe()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(family.pre)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in SPECIALS else gguf.TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges(merges)
    writer.add_bos_token_id(SPECIALS.index("<|im_start|>"))
    writer.add_eos_token_id(SPECIALS.index("<|im_end|>"))
    writer.add_add_bos_token(False)


def add_pieces(writer: gguf.GGUFWriter, family: Family) -> None:
    """A vocabulary of pieces and the special tokens."""
    tokens, scores, types = pieces(family)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre(family.pre)
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(family == GEMMA3)
    writer.add_add_space_prefix(family != GEMMA3)


def write(
    path: Path,
    seed: int,
    matrix_type: gguf.GGMLQuantizationType,
    tied: bool,
    family: Family = LLAMA,
) -> None:
    """One model file; ``tied`` uses the token embedding as the output matrix too."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, family.architecture)
    add_metadata(writer, family)

    def add(name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType) -> None:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    if family.llama3_rope:
        factors = llama3_factors(family.rope_base)
        add("rope_freqs.weight", factors, gguf.GGMLQuantizationType.F32)
    if family == PHI3:
        for kind in ("long", "short"):
            factors = np.array(LONGROPE[f"{kind}_factor"], np.float32)
            add(f"rope_factors_{kind}.weight", factors, gguf.GGMLQuantizationType.F32)
    embedding = normal(rng, (vocab(family), HIDDEN), EMBEDDING)
    add("token_embd.weight", embedding, gguf.GGMLQuantizationType.Q8_0)
    for name, values in matrices(rng, family).items():
        add(name, values, matrix_type)
    layers = range(family.layers)
    norms = [f"blk.{i}.{kind}_norm.weight" for i in layers for kind in ("attn", "ffn")]
    for name in [*norms, "output_norm.weight"]:
        add(name, 1 + normal(rng, (HIDDEN,), 0.2), gguf.GGMLQuantizationType.F32)
    if not tied:
        add("output.weight", normal(rng, (VOCAB, HIDDEN), EMBEDDING), gguf.GGMLQuantizationType.F16)
    if family.biased:
        for name, values in biases(rng).items():
            add(name, values, gguf.GGMLQuantizationType.F32)
    if family.head_norm:
        for name in [f"blk.{i}.attn_{part}_norm.weight" for i in layers for part in "qk"]:
            gain = HEAD_GAIN * (1 + normal(rng, (family.head_dim,), 0.2))
            add(name, gain, gguf.GGMLQuantizationType.F32)
    if family.post_norms:
        kinds = ("post_attention", "post_ffw")
        for name in [f"blk.{i}.{kind}_norm.weight" for i in layers for kind in kinds]:
            gain = POST_GAIN * (1 + normal(rng, (HIDDEN,), 0.2))
            add(name, gain, gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


Q4_0, Q4_1 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1
# By name: quantization of the matrices, whether the embedding is the output too, family.
MODELS = {
    "tiny": (Q4_1, True, LLAMA),
    "tiny_untied": (Q4_0, False, LLAMA),
    "tiny_qwen2": (Q4_0, True, QWEN2),
    "tiny_llama3": (Q4_0, True, LLAMA3),
    "tiny_qwen3": (Q4_0, True, QWEN3),
    "tiny_gemma3": (Q4_0, True, GEMMA3),
    "tiny_phi3": (Q4_0, True, PHI3),
}


def write_named(name: str, path: Path) -> None:
    """The golden model called ``name``."""
    matrix_type, tied, family = MODELS[name]
    write(path, SEED, matrix_type, tied, family)


if __name__ == "__main__":
    for name in MODELS:
        write_named(name, HERE / f"{name}.gguf")
