"""Memory maps that the real TensorDict wrote are read as they are; broken ones are named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from shardmill.errors import FormatError
from shardmill.formats.adapters.unidisc.memmaps import (
    Tensor,
    file_sizes,
    is_memmap_folder,
    open_memmaps,
    write_meta,
)

DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    columns = {f"c{i}": torch.arange(6).reshape(3, 2).to(dtype) for i, dtype in enumerate(DTYPES)}
    TensorDict(columns, batch_size=[3]).memmap(tmp_path / "td")
    return tmp_path / "td"


def test_tensors_of_every_type_come_back(folder: Path) -> None:
    tensors = open_memmaps(folder)
    for i, dtype in enumerate(DTYPES):
        wanted = torch.arange(6).reshape(3, 2).to(dtype).numpy()
        assert tensors[f"c{i}"].dtype == wanted.dtype
        assert np.array_equal(tensors[f"c{i}"], wanted)
    assert is_memmap_folder(folder)


def test_a_file_that_was_cut_off_is_named(folder: Path) -> None:
    path = folder / "c4.memmap"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"c4\.memmap: has 23 bytes, its shape .* says 24"):
        open_memmaps(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "c4.memmap").unlink()
    with pytest.raises(FormatError, match=r"c4\.memmap: is missing"):
        open_memmaps(folder)
    (folder / "meta.json").unlink()
    with pytest.raises(FormatError, match=r"meta\.json: is missing"):
        open_memmaps(folder)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "torch.float8", "shape": [3, 2]},
        {"dtype": "torch.int16", "shape": [3, -2]},
        {"dtype": "torch.int16", "shape": "three"},
        {"dtype": "torch.int16", "shape": [1 << 60, 1 << 60]},
        {"dtype": "torch.int16", "shape": []},
    ],
)
def test_a_hostile_description_is_an_error(folder: Path, entry: object) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "c4": entry}))
    with pytest.raises(FormatError):
        open_memmaps(folder)


def test_names_do_not_climb_out_of_the_folder(folder: Path) -> None:
    (folder / "meta.json").write_text('{"../x": {"dtype": "torch.int8", "shape": [1]}}')
    with pytest.raises(FormatError, match="tensor"):
        open_memmaps(folder)


def test_tensors_of_different_lengths_are_an_error(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "c1": {**meta["c1"], "shape": [2, 3]}}))
    with pytest.raises(FormatError, match="rows"):
        open_memmaps(folder)


TENSORS = {"ids": Tensor("int16", (3,)), "mask": Tensor("bool", (3,)), "idx": Tensor("int32", (1,))}
VALUES = {
    "ids": np.arange(12, dtype=np.uint16).reshape(4, 3),
    "mask": np.arange(12).reshape(4, 3) % 2 == 0,
    "idx": np.arange(4)[:, None],
}


def test_the_files_are_those_of_the_library(tmp_path: Path) -> None:
    for name, size in file_sizes(TENSORS, 4).items():
        key = name.removesuffix(".memmap")
        (tmp_path / name).write_bytes(VALUES[key].astype(TENSORS[key].dtype).tobytes())
        assert (tmp_path / name).stat().st_size == size
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
