"""Files of a TensorDict: those that the library writes, byte by byte."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from token_folder import write_token_folder

from shardmill.errors import ConfigError
from shardmill.formats.format import open_input
from shardmill.formats.sharedfiles import RangeWriter
from shardmill.formats.unidisc.rows import (
    Tensor,
    file_sizes,
    id_dtype,
    smallest_signed,
    write_meta,
    write_rows,
)
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft
from shardmill.model.tokenrow import TokenRow

TENSORS = {"ids": Tensor("int16", (3,)), "mask": Tensor("bool", (3,)), "idx": Tensor("int32", (1,))}
VALUES = {
    "ids": np.arange(12, dtype=np.uint16).reshape(4, 3),
    "mask": np.arange(12).reshape(4, 3) % 2 == 0,
    "idx": np.arange(4)[:, None],
}


def test_the_files_are_those_of_the_library(tmp_path: Path) -> None:
    for name, size in file_sizes(TENSORS, 4).items():
        (tmp_path / name).write_bytes(bytes(size))
    with RangeWriter(Draft(tmp_path, shared_dir=tmp_path), "u") as ranges:
        write_rows(ranges, TENSORS, 2, {key: value[2:] for key, value in VALUES.items()})
        write_rows(ranges, TENSORS, 0, {key: value[:2] for key, value in VALUES.items()})
    write_meta(tmp_path, TENSORS, 4)
    theirs = TensorDict(
        {
            "ids": torch.from_numpy(VALUES["ids"].astype(np.int16)),
            "mask": torch.from_numpy(VALUES["mask"]),
            "idx": torch.from_numpy(VALUES["idx"].astype(np.int32)),
        },
        batch_size=[4],
    )
    theirs.memmap(tmp_path / "theirs")
    for key in TENSORS:
        name = f"{key}.memmap"
        assert (tmp_path / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    meta = json.loads((tmp_path / "meta.json").read_text())
    their_meta = json.loads((tmp_path / "theirs" / "meta.json").read_text())
    assert {key: their_meta[key] for key in meta} == meta
    found = TensorDict.load_memmap(tmp_path)
    assert all((found[key] == theirs[key]).all() for key in TENSORS)


def test_ids_take_the_smallest_signed_number(tmp_path: Path) -> None:
    assert (smallest_signed(1 << 15), smallest_signed((1 << 15) + 1)) == ("int16", "int32")
    space = TokenSpace(text_size=40_000)
    rows = [TokenRow(key="a", ids=np.arange(3))]
    source = open_input(write_token_folder(tmp_path / "x", [rows], space))
    assert id_dtype(source, "raw", "smallest", 39_999) == "int32"
    with pytest.raises(ConfigError, match="40000 ids"):
        id_dtype(source, "raw", "int16", None)
    with pytest.raises(ConfigError, match="pad_id 40000"):
        id_dtype(source, "raw", "int32", 40_000)
