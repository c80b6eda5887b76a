"""Answers and media are found in whatever a processor writes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from film_chats import write_film_folder
from hf_processors import (
    gemma3_processor,
    internvl_processor,
    llava_processor,
    transformers,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pixel_folder import lengths_by, write_pixel_folder

from shardmill.errors import SampleError
from shardmill.model.plan import PackSpec
from shardmill.model.sample import Segment
from shardmill.model.tokenrow import mask_of, modality_of
from shardmill.packing.plan import plan_packs
from shardmill.tokens.visual.gemma3 import Gemma3
from shardmill.tokens.visual.internvl import InternVL
from shardmill.tokens.visual.llava import Llava
from shardmill.tokens.visual.rule import Visual
from shardmill.train.dataset import PackedDataset
from shardmill.train.pixels.processor import ChatMedium, EncodedText, expand, write_media
from shardmill.train.pixels.reader import PixelReader

IMAGE = 7


def llava() -> Any:
    return llava_processor(mark="<image>")  # two images side by side, so that their runs touch


def gemma3() -> Any:
    # The blank lines that the processor adds merge with these.
    return gemma3_processor(mark="\n<start_of_image>\n")


def internvl() -> Any:
    return internvl_processor(num_frames=5, do_sample_frames=True)


OTHERS = {llava: Llava, gemma3: Gemma3, internvl: InternVL}


@pytest.mark.parametrize("make", OTHERS)
def test_other_processors_serve_images(make: Any, tmp_path: Path) -> None:
    transformers()
    processor = make()
    reader = PixelReader.open(write_pixel_folder(tmp_path / "samples", count=24), processor)
    assert isinstance(reader.rule, OTHERS[make])
    tokenizer = processor.tokenizer
    for number in range(len(reader)):
        row, sample = reader.read(number).row, reader.samples[number]
        learned = row.ids[mask_of(row.loss, len(row.ids))]
        text = "".join(tokenizer.convert_ids_to_tokens(learned.tolist())).replace("Ġ", " ")
        assert text == f"{sample.document.segments[-1].text}<|im_end|>"
        assert [span.name for span in row.media] == [s.media for s in sample.document.media()]
        is_visual = modality_of(row.media, len(row.ids)) > 0
        assert np.array_equal(is_visual, np.isin(row.ids, reader.asked.visual_ids()))
    table = lengths_by(reader)
    plan = plan_packs(table, PackSpec(capacity=300), loops="plain")
    packs = PackedDataset(plan, reader, lengths=table, max_faults=0)
    items = [packs[number] for number in range(len(packs))]
    assert sum(len(item.pack.samples) for item in items) == len(reader)
    assert all(("pixel_values" in item.tensors) == bool(item.pack.media) for item in items)


def test_internvl_serves_films(tmp_path: Path) -> None:
    transformers()
    reader = PixelReader.open(write_film_folder(tmp_path / "samples", count=12), internvl())
    films = 0
    for number in range(len(reader)):
        document, sample = reader.read(number), reader.samples[number]
        for medium in sample.document.media("video"):
            spans = [span for span in document.row.media if span.name == medium.media]
            assert [span.num_tokens for span in spans] == [4] * 5
            films += 1
        num_tiles = document.row.num_visual // 4
        if num_tiles:
            assert len(document.tensors["pixel_values"]) == num_tiles
            assert isinstance(document.tensors["pixel_values"], torch.Tensor)
    assert films > 3


def media(kinds: list[tuple[str, int, int]]) -> list[ChatMedium]:
    """Return media written as (a run)(a run)...: `num_runs` runs of `count` tokens."""
    return [
        ChatMedium(
            Segment(kind=kind, media=f"{place}.x"),
            Visual("(V)" * runs, count * runs, num_runs=runs, grid=(runs, 2, count)),
        )
        for place, (kind, runs, count) in enumerate(kinds)
    ]


def encode(text: str) -> EncodedText:
    """Return a token a character; V is the visual token."""
    ids = np.array([IMAGE if c == "V" else 10 + ord(c) for c in text], np.int64)
    places = np.arange(len(text))
    return EncodedText(ids, places, places + 1)


KINDS = st.lists(
    st.tuples(st.sampled_from(["image", "video"]), st.integers(1, 3), st.integers(1, 5)), max_size=5
)


@settings(max_examples=200, deadline=None)
@given(KINDS, st.integers(0, 99))
def test_every_character_is_followed(kinds: list[tuple[str, int, int]], seed: int) -> None:
    rng = random.Random(seed)
    texts = ["".join(rng.choices("abc", k=rng.randint(0, 3))) for _ in range(len(kinds) + 1)]
    marks = {"image": "<I>", "video": "<F>"}
    rendered = texts[0] + "".join(marks[k[0]] + t for k, t in zip(kinds, texts[1:]))
    writing = write_media(rendered, marks, media(kinds))
    plain = [i for i, c in enumerate(rendered) if c in "abc"]
    moved = writing.moved(np.array(plain, np.int64))
    assert [rendered[i] for i in plain] == [writing.text[i] for i in moved.tolist()]
    encoded = encode(writing.text)
    per_run = [count for _, runs, count in kinds for _ in range(runs)]
    counts = np.ones(len(encoded.ids), np.int64)
    counts[encoded.ids == IMAGE] = per_run
    ids = np.repeat(encoded.ids, counts)
    expanded = expand(writing, encoded, [IMAGE])
    expanded.check(ids)
    spans = expanded.media_spans()
    assert [span.num_tokens for span in spans] == per_run
    assert all((ids[s.position : s.position + s.num_tokens] == IMAGE).all() for s in spans)
    covered = np.zeros(len(ids), bool)
    for span in spans:
        assert not covered[span.start : span.end].any()
        covered[span.start : span.end] = True
    text = "".join("V" if i == IMAGE else chr(i - 10) for i in ids[~covered].tolist())
    assert text == "".join(texts)
    if len(ids):
        with pytest.raises(SampleError, match="processor and visual rule differ"):
            expanded.check(ids[:-1])


def test_runs_in_the_text_of_a_user_are_refused() -> None:
    writing = write_media("a<I>b", {"image": "<I>"}, media([("image", 1, 2)]))
    encoded = encode(writing.text + "V")
    with pytest.raises(SampleError, match="2 runs of visual tokens in the text, 1 of its media"):
        expand(writing, encoded, [IMAGE])
    with pytest.raises(SampleError, match="placeholders"):
        write_media("a<I>b<I>", {"image": "<I>"}, media([("image", 1, 2)]))
