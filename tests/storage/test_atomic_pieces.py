"""Small pieces make the same file, with a compiler and without."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import lists, sampled_from

from shardmill.storage import atomic as pieces
from shardmill.storage.atomic import PIECE_BYTES, PieceFile, open_to_write, write_at

NOISE = np.random.default_rng(0).integers(0, 1 << 16, 300_000, dtype=np.uint16)
SIZES = lists(sampled_from([0, 1, 7, PIECE_BYTES // 2 - 1, PIECE_BYTES // 2, PIECE_BYTES, 290_000]))


@pytest.fixture(params=["compiled", "plain"], autouse=True, scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            patch.setattr(pieces, "_weave", None)
        yield


@given(SIZES)
def test_a_file_has_all_that_was_written(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    with open_to_write(folder / "a") as buffered, PieceFile(folder / "b", "wb") as plain:
        for size in sizes:
            for file in (buffered, plain):
                assert file.write(NOISE[:size].data) == 2 * size
        assert buffered.tell() == plain.tell() == 2 * sum(sizes)
    wanted = b"".join(NOISE[:size].tobytes() for size in sizes)
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes() == wanted


def test_bytes_go_to_their_place(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(500_000))
    descriptor = os.open(tmp_path / "a", os.O_WRONLY)
    write_at(descriptor, NOISE[:100_000], 70_001)
    write_at(descriptor, b"first", 0)
    os.close(descriptor)
    found = (tmp_path / "a").read_bytes()
    assert found[70_001:270_001] == NOISE[:100_000].tobytes()
    assert found[:5] == b"first" and not any(found[5:70_001]) and len(found) == 500_000


@pytest.mark.parametrize("num_bytes", [10, 300_000])
def test_a_full_disk_is_an_error(num_bytes: int) -> None:
    with pytest.raises(OSError, match="No space left"), open_to_write(Path("/dev/full")) as file:
        file.write(bytes(num_bytes))
        file.flush()
    with pytest.raises(OSError, match="No space left"):
        PieceFile("/dev/full", "wb").write(bytes(num_bytes))
