"""A TensorDict on disk: one file of raw numbers for each tensor, and meta.json that makes it one.

    KEY.memmap   the numbers, C order, no header
    meta.json    {KEY: {"device", "shape", "dtype": "torch.int16", "is_nested"}, ...,
                  "shape": [rows], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}

All units write their rows into the files in place; meta.json comes last, and without it
`TensorDict.load_memmap` finds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from shardmill.errors import ConfigError
from shardmill.formats.codespace import CodeForm, num_ids
from shardmill.formats.inplace import RangeWriter
from shardmill.formats.inputs import ExportInput
from shardmill.io.atomic import write_file

META_NAME = "meta.json"
INT16_SIZE = 1 << 15
DtypeName: TypeAlias = Literal["smallest", "int16", "int32"]


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


def write_rows(
    ranges: RangeWriter,
    tensors: Mapping[str, Tensor],
    first_row: int,
    values: Mapping[str, NDArray[Any]],
) -> None:
    """Write neighbouring rows of every tensor into their place."""
    for key, tensor in tensors.items():
        array = _as_dtype(values[key], np.dtype(tensor.dtype))
        assert array.shape[1:] == tensor.shape, (key, array.shape, tensor.shape)
        ranges.write(f"{key}.memmap", first_row * tensor.row_bytes, array)


def _as_dtype(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    # Ids that fit into a signed number of the same width have the same bytes there.
    same_width = array.dtype.itemsize == dtype.itemsize and array.flags.c_contiguous
    return array.view(dtype) if same_width else array.astype(dtype)


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


def id_dtype(source: ExportInput, form: CodeForm, name: DtypeName, pad_id: int | None) -> str:
    """Return the dtype of ids: the smallest that holds all of them, or the one asked for."""
    size = num_ids(source.space(), form)
    if pad_id is not None and not 0 <= pad_id < size:
        raise ConfigError(f"pad_id {pad_id} is none of the {size} ids of {source.folder}")
    if name == "smallest":
        return smallest_signed(size)
    if name == "int16" and size > INT16_SIZE:
        raise ConfigError(
            f"{source.folder} has {size} ids with {form} codes, int16 holds {INT16_SIZE}: "
            "export with dtype=int32"
        )
    return name


def smallest_signed(size: int) -> str:
    """Return the smallest of int16 and int32 that holds the numbers 0 .. size - 1."""
    return "int16" if size <= INT16_SIZE else "int32"
