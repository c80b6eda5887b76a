"""A batch is the very bytes of its samples, one by one; what needs a second look is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import binary, booleans, integers, lists, text, tuples

from shardmill.errors import SampleError
from shardmill.shards.tar.batch import lay_out
from shardmill.shards.tar.index import IndexRows
from shardmill.shards.tar.write import TarWriter, plan_sample
from shardmill.shards.weave import Column, constant, texts, weave

KEYS = text("abc/-é0", min_size=1, max_size=8).filter(
    lambda key: key[0] != "/" and key[-1] != "/" and "//" not in key
)


def named(keys: list[str]) -> Column:
    return texts([key.encode("utf-8", "surrogatepass") for key in keys])


@given(lists(tuples(KEYS, binary(max_size=700), integers(0, 1100)), min_size=1, max_size=6))
def test_a_batch_is_its_samples(samples: list[tuple[str, bytes, int]]) -> None:
    keys = [key for key, _, _ in samples]
    contents = [content for _, content, _ in samples]
    sizes = [bytes(size) for _, _, size in samples]
    columns = [constant(b"[", len(keys)), texts(contents), constant(b"]", len(keys))]
    batch = lay_out(named(keys), [("json", columns), ("0.bin", [texts(sizes)])])
    assert batch is not None
    rows, start = bytearray(), 0
    for number, key in enumerate(keys):
        members = [("json", b"[" + contents[number] + b"]"), ("0.bin", sizes[number])]
        planned = plan_sample(key, members)
        assert batch.starts[number] == start
        assert (batch.offsets[number] - start).tolist() == list(planned.offsets)
        assert batch.sizes[number].tolist() == list(planned.sizes)
        rows += b"".join(planned.pieces)
        start += planned.num_bytes
    assert weave(batch.columns).data.tobytes() == bytes(rows)
    assert batch.num_bytes == len(rows)


@pytest.mark.parametrize("key", ["", "a.b", "/a", "a/", "a//b", "a\n", "x" * 98, "\ud800", "__a__"])
def test_keys_that_need_a_second_look_are_left(key: str) -> None:
    assert lay_out(named(["good", key]), [("json", [constant(b"{}", 2)])]) is None


def test_names_that_could_meet_are_left() -> None:
    assert lay_out(named(["a"]), [("0.jpg", [constant(b"", 1)])], "dashed") is None
    assert lay_out(named(["a"]), [("json", [constant(b"", 1)])], "dashed") is not None
    assert lay_out(named(["a"]), [("json", [constant(b"", 1)])] * 2) is None


STEPS = lists(tuples(booleans(), lists(text("ab9", min_size=1, max_size=2), max_size=4)))


@given(STEPS)
def test_tars_and_indexes_do_not_tell_batches_from_samples(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, list[str]]]
) -> None:
    folder, taken = tmp_path_factory.mktemp("tars"), set[str]()
    mixed, each = IndexRows(), IndexRows()
    with TarWriter(folder / "a") as tar, TarWriter(folder / "b") as other:
        for is_batch, wanted in steps:
            batches = [wanted] if is_batch else [[key] for key in wanted]
            for keys in batches:
                is_new = len(set(keys)) == len(keys) and taken.isdisjoint(keys)
                assert put(tar, mixed, keys, is_batch=is_batch) == is_new
                for key in keys if is_new else ():
                    assert put(other, each, [key], is_batch=False)
                    taken.add(key)
        end = tar.num_bytes
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()
    assert len(mixed) == len(each) == len(taken)
    for rows, path in ((mixed, folder / "a.idx"), (each, folder / "b.idx")):
        rows.write(path, end=end, num_bytes=tar.num_bytes)
    assert (folder / "a.idx").read_bytes() == (folder / "b.idx").read_bytes()


def put(tar: TarWriter, index: IndexRows, keys: list[str], *, is_batch: bool) -> bool:
    contents = [key.encode() * 200 for key in keys]
    if is_batch:
        members = [("bin", [texts(contents)]), ("0.x", [constant(b"!", len(keys))])]
        batch = lay_out(named(keys), members)
        assert batch is not None
        start = tar.extend(batch)
        if start is not None:
            index.extend(batch, start)
        return start is not None
    try:
        start, planned = tar.add(keys[0], [("bin", contents[0]), ("0.x", b"!")])
    except SampleError:
        return False
    index.add(keys[0], start, planned.exts, planned.offsets, planned.sizes)
    return True
