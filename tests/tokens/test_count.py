from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hf_processors import (
    WORDS,
    chat_template,
    gemma3_processor,
    make_tokenizer,
    random_chat,
    their_length,
    transformers,
)

from shardmill.errors import ConfigError, SampleError
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.tokens.count import ChatWriter, ChatWriting, Written
from shardmill.tokens.text.huggingface import TextCounter, load_counter
from shardmill.tokens.visual.gemma3 import Gemma3
from shardmill.tokens.visual.llava import Llava
from shardmill.tokens.visual.qwen import (
    Qwen2VL,
    Qwen3Images,
    Qwen3Videos,
    Qwen3VL,
    QwenImages,
    QwenVideos,
)

MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
SIZE = MediaSize(width=56, height=56)
TEXT_ONLY = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


def random_image(rng: random.Random) -> MediaSize:
    return MediaSize(width=rng.randint(20, 300), height=rng.randint(20, 300))


def film(rng: random.Random) -> MediaSize:
    return MediaSize(width=40, height=30, num_frames=rng.randint(4, 30), fps=9.7)


def sample_of(chat: Any, key: str = "k") -> tuple[Sample, dict[str, MediaSize]]:
    """Return a random chat as a sample, and its media sizes by name."""
    sizes: dict[str, MediaSize] = {}
    waiting = {kind: iter(items) for kind, items in chat.sizes.items()}
    segments = []
    for turn, message in enumerate(chat.messages):
        for item in message["content"]:
            name = ""
            if item["type"] != "text":
                name = f"{len(sizes)}.bin"
                sizes[name] = next(waiting[item["type"]])
            segments.append(
                Segment(
                    kind=item["type"],
                    text=item.get("text", ""),
                    media=name,
                    role=message["role"],
                    turn=turn,
                )
            )
    return Sample(key=key, document=Document(tuple(segments))), sizes


def num_tokens(counter: TextCounter, written: Written) -> int:
    hidden = sum(visual.num_hidden for visual in written.visuals)
    return int(counter.rendered_lengths([written.text])[0]) + hidden


def check(
    rule: Any,
    processor: Any,
    folder: Path,
    *,
    num_chats: int = 80,
    words: Sequence[str] = WORDS,
) -> None:
    """Compare written samples with the processor's own ids, all of it from the saved folder."""
    processor.save_pretrained(folder)
    counter = load_counter(folder)
    assert counter.chat_template is not None
    writer = ChatWriter(counter, rule, counter.chat_template, ChatWriting())
    rng = random.Random(3)
    kinds = {"image": random_image, "video": film}
    makers = {kind: kinds[kind] for kind in rule.placeholders()}
    for _ in range(num_chats):
        chat = random_chat(rng, makers, words)
        sample, sizes = sample_of(chat)
        written = writer.write(sample, sizes)
        assert written.exact
        rendered = processor.apply_chat_template(chat.messages, tokenize=False)
        their = their_length(processor, chat, rendered, {"image": {}, "video": {}})
        assert num_tokens(counter, written) == their, chat


def test_chats_with_videos_equal_the_processor(tmp_path: Path) -> None:
    transformers()
    from transformers import Qwen3VLProcessor, Qwen3VLVideoProcessor
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    start, end, image, video = MARKS
    processor = Qwen3VLProcessor(
        Qwen2VLImageProcessor(patch_size=16, min_pixels=2000, max_pixels=20_000),
        make_tokenizer(*MARKS),
        Qwen3VLVideoProcessor(size={"shortest_edge": 2000, "longest_edge": 40_000}),
        chat_template(image=start + image + end, video=start + video + end),
    )
    rule = Qwen3VL(
        images=Qwen3Images(min_pixels=2000, max_pixels=20_000),
        videos=Qwen3Videos(min_pixels=2000, max_pixels=40_000),
    )
    check(rule, processor, tmp_path)


def test_tokens_that_the_tokenizer_adds_are_counted(tmp_path: Path) -> None:
    transformers()
    from transformers import CLIPImageProcessor, LlavaProcessor

    processor = LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}),
        make_tokenizer("<image>", bos=True),
        patch_size=14,
        chat_template=chat_template(image="<image>\n"),
    )
    rule = Llava(height=28, width=28, num_additional=0, select="full")
    check(rule, processor, tmp_path)


def test_blank_lines_around_images_merge_as_in_the_processor(tmp_path: Path) -> None:
    check(Gemma3(num_tokens=4), gemma3_processor(), tmp_path)


def test_the_real_tokenizer_with_real_texts_equals_the_processor(
    tmp_path: Path, qwen_dir: Path, real_texts: list[str]
) -> None:
    hf = transformers()
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    start, end, image, video = MARKS
    limits = {"min_pixels": 2000, "max_pixels": 20_000}
    processor = hf.Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(**limits),
        hf.AutoTokenizer.from_pretrained(qwen_dir),
        hf.Qwen2VLVideoProcessor(**limits),
        chat_template(image=start + image + end, video=start + video + end),
    )
    rule = Qwen2VL(images=QwenImages(**limits), videos=QwenVideos(**limits))
    check(rule, processor, tmp_path, num_chats=100, words=real_texts)


@pytest.fixture
def counter(tmp_path: Path) -> TextCounter:
    tokenizer = make_tokenizer("<image>")
    tokenizer.chat_template = chat_template(image="<image>")
    tokenizer.save_pretrained(tmp_path)
    return load_counter(tmp_path)


def write(counter: TextCounter, *segments: Segment, sizes: Any = None, **writing: Any) -> Written:
    template = counter.chat_template or ""
    writer = ChatWriter(counter, Llava(), template, ChatWriting(**writing))
    sample = Sample(key="k", document=Document(segments), extra=writing.get("extra", {}))
    return writer.write(sample, sizes or {})


def said(text: str) -> Segment:
    return Segment(kind="text", text=text, role="user")


SHOWN = Segment(kind="image", media="jpg", role="user")
FILM = Segment(kind="video", media="mp4", role="user")


@pytest.mark.parametrize(
    ("segments", "reason"),
    [
        ((said("<image>"),), "placeholders and media do not match"),
        ((SHOWN, said("and <image>")), "placeholders and media do not match"),
        ((Segment(kind="image", media="png", role="user"),), "missing media"),
        ((Segment(kind="text", text="hi"),), "not a conversation"),
        ((Segment(kind="text", text="hi", role="judge"),), "unknown role"),
        ((), "empty conversation"),
        ((said("\ud800"),), "not valid Unicode"),
        ((Segment(kind="video", media="jpg", role="user"),), "takes no video"),
    ],
)
def test_samples_that_no_processor_takes_are_rejected(
    segments: tuple[Segment, ...], reason: str, counter: TextCounter
) -> None:
    with pytest.raises(SampleError, match=reason):
        write(counter, *segments, sizes={"jpg": SIZE})


def test_control_tokens_that_people_write_are_counted_or_rejected(counter: TextCounter) -> None:
    text = said("end it: <|im_end|>")
    assert (
        num_tokens(counter, write(counter, text))
        == num_tokens(counter, write(counter, said("end it: "))) + 1
    )
    with pytest.raises(SampleError, match="control token in text"):
        write(counter, text, control="reject")


@pytest.fixture
def marked(tmp_path: Path) -> TextCounter:
    start, end, image, video = MARKS
    tokenizer = make_tokenizer(*MARKS)
    tokenizer.chat_template = chat_template(image=start + image + end, video=start + video + end)
    tokenizer.save_pretrained(tmp_path)
    return load_counter(tmp_path)


def writer_of(counter: TextCounter, unknown: Any = "reject") -> ChatWriter:
    assert counter.chat_template is not None
    return ChatWriter(counter, Qwen3VL(), counter.chat_template, ChatWriting(unknown=unknown))


@pytest.mark.parametrize(
    ("segment", "size"),
    [
        (SHOWN, MediaSize(num_frames=0)),
        (FILM, MediaSize(width=9, height=9, num_frames=9)),
        (FILM, MediaSize(width=9, height=9, num_frames=0, fps=9.0)),
        (replace(FILM, time_s=(1.0, 2.0)), MediaSize(width=9, height=9, num_frames=9, fps=3.0)),
    ],
)
def test_unknown_sizes_are_rejected_or_guessed(
    segment: Segment, size: MediaSize, marked: TextCounter
) -> None:
    sample = Sample(key="k", document=Document((segment,)))
    with pytest.raises(SampleError, match=r"unknown|part of a video"):
        writer_of(marked).write(sample, {segment.media: size})
    written = writer_of(marked, "estimate").write(sample, {segment.media: size})
    assert not written.exact
    assert [visual.num_visual for visual in written.visuals] == [500]


def test_guesses_use_the_sizes_that_a_row_brings(marked: TextCounter) -> None:
    extra = {"mm_inputs_meta": {"images_meta": [[320, 640]]}}
    sample = Sample(key="k", document=Document((SHOWN,)), extra=extra)
    written = writer_of(marked, "estimate").write(sample, {"jpg": MediaSize(num_frames=0)})
    expected = Qwen3VL().count("image", MediaSize(height=320, width=640))
    assert (written.exact, written.visuals) == (False, (expected,))


def test_templates_that_know_only_text_get_text(counter: TextCounter) -> None:
    writer = ChatWriter(counter, Llava(), TEXT_ONLY, ChatWriting())
    sample = Sample(key="k", document=Document((said("hi "), said("there"))))
    assert writer.write(sample, {}).text == "<|im_start|>user\nhi there<|im_end|>\n"


def test_a_template_that_writes_nothing_is_a_reject(counter: TextCounter) -> None:
    writer = ChatWriter(counter, Llava(), "{% if false %}x{% endif %}", ChatWriting())
    with pytest.raises(SampleError, match="no tokens"):
        writer.write(Sample(key="k", document=Document((said("hi"),))), {})


def test_a_template_that_fails_is_a_reject(counter: TextCounter) -> None:
    template = "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}"
    writer = ChatWriter(counter, Llava(), template, ChatWriting())
    assert writer.takes_items
    with pytest.raises(SampleError, match="chat template failed"):
        writer.write(Sample(key="k", document=Document((said("hi"),))), {})


def test_tools_and_the_date_reach_the_template(counter: TextCounter) -> None:
    template = "{{ tools | tojson }} {{ strftime_now('%Y') }} {{ messages[0].content[0].text }}"
    writer = ChatWriter(counter, Llava(), template, ChatWriting(today=date(2020, 1, 2)))
    sample = Sample(key="k", document=Document((said("hi"),)), extra={"tools": [{"name": "f"}]})
    assert writer.write(sample, {}).text == '[{"name": "f"}] 2020 hi'


def test_tool_calls_reach_the_template(counter: TextCounter) -> None:
    template = (
        "{% for m in messages %}{{ m.content[0].text }}{{ m.tool_calls | tojson }}{% endfor %}"
    )
    extra = {"turn_fields": {"0": {"tool_calls": [{"name": "<|im_end|>"}]}}}
    sample = Sample(key="k", document=Document((said("hi"),)), extra=extra)
    writer = ChatWriter(counter, Llava(), template, ChatWriting())
    assert writer.write(sample, {}).text == 'hi[{"name": "<|im_end|>"}]'
    writer = ChatWriter(counter, Llava(), template, ChatWriting(control="reject"))
    with pytest.raises(SampleError, match="control token in text"):
        writer.write(sample, {})


def test_a_tokenizer_of_another_model_is_refused(counter: TextCounter) -> None:
    with pytest.raises(ConfigError, match="is it the tokenizer of this model"):
        ChatWriter(counter, Qwen3VL(), "", ChatWriting())
