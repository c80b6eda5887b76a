"""Blocks of records and the records themselves say the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from unidisc_folder import write_interleaved

from shardmill.errors import FormatError
from shardmill.formats.adapters.unidisc.read import UnidiscReader
from shardmill.formats.megatron import MegatronReader
from shardmill.formats.reader import BlockReader, Reader, stamp


def test_records_are_the_documents_of_their_blocks(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "train_0", [0, 1, 2, 3])
    reader = UnidiscReader(dir=str(tmp_path))
    (part,) = reader.parts()
    (block,) = reader.read_blocks(part.input)
    records = list(block.records())
    assert [record.key for record in records] == list(block.keys)
    joined = np.concatenate([record.ids() for record in records])
    assert joined.tolist() == block.ids.tolist()
    counts = [len(record.rows[0].media) for record in records]
    assert counts == block.media.counts.tolist() == [1, 0, 1, 0]
    assert [record.rows[0].origin.row for record in records] == [0, 1, 2, 3]  # type: ignore[union-attr]


def test_readers_are_told_by_their_methods() -> None:
    assert isinstance(UnidiscReader(dir="x"), BlockReader)
    assert isinstance(MegatronReader(files=("x",)), Reader)
    assert not isinstance(MegatronReader(files=("x",)), BlockReader)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="gone: cannot be looked at"):
        stamp(tmp_path / "gone")
