"""GGUF files split into several, by the ``gguf`` package."""

from __future__ import annotations

from pathlib import Path

import gguf


def split(source: Path, folder: Path, most_tensors: int = 5) -> list[Path]:
    """``source`` in files of at most so many tensors each: name-00001-of-0000N.gguf, in order."""
    reader = gguf.GGUFReader(source)
    architecture = str(reader.get_field("general.architecture").contents())
    writer = gguf.GGUFWriter(None, architecture, split_max_tensors=most_tensors)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind, *inner = field.types
        writer.add_key_value(key, field.contents(), kind, inner[0] if inner else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    folder.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file(folder / f"{source.stem}.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(folder.glob(f"{source.stem}-*.gguf"))
    assert len(parts) > 2
    return parts
