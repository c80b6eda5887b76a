from __future__ import annotations

from shardmill.model.sample import Document, MediaSize, Origin, Sample, Segment
from shardmill.model.stage import Tally
from shardmill.stages.statistics import count_sample


def test_what_is_counted() -> None:
    tally = Tally()
    origin = Origin(source="web", path="p", row=0)
    both = (
        Segment(kind="image", media="0.jpg"),
        Segment(kind="image", media="1.jpg"),
        Segment(kind="video", media="2.mp4"),
    )
    media = dict.fromkeys(("0.jpg", "1.jpg", "2.mp4"), b"x")
    sizes = {
        "0.jpg": MediaSize(width=10, height=10),
        "1.jpg": MediaSize(width=10, height=10),
        "2.mp4": MediaSize(width=20, height=10, duration_s=3.4),
    }
    count_sample(tally, Sample(key="a", document=Document(both), media=media, origin=origin), sizes)
    text = Document((Segment(kind="text", text="words"),))
    count_sample(tally, Sample(key="b", document=text, origin=origin), {})
    assert dict(tally.stats) == {
        "samples|with images": 1,
        "media|images": 2,
        "samples|with videos": 1,
        "media|videos": 1,
        "missing|text": 1,
        "source|web": 2,
        "text chars|<=0": 1,
        "text chars|<=8": 1,
        "text chars|sum": 5,
        "pixels|<=128": 2,
        "pixels|<=256": 1,
        "pixels|sum": 400,
        "video seconds|<=4": 1,
        "video seconds|sum": 3,
        "samples|text only": 1,
    }
