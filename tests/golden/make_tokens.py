"""Writes the files tokens_*.json: token ids as llama.cpp and transformers compute them.

llama.cpp (the package `xllamacpp`) has its own vocabulary reader, pre-tokenizers and BPE, so
its ids check ours independently; transformers reads GGUF vocabularies by patterns of its own.
See README.md beside this file for the exact commands.

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
from itertools import pairwise
from pathlib import Path

import gguf
import make_tiny
import sentencepiece
import xllamacpp
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers.integrations.gguf import gguf_tokenizer_mapping as transformers_gguf

HERE = Path(__file__).parent
# One name of each kind; then the other names of some.
KINDS = {
    "gpt-2": "phi-2 mpt jais exaone4 trillion granite-docling mellum gigachat",
    "olmo": "",
    "default": "",
    "smollm": "starcoder refact minerva-7b",
    "command-r": "",
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    "dbrx": "smaug-bpe glm4 chatglm-bpe",
    "qwen2": "stablelm2",
    "megrez": "hunyuan solar-open",
    "qwen35": "",
    "deepseek-r1-qwen": "",
    "gpt-4o": "llama4 kanana2",
    "tekken": "",
    "deepseek-coder": "",
    "deepseek-llm": "",
    "deepseek-v3": "hunyuan-dense joyai-llm",
}
# Their models compose characters first (NFC), which llama.cpp leaves out.
COMPOSING = ("olmo", "command-r", "qwen2", "qwen35")
# llama.cpp takes all letters that are not ASCII for upper and lower case at once, and no marks.
CASED = ("gpt-4o", "tekken")
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
# Each with something that pre-tokenizers have got wrong.
HOSTILE = [
    "iPhone XMLHttpRequest ABCdef aBC ÀÉÎ Éàé éÀÉ ПРИВЕТмир ΑΒΓαβγ ǅungla ʰtest ªº",
    "it'S IT'LL l'été L'ÉTÉ O'Neill 'quoted' he'd've 're'll'd ''s x'M",
    "\u0e01\u0e33 \u0e19\u0e49\u0e33 क्षि ক্ষ தமிழ் \u1100\u1161\u11a8 \u0301\u0302 \u20dd1\u20dd",
    "a\u0301\u0328b Z\u0351\u036b\u0343\u036a\u0302 \u0627\u064e\u0644\u0652 \u05e9\u05c1\u05b8",
    "\u202bשלום abc 123\u202c \u2067العربية\u2069 مرحباـــ ١٢٣٤ ۱۲۳۴",
    "1️⃣2️⃣ #️⃣ 👨🏿‍🚀🧑‍🤝‍🧑 🏴󠁧󠁢󠁥󠁮󠁧󠁿 👁️‍🗨️ 😮‍💨",
    "1234567890123456789012345678901234567890 000 0000 1.234.567,89 1e-10 ١٢٣٤٥ 1２3 x²³",
    "a/b//c/\n///\n\n/x \\n !\n?\r\n\r\n;/\r\n",
    " \t \n \t\n\n \r\r\n  \u00a0 \u2003\n\u3000x \u1680 \u180e \u200b\u2060 y\u2028\u2029z"
    " \x0b\x0c \x85",
    "\t\t\tif (x) {\r\n\t\t\t\treturn -1;\r\n\t\t\t}\r\n",
    "中文English混合123数字、标点。ひらがなカタカナ漢字ｶﾀｶﾅ한국어ㄱㄴ𠀀𪚥 ー々〇",
    "a\0b\0\0 \x1f\x80\x9f \u0378 \ue000 \ufdd0\uffff \U0001ffff",
    "x" * 300 + " " + "é" * 50 + " " + "!" * 70 + "\n" * 40 + "ab" * 60,
    "$100 €200 +1-2=3 a+b<c>d^e~f|g`h` №5 ±7 ¬ ×÷ ← ∑∞ ©®™ ₤ ۞ ֏",
    "\u2018a\u2019 \u201cb\u201d «c» ‹d› — – ‐ … · • ‰ ′ ″ 《e》「f」（g）！？：；～｡",
    "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n</s><s>[INST] [/INST]<end_of_turn><pad>",
    "<｜User｜>hi<｜Assistant｜><think>\n</think> <｜end▁of▁sentence｜><|im_start|><|im_start|>",
    "http://a.b/c?d=e&f=g#h ../../etc C:\\Users\\x user_name@host.tld __init__ #include <a.h>",
    "Ⅷ ⅷ ① ㊿ ㍿ ½ ৴ 〇 ᠐᠑ 𝟎𝟏 𝐀𝐛 ⓐⓑ ꙮ ß ẞ İ ı ſ ŉ ﬀ K Å",
    "    four\n   three\n  two\n one\n        eight  ",
    "  \n   leading\n\n\n   \n  trailing   \n\n   ",
]
# What only one kind's pattern keeps together or cuts; tokens across it are learned, too.
CASED_LETTERS = (
    "\u0293\u02af\u0556\u10c5\u13fd\u1cbf\u1d9a\u1ffc\u2131\u2184\u2c7b\u2cf3\ua69b\ua78e"
    "\uabbf\ufb17\uff5a"
)
RARE = "!\n/x;\n//y?\r\n/🙂  🙂   ۞  " + "".join(f"{letter}\u0627" for letter in CASED_LETTERS)
TEXTS += [*HOSTILE, RARE, "🙂  ", "۞   ", "a\u294b\ua7b0\u0294"]
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

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Token ids; control tokens in the text are recognised, none is added unless asked for."""
        body = {"content": text, "add_special": add_special, "parse_special": True}
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
    text = (
        "".join(TEXTS) + make_tiny.TEXT + RARE * 9 + "12 345 67890 1 2 3 10 20 30 11 22 33\n\n" * 3
    )
    tokenizer.train_from_iterator([text[i : i + 7] for i in range(0, len(text), 5)], trainer)
    vocabulary = tokenizer.get_vocab()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    crossing = [f"{letter}\u0627" for letter in CASED_LETTERS] + ["\U0001f642 ", "\u06de "]
    first = []
    for text in crossing:
        word = alphabet.pre_tokenize_str(text)[0][0]
        at = len(alphabet.pre_tokenize_str(text[0])[0][0])
        pair = [word[at - 1], word[at]]  # the bytes on both sides of the border
        if pair not in first:
            first.append(pair)
    merges = [*first, *(pair for pair in merges if pair not in first)]
    tokens += [token for token in map("".join, first) if token not in vocabulary]
    return tokens, [" ".join(pair) for pair in merges]


def is_known_to_differ(kind: str, text: str) -> bool:
    """Whether llama.cpp departs from the model's own tokenizer."""
    if kind in CASED:
        return any(unicodedata.category(c)[0] in "LM" and not c.isascii() for c in text)
    # It was trained on single digits, as its paper says.
    if kind == "deepseek-llm" and any(a.isnumeric() and b.isnumeric() for a, b in pairwise(text)):
        return True
    # U+3000 is in two ranges of theirs; llama.cpp replaces wide spaces first.
    return kind in ("deepseek-coder", "deepseek-llm") and "\u3000" in text


def composed(kind: str, text: str) -> str:
    """The text that the model's pre-tokenizer gets."""
    return unicodedata.normalize("NFC", text) if kind in COMPOSING else text


def by_llama_cpp(
    name: str, tokens: list[str], merges: list[str], texts: list[str]
) -> tuple[list[list[int]], bool]:
    """The ids of `texts`; whether a text begins with a token if the file does not say."""

    def add_tokenizer(writer: gguf.GGUFWriter, family: make_tiny.Family) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(family.pre)
        writer.add_token_list(tokens)
        writer.add_token_merges(merges)
        writer.add_token_types(types_of(tokens))
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

    make_tiny.add_tokenizer = add_tokenizer
    make_tiny.VOCAB = len(tokens)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        family = replace(make_tiny.LLAMA, pre=name)
        make_tiny.write(path, 0, gguf.GGMLQuantizationType.Q4_0, tied=True, family=family)
        server = Server(path)
        begins = server.encode("x", add_special=True)[0] == 1
        return [server.encode(text) for text in texts], begins


def by_transformers(
    name: str, tokens: list[str], merges: list[str], texts: list[str]
) -> list[list[int]] | None:
    """The ids of `texts`; None where its reader of GGUF vocabularies does not know the kind."""
    if name not in transformers_gguf.GGUF_PRE_TOKENIZER_SPLITS:
        return None
    description = {
        "tokenizer_type": "gpt2",
        "pre_tokenizer_type": name,
        "tokens": tokens,
        "merges": merges,
        "token_type": types_of(tokens),
    }
    tokenizer, _ = transformers_gguf.convert_gguf_tokenizer("llama", description)
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def types_of(tokens: list[str]) -> list[int]:
    """Control tokens come first."""
    controls = len(make_tiny.SPECIALS)
    return [gguf.TokenType.CONTROL] * controls + [gguf.TokenType.NORMAL] * (len(tokens) - controls)


def kinds() -> dict[str, object]:
    """Ids of TEXTS under each kind of pre-tokenizer with one small vocabulary, null where the
    implementations that know the kind disagree; which names are names of the same kind, and which
    put the first token before a text."""
    tokens, merges = learn_across_boundaries()
    document = {"tokens": tokens, "merges": merges, "texts": TEXTS}
    ids: dict[str, list[list[int] | None]] = {}
    begin = []
    for kind, others in KINDS.items():
        texts = [composed(kind, text) for text in TEXTS]
        plain, begins = by_llama_cpp(kind, tokens, merges, texts)
        for name in others.split():
            same, also = by_llama_cpp(name, tokens, merges, texts)
            assert same == plain, name
            begin += [name] * also
        begin += [kind] * begins
        published = by_transformers(kind, tokens, merges, texts)
        differ = [i for i, text in enumerate(texts) if is_known_to_differ(kind, text)]
        row: list[list[int] | None] = list(plain)
        for i in differ:
            row[i] = published[i] if published else None
        if published:
            wrong = [TEXTS[i] for i, found in enumerate(published) if found != row[i]]
            assert not wrong, (kind, wrong)
        ids[kind] = row
    names = {kind: [kind, *others.split()] for kind, others in KINDS.items()}
    return {**document, "kinds": ids, "names": names, "add_bos": begin}


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
