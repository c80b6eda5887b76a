"""What is asked of processors, and what they are not believed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from hf_processors import transformers
from pixel_folder import make_processor, write_pixel_folder

from shardmill.errors import ConfigError, SampleError
from shardmill.model.sample import MediaSize, Segment
from shardmill.tokens.visual.qwen import Qwen2VL
from shardmill.train.pixels import reader as pixels
from shardmill.train.pixels.processor import ChatMedium, PixelProcessor, load_auto
from shardmill.train.pixels.reader import PixelReader, find_rule

IMAGE = Segment(kind="image", media="jpg")


@pytest.fixture(scope="module")
def asked() -> PixelProcessor:
    transformers()
    processor = make_processor()
    return PixelProcessor(processor, find_rule(processor))


def white(width: int, height: int) -> Any:
    return np.zeros((height, width, 3), np.uint8)


def test_images_alone_are_what_the_whole_processor_makes(asked: PixelProcessor) -> None:
    shown = [white(60, 40), white(30, 80)]
    alone = asked.make_media([IMAGE, IMAGE], shown)
    whole = asked.make(asked.marks([IMAGE, IMAGE]), shown)
    assert set(alone) == {"pixel_values", "image_grid_thw"}
    assert all((alone[name] == whole[name]).all() for name in alone)


def test_a_rule_that_counts_otherwise_is_found_out(asked: PixelProcessor) -> None:
    assert asked.rule is not None
    shown = [white(60, 40)]
    right = ChatMedium(IMAGE, asked.rule.count("image", MediaSize(width=60, height=40)))
    wrong = ChatMedium(IMAGE, asked.rule.count("image", MediaSize(width=40, height=90)))
    for made in (asked.make_media([IMAGE], shown), asked.make(asked.marks([IMAGE]), shown)):
        asked.check_media([right], made)
        with pytest.raises(SampleError, match="processor and visual rule differ"):
            asked.check_media([wrong], made)


def test_the_rule_of_another_model_is_found_out(tmp_path: Path, asked: PixelProcessor) -> None:
    folder = write_pixel_folder(tmp_path / "samples", count=12)
    right = asked.rule
    assert isinstance(right, Qwen2VL)
    other = replace(right, images=replace(right.images, max_pixels=28 * 28 * 2))
    for num_checked in (0, pixels.NUM_CHECKED):
        reader = PixelReader.open(folder, asked.processor, other)
        reader._num_checked["image"] = pixels.NUM_CHECKED - num_checked
        sizes = [reader.reader.sizes(n).get("jpg", MediaSize()) for n in range(len(reader))]
        large = next(n for n, size in enumerate(sizes) if size.width * size.height > 4000)
        with pytest.raises(SampleError, match="processor and visual rule differ"):
            reader.read(large)


def test_encoding_is_that_of_the_tokenizer(asked: PixelProcessor) -> None:
    text = "<|im_start|>user\na cat sits.<|im_end|>\n图片 🙂"
    encoded = asked.encode(text)
    theirs = asked.processor.tokenizer(text, return_offsets_mapping=True)
    assert encoded.ids.tolist() == theirs["input_ids"]
    assert np.stack([encoded.starts, encoded.ends], 1).tolist() == list(
        map(list, theirs["offset_mapping"])
    )


def test_what_a_processor_refuses_is_the_fault_of_the_sample(asked: PixelProcessor) -> None:
    with pytest.raises(SampleError, match=r"refused by the processor: .*aspect ratio"):
        asked.make_media([IMAGE], [white(600, 2)])
    with pytest.raises(SampleError, match="refused by the processor"):
        asked.make(asked.marks([IMAGE]), [white(600, 2)])
    strict = make_processor()
    strict.chat_template = "{{ raise_exception('no roles here') }}"
    with pytest.raises(SampleError, match="no roles here"):
        PixelProcessor(strict, None).render([{"role": "user", "content": "x"}], tools=None)


def test_a_kind_that_the_model_does_not_take(asked: PixelProcessor) -> None:
    with pytest.raises(SampleError, match="takes no audio"):
        asked.marks([Segment(kind="audio", media="wav")])


def test_a_processor_that_is_not_known_has_no_rule(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"processor_class": "OtherProcessor"}')
    assert find_rule(tmp_path) is None


def test_without_a_rule_images_are_still_served(tmp_path: Path, asked: PixelProcessor) -> None:
    folder = write_pixel_folder(tmp_path / "samples", count=12)
    known = PixelReader.open(folder, asked.processor)
    unknown = PixelReader(known.samples, asked.processor)
    for number in range(len(known)):
        one, other = known.read(number), unknown.read(number)
        assert np.array_equal(one.row.ids, other.row.ids)
        assert np.array_equal(one.row.loss, other.row.loss)
        places = [[(s.position, s.num_tokens, s.grid) for s in d.row.media] for d in (one, other)]
        assert places[0] == places[1]


@pytest.mark.parametrize("name", ["AutoConfig", "AutoProcessor"])
def test_code_beside_a_model_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    transformers()
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # as `yes |` answers
    (tmp_path / "evil.py").write_text("raise SystemExit('code of a model was run')")
    settings = {"model_type": "x", "processor_class": "P", "auto_map": {name: "evil.P"}}
    for file in ("config.json", "processor_config.json", "preprocessor_config.json"):
        (tmp_path / file).write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="is not run"):
        load_auto(name, tmp_path)
