"""One data set with text, images, codes and video: its samples, codes, tokens and packs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from finished_folder import finish_folder, shard_entry
from make_media import clip, image
from samples_for_tests import store_samples
from token_folder import write_token_folder

from shardmill.model.plan import PackSpec
from shardmill.model.sample import Document, Origin, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.packing.plan import plan_packs
from shardmill.running.runner import run_stage
from shardmill.shards.codes import ImageCodes, write_codes
from shardmill.shards.plans import write_plan
from shardmill.shards.tokens.shard import token_lengths
from shardmill.stages.pack import Materialize

SPACE = TokenSpace(text_size=1000, specials={"eos": 2, "image": 5, "video": 6}, num_codes=8192)
SIDE = 32  # an image of 512 x 512 has 32 x 32 codes
PER_SHARD = 6


@dataclass(frozen=True)
class Mixed:
    """The folders; `pairs` are the samples that are a text, or an image and a text.

    `with_images` are the tokens of those among them that have an image.
    """

    samples: Path
    pairs: Path
    codes: Path
    tokens: Path
    with_images: Path
    packs: Path
    rows: list[TokenRow]


def make_mixed(folder: Path, count: int = 16) -> Mixed:
    """Write texts, pairs, pages with two images, and videos in turn."""
    samples = [sample(number) for number in range(count)]
    rows = [row_of(number, made) for number, made in enumerate(samples)]
    shards = [rows[i : i + PER_SHARD] for i in range(0, count, PER_SHARD)]
    tokens = write_token_folder(folder / "tokens", shards, SPACE)
    table = token_lengths(tokens)
    plan = plan_packs(table, PackSpec(capacity=3000, block=4), loops="plain")
    write_plan(folder / "plan", plan)
    stage = Materialize(tokens_dir=tokens, plan_path=folder / "plan", packs_per_shard=2)
    assert run_stage(stage, folder / "packs", workers=0).complete
    pairs = [made for made in samples if list(made.media) in ([], ["jpg"])]
    with_images = [row for row in rows if [span.name for span in row.media] == ["jpg"]]
    return Mixed(
        samples=store_samples(folder / "samples", samples, PER_SHARD),
        pairs=store_samples(folder / "pairs", pairs, PER_SHARD),
        codes=_write_codes(folder / "codes", samples),
        tokens=tokens,
        with_images=write_token_folder(
            folder / "with_images", [with_images[:3], with_images[3:]], SPACE
        ),
        packs=folder / "packs",
        rows=rows,
    )


def sample(number: int) -> Sample:
    """Return a text, a pair, a page or a video."""
    text = Segment(kind="text", text=f"Text number {number}. " * (1 + number % 3))
    names = [[], ["jpg"], ["0.jpg", "1.jpg"], ["mp4"]][number % 4]
    kind: Any = "video" if names == ["mp4"] else "image"
    media = [Segment(kind=kind, media=name) for name in names]
    contents = {
        name: movie() if kind == "video" else image("JPEG", 64, 48, seed=2 * number + at)
        for at, name in enumerate(names)
    }
    return Sample(
        key=f"mixed-{number:08d}",
        document=Document((*media, text)),
        media=contents,
        origin=Origin(source=f"source{number % 2}", path="raw.jsonl", row=number),
    )


def row_of(number: int, made: Sample) -> TokenRow:
    """Return the tokens of a sample: codes of images, placeholders of videos, then text."""
    ids: list[int] = []
    media = []
    for segment in made.document.media():
        before = SPACE.special(segment.kind)
        body = [before] * 8
        grid = (2, 2, 2)
        if segment.kind == "image":
            body = SPACE.code_ids(codes_of(made.key, segment.media)).reshape(-1).tolist()
            grid = (1, SIDE, SIDE)
        media.append(
            MediaSpan(
                name=segment.media,
                kind=segment.kind,
                position=len(ids) + 1,
                num_tokens=len(body),
                grid=grid,
                before=1,
            )
        )
        ids += [before, *body]
    words = [10 + (number * 31 + at) % 900 for at in range(5 + number % 7)]
    loss = np.array([[len(ids), len(words) + 1]])
    return TokenRow(
        key=made.key,
        ids=np.array([*ids, *words, 2]),
        loss=loss,
        media=tuple(media),
        origin=made.origin,
    )


def codes_of(key: str, medium: str) -> np.ndarray:
    """Return the codes of an image, the same every time."""
    seed = sum(f"{key}{medium}".encode())
    return np.random.default_rng(seed).integers(0, SPACE.num_codes, (SIDE, SIDE))


@lru_cache(maxsize=1)
def movie() -> bytes:
    """Return a short clip."""
    with TemporaryDirectory() as name:
        return clip(Path(name) / "x.mp4", codec="libx264", num_frames=4)


def _image_codes(made: Sample, medium: str) -> ImageCodes:
    return ImageCodes(medium, codes_of(made.key, medium))


def _write_codes(folder: Path, samples: list[Sample]) -> Path:
    (folder / "shards").mkdir(parents=True)
    entries = []
    for start in range(0, len(samples), PER_SHARD):
        some, name = samples[start : start + PER_SHARD], f"{start:06d}"
        made = [
            (s.key, [_image_codes(s, m.media) for m in s.document.media("image")]) for s in some
        ]
        path = folder / "shards" / f"{name}.codes"
        write_codes(path, made, num_codes=SPACE.num_codes, factor=16)
        entries.append(shard_entry(folder, name, len(some), ("codes",)))
    return finish_folder(folder, entries)
