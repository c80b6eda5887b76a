"""A shard without some samples is what it would be had they never been there."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import booleans, lists

from shardmill.errors import FormatError
from shardmill.model.sample import Document, MediaSize, Origin, Sample, Segment
from shardmill.model.stage import Draft
from shardmill.shards.samples import SampleWriter, open_foreign, open_shard
from shardmill.shards.tar.index import cut_tar, open_tar_index


def sample(number: int) -> Sample:
    name = "jpg" if number % 3 else f"{number}.png"
    segments = (Segment(kind="image", media=name), Segment(kind="text", text="x" * number))
    return Sample(
        # Every fourth name is so long that it takes a PAX header.
        key=f"k{number}" + "y" * (150 if number % 4 == 0 else 0),
        document=Document(segments),
        media={name: bytes(range(number, number + 37))},
        origin=Origin(source=f"s{number % 2}", path="p", row=number),
    )


def write(folder: Path, numbers: list[int]) -> tuple[Path, Path]:
    folder.mkdir()
    with SampleWriter(Draft(folder), lambda _: "0") as writer:
        for number in numbers:
            made = sample(number)
            writer.add(made, dict.fromkeys(made.media, MediaSize(width=number + 1, height=2)))
    return folder / "0.tar", folder / "0.idx"


@settings(max_examples=30)
@given(lists(booleans(), min_size=1, max_size=12).filter(any))
def test_a_cut_shard_is_the_shard_of_the_others(keep: list[bool]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        tar, index = write(folder / "all", list(range(len(keep))))
        cut_tar(tar, index, np.array(keep), folder / "cut.tar", folder / "cut.idx")
        wanted_tar, wanted_index = write(folder / "kept", [n for n, k in enumerate(keep) if k])
        assert (folder / "cut.tar").read_bytes() == wanted_tar.read_bytes()
        cut, wanted = open_tar_index(folder / "cut.idx"), open_tar_index(wanted_index)
        assert list(cut.keys) == list(wanted.keys)
        for number in range(len(cut)):
            assert cut.members(number) == wanted.members(number)
            assert cut.find(cut.keys[number]) == number
        for column in ("width", "text_chars", "content"):
            assert np.array_equal(cut.column(column), wanted.column(column))
        sources = [[i.sources[s] for s in i.column("source")] for i in (cut, wanted)]
        assert sources[0] == sources[1]
        with open_shard(str(folder / "cut.tar"), folder / "cut.idx") as shard:
            assert [s.key for s in shard] == [sample(n).key for n, k in enumerate(keep) if k]


def test_a_shard_that_loses_all_is_an_empty_tar(tmp_path: Path) -> None:
    tar, index = write(tmp_path / "all", [1, 2])
    cut_tar(tar, index, np.zeros(2, bool), tmp_path / "c.tar", tmp_path / "c.idx")
    shard, grouped = open_foreign(str(tmp_path / "c.tar"))
    with shard:
        assert len(shard) == len(grouped.bad) == 0
    assert len(open_tar_index(tmp_path / "c.idx")) == 0


def test_a_tar_that_is_not_as_its_index_says_is_refused(tmp_path: Path) -> None:
    tar, index = write(tmp_path / "all", [1, 2])
    tar.write_bytes(tar.read_bytes()[:-512])
    with pytest.raises(FormatError, match="bytes of its index"):
        cut_tar(tar, index, np.ones(2, bool), tmp_path / "c.tar", tmp_path / "c.idx")
