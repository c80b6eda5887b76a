"""Broken images, videos and databases cost their rows in every stage that meets them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pytest
from make_media import image
from mutate import mutate
from numbered_video import numbered_clip
from vq_checkpoints import write_original

import shardmill as sm
from shardmill.api.running import RunFailed
from shardmill.errors import SampleError
from shardmill.media.frames import read_frames
from shardmill.media.image import decode_image
from shardmill.media.samplers import Uniform

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of Pillow, about tags
NUM_BROKEN = 4  # of each medium
IMAGES = {name: image(name) for name in ("JPEG", "PNG", "GIF", "WEBP", "TIFF")}


def videos() -> dict[str, bytes]:
    return {
        "mp4": numbered_clip(12),
        "mkv": numbered_clip(12, format="matroska"),
        "webm": numbered_clip(12, format="webm", codec="libvpx", options=()),
        "avi": numbered_clip(12, format="avi", codec="mpeg4", options=()),
    }


def broken(content: bytes, rng: Random) -> bytes:
    return mutate(content, rng, head=rng.choice((None, 64, 1024)))


def test_stages_reject_what_is_broken_and_keep_the_rest(tmp_path: Path) -> None:
    rng, rows = Random(0), []
    for number in range(NUM_BROKEN + 1):
        for kind, media in (("image", IMAGES), ("video", videos())):
            for name, content in media.items():
                file = f"{name}-{number}"
                (tmp_path / file).write_bytes(broken(content, rng) if number else content)
                rows.append({kind: file, "text": f"A {name}."})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lenient: Any = {"workers": 0, "max_skip_rate": 1.0}
    samples = sm.ingest(tmp_path / "rows.jsonl", tmp_path / "samples", **lenient)
    assert len(samples) + sum(samples.skipped.values()) == len(rows)
    frames = sm.frames(samples, tmp_path / "frames", sampler="uniform,count=4", **lenient)
    assert len(frames) + sum(frames.skipped.values()) == len(samples)
    write_original(tmp_path / "vq")
    codes = sm.codes(
        frames,
        tmp_path / "codes",
        weights=tmp_path / "vq",
        tokenizer="chameleon",
        device="cpu",
        resolution=32,
        **lenient,
    )
    lengths = sm.measure(frames, tmp_path / "lengths", model="qwen2-vl", estimate=True, **lenient)
    assert len(lengths) == len(frames)
    assert sum(codes.skipped.values()) < len(frames)


@pytest.mark.parametrize("seed", range(2))
def test_decoders_return_or_reject(seed: int) -> None:
    rng = Random(seed)
    for _ in range(60):
        try:
            decode_image(broken(rng.choice(list(IMAGES.values())), rng))
        except SampleError as error:
            assert "0x7" not in error.detail
        try:
            read_frames(broken(rng.choice(list(videos().values())), rng), Uniform(count=2))
        except SampleError as error:
            assert "0x7" not in error.detail


def test_rows_of_a_broken_database_are_rejects(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    with (
        lmdb.open(str(path), subdir=False, map_size=1 << 20) as database,
        database.begin(write=True) as transaction,
    ):
        for number in range(20):
            transaction.put(str(number).encode(), image(seed=number))
    content, rng = path.read_bytes(), Random(0)
    rows = [{"image": f"a.lmdb::{number}", "text": "A cat."} for number in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for number in range(5):
        path.write_bytes(content[: rng.randrange(len(content))])
        out = tmp_path / f"out-{number}"
        options: Any = {"workers": 0, "max_skip_rate": 1.0, "allow_empty": True}
        samples = sm.ingest(tmp_path / "rows.jsonl", out, **options)
        assert set(samples.skipped) <= {"unreadable database"}
        assert len(samples) + sum(samples.skipped.values()) == 20


def test_a_database_that_ends_its_worker_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    with (
        lmdb.open(str(path), subdir=False, map_size=1 << 20) as database,
        database.begin(write=True) as transaction,
    ):
        for number in range(4):
            transaction.put(f"{number}.jpg".encode(), bytes(700))
    # The only leaf, page 2, says that its nodes lie behind the end of the file.
    content = bytearray(path.read_bytes()[: 3 << 12])
    content[(2 << 12) + 16 : (2 << 12) + 24] = b"\x00\xff" * 4
    path.write_bytes(content)
    row = {"image": "a.lmdb::2.jpg", "text": "A cat."}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(RunFailed, match=r"killed by SIGBUS; it was at .*a\.lmdb::2\.jpg of row"):
        sm.ingest(tmp_path / "rows.jsonl", tmp_path / "out", workers=1, retries=0)
