"""Arrays come back as they were stored; a damaged file is a FormatError and nothing else."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.shards.arrays import ALIGN, DTYPES, open_arrays, store_arrays, write_arrays

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
