"""Packs on disk: what was planned is what is written, and reads back as the same packs."""

from __future__ import annotations

import json
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_folder import write_sample_folder
from token_folder import SPACE, write_token_folder

from shardmill.errors import ConfigError, StaleError
from shardmill.model.plan import PackSpec
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.stage import Draft, Tally, Unit
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.packing.build import BuildSpec, build_pack, num_stored_packs, stored_rows
from shardmill.packing.order import EpochOrder
from shardmill.packing.plan import plan_packs
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.shards.plans import open_plan, write_plan
from shardmill.shards.samples import open_samples
from shardmill.shards.tokens.ids import open_megatron_index
from shardmill.shards.tokens.shard import open_token_shard, open_tokens, token_lengths
from shardmill.stages.pack import Materialize, NamedPacks, write_tar, write_tokens

IMAGE = MediaSpan(name="jpg", kind="image", position=2, num_tokens=4, before=1, after=1)


def row(number: int) -> TokenRow:
    length = 8 + number * 7 % 23
    ids = np.arange(length) + 10 * number % 900
    media = (IMAGE,) if number % 3 == 0 else ()
    loss = np.array([[length // 2, length - length // 2]])
    return TokenRow(key=f"k{number}", ids=ids, loss=loss, media=media)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    rows = [row(number) for number in range(50)]
    return write_token_folder(tmp_path / "tokens", [rows[:20], rows[20:]])


@pytest.fixture
def plan(tokens: Path, tmp_path: Path) -> Path:
    spec = PackSpec(capacity=24, overlong="cut")
    write_plan(tmp_path / "packs.plan", plan_packs(token_lengths(tokens), spec))
    return tmp_path / "packs.plan"


def run(stage: Materialize, out: Path) -> Any:
    report = run_stage(stage, out, workers=0)
    assert not report.failures
    return open_manifest(out)


def test_packs_from_disk_equal_packs_built_from_the_plan(
    tokens: Path, plan: Path, tmp_path: Path
) -> None:
    stage = Materialize(tokens_dir=tokens, plan_path=plan, packs_per_shard=7, seed=3, epoch=1)
    run(stage, tmp_path / "out")
    made, table, source = open_plan(plan), token_lengths(tokens), open_tokens(tokens)
    order = EpochOrder(made, seed=3, epoch=1).all_packs()
    stored = open_tokens(tmp_path / "out")
    found = [
        stored_rows(stored.shard(shard), pack)
        for shard in range(len(stored.entries))
        for pack in range(num_stored_packs(stored.shard(shard)))
    ]
    assert len(found) == len(made)
    for pack, rows in zip(order.tolist(), found):
        numbers = made[pack]
        lazily = build_pack(
            [source[number] for number in numbers.tolist()],
            BuildSpec(size=24),
            lengths=made.lengths_of(numbers, table),
        )
        on_disk = build_pack(rows, BuildSpec(size=24))
        for name in ("input_ids", "loss_mask", "modality", "position_ids"):
            np.testing.assert_array_equal(getattr(on_disk, name), getattr(lazily, name))
        assert on_disk.keys == lazily.keys
        assert on_disk.media == lazily.media
        np.testing.assert_array_equal(on_disk.labels(), lazily.labels())


def test_megatron_sees_packs_as_documents(tokens: Path, plan: Path, tmp_path: Path) -> None:
    manifest = run(Materialize(tokens_dir=tokens, plan_path=plan), tmp_path / "out")
    index = open_megatron_index(tmp_path / "out" / manifest.shards[0].files["idx"].path)
    made, table = open_plan(plan), token_lengths(tokens)
    order = EpochOrder(made, seed=0, epoch=0).all_packs()
    planned = [made.lengths_of(made[pack], table).tolist() for pack in order.tolist()]
    bounds = index.documents.tolist()
    assert [index.lengths[a:b].tolist() for a, b in pairwise(bounds)] == planned
    assert manifest.stats["packs"] == len(made)


def test_tar_holds_tokens_bounds_and_images(tokens: Path, plan: Path, tmp_path: Path) -> None:
    document = Document((Segment(kind="image", media="jpg"), Segment(kind="text", text="hi")))
    samples = [
        (Sample(key=f"k{n}", document=document, media={"jpg": b"image %d" % n}), {})
        for n in range(0, 50, 3)
    ]
    folder = write_sample_folder(tmp_path / "samples", [samples])
    stage = Materialize(
        tokens_dir=tokens, plan_path=plan, format="tar", samples_dir=folder, packs_per_shard=9
    )
    manifest = run(stage, tmp_path / "out")
    seen: list[str] = []
    for shard in manifest.shards:
        with tarfile.open(tmp_path / "out" / shard.files["tar"].path) as tar:
            content = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
        for name in [name for name in content if name.endswith(".json")]:
            pack = json.loads(content[name])
            seen += pack["keys"]
            assert len(pack["input_ids"]) == len(pack["loss_mask"]) == sum(pack["lengths"]) <= 24
            with_images = [key for key in pack["keys"] if int(key[1:]) % 3 == 0]
            assert pack["image"] == [str(n) for n in range(len(with_images))]
            for number, key in enumerate(with_images):
                image = content[f"{name[:-5]}-{number}.jpg"]
                assert image == b"image %d" % int(key[1:])
                medium = pack["media"][number]
                start = sum(pack["lengths"][: medium["document"]])
                assert medium["position"] == start + IMAGE.position
    assert sorted(seen) == sorted(f"k{n}" for n in range(50))


def test_plan_for_other_tokens_is_refused(tokens: Path, plan: Path, tmp_path: Path) -> None:
    other = write_token_folder(tmp_path / "other", [[row(1)]])
    with pytest.raises(StaleError, match="other lengths"):
        list(Materialize(tokens_dir=other, plan_path=plan).units())


def test_images_that_are_missing_fail_the_unit(tokens: Path, plan: Path, tmp_path: Path) -> None:
    empty = write_sample_folder(tmp_path / "samples", [])
    stage = Materialize(tokens_dir=tokens, plan_path=plan, format="tar", samples_dir=empty)
    report = run_stage(stage, tmp_path / "out", workers=0, retries=0)
    assert "is not in" in str(report.failures)


def test_settings_that_cannot_be(tokens: Path, plan: Path) -> None:
    with pytest.raises(ConfigError, match="packs_per_shard"):
        Materialize(tokens_dir=tokens, plan_path=plan, packs_per_shard=0)
    with pytest.raises(ConfigError, match="hold no images"):
        Materialize(tokens_dir=tokens, plan_path=plan, samples_dir=tokens)


UNIT = Unit(name="00007", input={"start": 40, "stop": 42}, num_samples=2)


def packs() -> NamedPacks:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(n + 2), loss=np.array([[1, n]])) for n in (1, 2, 3)]
    return [("000000040", rows[:2]), ("000000041", rows[2:])]


def test_token_shard_counts_documents_and_packs(tmp_path: Path) -> None:
    draft, tally = Draft(tmp_path), Tally()
    write_tokens(packs(), SPACE, UNIT, draft, tally)
    tally.check(draft, max_skip_rate=0)
    shard = open_token_shard({r: tmp_path / f"00007.{r}" for r in ("bin", "idx", "spans")})
    assert num_stored_packs(shard) == tally.stats["packs"] == 2
    assert [row.ids.tolist() for row in stored_rows(shard, 0)] == [[0, 1, 2], [0, 1, 2, 3]]


def test_tar_counts_packs(tmp_path: Path) -> None:
    draft, tally = Draft(tmp_path), Tally()
    write_tar(packs(), None, UNIT, draft, tally)
    tally.check(draft, max_skip_rate=0)
    assert tally.num_kept == 2
    with tarfile.open(tmp_path / "00007.tar") as tar:
        assert tar.getnames() == ["000000040.json", "000000041.json"]
        content = json.loads(tar.extractfile("000000040.json").read())  # type: ignore[union-attr]
    assert content["input_ids"] == [0, 1, 2, 0, 1, 2, 3]
    assert content["loss_mask"] == [0, 1, 0, 0, 1, 1, 0]
    assert (content["lengths"], content["keys"], content["image"]) == ([3, 4], ["k1", "k2"], [])


def test_rows_get_the_images_of_their_own_samples(tmp_path: Path) -> None:
    """A source names equal files "cat" and "cat~2"; "dog~+1" is a block of a long "dog"."""
    document = Document((Segment(kind="image", media="jpg"),))
    samples = [
        (Sample(key=key, document=document, media={"jpg": key.encode()}), {})
        for key in ("cat", "cat~2", "dog")
    ]
    folder = write_sample_folder(tmp_path / "samples", [samples])
    rows = [
        TokenRow(key=key, ids=np.arange(8), loss=np.zeros((0, 2), np.int64), media=(IMAGE,))
        for key in ("cat", "cat~2", "dog~+1")
    ]
    write_tar([("000000040", rows)], open_samples(folder), UNIT, Draft(tmp_path), Tally())
    with tarfile.open(tmp_path / "00007.tar") as tar:
        images = [tar.extractfile(f"000000040-{n}.jpg").read() for n in range(3)]  # type: ignore[union-attr]
    assert images == [b"cat", b"cat~2", b"dog"]
