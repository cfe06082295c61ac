"""Tokenizers of Hugging Face folders: what the engine makes of them gives the same ids."""

from __future__ import annotations

import copy
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
from tokenizers import Tokenizer

from engine.host.convert import pretokenizer, vocabulary
from engine.host.convert.pretokenizer import FAMILIES
from engine.host.convert.vocabulary import read_tokenizer
from engine.host.errors import HostError
from engine.tokenizer.native import open_native
from engine.tokenizer.spec import special_ids, tokenizer_json
from tests.hugging_face import BYTES, GOLDEN, QWEN2, QWEN2_PATTERN, SMOLLM, tokenizer, write_json

LLAMA3_PATTERN = QWEN2_PATTERN.replace(r"\p{N}|", r"\p{N}{1,3}|")
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def steps(*found: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(found)}


# As the families publish them: kind -> normalizer, pre-tokenizer, ignore_merges.
PUBLISHED: dict[str, tuple[Any, Any, bool]] = {
    "gpt-2": (None, {**BYTES, "use_regex": True}, False),
    "smollm": (None, SMOLLM, False),
    "llama-bpe": (None, steps(split(LLAMA3_PATTERN), BYTES), True),
    "qwen2": ({"type": "NFC"}, QWEN2, False),
    "deepseek-r1-qwen": ({"type": "Sequence", "normalizers": []}, QWEN2, False),
    "deepseek-coder": (
        {"type": "Sequence", "normalizers": []},
        steps(
            *map(split, ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+")),
            {"type": "Digits", "individual_digits": True},
            BYTES,
        ),
        False,
    ),
}


def golden(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((GOLDEN / name).read_text(encoding="utf-8"))
    return document


ROWS = len(golden("tokens_kinds.json")["tokens"])


def own(kind: str) -> tuple[Any, Any, bool]:
    """The engine's way to write a kind."""
    document = json.loads(pretokenizer._json_of(kind))
    ignore_merges: bool = document["model"]["ignore_merges"]
    return document["normalizer"], document["pre_tokenizer"], ignore_merges


def of_bytes(kind: str) -> dict[str, Any]:
    """A tokenizer.json with the vocabulary of the recorded kinds."""
    document = golden("tokens_kinds.json")
    normalizer, pre_tokenizer, ignore_merges = PUBLISHED.get(kind) or own(kind)
    base = tokenizer("tiny")
    model = {
        "type": "BPE",
        "vocab": {token: index for index, token in enumerate(document["tokens"])},
        "merges": document["merges"],
        "ignore_merges": ignore_merges,
    }
    return base | {
        "added_tokens": [
            {**base["added_tokens"][0], "id": index, "content": token}
            for index, token in enumerate(document["tokens"])
            if token in CONTROLS
        ],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "model": model,
    }


def of_pieces(document: dict[str, Any], normalizer: Any, pre_tokenizer: Any) -> dict[str, Any]:
    """A tokenizer.json as Hugging Face makes it of a SentencePiece model: the pieces' scores have
    become the order of merges."""
    tokens, scores, types = (document[key] for key in ("tokens", "scores", "types"))
    ids = {token: index for index, token in enumerate(tokens)}
    parts = {token for token, kind in zip(tokens, types, strict=True) if kind == NORMAL}
    merges = [
        (scores[ids[piece]], cut, len(piece) - cut, piece)
        for piece in parts
        for cut in range(1, len(piece))
        if piece[:cut] in parts and piece[cut:] in parts
    ]
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": index, "content": token, "special": types[index] != USER_DEFINED, **special}
            for index, token in enumerate(tokens)
            if types[index] in (UNKNOWN, CONTROL, USER_DEFINED)
        ],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": ids,
            "merges": [[piece[:cut], piece[cut:]] for _, cut, _, piece in merges],
        },
    }


def written(folder: Path, document: dict[str, Any], **config: Any) -> Path:
    write_json(folder / "tokenizer.json", document)
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "config.json", {})
    return folder


def engine_ids(found: dict[str, Any], text: str) -> list[int]:
    metadata = {f"tokenizer.ggml.{key}": value for key, value in found.items()}
    return open_native(tokenizer_json(metadata)).ids(text)


@pytest.mark.golden
@pytest.mark.parametrize("kind", golden("tokens_kinds.json")["kinds"])
def test_kinds_are_recognized_and_give_the_recorded_ids(kind: str, tmp_path: Path) -> None:
    document = golden("tokens_kinds.json")
    found = read_tokenizer(written(tmp_path, of_bytes(kind)), len(document["tokens"]))
    assert own(found["pre"]) == own(kind)  # by this name or by another
    for text, ids in zip(document["texts"], document["kinds"][kind], strict=True):
        assert ids is None or engine_ids(found, text) == ids


def cuts(kind: str) -> int:
    """A hash of the pieces of all probes."""
    tokenizer = pretokenizer._of_kind(kind)
    return hash(
        tuple(tuple(pretokenizer._split(tokenizer, text)) for text in pretokenizer.probes())
    )


def test_the_probes_tell_all_kinds_apart_that_differ() -> None:
    pieces = {kind: cuts(kind) for kind in FAMILIES}
    for (one, family), (other, second) in combinations(FAMILIES.items(), 2):
        same = (family.steps, family.normalizer) == (second.steps, second.normalizer)
        assert (pieces[one] == pieces[other]) is same, (one, other)


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": steps(split(r"\p{L}+|\p{N}{1,4}|[^\p{L}\p{N}]+"), BYTES)},
        {"pre_tokenizer": steps(split(LLAMA3_PATTERN.replace("1,3", "1,2")), BYTES)},
        {"pre_tokenizer": None},
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "NFKC"}},
    ],
)
def test_another_way_to_split_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(HostError, match="does not know"):
        read_tokenizer(written(tmp_path, of_bytes("llama-bpe") | change), ROWS)


def test_other_ids_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a wrong kind comes from."""
    monkeypatch.setattr(pretokenizer, "kind_of", lambda *_: "gpt-2")
    with pytest.raises(HostError, match="other ids"):
        read_tokenizer(written(tmp_path, of_bytes("qwen2")), ROWS)


def test_ignored_merges_count(tmp_path: Path) -> None:
    document = of_bytes("llama-bpe")
    document["model"]["ignore_merges"] = False
    tokenizer = Tokenizer.from_str(json.dumps(document))
    assert pretokenizer.kind_of(tokenizer, True) == "llama-bpe"


def test_types_padding_and_special_tokens(tmp_path: Path) -> None:
    document = tokenizer("tiny_qwen2")
    plain = {**document["added_tokens"][0], "id": 600, "content": "<think>", "special": False}
    document["added_tokens"].append(plain)
    names = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    folder = written(tmp_path, document, chat_template="{{ x }}", **names)
    write_json(folder / "generation_config.json", {"eos_token_id": [2, 0, 1, 999]})
    found = read_tokenizer(folder, 640)
    assert found["tokens"][:600] == list(document["model"]["vocab"])
    assert found["tokens"][600:603] == ["<think>", "[PAD601]", "[PAD602]"]
    assert found["token_type"][:4] == [CONTROL] * 3 + [NORMAL]
    assert found["token_type"][599:] == [NORMAL, USER_DEFINED] + [UNUSED] * 39
    fields = metadata(folder, found, tmp_path / "x.gguf")
    assert fields["tokenizer.chat_template"] == "{{ x }}"
    assert fields["tokenizer.ggml.add_bos_token"] is False
    assert "tokenizer.ggml.bos_token_id" not in fields
    ends = [fields[f"tokenizer.ggml.{end}_token_id"] for end in ("eos", "eot", "eom")]
    assert ends == [2, 0, 1]
    assert special_ids(fields).eos == {0, 1, 2}


def metadata(folder: Path, found: dict[str, Any], path: Path) -> dict[str, Any]:
    """What is written of a tokenizer."""
    writer = gguf.GGUFWriter(path, "llama")
    vocabulary.describe(writer, folder, found)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return {field.name: field.contents() for field in gguf.GGUFReader(path).fields.values()}


@pytest.mark.parametrize("first", [True, False])
def test_a_template_processor_says_whether_a_text_begins_with_bos(
    first: bool, tmp_path: Path
) -> None:
    document = tokenizer("tiny")
    sequence: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    begin: list[dict[str, Any]] = [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}]
    token = {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": begin * first + sequence,
        "pair": begin * first + sequence + [{"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": token},
    }
    folder = written(tmp_path, document, bos_token="<|im_start|>", eos_token="<|im_end|>")
    fields = metadata(folder, read_tokenizer(folder, 600), tmp_path / "x.gguf")
    assert special_ids(fields).add_bos is first
    assert special_ids(fields).bos == 1


PREPEND = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}


@pytest.mark.golden
@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "prefix"),
    [
        (PREPEND, None, True),
        (None, METASPACE, True),
        (REPLACE, None, False),
        (None, {**METASPACE, "prepend_scheme": "never"}, False),
    ],
)
def test_pieces_give_the_recorded_ids(
    normalizer: Any, pre_tokenizer: Any, prefix: bool, tmp_path: Path
) -> None:
    document = golden("tokens_pieces.json")
    found = read_tokenizer(written(tmp_path, of_pieces(document, normalizer, pre_tokenizer)), 910)
    assert found["model"] == "llama"
    assert found["add_space_prefix"] is prefix
    types = [*document["types"][:3], CONTROL, *document["types"][4:]]  # <|user|> looks like one
    assert found["token_type"][:900] == types
    for text, ids in document["prefix" if prefix else "plain"]:
        assert engine_ids(found, text) == ids


def test_spaces_that_are_listed_as_added_tokens(tmp_path: Path) -> None:
    """Gemma has runs of them, as pieces: text never has them like that, merges make them."""
    document = of_pieces(golden("tokens_pieces.json"), REPLACE, None)
    made = max(document["model"]["vocab"], key=lambda piece: piece.count("▁"))
    index = document["model"]["vocab"][made]
    plain = {**document["added_tokens"][0], "special": False}
    document["added_tokens"].append({**plain, "id": index, "content": made})
    document["added_tokens"].append({**plain, "id": 900, "content": "▁never▁"})
    found = read_tokenizer(written(tmp_path, document), 901)
    assert found["token_type"][index] == NORMAL
    assert (found["tokens"][900], found["token_type"][900]) == ("▁never▁", USER_DEFINED)


def test_tokens_that_look_like_control_tokens_are(tmp_path: Path) -> None:
    document = tokenizer("tiny")
    plain = {**document["added_tokens"][0], "special": False}
    names = ["<|tool|>", "<｜User｜>", "<tool>"]
    document["added_tokens"] += [
        {**plain, "id": 600 + i, "content": t} for i, t in enumerate(names)
    ]
    found = read_tokenizer(written(tmp_path, document), 603)
    assert found["token_type"][600:] == [CONTROL, CONTROL, USER_DEFINED]


def test_a_sentencepiece_model(tmp_path: Path) -> None:
    texts = [f"{a} {b}" for a in ("the", "sea", "ship") for b in ("ab12", "xyz", "theatre")]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts * 4),
        model_prefix=str(tmp_path / "tokenizer"),
        model_type="bpe",
        vocab_size=300,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
    )
    write_json(tmp_path / "config.json", {})
    decoder = {"2": {"content": "</s>", "special": True}, "300": {"content": "<|x|>"}}
    write_json(tmp_path / "tokenizer_config.json", {"added_tokens_decoder": decoder})
    processor = sentencepiece.SentencePieceProcessor(str(tmp_path / "tokenizer.model"))
    size = processor.vocab_size()
    found = read_tokenizer(tmp_path, size + 2)
    assert found["tokens"][:size] == [processor.id_to_piece(i) for i in range(size)]
    assert found["scores"][:size] == [processor.get_score(i) for i in range(size)]
    assert found["token_type"][:4] == [UNKNOWN, CONTROL, CONTROL, BYTE]
    assert found["token_type"][size:] == [UNUSED] * 2
    assert engine_ids(found, "the ship é") == processor.encode("the ship é")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model": {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 0}}, "no tokenizer|BPE"),
        ({"model": {"type": "BPE"}}, "no tokenizer"),
        ({"model": None}, "no tokenizer"),
    ],
)
def test_other_tokenizers_are_refused(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    document = copy.deepcopy(tokenizer("tiny")) | change
    with pytest.raises(HostError, match=match):
        read_tokenizer(written(tmp_path, document), 600)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        read_tokenizer(tmp_path, 600)
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(HostError, match=r"tokenizer\.model"):
        read_tokenizer(tmp_path, 600)
