"""The contract: what a format leaves out has a default; blocks, records and our own folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import xxhash
from lossy_export import lossy_export
from mixed_folder import Mixed, codes_of
from unidisc_folder import write_interleaved

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.adapters.unidisc import UnidiscReader
from shardmill.formats.format import (
    OF_SAMPLES,
    BlockReader,
    CodesReader,
    Format,
    Reader,
    Record,
    SamplesReader,
    TokensReader,
    open_folder,
    stamp,
)
from shardmill.formats.megatron import MegatronReader
from shardmill.formats.rows import ExportInput, Piece, Slice
from shardmill.model.stage import Draft, Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing(Format):
    """Writes nothing."""

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Do nothing."""


def test_only_writing_has_no_default(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="abstract"):
        Format()  # type: ignore[abstract]
    source, ranges = ExportInput(tmp_path, ()), [(), (Slice(0, 0, 3),)]
    assert list(Nothing().plan(source, ranges)) == [{}, {}]
    assert Nothing().shared_files(source, []) == {}


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


def records(reader: Reader) -> list[Record]:
    return [record for part in reader.parts() for record in reader.read(part.input)]


def test_each_folder_has_its_reader(mixed: Mixed) -> None:
    wanted = {"samples": SamplesReader, "codes": CodesReader, "tokens": TokensReader}
    for name, kind in wanted.items():
        assert isinstance(open_folder(getattr(mixed, name)), kind)


def test_a_pack_is_one_record(mixed: Mixed) -> None:
    rows, packs = (records(TokensReader(dir=str(f))) for f in (mixed.tokens, mixed.packs))
    assert len(rows) == 8
    assert len(packs) < 8
    assert sorted(row.key for pack in packs for row in pack.rows) == [r.key for r in mixed.rows]


def test_samples_have_text_media_and_codes(mixed: Mixed) -> None:
    reader = SamplesReader(dir=str(mixed.samples), codes_dir=str(mixed.codes))
    assert reader.holds() == OF_SAMPLES | {"codes", "origin"}
    page = records(reader)[2]
    assert page.text.startswith("Text number 2.")
    assert len(page.media) == len(page.codes) == 2
    assert page.codes[1].tolist() == codes_of(page.key, "1.jpg").reshape(-1).tolist()
    assert page.media[0] != xxhash.xxh3_64_hexdigest(b"")


def test_a_folder_of_something_else_is_refused(tmp_path: Path, mixed: Mixed) -> None:
    from shardmill.formats.megatron import MegatronFormat
    from shardmill.running.runner import run_stage

    run_stage(
        lossy_export(input_dir=mixed.tokens, format=MegatronFormat(prefix="x")), tmp_path / "o"
    )
    with pytest.raises(ConfigError, match="holds export, not samples, codes or tokens"):
        open_folder(tmp_path / "o")
