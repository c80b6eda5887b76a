from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_folder import write_sample_folder
from video_tables import steady_table

from shardmill.errors import ConfigError, SampleError
from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.shards.samples import open_samples
from shardmill.stages.frames import (
    EncodedMedium,
    FrameImage,
    StoredSample,
    check_mark,
    describe_frames,
    find_lists,
    list_table,
    put_frames,
)
from shardmill.storage.blob import LocalBlob


def frames(*times_s: float) -> list[FrameImage]:
    return [
        FrameImage(
            image=EncodedMedium(b"%d" % n, MediaSize(width=n), "jpg"),
            time_s=time_s,
            number=n,
            type="P",
            at=n,
        )
        for n, time_s in enumerate(times_s)
    ]


def sample_of(*segments: Segment) -> Sample:
    media = {segment.media: b"old" for segment in segments if segment.media}
    return Sample(key="k", document=Document(segments), media=media)


VIDEO = Segment(kind="video", media="mp4")


def text(words: str, at: float | None = None, **fields: int) -> Segment:
    return Segment(kind="text", text=words, time_s=None if at is None else (at, at), **fields)


def words_of(sample: Sample) -> list[str]:
    return [s.text or bytes(sample.media[s.media]).decode() for s in sample.document.segments]


@given(st.lists(st.floats(0, 10)), st.lists(st.one_of(st.none(), st.floats(0, 10))))
def test_interleaving_loses_nothing_and_keeps_both_orders(
    frame_times: list[float], text_times: list[float | None]
) -> None:
    frame_times = sorted(frame_times)
    known = sorted(time for time in text_times if time is not None)
    texts = [text(f"t{n}", None if t is None else known.pop(0)) for n, t in enumerate(text_times)]
    sample = sample_of(VIDEO, *texts)
    made = put_frames(sample, {}, {0: frames(*frame_times)}, interleave=True).sample
    words = words_of(made)
    assert [w for w in words if w[0] == "t"] == [f"t{n}" for n in range(len(texts))]
    assert [w for w in words if w[0] != "t"] == [str(n) for n in range(len(frame_times))]
    timed = [s.time_s[0] for s in made.document.segments if s.time_s is not None]
    if frame_times:
        assert timed == sorted(timed)


def test_texts_of_another_turn_are_not_moved() -> None:
    sample = sample_of(VIDEO, text("same", 5.0), text("other", 0.0, turn=1))
    made = put_frames(sample, {}, {0: frames(1.0, 9.0)}, interleave=True).sample
    assert words_of(made) == ["0", "same", "1", "other"]


def test_texts_without_any_time_stay_behind() -> None:
    sample = sample_of(VIDEO, text("one"), text("two"))
    made = put_frames(sample, {}, {0: frames(1.0, 9.0)}, interleave=True).sample
    assert words_of(made) == ["0", "1", "one", "two"]


def test_marks_stand_behind_their_frames() -> None:
    made = put_frames(sample_of(VIDEO, text("x")), {}, {0: frames(1.0, 2.5)}, mark="{time_s:.1f}s")
    assert words_of(made.sample) == ["0", "1.0s", "1", "2.5s", "x"]


def test_media_that_stay_get_new_numbers_and_their_sizes_and_infos_go_along() -> None:
    image = Segment(kind="image", media="1.png")
    sample = sample_of(Segment(kind="video", media="0.mp4"), image, image)
    infos = {"media_info": {"1.png": {"note": 1}, "0.mp4": {"note": 2}}}
    sample = Sample(key="k", document=sample.document, media=sample.media, extra=infos)
    made = put_frames(sample, {"1.png": MediaSize(width=7)}, {0: frames(0.0, 1.0)})
    assert [s.media for s in made.sample.document.segments] == ["0.jpg", "1.jpg", "2.png", "2.png"]
    assert {name: size.width for name, size in made.sizes.items()} == {
        "0.jpg": 0,
        "1.jpg": 1,
        "2.png": 7,
    }
    assert made.sample.extra["media_info"] == {"2.png": {"note": 1}, "0.mp4": {"note": 2}}


def test_a_medium_that_is_not_there_is_a_reject() -> None:
    segments = (VIDEO, Segment(kind="image", media="gone.jpg"))
    with pytest.raises(SampleError, match="missing media"):
        put_frames(Sample(key="k", document=Document(segments)), {}, {0: frames(0.0)})


def test_frames_are_described_by_their_table() -> None:
    table = steady_table(11, keys=(0, 5))
    images = [EncodedMedium(b"", MediaSize(), "jpg")] * 3
    found = describe_frames(table, table.numbers_at([0.0, 0.5, 1.0]), images, table.positions(1000))
    described = [(f.number, f.time_s, f.type, f.at) for f in found]
    assert described == [(0, 0.0, "I", 0), (5, 0.5, "I", 500), (10, 1.0, "P", 1000)]


def test_marks_are_checked() -> None:
    check_mark("<{type}image>#{at} {time_s:.2f} {number}")
    for mark in ("{", "{0}", "{other}", "{at:%}x{"):
        with pytest.raises(ConfigError):
            check_mark(mark)


def image(number: int, **fields: object) -> Segment:
    return Segment(kind="image", media=f"{number}.jpg", **fields)  # type: ignore[arg-type]


def test_images_that_follow_each_other_in_one_turn_are_a_list() -> None:
    text = Segment(kind="text", text="x")
    segments = [image(0), image(1), image(2), text, image(3), text]
    segments += [image(4, turn=1), image(5, turn=1), image(6, turn=2)]
    assert list(find_lists(segments)) == [range(3), range(6, 8)]
    assert list(find_lists([])) == []


def test_frames_are_shown_at_a_rate_or_at_their_own_times() -> None:
    table = list_table([image(n) for n in range(4)], 2.0)
    assert table.times_s.tolist() == [0, 0.5, 1, 1.5]
    assert (table.end_s, table.is_key.all()) == (2.0, True)
    table = list_table([image(n, time_s=(n * n + 0.5, 99.0)) for n in range(4)], 2.0)
    assert table.times_s.tolist() == [0.5, 1.5, 4.5, 9.5]


def test_times_that_go_back_are_rejected() -> None:
    with pytest.raises(SampleError, match="broken timestamps"):
        list_table([image(n, time_s=(5.0 - n, 9.0)) for n in range(3)], 2.0)


MEGABYTE = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    segments = (Segment(kind="video", media="0.mp4"), Segment(kind="image", media="1.jpg"))
    sample = Sample(
        key="k",
        document=Document(segments),
        media={"0.mp4": b"v" * MEGABYTE, "1.jpg": b"image"},
        extra={"fps": 1, "media_info": {"0.mp4": {"fps": 2}}},
    )
    return write_sample_folder(tmp_path / "in", [[(sample, {})]])


def test_a_medium_is_read_only_when_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    read, view_all = LocalBlob.read, LocalBlob.view_all

    def counted(blob: LocalBlob, offset: int, length: int) -> bytes:
        asked.append(length)
        return read(blob, offset, length)

    def counted_all(blob: LocalBlob, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        asked.extend(length for _, length in ranges)
        return view_all(blob, ranges)

    monkeypatch.setattr(LocalBlob, "read", counted)
    monkeypatch.setattr(LocalBlob, "view_all", counted_all)
    stored = StoredSample.read(open_samples(folder).shard(0), 0)
    assert stored.part("0.mp4").num_bytes == MEGABYTE
    sample = stored.with_media(without={"0.mp4"})
    assert {name: bytes(content) for name, content in sample.media.items()} == {"1.jpg": b"image"}
    assert sum(asked) < 1000
    assert set(stored.with_media().media) == {"0.mp4", "1.jpg"}


def test_what_a_row_said_of_a_medium_comes_before_what_it_said_of_all(folder: Path) -> None:
    stored = StoredSample.read(open_samples(folder).shard(0), 0)
    assert stored.info("0.mp4")["fps"] == 2
    assert stored.info("1.jpg")["fps"] == 1


def test_a_stored_medium_that_is_not_there_is_a_reject(folder: Path) -> None:
    with pytest.raises(SampleError, match="missing media"):
        StoredSample.read(open_samples(folder).shard(0), 0).part("2.mp4")
