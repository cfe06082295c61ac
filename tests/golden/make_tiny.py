"""Writes the tiny models of NAMES, tiny.gguf and others beside it: random models from a seed.

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
NAMES = ("tiny", "tiny_untied", "tiny_qwen2", "tiny_llama3", "tiny_qwen3")
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
    head of Q and K is normalized."""

    architecture: str
    pre: str
    rope_base: float
    eps: float
    biased: bool = False
    llama3_rope: bool = False
    head_norm: bool = False
    head_dim: int = HEAD_DIM


LLAMA = Family("llama", "smollm", 10000.0, 1e-5)
LLAMA3 = Family("llama", "smollm", 10000.0, 1e-5, llama3_rope=True)
QWEN2 = Family("qwen2", "qwen2", 1e6, 1e-6, biased=True)
QWEN3 = Family("qwen3", "qwen2", 1e6, 1e-6, head_norm=True, head_dim=24)


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


def matrices(rng: np.random.Generator, head_dim: int) -> dict[str, np.ndarray]:
    """Random weights by GGUF name, float32, (rows, columns)."""
    shapes = {
        "attn_q": (HEADS * head_dim, HIDDEN),
        "attn_k": (KV_HEADS * head_dim, HIDDEN),
        "attn_v": (KV_HEADS * head_dim, HIDDEN),
        "attn_output": (HIDDEN, HEADS * head_dim),
        "ffn_gate": (FFN, HIDDEN),
        "ffn_up": (FFN, HIDDEN),
        "ffn_down": (HIDDEN, FFN),
    }
    return {
        f"blk.{layer}.{name}.weight": normal(rng, shape, WIDTH / shape[1] ** 0.5)
        for layer in range(LAYERS)
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
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(family.rope_base)
    if family.head_dim != HEAD_DIM:
        writer.add_key_length(family.head_dim)
        writer.add_value_length(family.head_dim)
    writer.add_rope_dimension_count(family.head_dim)
    writer.add_layer_norm_rms_eps(family.eps)
    writer.add_vocab_size(VOCAB)
    add_tokenizer(writer, family)
    writer.add_chat_template(TEMPLATE)


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
    add(
        "token_embd.weight", normal(rng, (VOCAB, HIDDEN), EMBEDDING), gguf.GGMLQuantizationType.Q8_0
    )
    for name, values in matrices(rng, family.head_dim).items():
        add(name, values, matrix_type)
    norms = [f"blk.{i}.{kind}_norm.weight" for i in range(LAYERS) for kind in ("attn", "ffn")]
    for name in [*norms, "output_norm.weight"]:
        add(name, 1 + normal(rng, (HIDDEN,), 0.2), gguf.GGMLQuantizationType.F32)
    if not tied:
        add("output.weight", normal(rng, (VOCAB, HIDDEN), EMBEDDING), gguf.GGMLQuantizationType.F16)
    if family.biased:
        for name, values in biases(rng).items():
            add(name, values, gguf.GGMLQuantizationType.F32)
    if family.head_norm:
        for name in [f"blk.{i}.attn_{part}_norm.weight" for i in range(LAYERS) for part in "qk"]:
            gain = HEAD_GAIN * (1 + normal(rng, (family.head_dim,), 0.2))
            add(name, gain, gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_named(name: str, path: Path) -> None:
    """The golden model called ``name``."""
    q4_0, q4_1 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1
    match name:
        case "tiny":
            write(path, SEED, q4_1, tied=True)
        case "tiny_untied":
            write(path, SEED, q4_0, tied=False)
        case "tiny_qwen2":
            write(path, SEED, q4_0, tied=True, family=QWEN2)
        case "tiny_llama3":
            write(path, SEED, q4_0, tied=True, family=LLAMA3)
        case "tiny_qwen3":
            write(path, SEED, q4_0, tied=True, family=QWEN3)


if __name__ == "__main__":
    for name in NAMES:
        write_named(name, HERE / f"{name}.gguf")
