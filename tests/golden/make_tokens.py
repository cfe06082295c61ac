"""Writes the files tokens_*.json: token ids as llama.cpp computes them.

llama.cpp (the package `xllamacpp`) has its own vocabulary reader, pre-tokenizers and BPE, so
its ids check ours independently. See README.md beside this file for the exact commands.

    python make_tokens.py PATH/TO/SmolLM2-135M-Instruct.Q4_1.gguf PATH/TO/gemma-3-270m-q4_k_m.gguf
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import unicodedata
import urllib.request
from dataclasses import replace
from pathlib import Path

import gguf
import make_tiny
import sentencepiece
import xllamacpp
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
KINDS = ["gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-r1-qwen", "deepseek-coder"]
TEXTS = [
    "",
    " ",
    "  ",
    "Hello world",
    " Hello  world   ",
    "It's we'll I'VE they'Re don't 'tis o'clock",
    "0 1 12 123 1234 12345 3.14159 1,000,000 0x1F 2026-01-31 12:34:56",
    "a1b22c333 4th ½ ² ٣ ४५६ Ⅷ ① 一二三",
    "\n",
    "\n\n",
    "\n\n\n  \n",
    "a\nb\n\nc\r\nd\r\n\r\ne",
    "tab\tand\t\ttabs \t mixed  \t\n",
    "trailing spaces   \nand   inside    lines",
    "\u00a0no-break\u00a0\u3000ideographic\u2003em\u200bzero\u2028line\u0085next",
    "你好，世界。今天天气很好！",
    "日本語のテキスト、カタカナ。한국어 문장입니다.",
    "Привет, мир! Γειά σου. שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดี",
    "naïve café, Straße, İstanbul, Ångström, œuvre",
    "e\u0301 o\u0308\u0323 n\u0303 A\u030a combining",
    "🙂 🤖🚢 👩‍👩‍👧‍👦 🇫🇷🇯🇵 👍🏽 ✈️ ❤️‍🔥",
    "def f(x, *args):\n    return {'a': x ** 2, \"b\": [i for i in args if i != 0]}  # note\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] << 2; } /* ok */ // done",
    '<div class="x">&nbsp;&amp;</div> https://example.org/a?b=c&d=%20#e user@example.org',
    "SELECT * FROM t WHERE a <> 'b' AND c LIKE '%d%';\n\n\t-- end",
    "$x^2 + \\frac{a}{b} \\neq 0$ — “quoted” ‘single’ … €5 £6 ¥7 №8 ™ ©",
    "!!! ??? ... --- ___ *** ((())) [[]] {{}} //// \\\\ ~~ `` ||",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    " " * 33 + "x" + "\n" * 17 + "=" * 40,
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_end|><|im_end|> <|im_end|>x <|im_end |> <|IM_END|> <|endoftext|>a",
    "<|im_start|system|> < |im_end| > |im_end|> <|im_",
    "\x00\x01\x02\x07\x1b[0m\x7f control",
    "\ufeffBOM \ufffd replacement \U0010fffd private \U000e0041 tag \ud7ff edge",
    "Ġword Ċ ▁ ## @@ </s> <unk> [INST] [CLS]",
    "CamelCaseWords snake_case_words kebab-case-words SCREAMING_CASE x86_64 v1.2.3-rc4",
    "ﬁ ﬀ ǆ Å Ω ㎏ ｆｕｌｌ ｗｉｄｔｈ １２３",
]
# Where SentencePiece's own ways show: control tokens, spaces beside them, the space's sign.
PIECE_TEXTS = [
    "<s>[INST] Hello [/INST] Hi there</s>",
    "<s> a</s>b </s> c<s><s>",
    "<|user|>\nWhere is the ship?</s>\n<|user|> x<|user|>y",
    "\u2581a \u2581 b\u2581\u2581c",
    "<0x41><0x0A> <unk> </ s> </s",
    "   leading\n   and   more",
]
# Tokens that Gemma has of its own: turns, runs of line ends, tabs and spaces, tags.
GEMMA_TEXTS = [
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "a\n\n\nb\t\t\tc    d  e",
    "<b>bold</b><h1>x</h1><unused7>",
    "<bos>x<eos> <pad>",
    "[multimodal] <start_of_image>",
]


class Server:
    """llama.cpp with one model."""

    def __init__(self, path: Path) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = 512
        params.port = 0
        self._server = xllamacpp.Server(params)

    def encode(self, text: str) -> list[int]:
        """Token ids; control tokens in the text are recognised, none is added."""
        body = {"content": text, "add_special": False, "parse_special": True}
        request = urllib.request.Request(
            self._server.listening_address + "/tokenize",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["tokens"]


def learn_across_boundaries() -> tuple[list[str], list[str]]:
    """A vocabulary whose merges cross every boundary, so that a missing split shows in ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=make_tiny.VOCAB + 400,
        special_tokens=make_tiny.SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=6,
        show_progress=False,
    )
    # Lines of a few characters: whole texts would be learned as single tokens.
    text = "".join(TEXTS) + make_tiny.TEXT + "12 345 67890 1 2 3 10 20 30 11 22 33\n\n" * 3
    tokenizer.train_from_iterator([text[i : i + 7] for i in range(0, len(text), 5)], trainer)
    vocabulary = tokenizer.get_vocab()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return sorted(vocabulary, key=vocabulary.__getitem__), [" ".join(pair) for pair in merges]


def is_known_to_differ(kind: str, text: str) -> bool:
    """Whether llama.cpp departs from the model's own tokenizer."""
    match kind:
        case "qwen2":  # it composes characters first (NFC), which llama.cpp leaves out
            return unicodedata.normalize("NFC", text) != text
        case (
            "deepseek-coder"
        ):  # U+3000 is in its range of CJK; llama.cpp replaces wide spaces first
            return "\u3000" in text
    return False


def kinds() -> dict[str, object]:
    """Ids of TEXTS under each kind of pre-tokenizer with one small vocabulary."""
    tokens, merges = learn_across_boundaries()
    make_tiny.learn_bpe = lambda: (tokens, merges)
    make_tiny.VOCAB = len(tokens)
    document: dict[str, object] = {"tokens": tokens, "merges": merges, "kinds": {}}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            family = replace(make_tiny.LLAMA, pre=kind)
            make_tiny.write(path, 0, gguf.GGMLQuantizationType.Q4_0, tied=True, family=family)
            server = Server(path)
            texts = [t for t in TEXTS if not is_known_to_differ(kind, t)]
            document["kinds"][kind] = [[t, server.encode(t)] for t in texts]
    return document


def learn_pieces() -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece vocabulary with bytes, settings as Llama's and Mistral's have them."""
    lines = [line for line in [*make_tiny.TEXT.split("\n") * 3, *TEXTS] if line.strip()]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line.replace("\0", "").replace("\n", " ") for line in lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=900,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=["<|user|>"],
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def pieces() -> dict[str, object]:
    """Ids of TEXTS and PIECE_TEXTS with such a vocabulary, with a space put in front and without,
    by llama.cpp; sentencepiece itself must agree where no control token cuts a text."""
    learned = learn_pieces()
    ids = range(learned.get_piece_size())
    document: dict[str, object] = {
        "tokens": [learned.id_to_piece(i) for i in ids],
        "scores": [learned.get_score(i) for i in ids],
        "types": [piece_type(learned, i) for i in ids],
    }

    def add_tokenizer(writer: gguf.GGUFWriter, family: make_tiny.Family) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(document["tokens"])
        writer.add_token_scores(document["scores"])
        writer.add_token_types(document["types"])
        writer.add_bos_token_id(learned.bos_id())
        writer.add_eos_token_id(learned.eos_id())
        writer.add_unk_token_id(learned.unk_id())
        writer.add_add_space_prefix(family.pre == "prefix")

    make_tiny.add_tokenizer = add_tokenizer
    make_tiny.VOCAB = len(ids)
    for kind in ("prefix", "plain"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            family = replace(make_tiny.LLAMA, pre=kind)
            make_tiny.write(path, 0, gguf.GGMLQuantizationType.Q4_0, tied=True, family=family)
            server = Server(path)
            rows = [[text, server.encode(text)] for text in [*TEXTS, *PIECE_TEXTS]]
        document[kind] = rows
    for text, row in document["prefix"]:
        if not any(token in text for token in ("<s>", "</s>", "<unk>", "<|user|>", "\0")):
            assert row == learned.encode(text), text
    return document


def piece_type(learned: sentencepiece.SentencePieceProcessor, index: int) -> int:
    """As llama.cpp's converter finds it."""
    if learned.is_unknown(index):
        return gguf.TokenType.UNKNOWN
    if learned.is_control(index):
        return gguf.TokenType.CONTROL
    if learned.is_byte(index):
        return gguf.TokenType.BYTE
    user_defined = learned.id_to_piece(index) == "<|user|>"
    return gguf.TokenType.USER_DEFINED if user_defined else gguf.TokenType.NORMAL


def save(name: str, document: object) -> None:
    """Compact JSON, one file."""
    text = json.dumps(document, ensure_ascii=True, indent=None, separators=(",", ":"))
    (HERE / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    server = Server(Path(sys.argv[1]))
    save("tokens_smollm2", [[text, server.encode(text)] for text in TEXTS])
    save("tokens_kinds", kinds())
    save("tokens_pieces", pieces())
    server = Server(Path(sys.argv[2]))
    texts = [*TEXTS, *PIECE_TEXTS, *GEMMA_TEXTS]
    save("tokens_gemma3", [[text, server.encode(text)] for text in texts])
