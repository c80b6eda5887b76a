"""Images become codes: every sample is accounted for, whatever is wrong with its images."""

from __future__ import annotations

import io
import os
import signal
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drivers import snapshot, start_driver
from sample_folder import write_sample_folder
from vq_checkpoints import SMALL, write_original

import shardmill as sm
from shardmill.errors import ConfigError, Filtered, SampleError
from shardmill.media.geometry import Buckets, Native, Square
from shardmill.media.image import decode_image, resize_crop
from shardmill.model.manifest import stage_digest
from shardmill.model.sample import Document, Sample, Segment
from shardmill.running.lock import LockTiming
from shardmill.running.runner import run_stage
from shardmill.shards.codes import open_codes
from shardmill.shards.ledger import open_manifest
from shardmill.stages.codes import EncodeImages, reconstruct
from shardmill.tokens.codes import ShardCodes
from shardmill.tokens.vq.tokenizer import ChameleonVq

Image = pytest.importorskip("PIL.Image")


def jpeg(width: int, height: int, seed: int) -> bytes:
    small = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((width, height)).save(file, "JPEG")
    return file.getvalue()


def sample(key: str, *images: bytes) -> Sample:
    names = [f"{i}.jpg" for i in range(len(images))]
    segments = [Segment(kind="text", text=f"about {key}")]
    segments += [Segment(kind="image", media=name) for name in names]
    return Sample(key=key, document=Document(tuple(segments)), media=dict(zip(names, images)))


SIZES = [(40, 40), (60, 40), (40, 60), (48, 44), (64, 64)]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Batches of four images, so that there are full ones and a last, partial one."""
    monkeypatch.setenv("SHARDMILL_BATCH_PIXELS", str(4 * 32 * 32))
    monkeypatch.setenv("SHARDMILL_DEVICE", "cpu")
    monkeypatch.setenv("SHARDMILL_THREADS", "2")
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def weights(tmp_path: Path) -> ChameleonVq:
    write_original(tmp_path / "weights")
    return ChameleonVq(weights=str(tmp_path / "weights")).pinned()


def make_folder(tmp_path: Path) -> tuple[Path, dict[str, list[bytes]]]:
    good = {f"k{i}": [jpeg(*SIZES[i % 5], seed=i)] for i in range(9)}
    good["many"] = [jpeg(40, 40, 20), jpeg(60, 40, 21), jpeg(40, 40, 22)]
    good["text only"] = []
    whole = jpeg(64, 64, 30)
    bad = {
        "cut": [jpeg(40, 40, 31), whole[: len(whole) // 2]],
        "text": [b"this is no image"],
        "long": [jpeg(100, 40, 32)],
    }
    rows = [(sample(key, *images), {}) for key, images in {**good, **bad}.items()]
    rows.insert(3, rows.pop())
    return write_sample_folder(tmp_path / "in", [rows[:8], rows[8:]]), good


def spec(folder: Path, weights: ChameleonVq, **fields: object) -> EncodeImages:
    fields = {"geometry": Square(resolution=32), **fields}
    return EncodeImages(input_dir=folder, tokenizer=weights, **fields)  # type: ignore[arg-type]


def codes_of(out: Path) -> dict[str, list[np.ndarray]]:
    found = {}
    for shard in open_manifest(out).shards:
        codes = open_codes(out / shard.files["codes"].path)
        for number in range(len(codes)):
            found[codes.keys[number]] = [p.codes for p in codes.images(number)]
    return found


def one_by_one(weights: ChameleonVq, image: bytes, geometry: object) -> np.ndarray:
    pixels = decode_image(image)
    fit = geometry.fit(pixels.shape[1], pixels.shape[0])  # type: ignore[attr-defined]
    batch = torch.from_numpy(resize_crop(pixels, fit))[None]
    return weights.load("fp32", "cpu").encode(batch)[0].numpy()


@pytest.mark.parametrize(
    "geometry",
    [Square(resolution=32), Buckets(pixels=32 * 32, step=8), Native(factor=4)],
    ids=lambda geometry: type(geometry).__name__,
)
def test_each_image_has_the_codes_it_has_alone(
    tmp_path: Path, weights: ChameleonVq, geometry: object
) -> None:
    folder, good = make_folder(tmp_path)
    report = run_stage(
        spec(folder, weights, geometry=geometry), tmp_path / "out", workers=0, max_skip_rate=1
    )
    assert report.complete
    found = codes_of(tmp_path / "out")
    assert found.keys() == good.keys()
    for key, images in good.items():
        assert len(found[key]) == len(images)
        for codes, image in zip(found[key], images):
            expected = one_by_one(weights, image, geometry)
            assert codes.dtype == np.uint16
            assert codes.shape == expected.shape
            assert (codes == expected).mean() > 0.98


@pytest.mark.parametrize(
    "geometry", [Square(resolution=32), Buckets(pixels=32 * 32, step=8)], ids=["square", "buckets"]
)
def test_codes_depend_on_nothing_but_the_image(
    tmp_path: Path, geometry: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A codebook so fine that the last bit of what the network gives decides.
    shape = replace(SMALL, embed_dim=1, num_codes=60000)
    write_original(tmp_path / "weights", shape)
    touchy = ChameleonVq(weights=str(tmp_path / "weights")).pinned()
    rows = [(sample(f"k{i}", jpeg(*SIZES[i % 5], seed=i)), {}) for i in range(9)]
    found = []
    for number, (per_shard, order, threads, torch_threads) in enumerate(
        [(1, 1, 1, 1), (3, 1, 2, 1), (9, -1, 2, 2), (4, -1, 1, 2)]
    ):
        monkeypatch.setenv("SHARDMILL_THREADS", str(threads))
        torch.set_num_threads(torch_threads)
        ordered = rows[::order]
        shards = [ordered[i : i + per_shard] for i in range(0, len(ordered), per_shard)]
        folder = write_sample_folder(tmp_path / f"in{number}", shards)
        run_stage(spec(folder, touchy, geometry=geometry), tmp_path / f"out{number}", workers=0)
        found.append(codes_of(tmp_path / f"out{number}"))
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        assert all(np.array_equal(other[key][0], found[0][key][0]) for key in other)


def test_the_precision_is_part_of_what_a_folder_is(tmp_path: Path, weights: ChameleonVq) -> None:
    digests = {stage_digest(spec(tmp_path, weights, precision=p)) for p in ("fp32", "tf32", "fp16")}
    assert len(digests) == 3


def test_the_books_balance_by_reason(tmp_path: Path, weights: ChameleonVq) -> None:
    folder, good = make_folder(tmp_path)
    run_stage(spec(folder, weights), tmp_path / "out", workers=0, max_skip_rate=1)
    manifest = open_manifest(tmp_path / "out")
    assert manifest.num_in == len(good) + 3
    assert manifest.num_kept == len(good)
    assert manifest.skipped == {
        "aspect ratio over 2": 1,
        "not an image": 1,
        "truncated image": 1,
    }
    assert manifest.stats["images"] == 12
    assert manifest.stats["codes"] == 12 * 64


def test_truncated_images_are_taken_if_asked(tmp_path: Path, weights: ChameleonVq) -> None:
    folder, good = make_folder(tmp_path)
    stage = spec(folder, weights, allow_truncated=True)
    run_stage(stage, tmp_path / "out", workers=0, max_skip_rate=1)
    assert codes_of(tmp_path / "out").keys() == {*good, "cut"}


def test_workers_and_this_process_write_the_same_bytes(
    tmp_path: Path, weights: ChameleonVq
) -> None:
    folder, _ = make_folder(tmp_path)
    stage = spec(folder, weights)
    run_stage(stage, tmp_path / "a", workers=0, max_skip_rate=1)
    run_stage(stage, tmp_path / "b", workers=1, max_skip_rate=1)
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


def test_a_run_goes_on_with_the_units_that_are_missing(
    tmp_path: Path, weights: ChameleonVq
) -> None:
    folder, _ = make_folder(tmp_path)
    stage, out = spec(folder, weights), tmp_path / "out"
    run_stage(stage, out, workers=0, max_skip_rate=1, part=(1, 2))
    report = run_stage(stage, out, workers=0, max_skip_rate=1)
    assert (report.num_done_before, report.num_done) == (1, 1)
    assert report.complete


def test_codes_of_other_weights_do_not_join(tmp_path: Path, weights: ChameleonVq) -> None:
    folder, _ = make_folder(tmp_path)
    run_stage(spec(folder, weights), tmp_path / "out", workers=0, max_skip_rate=1)
    write_original(tmp_path / "weights", seed=5)
    other = ChameleonVq(weights=weights.weights).pinned()
    with pytest.raises(Exception, match="fingerprint"):
        run_stage(spec(folder, other), tmp_path / "out", workers=0, max_skip_rate=1)


def test_a_code_of_zero_is_a_code(tmp_path: Path, weights: ChameleonVq) -> None:
    path = Path(weights.weights) / "vqgan.ckpt"
    state = torch.load(path, weights_only=True)
    image = jpeg(40, 40, seed=0)
    codes = one_by_one(weights, image, Square(resolution=32))
    book = state["state_dict"]["quantize.embedding.weight"]
    book[[0, int(codes[0, 0])]] = book[[int(codes[0, 0]), 0]]
    torch.save(state, path)
    pinned = ChameleonVq(weights=weights.weights).pinned()
    folder = write_sample_folder(tmp_path / "in", [[(sample("zero", image), {})]])
    run_stage(spec(folder, pinned), tmp_path / "out", workers=0)
    assert (codes_of(tmp_path / "out")["zero"][0] == 0).any()


def test_tokenize_finds_codes_by_key_and_medium(tmp_path: Path, weights: ChameleonVq) -> None:
    folder, good = make_folder(tmp_path)
    run_stage(spec(folder, weights), tmp_path / "out", workers=0, max_skip_rate=1)
    found = codes_of(tmp_path / "out")
    with ShardCodes(folder=tmp_path / "out").open() as reader:
        for key in reversed(list(good)):
            for number, codes in enumerate(found[key]):
                read = reader.codes(sample(key), f"{number}.jpg")
                assert np.array_equal(read, codes)


def test_what_codes_left_out_on_request_costs_tokenize_no_budget(
    tmp_path: Path, weights: ChameleonVq
) -> None:
    folder, _ = make_folder(tmp_path)
    run_stage(spec(folder, weights), tmp_path / "out", workers=0, max_skip_rate=1)
    with ShardCodes(folder=tmp_path / "out").open() as reader:
        with pytest.raises(Filtered, match="no image codes: aspect ratio over 2"):
            reader.codes(sample("long"), "0.jpg")
        for key, why in (("cut", "truncated image"), ("nobody", "is in no code shard")):
            with pytest.raises(SampleError, match=why) as caught:
                reader.codes(sample(key), "0.jpg")
            assert not isinstance(caught.value, Filtered)


@pytest.mark.parametrize(
    ("geometry", "told"),
    [
        (Square(resolution=30), "one code is 4 x 4.* such as 28 x 28"),
        (Square(resolution=2), "such as 4 x 4"),
        (Buckets(pixels=900, step=10), "no whole codes"),
        (Native(factor=6), "such as factor=4"),
    ],
)
def test_sizes_that_are_no_whole_codes_are_refused_before_work(
    tmp_path: Path, weights: ChameleonVq, geometry: object, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        spec(tmp_path, weights, geometry=geometry)


def test_weights_must_be_pinned(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pinned"):
        spec(tmp_path, ChameleonVq(weights="anywhere"))


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(
    tmp_path: Path, weights: ChameleonVq
) -> None:
    rows = [(sample(f"k{i}", jpeg(40, 40, i)), {}) for i in range(12)]
    folder = write_sample_folder(tmp_path / "in", [rows[i : i + 2] for i in range(0, 12, 2)])
    stage, killed = spec(folder, weights), tmp_path / "killed"
    driver = start_driver(stage, killed, workers=1, beat_s=0.2, stale_s=1.0)
    while driver.poll() is None and not list(killed.glob("receipts/*.json")):
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()
    timing = LockTiming(beat_s=0.2, stale_s=1.0)
    report = run_stage(stage, killed, workers=0, timing=timing)
    assert report.complete
    assert report.num_done + report.num_done_before == 6
    run_stage(stage, tmp_path / "whole", workers=0)
    assert snapshot(killed) == snapshot(tmp_path / "whole")


def write_foreign(folder: Path) -> None:
    """Write tars as img2dataset and others do, with keys that begin anew in each."""
    for tar in ("cc-0000", "cc-0001", "more/cc-0000"):
        path = folder / f"{tar}.tar"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as file:
            for number in range(3):
                members = {
                    "jpg": jpeg(40 + number, 44, seed=len(tar) + number),
                    "json": b'{"width": 40, "url": "https://example.org"}',
                    "txt": f"caption {number} of {tar}".encode(),
                }
                for ext, content in members.items():
                    info = tarfile.TarInfo(f"{number:05d}.{ext}")
                    info.size = len(content)
                    file.addfile(info, io.BytesIO(content))


def test_codes_straight_from_foreign_tars_are_those_of_what_ingest_makes(tmp_path: Path) -> None:
    write_foreign(tmp_path / "tars")
    write_original(tmp_path / "weights")
    quiet: dict[str, Any] = {"workers": 0, "progress": False}
    index = sm.index(tmp_path / "tars", tmp_path / "index", **quiet)
    shards = sm.ingest(tmp_path / "tars", tmp_path / "shards", **quiet)
    options = {**quiet, "weights": tmp_path / "weights", "resolution": 32}
    straight = sm.codes(index, tmp_path / "straight", **options)
    ingested = sm.codes(shards, tmp_path / "ingested", **options)
    assert list(straight.keys()) == list(ingested.keys())
    assert len(straight) == 9
    for number in range(9):
        (one,), (other,) = straight[number], ingested[number]
        assert one.medium == other.medium == "jpg"
        assert np.array_equal(one.codes, other.codes)
    made = sm.tokenize(
        shards,
        tmp_path / "tokens",
        codes=straight,
        template="t2i",
        space='num_codes=300,added=["boi","eoi"]',
        **quiet,
    )
    assert made.counts.num_kept == 9
    (image, *_) = reconstruct(tmp_path / "straight", ["more/cc-0000/00002"])
    assert image.original.shape == (32, 32, 3)


def test_several_images_of_a_foreign_sample_are_left_to_ingest(tmp_path: Path) -> None:
    write_original(tmp_path / "weights")
    with tarfile.open(tmp_path / "a.tar", "w") as file:
        for name in ("k-0.jpg", "x.json", "x-0.jpg", "x-1.jpg"):
            content = b"{}" if name.endswith("json") else jpeg(40, 40, 1)
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    index = sm.index(tmp_path / "a.tar", tmp_path / "index", workers=0, progress=False)
    made = sm.codes(
        index, tmp_path / "out", weights=tmp_path / "weights", resolution=32, workers=0,
        progress=False, max_skip_rate=1,
    )  # fmt: skip
    assert dict(made.manifest.skipped) == {"several media": 1}
    assert list(made.keys()) == ["a/k-0"]
