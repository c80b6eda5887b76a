"""A batch is the very bytes of its samples, one by one; what needs a second look is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import binary, integers, lists, text, tuples

from shardmill.io.indexwrite import IndexRows
from shardmill.io.tarbatch import lay_out
from shardmill.io.tarwrite import TarWriter, plan_sample
from shardmill.io.weave import constant, texts, weave

KEYS = text("abc/-é0", min_size=1, max_size=8).filter(
    lambda key: key[0] != "/" and key[-1] != "/" and "//" not in key
)


@given(lists(tuples(KEYS, binary(max_size=700), integers(0, 1100)), min_size=1, max_size=6))
def test_a_batch_is_its_samples(samples: list[tuple[str, bytes, int]]) -> None:
    keys = [key for key, _, _ in samples]
    contents = [content for _, content, _ in samples]
    sizes = [bytes(size) for _, _, size in samples]
    columns = [constant(b"[", len(keys)), texts(contents), constant(b"]", len(keys))]
    batch = lay_out(keys, [("json", columns), ("0.bin", [texts(sizes)])])
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
    assert lay_out(["good", key], [("json", [constant(b"{}", 2)])]) is None


def test_names_that_could_meet_are_left() -> None:
    assert lay_out(["a"], [("0.jpg", [constant(b"", 1)])], "dashed") is None
    assert lay_out(["a"], [("json", [constant(b"", 1)])], "dashed") is not None
    assert lay_out(["a"], [("json", [constant(b"", 1)])] * 2) is None


def test_tars_and_indexes_do_not_tell_batches_from_samples(tmp_path: Path) -> None:
    keys = [f"key-{number}" for number in range(9)]
    contents = [bytes([number]) * number for number in range(9)]
    together, each = IndexRows(), IndexRows()
    with TarWriter(tmp_path / "a") as tar:
        for part in (slice(0, 4), slice(4, 9)):
            batch = lay_out(keys[part], [("bin", [texts(contents[part])])])
            assert batch is not None
            start = tar.extend(batch)
            assert start is not None
            together.extend(batch, start)
            assert tar.extend(batch) is None  # its keys are taken
    with TarWriter(tmp_path / "b") as other:
        for key, content in zip(keys, contents):
            start, planned = other.add(key, [("bin", content)])
            each.add(key, start, planned.exts, planned.offsets, planned.sizes)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    for rows, path in ((together, tmp_path / "a.idx"), (each, tmp_path / "b.idx")):
        rows.write(path, end=tar.num_bytes - 1024, num_bytes=tar.num_bytes)
    assert (tmp_path / "a.idx").read_bytes() == (tmp_path / "b.idx").read_bytes()
