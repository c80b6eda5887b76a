from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from shardmill.errors import ConfigError
from shardmill.model.codec import canonical, digest
from shardmill.sources.folder import FolderSource
from shardmill.sources.source import Row


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "a.jpg": b"A",
        "a.txt": "ein Bär\n".encode(),
        "b.png": b"B",
        "sub/c.mp4": b"C",
        "sub/c.json": b'{"text": "a clip", "image": "ignored?", "score": 3}',
        "sub/d.jpg": b"D",
        "sub/d.png": b"D",
        "sub/d.caption": b"two of them",
        "sub/e.webp": b"E",
        "sub/e.txt": b"its name sorts behind",
        "v1.0/e.f.jpg": b"E",
        "v1_0/e.f.jpg": b"E",
        "lost.txt": b"no image",
        "README.md": b"",
        ".hidden.jpg": b"",
    }
    for name, content in files.items():
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "in"


def read_all(folder: Path, per_shard: int | None = None) -> dict[str, Row]:
    source = FolderSource(dir=str(folder))
    with source.open() as read:
        units = [canonical(part.input) for part in source.parts(per_shard)]
        rows = [row for unit in units for row in read(orjson.loads(unit))]
    found = {row.key: row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("per_shard", [None, 1, 3])
def test_media_and_their_sidecars_are_rows(folder: Path, per_shard: int | None) -> None:
    rows = read_all(folder, per_shard)
    assert {key: row.fields for key, row in rows.items() if not row.problem} == {
        "a": {"image": "a.jpg", "text": "ein Bär\n"},
        "b": {"image": "b.png"},
        "sub/c": {"video": "sub/c.mp4", "text": "a clip", "image": "ignored?", "score": 3},
        "sub/d_jpg": {"image": "sub/d.jpg", "text": "two of them"},
        "sub/d_png": {"image": "sub/d.png", "text": "two of them"},
        "sub/e": {"image": "sub/e.webp", "text": "its name sorts behind"},
        "v1_0/e_f": {"image": "v1.0/e.f.jpg"},
        "v1_0~2/e_f": {"image": "v1_0/e.f.jpg"},
    }
    assert str(rows["lost"].problem) == "caption without medium: lost.txt"
    assert rows["a"].media_dir == str(folder)
    assert rows["sub/e"].origin.path == "sub/e.webp"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b"caf\xe9", "not UTF-8"),
        ("a.json", b"{broken", "not JSON"),
        ("a.json", b"[1]", "row is not an object"),
    ],
)
def test_a_bad_sidecar_is_a_reject(folder: Path, name: str, content: bytes, reason: str) -> None:
    (folder / name).write_bytes(content)
    problem = read_all(folder)["a"].problem
    assert problem is not None
    assert problem.reason == reason
    assert name in problem.detail


def test_a_sidecar_that_vanished_or_may_not_be_read_is_a_reject(folder: Path) -> None:
    (folder / "a.txt").unlink()
    (folder / "a.txt").symlink_to("nowhere")
    problem = read_all(folder)["a"].problem
    assert problem is not None
    assert problem.reason == "missing file"


def test_a_file_name_that_is_no_text_is_a_reject(folder: Path) -> None:
    name = os.fsencode(folder) + b"/bad\xff.jpg"
    Path(os.fsdecode(name)).write_bytes(b"X")
    (problem,) = [row.problem for row in read_all(folder).values() if "bad" in row.key]
    assert problem is not None
    assert (problem.reason, problem.detail) == ("file name is not UTF-8", r"bad\xff.jpg")


def test_parts_and_fingerprint_see_changes(folder: Path) -> None:
    source = FolderSource(dir=str(folder))
    parts = [digest(part.input) for part in source.parts(3)]
    inputs = source.inputs()
    assert [digest(part.input) for part in source.parts(3)] == parts
    assert source.inputs() == inputs
    os.utime(folder / "b.png", ns=(1, 1))
    assert [digest(part.input) for part in source.parts(3)] == parts
    assert source.inputs() != inputs
    (folder / "b.png").write_bytes(b"longer than before")
    changed = [digest(part.input) for part in source.parts(3)]
    assert [a != b for a, b in zip(parts, changed)] == [True] + [False] * (len(parts) - 1)
    assert source.inputs() != inputs


def test_what_is_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        list(FolderSource(dir=str(tmp_path / "gone")).parts(None))
