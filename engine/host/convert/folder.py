"""A Hugging Face folder as a source."""

from __future__ import annotations

import logging
from math import prod
from pathlib import Path
from typing import Any

import gguf

from engine.host.convert import families, hyperparameters, quants, vocabulary
from engine.host.convert.hyperparameters import Config
from engine.host.convert.model import EMBEDDING, Model, Tensor
from engine.host.convert.safetensors import open_tensors, read_json

CONFIG = "config.json"


def open_folder(folder: Path) -> Model:
    """The model in a folder with config.json, safetensors and a tokenizer."""
    config = read_config(folder)
    return model_of(folder, folder.resolve().name, config, open_tensors(folder))


def read_config(folder: Path) -> Config:
    """The folder's config.json."""
    return Config(read_json(folder / CONFIG), str(folder / CONFIG))


def model_of(folder: Path, name: str, config: Config, found: dict[str, Tensor]) -> Model:
    """The model `name` of tensors as Hugging Face calls them and what the folder says of it."""
    family = families.family_of(config)
    tensors = families.renamed(family, config, found)
    rows = next(tensor.shape[0] for tensor in tensors if tensor.name == EMBEDDING)
    tokenizer = vocabulary.read_tokenizer(folder, rows)
    card = _card(folder, sum(prod(tensor.shape) for tensor in tensors))

    def describe(writer: Any) -> None:
        card.set_gguf_meta_model(writer)
        hyperparameters.describe(writer, config, rows)
        family.describe(writer, config)
        vocabulary.describe(writer, folder, tokenizer)

    license_id, file_type = card.license or "", quants.file_type(tensors)
    return Model(name, family.architecture, license_id, file_type, tensors, describe)


def _card(folder: Path, parameters: int) -> gguf.Metadata:
    """What the folder's model card says: name, licence and the like. A damaged one says nothing."""
    try:
        card = gguf.Metadata.load(model_path=folder.resolve(), total_params=parameters)
    except Exception as error:  # of whatever kind the card's YAML causes
        logging.getLogger(__name__).warning("The model card cannot be read: %s", error)
        card = gguf.Metadata()
    card.name = card.name or folder.resolve().name
    return card
