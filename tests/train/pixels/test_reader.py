"""A processor in the worker: its ids and tensors, with loss on the answers and nowhere else."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from click.testing import CliRunner
from pixel_folder import lengths_by, make_processor, save_model, write_pixel_folder

from shardmill.cli.main import cli
from shardmill.errors import ConfigError
from shardmill.model.plan import PackSpec
from shardmill.model.tokenrow import mask_of
from shardmill.packing.plan import plan_packs
from shardmill.shards.plans import open_lengths
from shardmill.tokens.visual.qwen import Qwen2VL
from shardmill.train.collate import Collate, dummy_image
from shardmill.train.dataset import PackedDataset
from shardmill.train.pixels.reader import PixelReader


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_pixel_folder(tmp_path_factory.mktemp("pixels") / "samples")
    return PixelReader.open(folder, make_processor())


def test_loss_is_on_the_answers(reader: Any) -> None:
    for number in range(len(reader)):
        document = reader.read(number)
        sample = reader.samples[number]
        answer = sample.document.segments[-1].text
        row = document.row
        learned = row.ids[mask_of(row.loss, len(row.ids))]
        text = "".join(reader.processor.tokenizer.convert_ids_to_tokens(learned.tolist()))
        assert text.replace("Ġ", " ") == f"{answer}<|im_end|>"
        assert row.num_visual == sum(span.num_tokens for span in row.media)
        assert len(row.media) == len(sample.document.media())
        if row.media:
            assert len(document.tensors["image_grid_thw"]) == len(row.media)


def test_what_was_measured_is_what_the_processor_makes(reader: Any, tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", reader.processor)
    arguments = ["measure", reader.samples.folder, tmp_path / "m", "--model", model, "--workers", 0]
    told = CliRunner().invoke(cli, list(map(str, arguments)))
    assert told.exit_code == 0, told.output
    measured, found = open_lengths(tmp_path / "m" / "lengths.bin"), lengths_by(reader)
    assert np.array_equal(measured.num_tokens, found.num_tokens)
    assert np.array_equal(measured.num_visual, found.num_visual)
    plan = plan_packs(measured, PackSpec(capacity=192), loops="plain")
    packs = PackedDataset(plan, reader, lengths=measured, max_faults=0)
    assert sum(len(packs[n].pack.samples) for n in range(len(packs))) == len(reader)


def test_packs_have_the_images_of_their_documents(reader: Any) -> None:
    table = lengths_by(reader)
    plan = plan_packs(table, PackSpec(capacity=192), loops="plain")
    packs = PackedDataset(plan, reader, lengths=table, positions=Qwen2VL(), max_faults=0)
    patch = reader.processor.image_processor.patch_size
    assert patch == 14
    total = 0
    for number in range(len(packs)):
        item = packs[number]
        assert item.pack.position_ids.shape == (3, len(item.pack.input_ids))
        if item.pack.media:
            grids = item.tensors["image_grid_thw"]
            assert torch.equal(grids, torch.from_numpy(item.pack.grid_thw("image")))
            assert len(item.tensors["pixel_values"]) == int(grids.prod(dim=1).sum())
            total += len(grids)
    assert total == sum(len(reader.read(n).row.media) for n in range(len(reader)))


def test_a_dummy_image_stands_where_there_is_none(reader: Any) -> None:
    table = lengths_by(reader)
    plan = plan_packs(table, PackSpec(capacity=int(table.num_tokens.max())), loops="plain")
    packs = PackedDataset(plan, reader, lengths=table, positions=Qwen2VL())
    dummy = dummy_image(reader.processor)
    bare = next(packs[n] for n in range(len(packs)) if not packs[n].pack.media)
    seen = next(packs[n] for n in range(len(packs)) if packs[n].pack.media)
    collate = Collate("nemo", dummy=dummy, media_dtype=torch.bfloat16)
    batch = collate([bare, seen])
    grids = batch["image_grid_thw"]
    assert len(grids) == 1 + len(seen.pack.media)
    assert batch["pixel_values"].dtype == torch.bfloat16
    assert batch["n_images_per_sample"].tolist() == [1, len(seen.pack.media)]
    image_id = reader.processor.image_token_id
    merged = (grids.prod(dim=1) // 4).sum()
    assert (batch["input_ids"] == image_id).sum() == merged
    size = len(bare.pack.input_ids)
    places = slice(size, size + len(dummy.ids))
    assert (batch["input_ids"][0, places] == image_id).all()
    assert (batch["labels"][0, places] == -100).all()
    # They are a document of their own.
    assert (batch["seq_idx"][0, places] != batch["seq_idx"][0, size - 1]).all()
    assert torch.equal(batch["mm_token_type_ids"] == 1, batch["input_ids"] == image_id)
    with pytest.raises(ConfigError, match=rf"capacity of at most .*{len(dummy.ids)} places"):
        Collate("nemo", dummy=dummy, length=size)([bare])


def test_an_empty_batch_of_packs_still_runs_the_tower(reader: Any) -> None:
    table = lengths_by(reader)
    plan = plan_packs(table, PackSpec(capacity=192), loops="plain")
    packs = PackedDataset(plan, reader, lengths=table, positions=Qwen2VL())
    batch = Collate("transformers", dummy=dummy_image(reader.processor))([packs[-1]])
    assert len(batch["image_grid_thw"]) == 1
    assert batch["position_ids"].shape == (4, *batch["input_ids"].shape)
    assert (batch["labels"] == -100).all()


def test_a_broken_image_is_left_out(reader: Any, tmp_path: Path) -> None:
    table = lengths_by(reader)
    plan = plan_packs(table, PackSpec(capacity=192), loops="plain")
    folder = write_pixel_folder(tmp_path / "samples")
    broken = PixelReader.open(folder, reader.processor)
    number = next(n for n in range(len(table)) if len(reader.samples[n].media) == 1)
    shard, inside = broken.samples.locate(number)
    member = next(m for m in broken.samples.shard(shard).index.members(inside) if m.ext == "jpg")
    tar = folder / broken.samples.entries[shard].files["tar"].path
    content = bytearray(tar.read_bytes())
    content[member.offset : member.offset + member.size] = bytes(member.size)
    tar.write_bytes(content)
    packs = PackedDataset(plan, broken, lengths=table)
    samples = [row for n in range(len(packs)) for row in packs[n].pack.samples.tolist()]
    assert sorted(samples) == [n for n in range(len(table)) if n != number]
    (fault,) = packs.faults()
    assert fault.name == f"sample {inside} of shard {shard:06d}"


def test_a_reader_travels_to_spawned_workers(reader: Any) -> None:
    other = pickle.loads(pickle.dumps(reader))
    for number in range(3):
        mine, theirs = reader.read(number), other.read(number)
        assert np.array_equal(mine.row.ids, theirs.row.ids)
        assert all(torch.equal(mine.tensors[name], theirs.tensors[name]) for name in mine.tensors)
