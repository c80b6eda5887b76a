"""Token shards give back what was written, and refuse what cannot be."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import ConfigError, FormatError
from shardmill.model.manifest import FileEntry, ShardEntry
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow, spans_of
from shardmill.shards.arrays import open_arrays, write_arrays
from shardmill.shards.tokens.ids import SPANS_FORMAT
from shardmill.shards.tokens.shard import ROLES, TokenDataset, TokenShard, open_token_shard
from shardmill.shards.tokens.write import TokenWriter

SPACE = TokenSpace(text_size=100, added=("boi", "eoi"), num_codes=50)
WIDE = TokenSpace(text_size=70_000)


def write(dir: Path, rows: list[TokenRow], space: TokenSpace = SPACE) -> dict[str, Path]:
    files = {role: dir / f"0.{role}" for role in ROLES}
    with TokenWriter(files.__getitem__, space) as writer:
        for row in rows:
            writer.append(row)
    return files


def rows_strategy(space: TokenSpace) -> Any:
    origin = st.none() | st.builds(
        Origin,
        source=st.sampled_from(["a", "b"]),
        path=st.sampled_from(["x.jsonl", "y/é.tar"]),
        row=st.integers(0, 2**40) | st.text("abc/", min_size=1, max_size=9),
    )

    @st.composite
    def row(draw: Any) -> TokenRow:
        ids = draw(st.lists(st.integers(0, space.size - 1), max_size=30))
        loss = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
        media = []
        if len(ids) >= 3 and draw(st.booleans()):
            start = draw(st.integers(0, len(ids) - 3))
            length = draw(st.integers(0, len(ids) - start - 2))
            grid = tuple(draw(st.lists(st.integers(0, 400), min_size=3, max_size=3)))
            media.append(
                MediaSpan(
                    name=draw(st.sampled_from(["jpg", "0.jpg"])),
                    kind=draw(st.sampled_from(["image", "video"])),
                    position=start + 1,
                    num_tokens=length,
                    grid=grid,  # type: ignore[arg-type]
                    before=1,
                    after=1,
                )
            )
        return TokenRow(
            key=draw(st.text(min_size=1, max_size=6).filter(_is_utf8)),
            ids=np.array(ids, space.dtype),
            loss=spans_of(np.array(loss, bool)),
            media=tuple(media),
            origin=draw(origin),
            continues=draw(st.booleans()),
        )

    return st.lists(row(), max_size=6)


def _is_utf8(text: str) -> bool:
    return not any(0xD800 <= ord(c) <= 0xDFFF for c in text)


def same(a: TokenRow, b: TokenRow) -> bool:
    return (
        (a.key, a.media, a.origin) == (b.key, b.media, b.origin)
        and a.ids.tolist() == b.ids.tolist()
        and a.loss.tolist() == b.loss.tolist()
    )


@pytest.mark.parametrize("space", [SPACE, WIDE])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_rows_come_back(data: Any, space: TokenSpace, tmp_path_factory: Any) -> None:
    rows = data.draw(rows_strategy(space))
    shard = open_token_shard(write(tmp_path_factory.mktemp("t"), rows, space))
    assert len(shard) == len(rows)
    assert shard.space == space
    for number, row in enumerate(rows):
        assert same(shard[number], row)
        assert shard.continues(number) == row.continues
        assert shard.num_visual[number] == row.num_visual
        assert shard.num_fixed[number] == row.num_fixed
        assert shard.sources[number] == (row.origin.source if row.origin else "")
    assert shard.lengths.tolist() == [len(row.ids) for row in rows]


def test_texts_in_bulk_are_rows_like_others(tmp_path: Path) -> None:
    texts = [[1, 2, 3], [], [0]]
    origin = Origin(source="s", path="a.jsonl", row=0)
    files = {role: tmp_path / f"0.{role}" for role in ROLES}
    with TokenWriter(files.__getitem__, SPACE) as writer:
        writer.append_texts(
            np.array([1, 2, 3, 0], np.uint32),
            np.array([len(t) for t in texts]),
            ["a", "b", "c"],
            origin,
            [4, 5, 6],
        )
    one_by_one = tmp_path / "rows"
    one_by_one.mkdir()
    expected = write(
        one_by_one,
        [
            TokenRow(
                key=key,
                ids=np.array(ids, np.uint16),
                loss=spans_of(np.ones(len(ids), bool)),
                origin=Origin(source="s", path="a.jsonl", row=row),
            )
            for key, ids, row in zip("abc", texts, [4, 5, 6])
        ],
    )
    assert all(files[r].read_bytes() == expected[r].read_bytes() for r in ROLES)


def test_an_id_outside_the_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="152"):
        write(tmp_path, [TokenRow(key="a", ids=np.array([152]))])


def shard_of(tmp_path: Path) -> dict[str, Path]:
    medium = MediaSpan(name="jpg", kind="image", position=1, num_tokens=2, before=1, after=1)
    ids = np.array([100, 102, 103, 101], np.uint16)
    return write(tmp_path, [TokenRow(key="a", ids=ids, loss=np.array([[1, 3]]), media=(medium,))])


def reread(files: dict[str, Path]) -> TokenShard:
    shard = open_token_shard(files)
    assert len([*shard]) == len(shard)
    return shard


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kept", [0, 1, 7, -1])
def test_a_cut_file_is_an_error(tmp_path: Path, role: str, kept: int) -> None:
    files = shard_of(tmp_path)
    raw = files[role].read_bytes()
    files[role].write_bytes(raw[:kept])
    with pytest.raises(FormatError):
        reread(files)


@pytest.mark.parametrize("length", [-1, 3, 5, 2**31 - 1])
def test_a_wrong_length_is_an_error(tmp_path: Path, length: int) -> None:
    files = shard_of(tmp_path)
    raw = bytearray(files["idx"].read_bytes())
    struct.pack_into("<i", raw, 34, length)
    files["idx"].write_bytes(raw)
    with pytest.raises(FormatError):
        reread(files)


@pytest.mark.parametrize("offset", [-2, 1, 2, 2**62])
def test_a_wrong_offset_is_an_error(tmp_path: Path, offset: int) -> None:
    files = shard_of(tmp_path)
    raw = bytearray(files["idx"].read_bytes())
    struct.pack_into("<q", raw, 38, offset)
    files["idx"].write_bytes(raw)
    with pytest.raises(FormatError, match="do not lie after each other"):
        reread(files)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss_bounds", [0, 9]),
        ("loss_bounds", [1, 0]),
        ("loss_bounds", [2]),
        ("loss_bounds", [0, 1, 1]),
        ("key_prefix", [1]),
        ("key_width", [19]),
        ("key_width", []),
        ("loss_length", [4]),
        ("media_position", [0]),
        ("media_length", [9]),
        ("media_kind", [7]),
        ("media_name", [3]),
        ("media_grid", [1]),
        ("origin_file", [1]),
        ("num_visual", [1, 2]),
    ],
)
def test_a_span_outside_its_row_is_an_error(tmp_path: Path, name: str, value: list[int]) -> None:
    files = shard_of(tmp_path)
    spans = open_arrays(files["spans"], SPANS_FORMAT)
    arrays = {**spans.arrays, name: np.array(value, np.uint8)}
    files["spans"] = tmp_path / "hostile.spans"
    with files["spans"].open("wb") as file:
        write_arrays(file, SPANS_FORMAT, arrays, spans.meta)
    with pytest.raises(FormatError):
        reread(files)


def test_an_image_text_row_takes_little_more_than_its_ids(tmp_path: Path) -> None:
    space = TokenSpace(text_size=32_000, added=("boi", "eoi"), num_codes=8192)
    rows = [
        TokenRow(
            key=f"pairs-{number:08d}",
            ids=np.zeros(30 + 1026, space.dtype),
            loss=np.array([[31, 1025]]),
            media=(
                MediaSpan(
                    name="jpg",
                    kind="image",
                    position=31,
                    num_tokens=1024,
                    grid=(1, 32, 32),
                    before=1,
                    after=1,
                ),
            ),
            origin=Origin(source="pairs", path="/data/pairs.jsonl", row=number),
        )
        for number in range(500)
    ]
    files = write(tmp_path, rows, space)
    num_tokens = sum(len(row.ids) for row in rows)
    assert sum(path.stat().st_size for path in files.values()) < 2.1 * num_tokens


def shard(dir: Path, name: str, rows: list[list[int]], text_size: int = 100) -> ShardEntry:
    paths = {role: dir / f"{name}.{role}" for role in ROLES}
    with TokenWriter(paths.__getitem__, TokenSpace(text_size=text_size)) as writer:
        for number, ids in enumerate(rows):
            writer.append(TokenRow(key=f"{name}-{number}", ids=np.array(ids, int)))
    files = {role: FileEntry(path.name, path.stat().st_size, "") for role, path in paths.items()}
    return ShardEntry(name, len(rows), files)


def test_numbers_run_through_all_shards(tmp_path: Path) -> None:
    entries = (
        shard(tmp_path, "a", [[1], [2, 3]]),
        shard(tmp_path, "b", []),
        shard(tmp_path, "c", [[4]]),
    )
    tokens = pickle.loads(pickle.dumps(TokenDataset(tmp_path, entries)))
    assert [row.key for row in tokens] == ["a-0", "a-1", "c-0"]
    assert [tokens.ids(n).tolist() for n in range(len(tokens))] == [[1], [2, 3], [4]]
    assert tokens.locate(2) == (2, 0)
    assert [tokens.find(key) for key in ("a-1", "c-0", "b-0")] == [1, 2, None]
    for outside in (-1, 3):
        with pytest.raises(IndexError):
            tokens[outside]


def test_shards_of_two_spaces_are_refused(tmp_path: Path) -> None:
    entries = (shard(tmp_path, "a", [[1]]), shard(tmp_path, "b", [[1]], text_size=200))
    tokens = TokenDataset(tmp_path, entries)
    assert tokens.space == TokenSpace(text_size=100)
    with pytest.raises(ConfigError, match="text_size: 100 -> 200"):
        tokens[1]


def test_a_shard_that_is_not_what_the_manifest_says_is_refused(tmp_path: Path) -> None:
    entry = shard(tmp_path, "a", [[1]])
    with pytest.raises(FormatError, match="1 rows, the manifest says 2"):
        TokenDataset(tmp_path, (ShardEntry("a", 2, entry.files),))[0]
    with pytest.raises(FormatError, match="no file 'bin'"):
        TokenDataset(tmp_path, (ShardEntry("a", 1, {}),))[0]
