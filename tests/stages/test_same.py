"""Two data sets are the same, or their first difference is named, whatever it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import DrawFn, composite, integers, lists
from lossy_export import lossy_export
from token_folder import write_token_folder
from unidisc_folder import write_paired

from shardmill.errors import ConfigError
from shardmill.formats.adapters.tensordict import TensorDictFormat
from shardmill.formats.finder import open_reader
from shardmill.formats.format import CodesReader, Record, TokensReader
from shardmill.formats.megatron import MegatronReader
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow, spans_of
from shardmill.running.runner import run_stage
from shardmill.stages.same import Comparison, compare, first_difference

SPACE = TokenSpace(text_size=100, num_codes=50)


def row(number: int, length: int = 8, **changes: object) -> TokenRow:
    ids = (np.arange(length) + number) % 100
    ids[3:7] = 100 + np.arange(4) + number
    image = MediaSpan(name="jpg", kind="image", position=3, num_tokens=4, grid=(1, 2, 2))
    made = TokenRow(key=f"k-{number:03d}", ids=ids, loss=np.array([[1, 2]]), media=(image,))
    return replace(made, **changes)  # type: ignore[arg-type]


def folder(path: Path, rows: list[TokenRow], per_shard: int = 3) -> TokensReader:
    shards = [rows[i : i + per_shard] for i in range(0, len(rows), per_shard)]
    return TokensReader(dir=str(write_token_folder(path, shards, SPACE)))


def compared(first: list[TokenRow], second: list[TokenRow], per_shard: int = 3) -> Comparison:
    with TemporaryDirectory() as name:
        a = folder(Path(name) / "a", first)
        return compare(a, folder(Path(name) / "b", second, per_shard))


@settings(max_examples=15)
@given(count=integers(0, 12), per_shard=integers(1, 5))
def test_shards_of_any_size_hold_the_same(count: int, per_shard: int) -> None:
    rows = [row(number) for number in range(count)] or [row(0)]
    found = compared(rows, rows, per_shard)
    assert found.same
    assert found.num_records == len(rows)
    assert found.num_tokens == 8 * len(rows)
    assert "loss" in found.compared
    assert "codes" in found.compared


def test_whatever_differs_is_named_with_its_place() -> None:
    rows = [row(number) for number in range(5)]
    other_ids = rows[3].ids.copy()
    other_ids[2] = 77
    image = rows[3].media[0]
    cases = {
        "tokens": (replace(rows[3], ids=other_ids), "token 2 is 5 and 77"),
        "keys": (replace(rows[3], key="x"), "'k-003' and 'x'"),
        "loss": (replace(rows[3], loss=np.array([[1, 3]])), "loss mask of token 3 is 0 and 1"),
        "modality": (
            replace(rows[3], media=(replace(image, kind="video"),)),
            "modality of token 3 is 1 and 2",
        ),
        "spans": (replace(rows[3], media=(replace(image, grid=(1, 1, 4)),)), None),
    }
    for aspect, (changed, what) in cases.items():
        found = compared(rows, [*rows[:3], changed, rows[4]])
        assert found.difference is not None, aspect
        assert (found.difference.number, found.difference.aspect) == (3, aspect)
        assert what is None or found.difference.what == what
        assert found.difference.key == "k-003"
        assert found.num_records == 3


@pytest.mark.parametrize("longer", [0, 1])
def test_a_record_too_many_is_a_difference(longer: int) -> None:
    sides = [[row(n) for n in range(4 + (longer == side))] for side in range(2)]
    found = compared(*sides)
    assert found.difference is not None
    assert found.difference.number == 4
    assert found.difference.what == f"only the {'second' if longer else 'first'} has a record 4"


@composite
def packs(draw: DrawFn) -> list[list[TokenRow]]:
    sizes = draw(lists(integers(1, 3), min_size=1, max_size=5))
    numbers = iter(range(100))
    return [[row(next(numbers), continues=n > 0) for n in range(size)] for size in sizes]


@settings(max_examples=15)
@given(packs())
def test_packs_and_their_rows_are_compared_row_by_row(made: list[list[TokenRow]]) -> None:
    rows = [r for pack in made for r in pack]
    with TemporaryDirectory() as name:
        # Megatron reads a pack as one document; our rows, without the mark of packs, are records.
        tokens = folder(Path(name) / "a", rows, per_shard=100)
        prefix = MegatronReader(files=(f"{name}/a/shards",), space=SPACE)
        found = compare(tokens, prefix)
        assert found.same
        assert found.compared == ("tokens", "documents")
        assert found.num_tokens == sum(len(r.ids) for r in rows)


def test_packs_that_are_cut_in_other_places_differ(tmp_path: Path) -> None:
    rows = [row(n) for n in range(4)]
    readers = []
    for name, sizes in {"a": [1, 3], "b": [2, 2]}.items():
        plan, made = [], iter(rows)
        for size in sizes:
            plan += [replace(next(made), continues=n > 0) for n in range(size)]
        folder(tmp_path / name, plan, per_shard=100)
        readers.append(MegatronReader(files=(f"{tmp_path}/{name}/shards",), space=SPACE))
    found = compare(*readers)
    assert found.difference is not None and found.difference.aspect == "tokens"
    assert compare(*readers, ignoring=frozenset({"packs"})).same


def test_what_a_row_by_row_comparison_cannot_see_is_said(tmp_path: Path) -> None:
    rows = [row(0), row(1, continues=True)]
    prefix = MegatronReader(files=(f"{tmp_path}/a/shards",), space=SPACE)
    found = compare(folder(tmp_path / "a", rows), prefix)
    assert found.not_compared["packs"] == "only the second has a place for it"
    assert found.not_compared["loss"] == "only the first has a place for it"


def test_numbers_of_rows_and_an_added_end_are_differences(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_paired(tmp_path / name / "train_0", [[1, 50, 51], [1, 52]])
    write_paired(tmp_path / "ended" / "train_0", [[1, 50, 51, 2], [1, 52, 2]])
    numbers = tmp_path / "b" / "train_0" / "idx.memmap"
    numbers.write_bytes(numbers.read_bytes()[::-1][3:] + b"\0\0\0")
    one, renumbered, ended = (open_reader(str(tmp_path / n)) for n in ("a", "b", "ended"))
    assert compare(one, one).same
    found = compare(one, renumbered).difference
    assert found is not None and found.what == "'train-00000000' and 'train-00000001'"
    found = compare(one, ended).difference
    assert found is not None and found.aspect == "words"
    assert found.what.startswith("3 and 4 ids outside of media")


def test_a_tensordict_whose_rows_are_renumbered_is_another(tmp_path: Path) -> None:
    tokens = folder(tmp_path / "tokens", [row(n) for n in range(3)])
    stage = lossy_export(input_dir=tmp_path / "tokens", format=TensorDictFormat(length=8, pad_id=0))
    assert run_stage(stage, tmp_path / "out", workers=0).complete
    found = compare(tokens, open_reader(str(tmp_path / "out")))
    assert found.same and "idx" in found.compared
    np.array([[0], [2], [1]], "<i4").tofile(tmp_path / "out" / "idx.memmap")
    difference = compare(tokens, open_reader(str(tmp_path / "out"))).difference
    assert difference is not None
    assert (difference.aspect, difference.what) == ("idx", "1 and 2")


def test_formats_that_share_nothing_are_refused(tmp_path: Path) -> None:
    from shardmill.shards.codes import ImageCodes, write_codes

    tokens = folder(tmp_path / "a", [row(0)])
    write_codes(tmp_path / "c.codes", [("k", [ImageCodes("jpg", np.zeros((1, 1), np.uint8))])],
                num_codes=4, factor=16)  # fmt: skip
    prefix = MegatronReader(files=(f"{tmp_path}/a/shards",))
    codes = CodesReader(dir=str(tmp_path))
    with pytest.raises(ConfigError, match="nothing to compare: one holds tokens, documents"):
        compare(prefix, codes)
    assert compare(tokens, tokens).same


@given(lists(integers(0, 3), max_size=6), lists(integers(0, 3), max_size=6))
def test_no_difference_means_equal(a: list[int], b: list[int]) -> None:
    assert (first_difference("x", np.array(a), np.array(b)) == "") == (a == b)


def test_what_ends_early_is_said_in_words() -> None:
    told = first_difference("id outside of media", np.arange(3), np.arange(2))
    assert told == "3 and 2 ids outside of media, equal as far as they go"


def test_words_are_what_stands_outside_of_media() -> None:
    made = row(0)
    delimited = replace(made, media=(replace(made.media[0], before=1, after=1),))
    assert Record(rows=(made,)).words().tolist() == [0, 1, 2, 7]
    assert Record(rows=(delimited,)).words().tolist() == [0, 1]
    assert Record(rows=(made, delimited)).words().tolist() == [0, 1, 2, 7, 0, 1]
    assert spans_of(Record(rows=(made,)).loss_mask()).tolist() == [[1, 2]]
