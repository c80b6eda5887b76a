"""Rows of exports: flat arrays that say what each row says, packs as rows, and pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from coded_folder import codes_of, make_pair, make_text, store_coded
from hypothesis import given, settings
from hypothesis import strategies as st
from token_folder import write_token_folder

from shardmill.errors import ConfigError, FormatError, ShardmillError
from shardmill.formats.rows import (
    MAX_OPEN,
    ExportInput,
    PairRow,
    Piece,
    Slice,
    open_input,
    pair_rows,
    token_batches,
)
from shardmill.model.plan import PackSpec
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.stage import Tally, Unit, unit_from_plain, unit_to_plain
from shardmill.model.tokenrow import MediaSpan, TokenRow, mask_of, modality_of
from shardmill.packing.plan import plan_packs
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import Ledger
from shardmill.shards.plans import write_plan
from shardmill.shards.tokens.shard import token_lengths
from shardmill.stages.pack import Materialize


def make_row(number: int, length: int, goes_on: bool) -> TokenRow:
    media = ()
    if length >= 6 and number % 2:
        kind = ("image", "video", "audio")[number % 3]
        span = MediaSpan(name="x", kind=kind, position=2, num_tokens=2, before=1, after=1)
        media = (span, replace(span, position=5, num_tokens=1, before=0, after=0))
    loss = np.array([[0, 1], [3, length - 3]]) if length > 3 and number % 3 else np.empty((0, 2))
    return TokenRow(
        key=f"web-{number:03d}" if number % 4 else f"odd{number}x",
        ids=(np.arange(length) + number) % 1000,
        loss=loss.astype(np.int64),
        media=media,
        continues=goes_on and number > 0,
    )


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=14),
    max_tokens=st.integers(1, 40),
    max_rows=st.integers(1, 9),
)
def test_flat_arrays_are_those_of_the_rows(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[int, bool]],
    max_tokens: int,
    max_rows: int,
) -> None:
    made = [make_row(number, *row) for number, row in enumerate(rows)]
    folder = write_token_folder(tmp_path_factory.mktemp("x") / "tokens", [made])
    source, seen = open_input(folder), []
    for part in token_batches(source, [Slice(0, 0, len(made))], max_tokens, max_rows):
        mine = made[part.start : part.stop]
        seen += mine
        assert not mine[0].continues
        assert part.documents.tolist() == [
            *(n for n, row in enumerate(mine) if not row.continues),
            len(mine),
        ]
        assert part.keys == [row.key for row in mine] == [part.key(n) for n in range(len(part))]
        assert part.ids.tolist() == [i for row in mine for i in row.ids.tolist()]
        masks = [mask_of(row.loss, len(row.ids)) for row in mine]
        assert part.loss_mask().tolist() == np.concatenate(masks).astype(int).tolist()
        kinds = [modality_of(row.media, len(row.ids)) for row in mine]
        assert part.modality().tolist() == np.concatenate(kinds).tolist()
        assert int(part.fixed_mask().sum()) == sum(row.num_fixed for row in mine)
        assert part.media("length").tolist() == [s.num_tokens for row in mine for s in row.media]
        assert np.diff(part.media_bounds).tolist() == [len(row.media) for row in mine]
        ends = [n for n, row in enumerate(mine) if not row.continues][1:]
        if ends:  # more than one document: then the limits hold, but for the last row
            assert part.sequence_bounds[len(mine) - 1] <= max_tokens + 12 * max_rows
            assert len(mine) <= max_rows
    assert [row.key for row in seen] == [row.key for row in made]


def test_rows_with_gaps_are_refused(tmp_path: Path) -> None:
    rows = [make_row(number, 5, False) for number in range(3)]
    source = open_input(write_token_folder(tmp_path / "x", [rows]))
    shard = source.token_shard(0)
    source._open[0] = replace(shard, offsets=shard.offsets[::-1].copy())
    with pytest.raises(FormatError, match="one after the other"):
        list(token_batches(source, [Slice(0, 0, 3)]))
    source._open[0] = shard
    with pytest.raises(FormatError, match="one after the other"):
        list(token_batches(source, [Slice(0, 0, 4)]))


def test_media_that_overlap_are_refused(tmp_path: Path) -> None:
    span = MediaSpan(name="x", kind="image", position=1, num_tokens=4)
    row = TokenRow(key="a", ids=np.arange(9), media=(span, replace(span, position=3)))
    source = open_input(write_token_folder(tmp_path / "x", [[row]]))
    (part,) = token_batches(source, [Slice(0, 0, 1)])
    with pytest.raises(FormatError, match="overlap"):
        part.modality()


def test_spans_are_those_of_the_example(tmp_path: Path) -> None:
    row = TokenRow(key="a", ids=np.arange(6), loss=np.array([[1, 2], [4, 1]]))
    source = open_input(write_token_folder(tmp_path / "x", [[row]]))
    (batch,) = token_batches(source, [Slice(0, 0, 1)])
    assert batch.loss_mask().tolist() == [0, 1, 1, 0, 1, 0]


def test_keys_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    row = TokenRow(key="caf\udce9", ids=np.arange(3))  # as surrogateescape reads b"caf\xe9"
    source = open_input(write_token_folder(tmp_path / "x", [[row]]))
    (batch,) = token_batches(source, [Slice(0, 0, 1)])
    assert batch.key(0) == row.key
    with pytest.raises(FormatError, match="not UTF-8"):
        _ = batch.keys


def test_packs_are_rows_of_their_documents(tmp_path: Path) -> None:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(3 + n % 5)) for n in range(20)]
    tokens = write_token_folder(tmp_path / "tokens", [rows])
    assert not open_input(tokens).holds_packs
    write_plan(tmp_path / "plan", plan_packs(token_lengths(tokens), PackSpec(capacity=16)))
    packing = Materialize(tokens_dir=tokens, plan_path=tmp_path / "plan", packs_per_shard=3)
    assert run_stage(packing, tmp_path / "packs", workers=0).complete
    source, num_documents = open_input(tmp_path / "packs"), 0
    assert source.holds_packs
    for slices in source.ranges(None):
        for batch in token_batches(source, slices, max_rows=7):
            assert (
                batch.lengths.tolist()
                == np.add.reduceat(batch.sequence_lengths, batch.members[:-1]).tolist()
            )
            assert int(batch.lengths.max()) <= 16
            assert batch.key(0) == batch.keys[0] and batch.num_fixed.tolist() == (
                batch.lengths.tolist()
            )
            num_documents += batch.num_sequences
        for batch in token_batches(source, slices, by_sequence=True):
            assert len(batch) == batch.num_sequences
    assert num_documents == 20


CHAT = Sample(
    key="chat",
    document=Document(
        (
            Segment(kind="text", text="What is it?", role="user"),
            Segment(kind="image", media="png", role="user"),
            Segment(kind="text", text="A cat.", role="assistant", turn=1),
        )
    ),
    media={"png": b"png"},
)
VIDEO = Sample(
    key="video",
    document=Document((Segment(kind="video", media="mp4"), Segment(kind="text", text="x"))),
    media={"mp4": b"moov"},
)


def read(folder: Path, codes: Path | None) -> tuple[list[PairRow], Tally]:
    source, tally = open_input(folder, codes), Tally()
    slices = tuple(Slice(n, 0, shard.num_samples) for n, shard in enumerate(source.shards))
    return list(pair_rows(source, Piece("00000", slices, {}), tally)), tally


def test_rows_with_and_without_codes(tmp_path: Path) -> None:
    samples = [make_pair("p", "caption", b"jpeg"), make_text("t", "text"), CHAT, VIDEO]
    folder, codes = store_coded(tmp_path, samples, per_shard=9)
    for codes_dir in (None, codes):
        rows, tally = read(folder, codes_dir)
        assert [(row.key, row.text, row.medium) for row in rows] == [
            ("p", "caption", "jpg"),
            ("t", "text", None),
            ("chat", "What is it?\nA cat.", "png"),
        ]
        assert bytes(rows[0].raw["jpg"]) == b"jpeg"
        assert [row.codes is not None for row in rows] == [codes_dir is not None, False] + [
            codes_dir is not None
        ]
        assert dict(tally.skipped) == {"not one image and text": 1} and tally.num_in == 4


def test_codes_in_another_order_are_found_by_key(tmp_path: Path) -> None:
    pairs = [make_pair(f"p{n}", f"caption {n}") for n in range(9)]
    samples, _ = store_coded(tmp_path / "a", pairs, per_shard=4)
    _, codes = store_coded(tmp_path / "b", pairs[::-1], per_shard=5)
    rows, _ = read(samples, codes)
    for row, sample in zip(rows, pairs, strict=True):
        assert row.codes is not None
        assert row.codes.codes.tolist() == codes_of(sample.key).tolist()
        assert (row.codes.width, row.codes.height) == (512, 512)


def test_a_tar_that_is_cut_off_is_named(tmp_path: Path) -> None:
    pairs = [make_pair(f"p{n}", f"caption {n}") for n in range(25)]
    folders = store_coded(tmp_path, pairs, per_shard=30)
    (tar,) = (folders[0] / "shards").glob("*.tar")
    tar.write_bytes(tar.read_bytes()[:20_000])
    with pytest.raises(FormatError, match=r"00000\.tar"):
        read(*folders)


SLICES = st.builds(Slice, st.integers(0, 99), st.integers(0, 9), st.integers(9, 99))


@given(slices=st.lists(SLICES, max_size=4), row=st.integers(0, 2**40))
def test_a_piece_travels_inside_a_unit(slices: list[Slice], row: int) -> None:
    piece = Piece("00001", tuple(slices), {"row": row})
    unit = Unit(name="00001", input=piece.to_plain())
    assert Piece.of(unit_from_plain(unit_to_plain(unit))) == piece
    assert piece.num_rows == sum(part.stop - part.start for part in slices)


def make_rows(continued: list[bool]) -> list[TokenRow]:
    return [
        TokenRow(key=f"k{n}", ids=np.arange(2), continues=goes_on and n > 0)
        for n, goes_on in enumerate(continued)
    ]


@settings(max_examples=40)
@given(
    shards=st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=4),
    num_units=st.integers(1, 9),
)
def test_parts_hold_every_row_once_and_begin_with_a_document(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[bool]], num_units: int
) -> None:
    folder = tmp_path_factory.mktemp("x") / "tokens"
    source = open_input(write_token_folder(folder, [make_rows(shard) for shard in shards]))
    ranges = source.ranges(num_units)
    assert len(ranges) == num_units
    found = [(s.shard, row) for part in ranges for s in part for row in range(s.start, s.stop)]
    assert found == [(n, row) for n, shard in enumerate(shards) for row in range(len(shard))]
    for part in ranges:
        for first in part[:1]:
            assert not source.token_shard(first.shard).continues(first.start)


def test_without_a_number_each_shard_is_a_part(tmp_path: Path) -> None:
    folder = write_token_folder(tmp_path / "x", [make_rows([False] * 3), [], make_rows([False])])
    source = open_input(folder)
    assert source.ranges(None) == [(Slice(0, 0, 3),), (Slice(1, 0, 0),), (Slice(2, 0, 1),)]
    assert source.num_rows == 4 and source.has_tokens


def test_few_shards_are_open_at_a_time(tmp_path: Path) -> None:
    shards = [make_rows([False]) for _ in range(5)]
    source = open_input(write_token_folder(tmp_path / "x", shards))
    for number in range(5):
        assert len(source.token_shard(number)) == 1
    assert len(source._open) == MAX_OPEN


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    samples, codes = store_coded(tmp_path, [make_pair("a", "x")], per_shard=1)
    with pytest.raises(ConfigError, match=r"holds no tokens.*shardmill tokenize"):
        open_input(samples).token_shard(0)
    with pytest.raises(ConfigError, match="holds no samples"):
        open_input(codes).sample_shard(0)
    tokens = write_token_folder(tmp_path / "tokens", [make_rows([False])])
    with pytest.raises(ConfigError, match="holds no samples"):
        open_input(tokens).sample_shard(0)
    with pytest.raises(ConfigError, match="is empty"):
        ExportInput(tmp_path, ()).space()


def test_a_half_written_folder_is_refused(tmp_path: Path) -> None:
    tokens = write_token_folder(tmp_path / "tokens", [make_rows([False])])
    Ledger(tokens).manifest_path.unlink()
    with pytest.raises(ShardmillError, match="is not a dataset of shardmill"):
        open_input(tokens)
