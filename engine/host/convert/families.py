"""What the model families of Hugging Face have of their own on their way into GGUF."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import MODEL_ARCH, MODEL_TENSOR

from engine.host.convert import hyperparameters
from engine.host.convert.hyperparameters import Config
from engine.host.convert.model import EMBEDDING, OUTPUT, Floats, Tensor
from engine.host.errors import HostError

SUFFIXES = (".weight", ".bias")
# Files of some older models hold these, which follow from the configuration.
COMPUTED = (MODEL_TENSOR.ATTN_ROT_EMBD, MODEL_TENSOR.ROPE_FREQS)


def _same(kind: MODEL_TENSOR, tensor: Tensor, config: Config) -> Tensor:
    return tensor


def _interleaved(kind: MODEL_TENSOR, tensor: Tensor, config: Config) -> Tensor:
    """Q and K with rotary pairs as neighbours (2i, 2i + 1) instead of halves (i, i + dim / 2)."""
    if kind not in (MODEL_TENSOR.ATTN_Q, MODEL_TENSOR.ATTN_K):
        return tensor
    heads = config.heads if kind == MODEL_TENSOR.ATTN_Q else config.kv_heads
    if tensor.shape[0] % (2 * heads):
        raise HostError(f"{tensor.name} has {tensor.shape[0]} rows, for {heads} heads.")
    rows = np.arange(tensor.shape[0]).reshape(heads, 2, -1)
    return _reordered(tensor, rows.swapaxes(1, 2).reshape(-1))


def _reordered(tensor: Tensor, order: npt.NDArray[Any]) -> Tensor:
    """Row i of the result is row `order[i]`; few rows lie between those of neighbours."""

    def of(rows: Callable[[int, int], Any]) -> Callable[[int, int], Any]:
        def read(first: int, last: int) -> Any:
            wanted = order[first:last]
            begin = int(wanted.min())
            return rows(begin, int(wanted.max()) + 1)[wanted - begin]

        return read

    copy = of(tensor.copy) if tensor.copy else None
    return replace(tensor, read=of(tensor.read), copy=copy)


def _with_gain(tensor: Tensor, added: float) -> Tensor:
    """Norms with their gains as weights."""
    if not added or not tensor.name.endswith("norm.weight"):
        return tensor

    def read(first: int, last: int) -> Floats:
        gain: Floats = tensor.read(first, last) + np.float32(added)
        return gain

    return replace(tensor, read=read)


def _describe_nothing(writer: Any, config: Config) -> None:
    pass


def _period(config: Config) -> int:
    """Of so many layers, the last attends to everything; newer files say it of each."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list):
        return config.count("sliding_window_pattern", config.get("_sliding_window_pattern", 6))
    wide = [i for i, kind in enumerate(kinds, 1) if kind == "full_attention"]
    period = wide[0] if wide else len(kinds) + 1
    if wide != list(range(period, len(kinds) + 1, period)):
        raise HostError(f"{config.path}: layer_types should be full_attention every n layers.")
    return period


def _describe_gemma3(writer: Any, config: Config) -> None:
    """Every n-th layer attends to everything; scores may be scaled by another width than a
    head's."""
    writer.add_sliding_window_pattern(_period(config))
    scalar = config.number("query_pre_attn_scalar", config.head_dim)
    if scalar != config.head_dim:
        writer.add_attention_scale(scalar**-0.5)


@dataclass(frozen=True)
class Family:
    """A GGUF architecture, what becomes of its tensors, what it adds to the metadata; the gains of
    its norms are their weights and ``gain``."""

    arch: MODEL_ARCH
    change: Callable[[MODEL_TENSOR, Tensor, Config], Tensor] = _same
    describe: Callable[[Any, Config], None] = _describe_nothing
    gain: float = 0.0

    @property
    def architecture(self) -> str:
        """The name of the architecture in GGUF."""
        return str(gguf.MODEL_ARCH_NAMES[self.arch])


_LLAMA = Family(MODEL_ARCH.LLAMA, _interleaved)
# The class that config.json names.
FAMILIES = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": Family(MODEL_ARCH.QWEN2),
    "Qwen3ForCausalLM": Family(MODEL_ARCH.QWEN3),
    "Gemma3ForCausalLM": Family(MODEL_ARCH.GEMMA3, describe=_describe_gemma3, gain=1.0),
    "Phi3ForCausalLM": Family(MODEL_ARCH.PHI3),
}


def family_of(config: Config) -> Family:
    """The family that a config.json names; raises HostError if it is not known."""
    names = config.get("architectures", [])
    name = names[0] if isinstance(names, list) and names else None
    if name not in FAMILIES:
        raise HostError(
            f"{config.path}: the architecture {name!r} is not supported. "
            f"Supported: {', '.join(FAMILIES)}."
        )
    return FAMILIES[name]


def renamed(family: Family, config: Config, found: dict[str, Tensor]) -> list[Tensor]:
    """The tensors of a folder as GGUF has them, in the order of the layers.

    Raises HostError for a tensor that the architecture has no use for, and for a missing embedding
    or output matrix.
    """
    names = gguf.get_tensor_name_map(family.arch, config.layers)
    tensors = {tensor.name: tensor for tensor in hyperparameters.rope_tensors(config)}
    for source, tensor in found.items():
        entry = names.get_type_and_name(source, try_suffixes=SUFFIXES)
        if source.endswith("rotary_emb.inv_freq") or (entry and entry[0] in COMPUTED):
            continue
        if entry is None:
            raise HostError(f"{family.architecture} has no use for the tensor {source}.")
        kind, name = entry
        changed = family.change(kind, replace(tensor, name=name), config)
        tensors[name] = _with_gain(changed, family.gain)
    if config.get("tie_word_embeddings"):
        tensors.pop(OUTPUT, None)
    wanted = [EMBEDDING] + [OUTPUT] * (config.get("tie_word_embeddings") is False)
    for name in wanted:
        if name not in tensors:
            raise HostError(f"{config.path}: the folder lacks the tensor that becomes {name}.")
    return sorted(tensors.values(), key=lambda tensor: _order(tensor.name))


def _order(name: str) -> tuple[int, int, str]:
    """As a model computes: the embedding, the layers by number, the rest."""
    layer = re.match(r"blk\.(\d+)\.", name)
    if layer:
        return 1, int(layer[1]), name
    return 0 if name == EMBEDDING else 2, 0, name
