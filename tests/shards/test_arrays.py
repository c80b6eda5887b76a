"""Array files: what is written is read again, and damage is found; so it is with columns."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from shardmill.errors import FormatError, SampleError
from shardmill.shards.arrays import (
    ALIGN,
    DTYPES,
    Arrays,
    KeyList,
    NumberedKeys,
    bounds_between,
    load_npy,
    narrow_bounds,
    narrow_column,
    open_arrays,
    open_keys,
    open_strings,
    pack_strings,
    row_slice,
    split_key,
    store_arrays,
    wide_column,
    write_arrays,
)

stored_arrays = st.dictionaries(
    st.text(min_size=1, max_size=8),
    hnp.arrays(
        st.sampled_from(sorted(DTYPES)).map(np.dtype), hnp.array_shapes(min_side=0, max_side=7)
    ),
    max_size=5,
)


def written(arrays: dict[str, NDArray[np.generic]], meta: dict[str, object]) -> bytes:
    file = io.BytesIO()
    write_arrays(file, "test", arrays, meta)
    return file.getvalue()


@settings(max_examples=60)
@given(arrays=stored_arrays, meta=st.dictionaries(st.text(max_size=5), st.integers(0, 9)))
def test_what_is_stored_comes_back_aligned_and_the_bytes_are_the_same_again(
    tmp_path_factory: pytest.TempPathFactory,
    arrays: dict[str, NDArray[np.generic]],
    meta: dict[str, object],
) -> None:
    path = tmp_path_factory.mktemp("arrays") / "x"
    path.write_bytes(written(arrays, meta))
    opened = open_arrays(path, "test")
    assert opened.meta == meta
    assert list(opened) == list(arrays)
    for name, array in arrays.items():
        assert opened[name].dtype == array.dtype
        assert opened[name].tobytes() == array.tobytes()
        assert opened[name].shape == array.shape
        assert array.size == 0 or opened[name].ctypes.data % ALIGN == 0
    assert written(arrays, meta) == path.read_bytes()


@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_file_is_a_format_error_or_keeps_its_arrays_inside_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    good = written({"a": np.arange(100), "b": np.ones((3, 5), np.float32)}, {"n": 1})
    path = tmp_path_factory.mktemp("damaged") / "x"
    damaged = bytearray(good[: data.draw(st.integers(0, len(good)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    try:
        opened = open_arrays(path, "test")
    except FormatError as error:
        assert str(path) in str(error)
    else:
        assert {name: array.shape for name, array in opened.items()} == {"a": (100,), "b": (3, 5)}


def test_another_format_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(written({}, {}))
    with pytest.raises(FormatError, match="holds 'test', not 'plan'"):
        open_arrays(path, "plan")


def test_a_missing_array_is_named_with_those_that_exist(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(written({"a": np.arange(3)}, {}))
    opened = open_arrays(path, "test")
    assert "a" in opened and "b" not in opened
    with pytest.raises(FormatError, match=r"no array 'b', only \['a'\]"):
        opened["b"]


def test_objects_are_not_stored() -> None:
    with pytest.raises(TypeError, match="dtype object"):
        written({"a": np.array([{}])}, {})


def test_replaces_what_was_there_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    for value in (1, 2):
        store_arrays(path, "numbers", {"x": np.full(3, value)}, {"value": value})
    assert open_arrays(path, "numbers")["x"].tolist() == [2, 2, 2]
    assert [child.name for child in tmp_path.iterdir()] == ["numbers"]


def test_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "numbers"
    store_arrays(path, "numbers", {"x": np.arange(3)}, {})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shardmill.shards.arrays.write_arrays", fail)
    with pytest.raises(OSError, match="No space"):
        store_arrays(path, "numbers", {"x": np.arange(9)}, {})
    assert [child.name for child in tmp_path.iterdir()] == ["numbers"]
    assert len(open_arrays(path, "numbers")["x"]) == 3


def stored(**arrays: object) -> Arrays:
    return Arrays(Path("x"), "f", {}, arrays)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 2**40), max_size=8))
def test_columns_come_back(values: list[int]) -> None:
    narrow = narrow_column(np.array(values, np.int64))
    assert wide_column(stored(a=narrow), "a", len(values)).tolist() == values
    if values and len(set(values)) == 1:
        assert len(narrow) == 1
    assert narrow.dtype == np.min_scalar_type(max(values, default=0))


@given(st.lists(st.integers(0, 300), max_size=8))
def test_bounds_come_back(counts: list[int]) -> None:
    arrays = stored(b=narrow_bounds(np.array(counts, np.int64)))
    found = [row_slice(arrays, "b", row, len(counts), sum(counts)) for row in range(len(counts))]
    assert [s.stop - s.start for s in found] == counts
    assert [s.start for s in found] == np.cumsum([0, *counts])[:-1].tolist()
    for start in range(len(counts) + 1):
        rows = range(start, len(counts))
        bounds = bounds_between(arrays, "b", rows, len(counts), sum(counts))
        assert bounds.tolist() == np.cumsum([0, *counts])[start:].tolist()


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(FormatError, match="must be unsigned"):
        wide_column(stored(a=np.zeros(2, np.uint8)), "a", 3)
    with pytest.raises(FormatError, match="must be unsigned"):
        wide_column(stored(a=np.zeros(3, np.int8)), "a", 3)
    for bounds in ([0, 9], [2, 1], [7]):
        with pytest.raises(FormatError, match="leave the table"):
            row_slice(stored(b=np.array(bounds, np.uint8)), "b", 0, 1, 5)
        with pytest.raises(FormatError, match="leave the table"):
            bounds_between(stored(b=np.array(bounds, np.uint8)), "b", range(1), 1, 5)


texts = st.lists(st.binary(max_size=12), max_size=8)


@given(texts)
def test_texts_come_back_whatever_their_bytes(raw: list[bytes]) -> None:
    strings = open_strings(Arrays(Path("x"), "f", {}, pack_strings("key", raw)), "key")
    assert [text.encode("utf-8", "surrogateescape") for text in strings] == raw
    assert [bytes(strings.raw(i)) for i in range(len(strings))] == raw


@pytest.mark.parametrize("bounds", [[], [0], [1, 3], [0, 4], [0, 5, 3], [0, 1 << 63, 3]])
def test_bounds_that_do_not_rise_inside_the_bytes_are_refused(bounds: list[int]) -> None:
    arrays = {"key_bytes": np.frombuffer(b"abc", np.uint8), "key_bounds": np.array(bounds, "u8")}
    with pytest.raises(FormatError, match="key_bounds"):
        open_strings(Arrays(Path("x"), "f", {}, arrays), "key")


KEYS = st.lists(
    st.from_regex(r"[ab/é٣-]{0,3}[0-9]{0,25}", fullmatch=True), unique=True, max_size=12
)


@given(KEYS)
def test_keys_come_back_and_are_found(keys: list[str]) -> None:
    grown = KeyList()
    grown.extend(keys)
    column = open_keys(Arrays(Path("x"), "f", {}, grown.arrays()), len(keys))
    assert list(column) == keys
    assert [column.find(key) for key in keys] == list(range(len(keys)))
    assert column.find("absent") is None
    assert column.find("absent-7") is None


def test_a_number_keeps_its_zeros() -> None:
    assert split_key("a-007") == ("a-", 3, 7)
    assert split_key("a") == ("a", 0, 0)
    assert split_key("7" * 20) == ("77", 18, int("7" * 18))


@given(
    prefix=st.sampled_from(["train-", "", "a1"]),
    width=st.integers(0, 20),
    numbers=st.lists(st.integers(-3, 2**63 - 1) | st.integers(0, 99), max_size=5),
)
def test_numbers_are_stored_like_the_keys_they_make(
    prefix: str, width: int, numbers: list[int]
) -> None:
    keys = NumberedKeys(prefix, width, np.array(numbers, np.int64))
    texts = [f"{prefix}{number:0{width}d}" for number in numbers]
    assert list(keys) == texts
    grown, wanted = KeyList(), KeyList()
    for part in (["b-7"], keys, ["train-5"]):
        grown.extend(part)
    wanted.extend(["b-7", *texts, "train-5"])
    assert len(grown) == len(texts) + 2
    for name, column in wanted.arrays().items():
        assert np.array_equal(grown.arrays()[name], column)


def npy(header: str, body: bytes = bytes(8), version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin-1").ljust(117) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + body


@given(hnp.arrays(st.sampled_from(["<i2", ">u4", "<f8", "|b1"]), hnp.array_shapes(min_side=0)))
def test_numbers_of_others_are_read_as_numpy_reads_them(values: NDArray[np.int64]) -> None:
    for order in (values, np.asfortranarray(values)):
        file = io.BytesIO()
        np.save(file, order)
        found = load_npy(file.getvalue(), "bad", "x.npy")
        assert found.tobytes() == values.tobytes() and found.shape == values.shape
        assert found.flags.writeable


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}")[:-1],
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}", bytes(9)),
        # These raise MemoryError, SyntaxError, RecursionError, TypeError in numpy.
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000,)}"),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (-1,)}"),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': ("),
        npy("(" * 110),
        npy("{'descr': 7, 'fortran_order': False, 'shape': (1,)}"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}", version=b"\x09\x00"),
    ],
)
def test_numbers_that_are_none_are_a_reject(content: bytes) -> None:
    with pytest.raises(SampleError, match=r"^bad: "):
        load_npy(memoryview(content), "bad", "x.npy")
