"""UniDisc's rows become rows of the token space: shifted, without padding, images marked."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.strategies import DrawFn, booleans, composite, integers, lists, sampled_from, tuples
from tensordict import TensorDict
from unidisc_folder import NUM_CODES, sample_tokens, write_interleaved, write_paired

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.adapters.tensordict import Tensor, file_sizes, write_meta
from shardmill.formats.adapters.unidisc import (
    UNIDISC_SPACE,
    UnidiscReader,
    choose_rows,
    find_parts,
    interleaved_rows,
    is_memmap_folder,
    open_memmaps,
    paired_rows,
)
from shardmill.formats.format import Record
from shardmill.model.space import TokenSpace

CONVERT = UnidiscReader(dir="").convert


def records(reader: UnidiscReader) -> list[Record]:
    return [record for part in reader.parts() for record in reader.read(part.input)]


def test_codes_move_behind_the_text_and_padding_goes(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "train_0", [2, 3])
    image, text = records(UnidiscReader(dir=str(tmp_path)))
    ids, modality = map(np.array, sample_tokens(2))
    assert np.array_equal(image.ids(), ids + 32001 * (modality == 1))
    assert np.array_equal(image.modality(), modality)
    assert image.loss_mask().all()
    assert np.array_equal(image.codes[0], ids[modality == 1])
    (span,) = image.rows[0].media
    assert (span.num_tokens, span.grid, span.before) == (NUM_CODES, (1, 4, 4), 1)
    assert text.ids().tolist() == sample_tokens(3)[0]
    assert text.key == "train-00000003"


def test_pairs_become_text_marker_codes_end(tmp_path: Path) -> None:
    codes = write_paired(tmp_path / "train_0", [[1, 50, 51, 2], [1, 52]])
    first, second = records(UnidiscReader(dir=str(tmp_path)))
    shifted = (codes + UNIDISC_SPACE.code_offset).tolist()
    assert first.ids().tolist() == [1, 50, 51, 811, *shifted[0], 2]
    assert second.ids().tolist() == [1, 52, 811, *shifted[1], 2]
    assert np.array_equal(second.codes[0], codes[1])


def test_an_image_with_code_zero_is_kept(tmp_path: Path) -> None:
    codes = write_paired(tmp_path / "train_0", [[1]])
    assert 0 in codes
    assert len(records(UnidiscReader(dir=str(tmp_path)))) == 1


def test_a_merged_folder_is_one_part(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "merged", [4, 5])
    found = records(UnidiscReader(dir=str(tmp_path / "merged")))
    assert [record.key for record in found] == ["train-00000004", "train-00000005"]


def test_rows_of_one_modality_need_no_mask(tmp_path: Path) -> None:
    columns = {
        "input_ids": torch.arange(16, dtype=torch.int16).reshape(1, 16),
        "modality": torch.ones((1, 1), dtype=torch.int16),
        "idx": torch.zeros((1, 1), dtype=torch.int32),
    }
    TensorDict(columns, batch_size=[1]).memmap(tmp_path / "train_0")
    (record,) = records(UnidiscReader(dir=str(tmp_path)))
    assert np.array_equal(record.codes[0], np.arange(16))


def test_unknown_columns_are_named(tmp_path: Path) -> None:
    columns = {"x": torch.zeros(1, 2), "idx": torch.zeros((1, 1), dtype=torch.int32)}
    columns["x"] = columns["x"].to(torch.int8)
    TensorDict(columns, batch_size=[1]).memmap(tmp_path / "train_0")
    with pytest.raises(FormatError, match="holds idx, x"):
        records(UnidiscReader(dir=str(tmp_path)))


def test_a_part_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    part = write_interleaved(tmp_path / "train_0", [0, 1])
    reader = UnidiscReader(dir=str(tmp_path))
    listed = list(reader.parts())
    (part / "modality.memmap").write_bytes(bytes(2 * (part / "modality.memmap").stat().st_size))
    for look in (lambda at: list(reader.read(at)), reader.ids_file):
        with pytest.raises(FormatError, match="changed after it was listed"):
            look(listed[0].input)


def test_records_outlive_the_block_that_they_came_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_interleaved(tmp_path / "train_0", range(6))
    monkeypatch.setattr("shardmill.formats.adapters.unidisc.TOKENS_AT_ONCE", 70)
    found = records(UnidiscReader(dir=str(tmp_path)))
    codes = [record.ids() - 32001 * (record.modality() == 1) for record in found]
    assert [ids.tolist() for ids in codes] == [sample_tokens(id_)[0] for id_ in range(6)]


def test_a_tensor_that_is_no_matrix_is_refused(tmp_path: Path) -> None:
    columns = {
        name: torch.zeros((1, 2, 2), dtype=torch.int16) for name in ("input_ids", "modality")
    }
    columns["idx"] = torch.zeros((1, 1), dtype=torch.int16)
    TensorDict(columns, batch_size=[1]).memmap(tmp_path / "train_0")
    with pytest.raises(FormatError, match=r"'input_ids' of shape \(1, 2, 2\)"):
        records(UnidiscReader(dir=str(tmp_path)))


SPACE = TokenSpace(text_size=100, specials={"image": 7}, num_codes=50)
WIDTHS = (1, 5, 8, 16, 24, 31)


@composite
def tables(draw: DrawFn) -> dict[str, Any]:
    count, width = draw(integers(0, 5)), draw(sampled_from(WIDTHS))
    size = count * width

    def matrix(values: Any, dtype: str) -> Any:
        drawn = draw(lists(values, min_size=size, max_size=size))
        return np.array(drawn, dtype).reshape(count, width)

    lengths = np.array(draw(lists(integers(0, width), min_size=count, max_size=count)), int)
    mask = np.arange(width) < lengths.reshape(count, 1)
    if draw(booleans()):
        mask = matrix(booleans(), "bool")
    table = {
        "input_ids": matrix(integers(0, 49), "int16"),
        "attention_mask": mask,
        "modality": np.where(mask, matrix(sampled_from([0, 0, 0, 1]), "int8"), -1).astype("int8"),
    }
    if draw(booleans()):
        table["sample_ids"] = np.sort(matrix(integers(0, 2), "int16"), axis=1)
    return table


def one_by_one(table: dict[str, Any]) -> list[list[tuple[list[int], list[tuple[int, int, int]]]]]:
    """Return documents of each row: ids, and (position, length, before) of images."""
    rows = []
    for number in range(len(table["input_ids"])):
        mask = table["attention_mask"][number]
        ids, kind = (table[name][number][mask] for name in ("input_ids", "modality"))
        part = table["sample_ids"][number][mask] if "sample_ids" in table else np.zeros(len(ids))
        documents: list[tuple[list[int], list[tuple[int, int, int]]]] = []
        for at, (token, is_code) in enumerate(zip(ids.tolist(), (kind == 1).tolist())):
            if at == 0 or part[at] != part[at - 1]:
                documents.append(([], []))
            tokens, media = documents[-1]
            if is_code and tokens and kind[at - 1] == 1:
                position, length, before = media[-1]
                media[-1] = (position, length + 1, before)
            elif is_code:
                media.append((len(tokens), 1, int(bool(tokens) and tokens[-1] == 7)))
            tokens.append(token + 100 * is_code)
        if not documents and "sample_ids" not in table:
            documents = [([], [])]
        rows.append(documents)
    return rows


@settings(max_examples=300)
@given(tables())
def test_flat_rows_are_the_rows(table: dict[str, Any]) -> None:
    flat = interleaved_rows(table, np.arange(len(table["input_ids"])), SPACE, "raw")
    wanted = one_by_one(table)
    documents = [document for row in wanted for document in row]
    assert flat.per_row.tolist() == [len(row) for row in wanted]
    assert flat.lengths.tolist() == [len(ids) for ids, _ in documents]
    assert flat.ids.tolist() == [token for ids, _ in documents for token in ids]
    assert flat.media.counts.tolist() == [len(media) for _, media in documents]
    columns = [flat.media.columns[name].tolist() for name in ("position", "length", "before")]
    assert list(zip(*columns)) == [span for _, media in documents for span in media]


def test_an_id_below_zero_is_refused() -> None:
    table = {"input_ids": np.array([[-1]], "int16"), "modality": np.zeros((1, 1), "int8")}
    with pytest.raises(FormatError, match="the id -1"):
        interleaved_rows(table, np.arange(len(table["input_ids"])), SPACE, "raw")


@pytest.mark.parametrize("name", ["modality", "attention_mask", "sample_ids"])
def test_columns_of_other_shapes_are_refused(name: str) -> None:
    table = {n: np.ones((2, 4), "int8") for n in ("input_ids", "modality")}
    table[name] = np.ones((2, 3), "int8")
    with pytest.raises(FormatError, match=rf"{name}: has the shape \(2, 3\)"):
        interleaved_rows(table, np.arange(2), SPACE, "raw")


EOS = 2
PAIR_SPACES = [
    TokenSpace(text_size=100, specials={"image": 7, "eos": EOS}, num_codes=50),
    TokenSpace(text_size=100, specials={"eos": EOS}, num_codes=50),
    TokenSpace(text_size=100_000, specials={"image": 7, "eos": EOS}, num_codes=50),
]


@composite
def pair_tables(draw: DrawFn) -> dict[str, Any]:
    random = np.random.default_rng(draw(integers(0, 2**32)))
    count, width, num_codes = draw(integers(0, 5)), draw(integers(0, 9)), draw(integers(1, 4))
    mask = np.arange(width) < random.integers(0, width + 1, (count, 1))
    if draw(booleans()):
        mask = random.random((count, width)) < 0.5
    text = np.where(mask, random.integers(1, 4, (count, width)), -100)
    table = {
        "txt_input_ids": text.astype("int32"),
        "img_input_ids": random.integers(0, 50, (count, num_codes)).astype("int16"),
    }
    return {**table, "txt_attention_mask": mask} if draw(booleans()) else table


@given(table=pair_tables(), space=sampled_from(PAIR_SPACES), end=booleans(), raw=booleans())
def test_a_pair_is_text_marker_codes_end(
    table: dict[str, Any], space: TokenSpace, end: bool, raw: bool
) -> None:
    numbers = np.arange(len(table["img_input_ids"]))[::-1].copy()
    flat = paired_rows(table, numbers, space, "raw" if raw else "shifted", end=end)
    wanted, marker = [], [7] * ("image" in space.names)
    for number in numbers.tolist():
        words = [id_ for id_ in table["txt_input_ids"][number].tolist() if id_ >= 0]
        words = words[:-1] if end and words[-1:] == [EOS] else words
        codes = table["img_input_ids"][number].astype(int) + (space.code_offset if raw else 0)
        wanted.append([*words, *marker, *codes.tolist(), *[EOS] * end])
    assert flat.lengths.tolist() == [len(row) for row in wanted]
    assert flat.ids.tolist() == [id_ for row in wanted for id_ in row]
    assert flat.ids.dtype == space.dtype
    num_codes = table["img_input_ids"].shape[1]
    position = [len(row) - end - num_codes for row in wanted]
    assert flat.media.columns["position"].tolist() == position
    assert flat.media.columns["before"].tolist() == [len(marker)] * len(wanted)


def test_a_code_that_is_none_is_refused() -> None:
    table = {"txt_input_ids": np.ones((1, 2), "int32"), "img_input_ids": np.array([[3, 50]])}
    with pytest.raises(FormatError, match="the code 50 in an image, the token space has 50"):
        paired_rows(table, np.array([0]), PAIR_SPACES[0], "raw", end=True)


ids_of_a_part = lists(integers(0, 12), max_size=6, unique=True)


@settings(max_examples=25)
@given(parts=lists(tuples(ids_of_a_part, booleans(), integers(0, 2)), min_size=1, max_size=4))
def test_every_id_is_taken_exactly_once(parts: list[tuple[list[int], bool, int]]) -> None:
    with TemporaryDirectory() as name:
        for number, (ids, is_temporary, unwritten) in enumerate(parts):
            part = f"{'tmp_' * is_temporary}train_{number}"
            write_interleaved(Path(name) / part, ids, unwritten=unwritten + (not ids))
        found = list(choose_rows(find_parts(Path(name), "train", skip_broken=False), None, CONVERT))
        taken = [int(id_) for part in found for id_ in part.ids]
        assert sorted(taken) == sorted({id_ for ids, _, _ in parts for id_ in ids})
        num_rows = sum(len(ids) + unwritten + (not ids) for ids, _, unwritten in parts)
        left = sum(part.num_unwritten + part.num_repeated for part in found)
        assert num_rows == len(taken) + left


def test_finished_parts_come_before_temporary_ones_and_ten_after_two(tmp_path: Path) -> None:
    for name in ("train_10", "train_2", "tmp_train_1", "val_0", "train_existing_17"):
        write_interleaved(tmp_path / name, [0])
    parts = [part.name for part in find_parts(tmp_path, "train", skip_broken=False)]
    assert parts == ["train_existing_17", "train_2", "train_10", "tmp_train_1"]


def test_equal_ids_with_other_tokens_need_a_decision(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "train_0", [0, 1])
    write_interleaved(tmp_path / "train_1", [4, 5])
    # The second part counts from 0 again: its samples are others.
    (tmp_path / "train_1" / "idx.memmap").write_bytes(
        (tmp_path / "train_0" / "idx.memmap").read_bytes()
    )
    parts = find_parts(tmp_path, "train", skip_broken=False)
    with pytest.raises(ConfigError, match=r"id 0 has other tokens in train_1 .*,ids=local"):
        list(choose_rows(parts, None, CONVERT))
    assert [len(part.rows) for part in choose_rows(parts, "local", CONVERT)] == [2, 2]
    assert [len(part.rows) for part in choose_rows(parts, "global", CONVERT)] == [2, 0]


@pytest.mark.parametrize(
    "form", [{"dtype": torch.int32}, {"dtype": torch.int64}, {"length": 40}, {"pad": 7}]
)
def test_the_same_tokens_in_another_dtype_or_padding_are_no_conflict(
    tmp_path: Path, form: dict[str, Any]
) -> None:
    write_interleaved(tmp_path / "train_0", [0, 1, 2])
    second = write_interleaved(tmp_path / "train_1", [1, 2, 3], **form)
    parts = find_parts(tmp_path, "train", skip_broken=False)
    assert [len(part.rows) for part in choose_rows(parts, None, CONVERT)] == [3, 1]
    # Padding that is a token is another thing; which modality it would have is not.
    for name in ("modality", "attention_mask"):
        content = (second / f"{name}.memmap").read_bytes()
        length = form.get("length", 32)
        flipped = bytearray(content)
        flipped[length + 25] ^= 1  # behind the last token of id 2
        (second / f"{name}.memmap").write_bytes(flipped)
        parts = find_parts(tmp_path, "train", skip_broken=False)
        if name == "modality":  # of padding nobody asks for it
            assert [len(part.rows) for part in choose_rows(parts, None, CONVERT)] == [3, 1]
        else:
            with pytest.raises(ConfigError, match="id 2 has other tokens in train_1"):
                list(choose_rows(parts, None, CONVERT))


def test_half_written_parts_stop_the_merge_unless_they_are_skipped(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "train_0", [0, 1])
    broken = write_interleaved(tmp_path / "tmp_train_1", [2, 3])
    (broken / "input_ids.memmap").write_bytes(b"")
    with pytest.raises(FormatError, match=r"tmp_train_1/input_ids.memmap: has 0 .*skip_broken"):
        find_parts(tmp_path, "train", skip_broken=False)
    parts = find_parts(tmp_path, "train", skip_broken=True)
    assert [part.name for part in parts] == ["train_0"]


def test_a_broken_finished_part_is_never_skipped(tmp_path: Path) -> None:
    (write_interleaved(tmp_path / "train_0", [0]) / "idx.memmap").unlink()
    with pytest.raises(FormatError, match="idx"):
        find_parts(tmp_path, "train", skip_broken=True)


def test_a_folder_without_parts_says_what_is_missing(tmp_path: Path) -> None:
    write_interleaved(tmp_path / "val_0", [0])
    with pytest.raises(ConfigError, match="no parts of split 'train'"):
        find_parts(tmp_path, "train", skip_broken=False)


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


def test_a_file_that_is_too_long_is_not_said_to_be_cut_off(folder: Path) -> None:
    path = folder / "c4.memmap"
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(FormatError, match=r"has 48 bytes, its shape .* says 24: it is too long"):
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
