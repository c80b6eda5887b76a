"""A format from outside is as good as a built-in: written, read, compared, shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from invoked import invoke
from token_folder import write_token_folder

from shardmill.errors import ConfigError
from shardmill.formats.finder import open_reader
from shardmill.formats.format import Aspect, Format, Record
from shardmill.formats.rows import ExportInput, Piece, token_batches
from shardmill.model.manifest import ShardEntry
from shardmill.model.stage import Draft, Tally
from shardmill.model.tokenrow import TokenRow
from shardmill.running.runner import run_stage
from shardmill.stages.export import ExportShards
from shardmill.stages.same import compare


@dataclass(frozen=True, slots=True, kw_only=True)
class IdLines(Format):
    """A line of JSON for each row: its key and its ids, plus `shift`."""

    shift: int = 0

    @property
    def keeps(self) -> frozenset[Aspect]:
        return frozenset({"keys", "tokens"})

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        with draft.file(piece.name, "jsonl").open("w") as file:
            for batch in token_batches(source, piece.slices):
                for row, (start, end) in enumerate(pairwise(batch.bounds.tolist())):
                    with tally.sample(batch.key(row)):
                        ids = batch.ids[start:end] + self.shift
                        file.write(json.dumps([batch.key(row), ids.tolist()]) + "\n")
        draft.finish(piece.name, num_samples=tally.num_kept)

    def records(self, folder: Path, shard: ShardEntry) -> Iterator[Record]:
        for line in (folder / shard.files["jsonl"].path).read_text().splitlines():
            key, ids = json.loads(line)
            yield Record(key=key, rows=(TokenRow(key=key, ids=np.array(ids) - self.shift),))


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlyWrites(Format):
    """Writes nothing of use, and cannot be read."""

    @property
    def keeps(self) -> frozenset[Aspect]:
        return frozenset({"tokens", "loss"})

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        draft.file(piece.name, "txt").write_text("x")
        tally.num_in += piece.num_rows
        tally.num_kept += piece.num_rows
        draft.finish(piece.name, num_samples=piece.num_rows)


class Silent(OnlyWrites):
    """Does not say what it keeps."""

    keeps = frozenset()  # type: ignore[assignment]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    rows = [
        TokenRow(key=f"k{n}", ids=np.arange(n + 1), loss=np.array([[0, n + 1]])) for n in range(6)
    ]
    return write_token_folder(tmp_path / "tokens", [rows[:4], rows[4:]])


def test_it_is_opened_by_what_its_stage_says(tokens: Path, tmp_path: Path) -> None:
    stage = ExportShards(input_dir=tokens, format=IdLines(shift=3))
    assert run_stage(stage, tmp_path / "out", workers=0).complete
    reader = open_reader(str(tmp_path / "out"))
    assert [part.num_records for part in reader.parts()] == [4, 2]
    found = compare(open_reader(str(tokens)), reader)
    assert found.same and set(found.compared) == {"keys", "tokens"} and found.num_tokens == 21
    (tmp_path / "out" / "shards" / "00001.jsonl").write_text('["k4", [3]]\n["k5", [3]]\n')
    difference = compare(open_reader(str(tokens)), reader).difference
    assert difference is not None and difference.key == "k4"


def test_commands_read_it(tokens: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_stage(ExportShards(input_dir=tokens, format=IdLines()), out, workers=0).complete
    invoke("check", "--same", tokens, out)
    shown = invoke("show", out, "--sample", "k5", "--json").stdout
    assert json.loads(shown)["documents"][0]["ids"] == [0, 1, 2, 3, 4, 5]


def test_it_says_what_it_keeps_as_a_built_in_one_does(tokens: Path, tmp_path: Path) -> None:
    masked = write_token_folder(tmp_path / "masked", [[TokenRow(key="k", ids=np.arange(3))]])
    with pytest.raises(ConfigError, match=r"no place for .*\n  loss: .*\n--drop loss writes"):
        list(ExportShards(input_dir=masked, format=IdLines()).units())
    assert list(ExportShards(input_dir=masked, format=IdLines(), drop=("loss",)).units())
    with pytest.raises(ConfigError, match="IdLines has a place for keys: leave it out of --drop"):
        ExportShards(input_dir=masked, format=IdLines(), drop=("keys",))
    with pytest.raises(ConfigError, match="Silent does not say what it keeps of a row"):
        ExportShards(input_dir=tokens, format=Silent())


def test_one_that_only_writes_says_what_is_missing(tokens: Path, tmp_path: Path) -> None:
    assert run_stage(
        ExportShards(input_dir=tokens, format=OnlyWrites()), tmp_path / "out", workers=0
    ).complete
    with pytest.raises(ConfigError, match="OnlyWrites has no reader: give it the method records"):
        compare(open_reader(str(tokens)), open_reader(str(tmp_path / "out")))
