"""Sample shards: one, a folder of them as one list, and documents written and read again."""

from __future__ import annotations

import pickle
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples_for_tests import store_samples
from tars import contents, keys, read_tar

from shardmill.errors import FormatError, SampleError, ShardmillError
from shardmill.model.sample import Document, MediaSize, Origin, Sample, Segment
from shardmill.model.stage import Draft
from shardmill.shards import samples as samples_module
from shardmill.shards.samples import (
    SampleDataset,
    SampleWriter,
    content_hash,
    max_open_shards,
    open_foreign,
    open_samples,
    open_shard,
    parse_sample,
)
from shardmill.shards.tar.header import Layout
from shardmill.shards.tar.index import IndexedTar


def make_shard(folder: Path, num: int = 20, size: int = 700) -> tuple[str, Path]:
    """Write a tar of samples and its index."""
    path, index_path = folder / "x.tar", folder / "x.idx"
    with IndexedTar(path, index_path) as tar:
        for number in range(num):
            members = [("jpg", b"%03d" % number + bytes(size)), ("txt", b"t%d" % number)]
            tar.add(f"k{number}", members)
    return str(path), index_path


def test_numbers_and_keys(tmp_path: Path) -> None:
    with open_shard(*make_shard(tmp_path)) as shard:
        assert len(shard) == 20
        assert bytes(shard.raw(7)["jpg"][:3]) == b"007"
        assert shard.find("k13") == 13
        assert shard.find("k99") is None
        for number in (-1, 20, 1 << 70):
            with pytest.raises(IndexError):
                shard.raw(number)


@pytest.mark.parametrize("chunk_bytes", [1, 3000, 1 << 20])
def test_reading_in_order_gives_the_same_as_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(samples_module, "CHUNK_BYTES", chunk_bytes)
    with open_shard(*make_shard(tmp_path)) as shard:
        in_order = [(key, {e: bytes(v) for e, v in raw.items()}) for key, raw in shard.iter_raw()]
        by_number = [{e: bytes(v) for e, v in shard.raw(i).items()} for i in range(20)]
        assert in_order == [(f"k{i}", raw) for i, raw in enumerate(by_number)]
        assert [key for key, _ in shard.iter_raw(5, 8)] == ["k5", "k6", "k7"]


def test_a_tar_of_another_size_than_its_index_is_refused(tmp_path: Path) -> None:
    url, index_path = make_shard(tmp_path)
    with Path(url).open("ab") as file:
        file.write(bytes(512))
    with pytest.raises(FormatError, match="make the index again"):
        open_shard(url, index_path)


def test_a_foreign_tar_that_is_damaged_is_refused(tmp_path: Path) -> None:
    url, _ = make_shard(tmp_path)
    data = bytearray(Path(url).read_bytes())
    data[2560 + 5] ^= 1
    Path(url).write_bytes(data)
    with pytest.raises(FormatError, match=r"x\.tar, at byte 2560"):
        open_foreign(url)


@pytest.mark.parametrize("raw", [{}, {"json": memoryview(b'{"caption": "theirs"}')}])
def test_a_sample_of_others_is_refused_with_what_to_do(raw: dict) -> None:
    with pytest.raises(SampleError, match="shardmill ingest"):
        parse_sample("a", raw)


@pytest.mark.parametrize(
    "raw", [{}, {"json": memoryview(b"{")}, {"json": memoryview(b"[]")}, {"json": memoryview(b"1")}]
)
def test_what_is_no_document_is_a_sample_error(raw: dict) -> None:
    with pytest.raises(SampleError, match="not a document"):
        parse_sample("a", raw)


def test_views_stay_valid_after_close(tmp_path: Path) -> None:
    shard = open_shard(*make_shard(tmp_path))
    raw = shard.raw(3)
    shard.close()
    assert bytes(raw["txt"]) == b"t3"


def make_set(folder: Path, num: int = 23) -> list[Sample]:
    """Write samples to a folder, five a shard, and return them."""
    text = [Segment(kind="text", text=f"text {i}") for i in range(num)]
    image = Segment(kind="image", media="jpg")
    samples = [
        Sample(key=f"d/k{i}", document=Document((image, text[i])), media={"jpg": b"%d" % i})
        for i in range(num)
    ]
    store_samples(folder, samples, per_shard=5)
    return samples


def test_numbers_count_through_all_shards(tmp_path: Path) -> None:
    samples = make_set(tmp_path / "x")
    found = open_samples(tmp_path / "x")
    assert len(found) == 23
    assert [found[i] for i in range(23)] == samples == list(found)
    assert [found.key(i) for i in (0, 4, 5, 22)] == ["d/k0", "d/k4", "d/k5", "d/k22"]
    for number in (-1, 23):
        with pytest.raises(IndexError):
            found[number]


def test_keys_are_found_in_any_shard(tmp_path: Path) -> None:
    make_set(tmp_path / "x")
    found = open_samples(tmp_path / "x")
    assert found.find("d/k17") == 17
    assert found.find("k17") is None
    assert found.find_all(["d/k22", "no", "d/k0"]).tolist() == [22, -1, 0]


def test_few_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_module, "MAX_OPEN", 2)
    make_set(tmp_path / "x")
    found = open_samples(tmp_path / "x")
    raw = found.raw(0)
    for number in (5, 10, 0, 22, 11):
        assert bytes(found.raw(number)["jpg"]) == b"%d" % number
        assert len(found._open) <= 2
    assert list(found._open) == [4, 2]
    assert bytes(raw["jpg"]) == b"0"
    found.close()
    assert bytes(found.raw(7)["jpg"]) == b"7"


def test_it_travels_to_another_process(tmp_path: Path) -> None:
    samples = make_set(tmp_path / "x")
    found = open_samples(tmp_path / "x")
    assert found[3] == samples[3]
    other = pickle.loads(pickle.dumps(found))
    assert isinstance(other, SampleDataset)
    assert other[3] == samples[3]


def test_an_index_with_another_count_than_its_receipt_is_refused(tmp_path: Path) -> None:
    make_set(tmp_path / "x")
    shards = sorted((tmp_path / "x" / "shards").glob("*.idx"))
    shards[0].write_bytes(shards[-1].read_bytes())
    with pytest.raises(FormatError, match="its receipt says 5"):
        open_samples(tmp_path / "x").raw(0)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardmillError):
        open_samples(tmp_path)


def test_some_shards_may_always_be_open() -> None:
    assert max_open_shards() >= 1


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
