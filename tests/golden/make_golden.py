"""Writes the golden files: what `transformers` computes from the same GGUF, in float32.

Nothing of the engine is used here. See README.md beside this file for the exact commands.

    python make_golden.py tiny
    python make_golden.py logits
    python make_golden.py smollm2 PATH/TO/SmolLM2-135M-Instruct.Q4_1.gguf
    python make_golden.py gemma3 PATH/TO/gemma-3-270m-q4_k_m.gguf
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import gguf
import make_tiny
import numpy as np
import tokenizers
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
Prompt = dict[str, Any]

# Prompts with large margins, picked out of some 480, whose text never
# holds a control token, so that it is the same whether or not generation stops at one.
TINY_STEPS = 200
TINY_PROMPTS: dict[str, list[Prompt]] = {
    "tiny": [
        {"name": "ship", "user": "How do you find the ship on the shore?"},
        {"name": "rain", "user": "Where is the rain in the sea?"},
        {"name": "one token", "random": [1, 50]},
        {"name": "130 tokens", "random": [130, 28]},
    ],
    "tiny_untied": [
        {"name": "rain", "user": "Where is the rain of the day?"},
        {"name": "window", "user": "How do you find the window of the day?"},
        {"name": "130 tokens", "random": [130, 2]},
    ],
    "tiny_qwen2": [
        {"name": "harbour", "user": "Where is the harbour on the shore?"},
        {"name": "window", "user": "Where is the window of the numbers?"},
        {"name": "one token", "random": [1, 422]},
        {"name": "37 tokens", "random": [37, 37]},
        {"name": "130 tokens", "random": [130, 149]},
    ],
    "tiny_llama3": [
        {"name": "clerk", "user": "Where is the clerk of the numbers?"},
        {"name": "one token", "random": [1, 272]},
        {"name": "37 tokens", "random": [37, 80]},
        {"name": "130 tokens", "random": [130, 105]},
    ],
    "tiny_qwen3": [
        {"name": "name", "user": "Where is the name of the numbers?"},
        {"name": "one token", "random": [1, 305]},
        {"name": "37 tokens", "random": [37, 192]},
        {"name": "130 tokens", "random": [130, 149]},
    ],
    "tiny_gemma3": [
        {"name": "numbers", "user": "How do you find the numbers of the country?"},
        {"name": "one token", "random": [1, 365]},
        {"name": "37 tokens", "random": [37, 307]},
        {"name": "130 tokens", "random": [130, 58]},
    ],
    "tiny_phi3": [
        {"name": "bell", "user": "Where is the bell of the country?"},
        {"name": "one token", "random": [1, 114]},
        {"name": "37 tokens", "random": [37, 103]},
        {"name": "130 tokens", "random": [130, 193]},
    ],
}
FIRST_ORDINARY, TINY_VOCAB = 3, 600  # between which random ids lie
# A prompt longer than two blocks of the KV cache and than any window, and where its logits count.
LOGITS_PROMPT, LOGITS_AT = [44, 5], (17, 43)
LOGITS_OF = [*make_tiny.MODELS, "tiny_phi3 short"]

GEMMA3_STEPS = 24
# The model is not tuned for chats; the last text is longer than its window of 512.
GEMMA3_TEXTS = {
    "capital": "The capital of France is",
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "accents": "Le café près de l'église est fermé, donc nous",
    "chinese": "今天的天气很好，我们去海边看船。🙂",
    "list": "Shopping list:\n\n\n- 12 eggs\n-\t\tbutter\n- <b>milk</b>\n",
}

SMOLLM2_STEPS = 48
LONG_QUESTION = (
    "Here is a short story. A lighthouse keeper named Ines lived alone on a rocky island. Every "
    "evening she climbed one hundred and twelve steps to light the lamp, and every morning she "
    "climbed down again to write the weather in a blue notebook. One winter a storm broke the "
    "window of the lamp room, and the wind put out the light. Ines carried the small lamp from "
    "her kitchen up the stairs and held it in her hands until the sun rose. Three fishing boats "
    "came home safely that night. The fishermen never learned who had held the lamp, but in the "
    "spring they left a basket of oranges and a new blue notebook at her door. Ines ate one "
    "orange, gave the others to the gulls, and wrote the weather on the first page. Now answer "
    "in one sentence: what did the fishermen leave at her door, and why?"
)
SMOLLM2_PROMPTS: list[Prompt] = [
    {"name": "capital", "user": "What is the capital of France?"},
    {"name": "code", "user": "Write a Python function that adds two numbers."},
    {"name": "accents", "user": "Traduis en anglais : « Où est le café près de l'église ? »"},
    {"name": "chinese", "user": "你好！请用中文介绍一下你自己。🙂"},
    {
        "name": "turns",
        "messages": [
            {"role": "system", "content": "You are a friendly teacher. Answer briefly."},
            {"role": "user", "content": "My name is Ada and I have 3 apples."},
            {"role": "assistant", "content": "Hello Ada! What would you like to know?"},
            {"role": "user", "content": "I eat 1 apple. How many are left, and what is my name?"},
        ],
    },
    {"name": "story", "user": LONG_QUESTION},
]
# The text whose negative log-likelihood is recorded.
PASSAGE = (
    "The tide had gone out further than anyone could remember, and the whole bay lay open like a "
    "page. Children ran over the ribbed sand, finding shells, bottles, a rusted anchor and, near "
    "the old pier, the ribs of a wooden boat. In 1907 the boat had carried 24 barrels of oil and "
    "a crew of 6; by 1908 nobody in the village would speak of it. The teacher, who liked facts, "
    "wrote a list: length 11.5 metres, width 3.2 metres, timber oak, fastenings copper. The baker "
    'said the list was very good, but that it left out the dog. "What dog?" asked the teacher. '
    '"There is always a dog," said the baker. They walked home slowly, because the light was '
    "yellow and the air smelled of salt and bread, and because neither of them wanted to be the "
    "first to say that the water was coming back. When it came, it came without any noise, filling "
    "the footprints one after another, then the holes, then the boat. By supper there was only the "
    "sea again, flat and grey, and a list on a kitchen table: length, width, timber, copper, dog. "
    "The next morning the teacher went to the school early and asked the oldest pupil to read the "
    "list aloud. He read it twice, the second time with great care, and nobody laughed."
)


def complete(config: Any, name: str) -> None:
    """Tells a configuration what transformers' GGUF loader does not read."""
    match name:
        case "tiny_llama3":
            # It leaves rope_freqs out, and has its own formula for them.
            config.rope_parameters |= {"rope_type": "llama3", **make_tiny.LLAMA3_ROPE}
        case "tiny_qwen3":
            config.head_dim = make_tiny.QWEN3.head_dim
        case "tiny_gemma3":
            family, scale = make_tiny.GEMMA3, make_tiny.GLOBAL_SCALE
            config.query_pre_attn_scalar = family.head_dim
            config.rope_parameters = {
                "full_attention": {
                    "rope_type": "linear",
                    "factor": scale,
                    "rope_theta": family.rope_base,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            }
        case "tiny_phi3" | "tiny_phi3 short":
            family, rope = make_tiny.PHI3, dict(make_tiny.LONGROPE)
            kind = "short_factor" if name.endswith("short") else "long_factor"
            # transformers goes from short to long factors in the middle of a text; here one kind
            # serves from the first token on, as in llama.cpp.
            rope["short_factor"] = rope["long_factor"] = rope[kind]
            config.sliding_window, config.pad_token_id = family.window, None
            config.rope_parameters = {
                "rope_type": "longrope",
                "rope_theta": family.rope_base,
                "partial_rotary_factor": family.rotary / family.head_dim,
                **rope,
            }


class Oracle:
    """A GGUF model in `transformers`, float32 on the CPU, with its tokenizer. ``name`` says what
    is to be told to its configuration."""

    def __init__(self, path: Path, name: str = "") -> None:
        where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
        self.path = path
        config = AutoConfig.from_pretrained(**where)
        complete(config, name or path.stem)
        self.model = AutoModelForCausalLM.from_pretrained(
            **where, config=config, dtype=torch.float32
        ).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(**where)
        if self.model.config.model_type == "llama":
            split = tokenizers.pre_tokenizers
            # transformers' GGUF loader knows no "smollm": its digits must be split one by one.
            self.tokenizer.backend_tokenizer.pre_tokenizer = split.Sequence(
                [split.Digits(individual_digits=True), split.ByteLevel(add_prefix_space=False)]
            )
        self._check_dequantized()

    def _check_dequantized(self) -> None:
        """The loaded matrices must be, to the bit, what the gguf package dequantizes."""
        stored = {tensor.name: tensor for tensor in gguf.GGUFReader(self.path).tensors}
        loaded = self.model.state_dict()
        names = {
            "token_embd.weight": "model.embed_tokens.weight",
            "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
        }
        if self.model.config.model_type == "phi3":
            names["blk.2.attn_qkv.weight"] = "model.layers.2.self_attn.qkv_proj.weight"
            names["blk.1.ffn_up.weight"] = "model.layers.1.mlp.gate_up_proj.weight"
        else:
            names["blk.2.attn_v.weight"] = "model.layers.2.self_attn.v_proj.weight"
        if self.model.config.model_type == "qwen2":
            for part in "qkv":  # the biases too, and Q and K in the order of the file
                attention = f"model.layers.1.self_attn.{part}_proj"
                names[f"blk.1.attn_{part}.weight"] = f"{attention}.weight"
                names[f"blk.1.attn_{part}.bias"] = f"{attention}.bias"
        if self.model.config.model_type == "qwen3":
            for part in "qk":
                attention = f"model.layers.1.self_attn.{part}"
                names[f"blk.1.attn_{part}.weight"] = f"{attention}_proj.weight"
                names[f"blk.1.attn_{part}_norm.weight"] = f"{attention}_norm.weight"
        for name, other in names.items():
            tensor = stored[name]
            expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(expected, loaded[other].numpy()), name

    def encode(self, text: str) -> list[int]:
        """Token ids; control tokens in the text are recognised."""
        if self.model.config.model_type == "phi3":
            # Its tokenizer takes white space behind these tokens away; GGUF does not say so.
            text = re.sub(r"(<\|(user|assistant|end)\|>)\s+", r"\1", text)
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def chat(self, messages: list[dict[str, str]]) -> str:
        """The prompt text by the model's own template."""
        text: str = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return text

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> torch.Tensor:
        """(tokens, vocabulary) for the whole text at once."""
        return self.model(torch.tensor([ids]), use_cache=False).logits[0]

    @torch.inference_mode()
    def greedy(self, ids: list[int], steps: int, stop: set[int]) -> tuple[list[int], list[float]]:
        """Greedy ids (a stop token included, then the end) and the top-2 margin of each."""
        result, margins, cache, step = [], [], None, torch.tensor([ids])
        for _ in range(steps):
            output = self.model(step, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            top = output.logits[0, -1].topk(2)
            result.append(int(top.indices[0]))
            margins.append(round(float(top.values[0] - top.values[1]), 5))
            if result[-1] in stop:
                break
            step = top.indices[:1].view(1, 1)
        return result, margins

    def likelihood(self, text: str) -> dict[str, Any]:
        """-log p of each token of ``text`` after those before it, in nats (the first has none)."""
        ids = self.encode(text)
        log_p = self.logits(ids)[:-1].double().log_softmax(-1)
        nll = -log_p.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        values = [round(float(value), 5) for value in nll]
        return {
            "text": text,
            "ids": ids,
            "nll": values,
            "mean": round(sum(values) / len(values), 6),
        }


def record(oracle: Oracle, prompt: Prompt, steps: int, stop: set[int]) -> Prompt:
    """One prompt with what the model makes of it."""
    entry: Prompt = {"name": prompt["name"]}
    if "random" in prompt:
        ids = random_ids(*prompt["random"])
    else:
        entry["messages"] = prompt.get(
            "messages", [{"role": "user", "content": prompt.get("user")}]
        )
        entry["prompt"] = oracle.chat(entry["messages"])
        ids = oracle.encode(entry["prompt"])
    last = oracle.logits(ids)[-1]
    greedy, margins = oracle.greedy(ids, steps, stop)
    entry["prompt_ids"] = ids
    entry["prefill"] = {
        "first_logits": [round(float(value), 5) for value in last[:8]],
        "argmax": int(last.argmax()),
        "max": round(float(last.max()), 5),
        "mean": round(float(last.mean()), 5),
        "deviation": round(float(last.std()), 5),
    }
    entry["ids"] = greedy
    entry["margins"] = margins
    entry["min_margin"] = min(margins)
    entry["text"] = oracle.tokenizer.decode(greedy, skip_special_tokens=True)
    assert entry["prefill"]["argmax"] == greedy[0]
    return entry


def made_with() -> dict[str, str]:
    """Versions of the packages that count."""
    return {m.__name__: m.__version__ for m in (torch, transformers, tokenizers, np)}


def random_ids(count: int, seed: int) -> list[int]:
    """Random ids of a tiny model."""
    ids: list[int] = (
        np.random.default_rng([count, seed]).integers(FIRST_ORDINARY, TINY_VOCAB, count).tolist()
    )
    return ids


def golden(path: Path, prompts: list[Prompt], steps: int, stop: set[int]) -> dict[str, Any]:
    """The whole golden document of one model."""
    oracle = Oracle(path)
    return {
        "model": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "made_with": made_with(),
        "stop_ids": sorted(stop),
        "prompts": [record(oracle, prompt, steps, stop) for prompt in prompts],
        "passage": oracle.likelihood(PASSAGE if stop else PASSAGE[:420]),
    }


def save(name: str, document: dict[str, Any]) -> None:
    """JSON with one field a line, but each list of numbers on one line."""

    def lines(value: Any, indent: str = "") -> str:
        if isinstance(value, dict):
            inner = [
                f"{indent}  {json.dumps(k)}: {lines(v, indent + '  ')}" for k, v in value.items()
            ]
            return "{\n" + ",\n".join(inner) + f"\n{indent}}}"
        if isinstance(value, list) and value and isinstance(value[0], dict):
            inner = [f"{indent}  {lines(item, indent + '  ')}" for item in value]
            return "[\n" + ",\n".join(inner) + f"\n{indent}]"
        return json.dumps(value, ensure_ascii=False)

    (HERE / f"{name}.json").write_text(lines(document) + "\n", encoding="utf-8")


def report(name: str, document: dict[str, Any]) -> None:
    """What is in a golden document, in short."""
    for prompt in document["prompts"]:
        print(
            name,
            prompt["name"],
            len(prompt["prompt_ids"]),
            len(prompt["ids"]),
            "margin",
            prompt["min_margin"],
            repr(prompt["text"][:200]),
        )
    print(
        name,
        "passage",
        len(document["passage"]["ids"]),
        "tokens, mean nll",
        document["passage"]["mean"],
    )


def logits() -> dict[str, Any]:
    """All logits at LOGITS_AT of a random prompt, by model."""
    count, seed = LOGITS_PROMPT
    ids = random_ids(count, seed)
    found = {}
    for name in LOGITS_OF:
        values = Oracle(HERE / f"{name.split()[0]}.gguf", name).logits(ids)[list(LOGITS_AT)]
        found[name] = [[round(float(value), 4) for value in row] for row in values]
    return {"ids": ids, "at": LOGITS_AT, "logits": found}


def gemma3(path: Path) -> dict[str, Any]:
    """Greedy ids after texts, for Gemma 3 270M."""
    oracle, bos = Oracle(path), 2
    texts = {**GEMMA3_TEXTS, "passage": PASSAGE + "\n\n" + LONG_QUESTION + "\n\n" + PASSAGE[:700]}
    prompts = []
    for name, text in texts.items():
        ids = [bos, *oracle.encode(text)]
        greedy, margins = oracle.greedy(ids, GEMMA3_STEPS, {1})
        prompts.append({"name": name, "text": text, "prompt_ids": ids})
        prompts[-1] |= {"ids": greedy, "margins": margins}
        print(name, len(ids), min(margins), repr(oracle.tokenizer.decode(greedy)))
    return {"model": path.name, "made_with": made_with(), "prompts": prompts}


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=["tiny", "logits", "smollm2", "gemma3"])
    parser.add_argument(
        "path", nargs="?", type=Path, help="the GGUF; or the tiny model, if not all"
    )
    arguments = parser.parse_args()
    if arguments.which == "tiny":
        for name, prompts in TINY_PROMPTS.items():
            if arguments.path in (None, Path(name)):
                document = golden(HERE / f"{name}.gguf", prompts, TINY_STEPS, stop=set())
                save(name, document)
                report(name, document)
    elif arguments.which == "logits":
        save("logits", logits())
    elif arguments.which == "gemma3":
        save("gemma3_270m", gemma3(arguments.path))
    else:
        document = golden(arguments.path, SMOLLM2_PROMPTS, SMOLLM2_STEPS, stop={2})
        save("smollm2", document)
        report("smollm2", document)


if __name__ == "__main__":
    main()
