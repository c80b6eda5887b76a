"""SampleWriter: documents to shards, and back through their index."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tars import contents, keys, read_tar

from shardmill.errors import SampleError
from shardmill.model.sample import Document, MediaSize, Origin, Sample, Segment
from shardmill.model.stage import Draft
from shardmill.shards.samples import SampleWriter, content_hash, open_foreign, open_shard
from shardmill.shards.tar.header import Layout


def page(key: str, *media: bytes, texts: tuple[str, ...] = ("hello",), **more: object) -> Sample:
    """Return a document of texts and images, as ingest names them."""
    names = ["jpg"] if len(media) == 1 else [f"{i}.jpg" for i in range(len(media))]
    segments = [Segment(kind="text", text=text) for text in texts]
    segments += [Segment(kind="image", media=name) for name in names]
    document = Document(tuple(segments))
    return Sample(key=key, document=document, media=dict(zip(names, media)), **more)  # type: ignore[arg-type]


def write(folder: Path, samples: list[Sample], layout: Layout = "dotted", **options: int) -> Draft:
    """Write samples and return the draft."""
    draft = Draft(folder)
    with SampleWriter(draft, lambda n: f"s{n}", layout=layout, **options) as writer:
        for sample in samples:
            writer.add(sample, {name: MediaSize(width=9, height=7) for name in sample.media})
    return draft


@pytest.mark.parametrize("layout", ["dotted", "dashed"])
@given(st.dictionaries(keys, st.lists(contents, max_size=3), min_size=1, max_size=5))
def test_samples_come_back_by_index_and_by_walking(
    layout: Layout, tmp_path_factory: pytest.TempPathFactory, media: dict[str, list[bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("x")
    origin = Origin(source="web", path="p.jsonl", row=3)
    samples = [page(key, *own, origin=origin, extra={"n": 1}) for key, own in media.items()]
    try:
        write(folder, samples, layout)
    except SampleError as error:  # `a` and `a-0` cannot both be dashed
        assert (error.reason, layout) == ("duplicate member", "dashed")
        return
    walked, grouped = open_foreign(str(folder / "s0.tar"))
    with open_shard(str(folder / "s0.tar"), folder / "s0.idx") as shard, walked:
        assert not grouped.bad
        assert list(shard) == samples == [walked[i] for i in range(len(walked))]
        assert [shard[shard.find(s.key) or 0] for s in samples] == samples
        for name in ("start", "first", "offset", "size"):
            assert shard.index.arrays[name].tolist() == walked.index.arrays[name].tolist()


def test_names_in_the_tar(tmp_path: Path) -> None:
    samples = [page("one", b"1"), page("two", b"2", b"3"), page("none", texts=("a", "b"))]
    write(tmp_path, samples)
    names = [name for name, _ in read_tar(tmp_path / "s0.tar")]
    assert names[:3] == ["one.json", "one.txt", "one.jpg"]
    assert names[3:] == ["two.json", "two.0.jpg", "two.1.jpg", "none.json"]
    write(tmp_path, samples, "dashed")
    names = [name for name, _ in read_tar(tmp_path / "s0.tar")]
    assert names[3:] == ["two.json", "two-0.jpg", "two-1.jpg", "none.json"]


def test_a_caption_pair_has_its_caption_beside(tmp_path: Path) -> None:
    write(tmp_path, [page("a", b"1", texts=("ein Käfer",))])
    members = dict(read_tar(tmp_path / "s0.tar"))
    assert members["a.txt"].decode() == "ein Käfer"
    assert orjson.loads(members["a.json"])["segments"] == [{"text": "ein Käfer"}, {"image": "jpg"}]


def test_columns_of_the_index(tmp_path: Path) -> None:
    samples = [page("a", b"1", texts=("four",)), page("b", texts=("12", "345"))]
    write(tmp_path, samples)
    with open_shard(str(tmp_path / "s0.tar"), tmp_path / "s0.idx") as shard:
        assert shard.index.column("text_chars").tolist() == [4, 5]
        assert shard.index.column("width").tolist() == [0, 0, 9, 0]
        halves = shard.index.column("content").tolist()
        assert [(high << 64) + low for high, low in halves] == [content_hash(s) for s in samples]


def test_the_hash_is_of_the_content_alone() -> None:
    same = [page("a", b"1"), page("b", b"1", origin=Origin(source="s", path="p", row=1))]
    assert content_hash(same[0]) == content_hash(same[1])
    other = [page("a", b"2"), page("a", b"1", texts=("bye",)), page("a", b"1", b""), page("a")]
    calls = [page("a", b"1", extra={"turn_fields": {"1": {"name": n}}}) for n in "fg"]
    assert len({content_hash(sample) for sample in [*same, *other, *calls]}) == 7


# Two samples of 4608 bytes (json, txt, image with their headers) and the end take 10240 bytes.
@pytest.mark.parametrize(("max_bytes", "counts"), [(10_240, [2, 2]), (10_239, [1, 1, 1, 1])])
def test_a_byte_limit_begins_new_shards(tmp_path: Path, max_bytes: int, counts: list[int]) -> None:
    samples = [page(f"{i}", b"x" * 2000) for i in range(4)]
    draft = write(tmp_path, samples, max_bytes=max_bytes)
    assert [shard.num_samples for shard in draft.shards.values()] == counts
    assert all((tmp_path / f"{name}.tar").stat().st_size <= max_bytes for name in draft.shards)
    assert [sorted(shard.roles) for shard in draft.shards.values()] == [["idx", "tar"]] * len(
        counts
    )


def test_a_sample_larger_than_the_limit_has_a_shard_of_its_own(tmp_path: Path) -> None:
    samples = [page("a", b"x"), page("b", b"x" * 9000), page("c", b"x")]
    draft = write(tmp_path, samples, max_bytes=6_000)
    assert [shard.num_samples for shard in draft.shards.values()] == [1, 1, 1]


def test_without_samples_there_is_no_shard(tmp_path: Path) -> None:
    assert write(tmp_path, []).shards == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (page("a.b", b"1"), "bad key"),
        (Sample(key="a", document=Document(()), media={"json": b""}), "bad extension"),
        (
            Sample(key="a", document=Document((Segment(kind="image", media="jpg"),))),
            "missing media",
        ),
        (page("a", extra={"x": object()}), "not JSON"),
        (page("a", texts=("\ud800",)), "not JSON"),
    ],
)
def test_a_sample_that_cannot_be_stored_is_rejected_alone(
    tmp_path: Path, sample: Sample, reason: str
) -> None:
    draft = Draft(tmp_path)
    with SampleWriter(draft, lambda _: "s") as writer:
        with pytest.raises(SampleError) as caught:
            writer.add(sample)
        writer.add(page("good", b"1"))
    assert caught.value.reason == reason
    assert draft.shards["s"].num_samples == 1
    assert len(read_tar(tmp_path / "s.tar")) == 3
