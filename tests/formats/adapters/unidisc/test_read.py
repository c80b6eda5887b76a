"""UniDisc's rows become rows of the token space: shifted, without padding, images marked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from unidisc_folder import NUM_CODES, sample_tokens, write_interleaved, write_paired

from shardmill.errors import FormatError
from shardmill.formats.adapters.unidisc.read import UNIDISC_SPACE, UnidiscReader
from shardmill.formats.reader import Record


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
    (part / "modality.memmap").write_bytes(bytes((part / "modality.memmap").stat().st_size))
    for look in (lambda at: list(reader.read(at)), reader.ids_file):
        with pytest.raises(FormatError, match="changed after it was listed"):
            look(listed[0].input)


def test_records_outlive_the_block_that_they_came_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_interleaved(tmp_path / "train_0", range(6))
    monkeypatch.setattr("shardmill.formats.adapters.unidisc.read.TOKENS_AT_ONCE", 70)
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
