"""The GGUF header reader: right on real files, quick and clear on hostile ones."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf as oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import OctavoError
from engine.weights.gguf import GGML_TYPES, GGUF, HeaderIncomplete, read_header

GOLDEN = Path(__file__).parents[1] / "golden"
HUGE = 1 << 60
U8, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 5, 6, 7, 8, 9, 10
Pair = tuple[str, int, bytes]
Entry = tuple[str, list[int], int, int]


def text(value: str | bytes, claimed: int | None = None) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if claimed is None else claimed) + raw


def array(kind: int, count: int, body: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + body


def header(
    pairs: list[Pair] = [],  # noqa: B006 - never changed
    tensors: list[Entry] = [],  # noqa: B006
    version: int = 3,
    counts: tuple[int | None, int | None] = (None, None),
) -> bytes:
    """A header from its parts; ``counts`` are false claims for tensors and pairs."""
    claimed = [
        len(own) if c is None else c for c, own in zip(counts, (tensors, pairs), strict=True)
    ]
    out = b"GGUF" + struct.pack("<IQQ", version, *claimed)
    for key, kind, body in pairs:
        out += text(key) + struct.pack("<I", kind) + body
    for name, dims, quant, offset in tensors:
        out += text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        out += struct.pack("<IQ", quant, offset)
    return out


def read(data: bytes, extra: int = 4096) -> GGUF:
    """Read ``data`` as a file with ``extra`` bytes of tensor data behind it."""
    return read_header(data + bytes(extra), len(data) + extra)


def code(data: bytes, file_size: int | None = None) -> str:
    with pytest.raises(OctavoError) as caught:
        read_header(data, len(data) if file_size is None else file_size)
    assert caught.value.message
    return caught.value.code


SMALL = header(
    [
        ("general.architecture", STRING, text("llama")),
        ("a.u8", U8, b"\x07"),
        ("a.list", ARRAY, array(I32, 3, struct.pack("<3i", 1, -2, 3))),
        ("a.words", ARRAY, array(STRING, 3, text("") + text("é") + text("you"))),
        ("a.flags", ARRAY, array(BOOL, 2, b"\x01\x00")),
        ("a.float", F32, struct.pack("<f", 0.5)),
    ],
    [("x", [32, 2], 8, 0), ("y", [5], 0, 96)],
)


def test_values_shapes_and_offsets() -> None:
    model = read(SMALL)
    assert model.version == 3
    assert model.metadata == {
        "general.architecture": "llama",
        "a.u8": 7,
        "a.list": [1, -2, 3],
        "a.words": ["", "é", "you"],
        "a.flags": [True, False],
        "a.float": 0.5,
    }
    x, y = model.tensors["x"], model.tensors["y"]
    assert model.data_offset % 32 == 0 and 0 <= model.data_offset - len(SMALL) < 32
    assert (x.shape, x.quant, x.offset, x.nbytes) == ((2, 32), "Q8_0", model.data_offset, 68)
    assert (y.shape, y.quant, y.offset, y.nbytes) == ((5,), "F32", model.data_offset + 96, 20)
    assert model.size == len(SMALL) + 4096


def test_version_2_and_memoryviews_are_read_too() -> None:
    data = bytearray(SMALL + bytes(4096))
    data[4] = 2
    assert read_header(memoryview(data), len(data)).version == 2


def test_alignment_is_obeyed() -> None:
    alignment = [("general.alignment", 4, struct.pack("<I", 256))]
    assert read(header(alignment, [("x", [4], 0, 256)])).data_offset == 256
    assert code(header(alignment, [("x", [4], 0, 32)]), 4096) == "gguf.invalid"
    for bad in (0, 3, 48, 1 << 31):
        pair = [("general.alignment", 4, struct.pack("<I", bad))]
        assert code(header(pair, [("x", [4], 0, 0)]), 4096) == "gguf.invalid"
    assert code(header([("general.alignment", STRING, text("32"))]), 4096) == "gguf.invalid"


@pytest.mark.parametrize("name", ["tiny.gguf", "tiny_untied.gguf"])
def test_a_file_reads_as_the_reference_reads_it(name: str) -> None:
    path = GOLDEN / name
    data = path.read_bytes()
    model = read_header(data, len(data))
    reference = oracle.GGUFReader(path)
    expected = {key: field.contents() for key, field in reference.fields.items()}
    assert model.metadata == {k: v for k, v in expected.items() if not k.startswith("GGUF.")}
    assert model.data_offset == reference.data_offset
    for tensor in reference.tensors:
        own = model.tensors[tensor.name]
        assert own.shape == tuple(int(size) for size in tensor.shape[::-1])
        assert (own.quant, own.offset) == (tensor.tensor_type.name, tensor.data_offset)
        assert own.nbytes == tensor.n_bytes
    assert len(model.tensors) == len(reference.tensors)


def test_the_type_table_is_the_references() -> None:
    for kind, (block, size) in oracle.GGML_QUANT_SIZES.items():
        if int(kind) in GGML_TYPES:
            assert GGML_TYPES[int(kind)] == (kind.name, block, size)
    assert {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"} <= {
        name for name, _, _ in GGML_TYPES.values()
    }


def test_every_shorter_piece_asks_for_more_and_every_shorter_file_is_truncated() -> None:
    whole = SMALL + bytes(4096)
    for size in range(len(SMALL)):
        with pytest.raises(HeaderIncomplete) as caught:
            read_header(whole[:size], len(whole))
        assert size < caught.value.needed <= len(SMALL)
        assert code(whole[:size]) == "gguf.truncated"


def test_tensor_data_past_the_end_is_truncated() -> None:
    end = read(SMALL).tensors["y"].offset + 20
    assert read_header(SMALL, end).size == end
    assert code(SMALL, end - 1) == "gguf.truncated"


@pytest.mark.parametrize("data", [b"<!doctype html>", b"PK\x03\x04" * 9, b"GGML" + bytes(40), b"X"])
def test_other_files_are_no_gguf(data: bytes) -> None:
    assert code(data) == "gguf.invalid"
    assert code(data, 1 << 30) == "gguf.invalid"


@pytest.mark.parametrize("version", [0x01, 0x04, 0x7FFF])
def test_other_versions_are_named(version: int) -> None:
    with pytest.raises(OctavoError, match=f"version {version} ") as caught:
        read(header(version=version))
    assert caught.value.code == "gguf.version"


def test_big_endian_files_are_refused() -> None:
    assert code(b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64)) == "gguf.invalid"


def test_unknown_quantizations_are_named() -> None:
    with pytest.raises(OctavoError, match="type 4711") as caught:
        read(header(tensors=[("x", [32], 4711, 0)]))
    assert caught.value.code == "model.quantization"


INVALID = {
    "unknown value type": header([("k", 77, b"")]),
    "unknown element type": header([("k", ARRAY, array(77, 1))]),
    "nested arrays": header([("k", ARRAY, array(ARRAY, 1, array(ARRAY, 1, array(U8, 1))))]),
    "key twice": header([("k", U8, b"1"), ("k", U8, b"2")]),
    "key not UTF-8": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(b"\xff\xfe") + bytes(5),
    "value not UTF-8": header([("k", STRING, text(b"\xed\xa0\x80"))]),
    "element not UTF-8": header([("k", ARRAY, array(STRING, 2, text("a") + text(b"\xc0")))]),
    "long key": header([("k" * 5000, U8, b"1")]),
    "no dimensions": header(tensors=[("x", [], 0, 0)]),
    "five dimensions": header(tensors=[("x", [1] * 5, 0, 0)]),
    "empty tensor": header(tensors=[("x", [32, 0], 0, 0)]),
    "half a block": header(tensors=[("x", [48], 8, 0)]),
    "unaligned": header(tensors=[("x", [4], 0, 4)]),
    "tensor twice": header(tensors=[("x", [4], 0, 0), ("x", [4], 0, 32)]),
    "overlap": header(tensors=[("x", [32], 0, 0), ("y", [4], 0, 32)]),
    "same place": header(tensors=[("x", [4], 0, 0), ("y", [4], 0, 0)]),
}


@pytest.mark.parametrize("name", INVALID)
def test_broken_headers_are_invalid(name: str) -> None:
    assert code(INVALID[name] + bytes(4096)) == "gguf.invalid"


def test_long_names_are_cut_in_messages() -> None:
    with pytest.raises(OctavoError, match="unknown value type 77") as caught:
        read(header([("\0" * 1024, 77, b"")]))
    assert len(caught.value.message) < 500


LIES = {
    "tensor count": header(counts=(HUGE, None)),
    "pair count": header(counts=(None, HUGE)),
    "plausible counts": header(counts=(100_000, 60_000)),
    "key length": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k", HUGE) + bytes(8),
    "string length": header([("k", STRING, text("v", HUGE))]),
    "largest length": header([("k", STRING, text("v", (1 << 64) - 1))]),
    "array of strings": header([("k", ARRAY, array(STRING, HUGE))]),
    "array of numbers": header([("k", ARRAY, array(I32, HUGE))]),
    "array of bytes": header([("k", ARRAY, array(U8, 1 << 40))]),
    "string in array": header([("k", ARRAY, array(STRING, 2, text("a") + text("b", HUGE)))]),
    "tensor name": header(counts=(1, None)) + text("x", HUGE),
    "dimension": header(tensors=[("x", [HUGE], 0, 0)]),
    "dimensions whose product wraps": header(tensors=[("x", [1 << 32, 1 << 32], 0, 0)]),
    "offset": header(tensors=[("x", [4], 0, 1 << 62)]),
}


@pytest.mark.parametrize("name", LIES)
def test_false_lengths_are_noticed_before_anything_is_allocated(name: str) -> None:
    data = LIES[name] + bytes(256)
    tracemalloc.start()
    start = time.process_time()
    assert code(data) in {"gguf.truncated", "gguf.invalid"}
    assert time.process_time() - start < 1
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_false_lengths_in_a_large_file_stay_bounded_too() -> None:
    size = 1 << 61
    for data in LIES.values():
        with pytest.raises((OctavoError, HeaderIncomplete)):
            read_header(data + bytes(256), size)


def test_a_hostile_number_of_elements_is_refused() -> None:
    many = [(f"k{i}", ARRAY, array(U8, 1 << 20, bytes(1 << 20))) for i in range(5)]
    start = time.process_time()
    assert code(header(many)) == "gguf.invalid"
    assert time.process_time() - start < 1


def outcome(data: bytes, file_size: int) -> Any:
    """What reading gives; anything but these three ways of ending fails the test."""
    start = time.process_time()
    try:
        return read_header(data, file_size)
    except OctavoError as error:
        return error.code
    except HeaderIncomplete as error:
        assert len(data) < error.needed <= file_size
        return "incomplete"
    finally:
        assert time.process_time() - start < 1


@given(
    st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=6),
    st.integers(0, 4096),
)
def test_changed_bytes_never_break_the_reader(changes: list[tuple[int, int]], extra: int) -> None:
    data = bytearray(SMALL)
    for position, value in changes:
        data[position] = value
    outcome(bytes(data), len(data) + extra)


@given(
    st.integers(4, len(SMALL) - 8),
    st.sampled_from([0, 1, 255, 1 << 31, 1 << 32, 1 << 40, HUGE, (1 << 63) - 1, (1 << 64) - 1]),
    st.sampled_from([len(SMALL), len(SMALL) + 4096, 1 << 40, 1 << 62]),
)
def test_any_number_anywhere_never_breaks_the_reader(at: int, value: int, size: int) -> None:
    outcome(SMALL[:at] + struct.pack("<Q", value) + SMALL[at + 8 :], size)


@given(st.binary(max_size=200), st.integers(0, len(SMALL)))
def test_garbage_after_a_good_beginning_never_breaks_the_reader(tail: bytes, kept: int) -> None:
    data = SMALL[:kept] + tail
    outcome(data, len(data))
    outcome(data, len(data) + 4096)


def test_a_vocabulary_is_read_quickly() -> None:
    words = b"".join(text(f"word{i}") for i in range(100_000))
    data = header([("tokenizer.ggml.tokens", ARRAY, array(STRING, 100_000, words))])
    start = time.process_time()
    assert len(read(data).metadata["tokenizer.ggml.tokens"]) == 100_000
    assert time.process_time() - start < 0.5
