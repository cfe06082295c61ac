"""Model architectures: one file each, and the table that names them.

To add one: write a file with a class that satisfies ``Model`` and add a line to ARCHITECTURES.
"""

from __future__ import annotations

from engine.errors import OctavoError, shown
from engine.models.base import Model, ModelConfig
from engine.models.gemma3 import Gemma3
from engine.models.llama import Llama
from engine.models.phi3 import Phi3
from engine.models.qwen2 import Qwen2
from engine.models.qwen3 import Qwen3
from engine.weights.gguf import GGUF

ARCHITECTURES: dict[str, type[Model]] = {
    "gemma3": Gemma3,
    "llama": Llama,
    "phi3": Phi3,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
}


def open_model(gguf: GGUF) -> Model:
    """The model in a GGUF file; OctavoError model.architecture if its kind is not known."""
    name = gguf.metadata.get("general.architecture")
    if gguf.metadata.get(f"{name}.expert_count") or any("_exps." in t for t in gguf.tensors):
        raise OctavoError(
            "model.architecture",
            f"This {shown(name)} is a mixture of experts, which is not supported.",
            f"Supported: {', '.join(ARCHITECTURES)}, without experts.",
        )
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise OctavoError(
            "model.architecture",
            f"The architecture {shown(name)} is not supported.",
            f"Supported: {', '.join(ARCHITECTURES)}.",
        )
    model = ARCHITECTURES[name](gguf)
    unused = set(gguf.tensors) - {source for w in model.weights() for source in w.sources}
    if unused:
        # A tensor left out would mean wrong answers, and nobody would notice.
        raise OctavoError("model.tensor", f"{name} has no use for the tensor {shown(min(unused))}.")
    return model


__all__ = ["ARCHITECTURES", "Model", "ModelConfig", "open_model"]
