"""TensorDict's folders of memory maps, without torch: one raw file a tensor, sizes in JSON.

    NAME.memmap   the tensor, little-endian, C order, nothing before or after it
    meta.json     {NAME: {"device", "shape": [N, L], "dtype": "torch.int16", "is_nested"}, ...,
                   "shape": [N], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}

meta.json is written last, and without it `TensorDict.load_memmap` finds nothing. A file that is
shorter than its shape says was cut off while it was written: a `FormatError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.shards.tokens.ids import map_bytes
from shardmill.storage.files import write_file
from shardmill.storage.text import read_json

META_NAME = "meta.json"
SUFFIX = ".memmap"
DTYPES = {
    "torch.bool": "|b1",
    "torch.uint8": "|u1",
    "torch.int8": "|i1",
    "torch.int16": "<i2",
    "torch.uint16": "<u2",
    "torch.int32": "<i4",
    "torch.int64": "<i8",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """What each row has under a key: its dtype and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def file_sizes(tensors: Mapping[str, Tensor], num_rows: int) -> dict[str, int]:
    """Return name -> size of the files of all rows."""
    return {f"{key}.memmap": num_rows * tensor.row_bytes for key, tensor in tensors.items()}


def write_meta(out_dir: Path, tensors: Mapping[str, Tensor], num_rows: int) -> None:
    """Write the file that makes the others a TensorDict."""
    meta: dict[str, Any] = {
        key: {
            "device": "cpu",
            "shape": [num_rows, *tensor.shape],
            "dtype": f"torch.{np.dtype(tensor.dtype).name}",
            "is_nested": False,
        }
        for key, tensor in tensors.items()
    }
    meta |= {
        "shape": [num_rows],
        "device": "cpu",
        "_type": "<class 'tensordict._td.TensorDict'>",
    }
    write_file(out_dir / META_NAME, orjson.dumps(meta))


def is_memmap_folder(folder: Path) -> bool:
    """Say whether a folder holds at least the description of memory maps."""
    return (folder / META_NAME).is_file() and any(folder.glob(f"*{SUFFIX}"))


def open_memmaps(folder: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a folder by name, mapped read-only; all have equally many rows."""
    meta_path = folder / META_NAME
    try:
        meta = read_json(meta_path)
    except FileNotFoundError as error:
        raise FormatError(
            "is missing: the folder was not written to its end", path=meta_path
        ) from (error)
    entries = meta.items() if isinstance(meta, dict) else ()
    tensors = {
        name: _open_tensor(folder, name, entry)
        for name, entry in entries
        if isinstance(entry, dict) and "dtype" in entry
    }
    if not tensors:
        raise FormatError("describes no tensors", path=meta_path)
    num_rows = {len(tensor) for tensor in tensors.values()}
    if len(num_rows) > 1:
        raise FormatError(f"has tensors of {sorted(num_rows)} rows", path=meta_path)
    return tensors


def _open_tensor(folder: Path, name: str, entry: dict[str, Any]) -> NDArray[Any]:
    meta_path, path = folder / META_NAME, folder / f"{name}{SUFFIX}"
    dtype, shape = DTYPES.get(str(entry["dtype"])), entry.get("shape")
    if dtype is None or "/" in name or name.startswith("."):
        raise FormatError(f"has a tensor {name!r} of type {entry['dtype']}", path=meta_path)
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= 8
        or not all(type(n) is int and n >= 0 for n in shape)
    ):
        raise FormatError(f"has a tensor {name!r} of shape {shape!r:.100}", path=meta_path)
    wanted = prod(shape) * np.dtype(dtype).itemsize
    if wanted == 0:
        return np.empty(shape, dtype)
    if not path.is_file():
        raise FormatError("is missing: the folder was not written to its end", path=path)
    raw = map_bytes(path)
    if len(raw) != wanted:
        raise FormatError(
            f"has {len(raw)} bytes, its shape {shape} says {wanted}: it was cut off", path=path
        )
    return np.frombuffer(raw, dtype).reshape(shape)
