"""From raw rows to a training batch: every data set and mode of a video pipeline, with content.

The commands run as a user gives them; then each document of each pack must learn what the row
said, show the frames that the mode takes of its own clips, in order, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoked import invoke_json

pytest.importorskip("torch")
pytest.importorskip("av")

import video_world as raw
from numbered_video import read_number
from video_world import CAPTIONS, LONG, SHORT, World
from vq_checkpoints import write_original
from web_server import serving

from shardmill.model.tokenrow import mask_of
from shardmill.shards.samples import open_samples
from shardmill.shards.tokens.shard import open_tokens
from shardmill.stages.check.content import check_content
from shardmill.tokens.text.sentencepiece import SentencePieceText
from shardmill.tokens.text.tokenizer import load_once
from shardmill.train.collate import Collate
from shardmill.train.dataset import PackedDataset
from shardmill.train.documents import ImageReader

CAPACITY = 8000
BLOCK = 258  # im_start, 256 patches, im_end
RECIPE = 'layout = "patches"\n[space]\nadded = ["im_patch", "im_start", "im_end"]\n'
UN = ("--sampler", "uniform,count=12")
KF = ("--sampler", "keyframes,i_frames=4,p_frames=8", "--mark", "#{at}")
WHOLE = ("--sampler", "whole")
BLACK = 0  # the number whose bits are all black


def uniform(num_frames: int, count: int = 12, first: int = 0) -> list[int]:
    return [first + int((2 * i + 1) * num_frames / (2 * count)) for i in range(count)]


Shown = list[int] | Callable[[list[int]], bool]


def keyframes(num_frames: int) -> Callable[[list[int]], bool]:
    """Return the test of key frames: 12 in order, from the first to the very last."""

    def holds(numbers: list[int]) -> bool:
        rises = all(a < b for a, b in pairwise(numbers))
        return rises and len(numbers) == 12 and (numbers[0], numbers[-1]) == (0, num_frames - 1)

    return holds


@dataclass(frozen=True)
class Case:
    """A data set in a mode: the flags of the commands, and what each sample must come to."""

    write: Callable[[World], Path]
    ingest: tuple[str, ...]
    frames: tuple[str, ...] | None
    learned: list[str]
    shown: list[Shown]
    asked: str = ""
    template: str = "captions"
    kinds: set[str] = field(default_factory=lambda: {"image"})


BOTH = list(CAPTIONS)
UN_BOTH: list[Shown] = [uniform(SHORT), uniform(LONG)]
KF_BOTH: list[Shown] = [keyframes(SHORT), keyframes(LONG)]
WEBVID = ("--source", "columns", "--shape", "webvid")
WHOLE_VIDEOS = (
    "--shape",
    'internvid,path="{YoutubeID}.mp4",start=Start_timestamp,end=End_timestamp',
)
HOW2LINK = ("--source", "nested,each=clips", "--shape", "how2link")
MERLIN_SAYS = [f"{CAPTIONS[0]}{CAPTIONS[1]}work with wood"]
CASES = {
    "webvid-whole": Case(raw.webvid, WEBVID, WHOLE, BOTH, [[], []], kinds={"video"}),
    "webvid-un": Case(raw.webvid, WEBVID, UN, BOTH, UN_BOTH),
    "webvid-kf": Case(raw.webvid, WEBVID, KF, BOTH, KF_BOTH, asked="#1000"),
    "internvid-un": Case(raw.internvid, ("--shape", "internvid"), UN, BOTH, UN_BOTH),
    "internvid-kf": Case(raw.internvid, (), KF, BOTH, KF_BOTH, asked="#0"),
    "internvid-clips": Case(
        raw.internvid_whole, WHOLE_VIDEOS, UN, BOTH, [uniform(30), uniform(30, first=30)]
    ),
    "hd-vila-un": Case(raw.hd3m, ("--shape", "hd-vila"), UN, BOTH, UN_BOTH),
    "hd-vila-kf": Case(raw.hd3m, ("--shape", "hd-vila"), KF, BOTH, KF_BOTH),
    "ego4d-kf": Case(raw.ego4d, ("--shape", "ego4d"), KF, BOTH, KF_BOTH),
    "how2link-un": Case(raw.how2link, HOW2LINK, UN, BOTH, UN_BOTH),
    "how2link-kf": Case(raw.how2link, HOW2LINK, KF, BOTH, KF_BOTH),
    "howto-interlink": Case(
        raw.how2link, (), UN, ["".join(BOTH)], [uniform(SHORT) + uniform(LONG)]
    ),
    "llava-image": Case(raw.llava, (), None, BOTH, [[100], [101]], asked="Describe it."),
    "videochat2-frames": Case(
        raw.videochat2_frames, (), None, ["".join(BOTH)], [list(range(100, 116))]
    ),
    "videochat2-sft": Case(raw.videochat2_videos, (), UN, BOTH, UN_BOTH, asked="What happens?"),
    "videochat2-image": Case(raw.videochat2_images, (), None, BOTH, [[100], [101]]),
    "unicontrol": Case(
        raw.unicontrol, (), None, ["", ""], [[100, 101], [102, 103]], template="turns"
    ),
    "merlin-s": Case(
        raw.merlin, (), None, MERLIN_SAYS, [[100, BLACK, *range(101, 111)]], asked="#4.5-9.0#"
    ),
    "packed-un": Case(
        raw.packed_un, (), None, BOTH, [list(range(100, 112)), list(range(120, 132))]
    ),
    "packed-kf": Case(raw.packed_kf, (), None, BOTH[:1], [list(range(100, 112))], asked="#1000"),
    "packed-pairs": Case(raw.packed_pairs, (), UN, BOTH, UN_BOTH),
    "packed-unicontrol": Case(
        raw.packed_control, (), None, ["", ""], [[100, 101], [102, 103]], template="turns"
    ),
    "own-rows": Case(raw.own_rows, (), UN, BOTH, [uniform(SHORT), uniform(SHORT) + uniform(LONG)]),
    "own-rows-whole": Case(raw.own_rows, (), WHOLE, BOTH, [[], []], kinds={"video"}),
}


def make_samples(case: Case, folder: Path) -> Path:
    """Ingest the rows of a case and take its frames; return the folder of samples."""
    world = World(folder / "raw")
    table = case.write(world)
    root = () if table.suffix == ".tar" else ("--media-root", world.media)
    invoke_json("ingest", table, folder / "samples", *case.ingest, *root, "--workers", 0)
    if case.frames is None:
        return folder / "samples"
    frames = folder / "frames"
    invoke_json("frames", folder / "samples", frames, *case.frames, "--workers", 0)
    return frames


def make_packs(case: Case, samples: Path, folder: Path, *words: object) -> PackedDataset:
    (folder / "recipe.toml").write_text(RECIPE)
    recipe = words or ("--recipe", folder / "recipe.toml")
    tokens, plan = folder / "tokens", folder / "packs.plan"
    flags = ("--template", case.template, "--max-length", CAPACITY, "--workers", 0)
    invoke_json("tokenize", samples, tokens, *recipe, *flags)
    invoke_json("plan", tokens, plan, "--capacity", CAPACITY)
    if case.kinds == {"video"}:
        return PackedDataset(plan, tokens)
    return PackedDataset(plan, ImageReader.open(tokens, samples, resolution=raw.SIDE))


def numbers_of(pixels: Any) -> list[int]:
    """Return the number that each image shows."""
    return [read_number(image) for image in pixels.permute(0, 2, 3, 1).numpy()]


def fits(numbers: list[int], expected: Shown) -> bool:
    if callable(expected):
        return expected(numbers)
    near = [abs(a - b) <= (a < 100) for a, b in zip(numbers, expected)]
    return len(numbers) == len(expected) and all(near)


@pytest.mark.parametrize("name", CASES)
def test_raw_rows_become_a_training_batch(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    packs = make_packs(case, make_samples(case, tmp_path), tmp_path)
    built = [packs[number] for number in range(len(packs))]
    batch = Collate("nemo", length=CAPACITY)(built)
    assert batch["input_ids"].shape == (len(packs), CAPACITY)
    seen = {}
    images = iter(numbers_of(batch["pixel_values"]) if "pixel_values" in batch else [])
    for number, pack in enumerate(item.pack for item in built):
        for document, (key, start) in enumerate(zip(pack.keys, pack.layout.starts.tolist())):
            length = int(pack.layout.lengths[document])
            ids = batch["input_ids"][number, start : start + length].numpy()
            media = [m.span for m in pack.media if m.document == document]
            assert {span.kind for span in media} == case.kinds
            assert all(span.num_tokens == 256 for span in media)
            shown = [next(images) for span in media if span.kind == "image"]
            seen[key] = (ids, pack.loss_mask[start : start + length], shown)
    assert next(images, None) is None
    check_documents(case, [seen[key] for key in sorted(seen)])
    assert check_content(tmp_path / "tokens").num_faults == 0


def check_documents(case: Case, documents: list[Any]) -> None:
    assert len(documents) == len(case.learned)
    decode = load_once(SentencePieceText(path=Path("bundled"))).decode
    for (ids, mask, shown), learned, expected in zip(documents, case.learned, case.shown):
        said = decode(ids[mask & (ids < 32000) & (ids > 2)].tolist())
        assert said.replace(" ", "") == learned.replace(" ", "")
        assert case.asked in decode(ids[~mask & (ids > 2) & (ids < 32000)].tolist())
        assert ids[0] == 1 and ids[-1] == 2
        assert fits(shown, expected), shown


def test_videos_come_from_a_store_by_root_or_by_url(tmp_path: Path) -> None:
    clip = raw.clip_bytes(SHORT)
    world = World(tmp_path / "raw")
    with serving({"bucket/a.mp4": clip, "b.mp4": clip}) as url:
        rows = [("a.mp4", CAPTIONS[0]), (f"{url}/b.mp4", CAPTIONS[1]), ("gone.mp4", "none")]
        table = world.rows("own.jsonl", [{"video_path": p, "value": text} for p, text in rows])
        root = ("--media-root", f"{url}/bucket", "--workers", 0)
        report = invoke_json("ingest", table, tmp_path / "samples", *root, "--max-skip-rate", 0.5)
    assert sum(report["skipped"].values()) == 1
    flags = ("--sampler", "uniform,count=12", "--workers", 0)
    invoke_json("frames", tmp_path / "samples", tmp_path / "frames", *flags)
    case = Case(raw.own_rows, (), UN, BOTH, [uniform(SHORT)] * 2)
    packs = make_packs(case, tmp_path / "frames", tmp_path)
    assert numbers_of(packs[0].tensors["pixel_values"])[:12] == uniform(SHORT)


@pytest.mark.parametrize("name", ["webvid-un", "unicontrol", "merlin-s"])
def test_codes_stand_for_frames_in_order(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDMILL_DEVICE", "cpu")
    monkeypatch.setenv("SHARDMILL_THREADS", "1")
    write_original(tmp_path / "weights")
    case = CASES[name]
    samples = make_samples(case, tmp_path)
    tokenizer = f"chameleon,weights={tmp_path / 'weights'}"
    flags = ("--tokenizer", tokenizer, "--resolution", 32, "--workers", 0)
    invoke_json("codes", samples, tmp_path / "codes", *flags)
    recipe = tmp_path / "codes.toml"
    recipe.write_text(
        '[space]\nadded = ["boi", "eoi"]\nnum_codes = 300\n'
        f'[codes]\nkind = "shards"\nfolder = "{tmp_path / "codes"}"\n'
    )
    packs = make_packs(case, samples, tmp_path, "--recipe", recipe)
    batch = Collate("nemo", length=CAPACITY)([packs[number] for number in range(len(packs))])
    assert batch["input_ids"].shape == (len(packs), CAPACITY)
    assert check_content(tmp_path / "tokens").num_faults == 0
    tokens = open_tokens(tmp_path / "tokens")
    encode, opened = encoder_of(tmp_path / "weights"), open_samples(samples)
    for row, expected in zip(tokens, case.shown):
        assert isinstance(expected, list) and tokens.space is not None
        spans = [row.ids[s.position : s.position + s.num_tokens] for s in row.media]
        blocks = [tokens.space.local_codes(span).tolist() for span in spans]
        members = opened.raw(opened.find(row.key) or 0)
        assert [s.name.partition(".")[0] for s in row.media] == [str(n) for n in range(len(blocks))]
        assert [s.grid for s in row.media] == [(1, 8, 8)] * len(expected)
        # Different images have different codes, so that a swap would be seen below.
        assert len({tuple(block) for block in blocks}) == len(blocks)
        assert blocks == [encode(members[s.name]) for s in row.media]
        learned = mask_of(row.loss, len(row.ids))
        drawn = [bool(learned[s.position]) for s in row.media]
        assert drawn == ([False, True] if name == "unicontrol" else [False] * len(blocks))


def encoder_of(weights: Path) -> Callable[[bytes | memoryview], list[int]]:
    """Return what encodes one image by itself."""
    import torch

    from shardmill.media.geometry import Square
    from shardmill.media.image import decode_image, resize_crop
    from shardmill.tokens.vq.encode import BatchEncoder
    from shardmill.tokens.vq.tokenizer import ChameleonVq

    encoder = BatchEncoder(ChameleonVq(weights=weights).load("fp32", "cpu"), "cpu")
    fit = Square(resolution=32).fit(raw.SIDE, raw.SIDE)

    def encode(content: bytes | memoryview) -> list[int]:
        pixels = torch.from_numpy(resize_crop(decode_image(content), fit))
        return np.asarray(encoder.launch(pixels[None]).wait()[0]).reshape(-1).tolist()

    return encode
