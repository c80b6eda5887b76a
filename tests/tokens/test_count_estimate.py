from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.model.sample import Document, MediaSize, Segment
from shardmill.tokens.count import estimate_sample, estimate_text, given_sizes
from shardmill.tokens.visual.qwen import Qwen2VL, Qwen3VL, QwenVideos

IMAGE = Segment(kind="image", media="0.jpg", role="user")
VIDEO = Segment(kind="video", media="1.mp4", role="user")


def text(words: str, role: str | None = None) -> Segment:
    return Segment(kind="text", text=words, role=role)


def sizes_of(*entries: Any, kind: str = "image") -> list[Any]:
    return list(
        given_sizes([kind] * len(entries), {"mm_inputs_meta": {f"{kind}s_meta": list(entries)}})
    )


def test_plain_text_is_a_third_of_its_letters() -> None:
    assert estimate_text(["a" * 300], {}) == 100


def test_chinese_counts_a_token_a_character() -> None:
    assert estimate_text(["图" * 300], {}) == 300


def test_turns_of_a_chat_count() -> None:
    chat = Document((text("abc", "user"), text("abcdef", "assistant")))
    assert estimate_sample(chat, {}, []).num_tokens == 3 + 2 * 5


@pytest.mark.parametrize(("counted", "expected"), [(0, 0), (77, 77), (-1, 2), ("9", 2), (True, 2)])
def test_the_rows_own_text_tokens_are_believed(counted: object, expected: int) -> None:
    assert estimate_text(["abcdef"], {"_text_tokens": counted}) == expected


def test_a_medium_of_unknown_size_is_500_tokens() -> None:
    found = estimate_sample(Document((IMAGE, VIDEO)), {}, [None, None], Qwen2VL())
    assert (found.num_visual, found.num_fixed, found.num_tokens) == (1000, 1004, 1009)


def test_sizes_of_the_row_are_used_by_the_models_own_rule() -> None:
    document = Document((IMAGE, VIDEO))
    meta = {"images_meta": [[560, 280]], "videos_meta": [[8, 360, 640, 30.0, 8 / 30]]}
    for rule in (Qwen2VL(), Qwen3VL()):
        expected = sum(
            rule.count(kind, size).num_visual
            for kind, size in (
                ("image", MediaSize(height=560, width=280)),
                ("video", MediaSize(height=360, width=640, num_frames=8, fps=30.0)),
            )
        )
        found = estimate_sample(document, {"mm_inputs_meta": meta}, [None, None], rule)
        assert found.num_visual == expected


def test_the_index_wins_over_the_row() -> None:
    extra = {"mm_inputs_meta": {"images_meta": [[56, 56]]}}
    size = MediaSize(height=560, width=280)
    found = estimate_sample(Document((IMAGE,)), extra, [size], Qwen2VL())
    assert found.num_visual == Qwen2VL().count("image", size).num_visual


def test_images_without_videos_meta_do_not_lose_the_video() -> None:
    extra = {"mm_inputs_meta": {"images_meta": [[56, 56]]}}
    found = estimate_sample(Document((IMAGE, VIDEO)), extra, [None, None], Qwen2VL())
    assert found.num_visual == 4 + 500


def test_both_ways_to_write_the_meta_are_read() -> None:
    assert sizes_of([5, 6], {"n_tokens": 12}, None) == [MediaSize(height=5, width=6), 12, None]
    assert sizes_of([0, 5, 6, 2.0, 3.0], kind="video") == [
        MediaSize(height=5, width=6, num_frames=6, fps=2.0, duration_s=3.0)
    ]
    assert sizes_of([6, 5, 6, 0, 3.0], kind="video")[0].fps == 2.0


def test_a_processor_without_a_rate_takes_every_frame() -> None:
    clip = MediaSize(height=56, width=56, num_frames=2, fps=1.0)
    found = estimate_sample(Document((VIDEO,)), {}, [clip], Qwen2VL(videos=QwenVideos(fps=None)))
    assert found.num_visual == 4


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(meta=junk, images=junk, videos=junk)
def test_any_meta_gives_some_estimate(meta: Any, images: Any, videos: Any) -> None:
    for given_meta in (meta, {"images_meta": images, "videos_meta": videos}):
        extra = {"mm_inputs_meta": given_meta, "_text_tokens": meta}
        found = estimate_sample(Document((IMAGE, VIDEO)), extra, [None, None], Qwen3VL())
        assert 0 < found.num_visual <= found.num_fixed <= found.num_tokens
