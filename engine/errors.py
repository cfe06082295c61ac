"""Errors with stable codes: everything that can go wrong and that a person may see."""

from __future__ import annotations

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80  # characters

CODES: dict[str, str] = {
    "context.full": "The answer ended because the context is full.",
    "engine.busy": "The engine is busy with something that allows nothing beside it.",
    "engine.moved": "The page that had the engine is gone, and the answer could not go on.",
    "engine.not_loaded": "No model is loaded.",
    "engine.stalled": "A part of the engine does not answer.",
    "gguf.invalid": "The file is not a valid GGUF file.",
    "gguf.truncated": "The file ends too early.",
    "gguf.version": "The GGUF version is not supported.",
    "gpu.limits": "The model needs more than the GPU adapter allows.",
    "gpu.lost": "The GPU device was lost.",
    "gpu.stalled": "The GPU does not answer.",
    "gpu.unavailable": "No usable GPU adapter was found.",
    "gpu.wrong": "The GPU computes wrong numbers.",
    "graph.invalid": "The graph of the model cannot be used.",
    "graph.operator": "The graph needs an operator that is not supported.",
    "internal": "Something unexpected went wrong.",
    "manifest.invalid": "The model manifest cannot be used.",
    "memory.budget": "The model needs more memory than the budget allows.",
    "memory.device": "The device has not enough memory.",
    "model.architecture": "The model architecture is not supported.",
    "model.quantization": "The quantization type is not supported.",
    "model.tensor": "A tensor of the model is missing or has the wrong shape.",
    "model.unknown": "There is no such model here.",
    "prompt.empty": "The prompt is empty.",
    "prompt.too_long": "The prompt does not fit into the context.",
    "remote.invalid": "The remote server answered with something that cannot be used.",
    "remote.refused": "The remote server refused the request.",
    "remote.unavailable": "The remote server cannot be reached.",
    "request.cancelled": "The request was stopped.",
    "request.invalid": "The request has a wrong or missing field.",
    "request.origin": "Pages from there may not ask this server.",
    "request.token": "The token is missing or wrong.",
    "request.unknown": "The kind of request is unknown.",
    "shard.file": "A file of the model cannot be read.",
    "shard.hash": "A model shard does not match its hash.",
    "shard.network": "A model shard could not be downloaded.",
    "shard.quota": "There is no room to keep the model.",
    "site.changed": "The site has changed since the page was opened.",
    "template.invalid": "The chat template failed.",
    "tokenizer.unsupported": "The tokenizer kind is not supported.",
}


class OctavoError(Exception):
    """An error a person can act on.

    ``code`` is one of CODES and never changes meaning; ``message`` is a sentence;
    ``hint`` says what to do, or is empty.
    """

    def __init__(self, code: str, message: str = "", hint: str = "") -> None:
        assert code in CODES, code
        super().__init__(message or CODES[code])
        self.code = code
        self.message = message or CODES[code]
        self.hint = hint

    def to_wire(self) -> dict[str, str]:
        """The error as it crosses to the page."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


def shown(value: object) -> str:
    """A value from a file for a message: whatever it is, in a few words."""
    return _SHORT.repr(value)


def wrong_field(field: str, wanted: str, got: object) -> OctavoError:
    """request.invalid: a field of a request is not what it should be."""
    return OctavoError("request.invalid", f"{field} should be {wanted}, not {shown(got)}.")


def as_octavo_error(error: Exception) -> OctavoError:
    """Any error with its stable code; JavaScript errors may carry one as ``code``."""
    if isinstance(error, OctavoError):
        return error
    if isinstance(error, MemoryError):
        return OctavoError("memory.device", str(error))
    code = getattr(error, "code", None)
    if isinstance(code, str) and code in CODES:
        hint = getattr(error, "hint", None)
        message = str(getattr(error, "message", error))
        return OctavoError(code, message, hint if isinstance(hint, str) else "")
    return OctavoError("internal", f"{type(error).__name__}: {error}")
