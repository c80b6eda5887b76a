"""An index that does not fit its tar is found, also when all checksums are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.model.manifest import ShardEntry
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.stage import Draft
from shardmill.shards.commit import checksum_file
from shardmill.shards.samples import SampleWriter
from shardmill.shards.tar.index import open_index
from shardmill.stages.check.folder import check_tar


def write_shard(folder: Path, name: str, keys: list[str], *, text: str = "text") -> Draft:
    draft = Draft(folder)
    with SampleWriter(draft, lambda split: name) as writer:
        for key in keys:
            segment = Segment(kind="text", text=text)
            image = Segment(kind="image", media="jpg")
            media = {"jpg": b"\xff\xd8" + key.encode()}
            document = Document((image, segment))
            writer.add(Sample(key=key, document=document, media=media))
    return draft


def entry(folder: Path, name: str, num_samples: int, roles: str = "tar idx") -> ShardEntry:
    files = {role: checksum_file(folder / f"{name}.{role}") for role in roles.split()}
    return ShardEntry(name, num_samples, files)


def test_a_tar_and_its_index_agree(tmp_path: Path) -> None:
    write_shard(tmp_path, "a", ["x", "y-1", "y"])
    assert list(check_tar(tmp_path, entry(tmp_path, "a", 3))) == []


def test_other_numbers_of_samples_are_found(tmp_path: Path) -> None:
    write_shard(tmp_path, "a", ["x", "y"])
    [(path, what)] = check_tar(tmp_path, entry(tmp_path, "a", 3))
    assert path == "a.idx"
    assert what == "lists 2 samples, the tar holds 2, the receipt says 3"


@pytest.mark.parametrize(
    ("keys", "text", "says"),
    [(["x", "z"], "text", "other keys"), (["x", "y"], "other", "does not fit the tar")],
)
def test_the_index_of_another_tar_is_found(
    tmp_path: Path, keys: list[str], text: str, says: str
) -> None:
    write_shard(tmp_path, "a", ["x", "y"])
    write_shard(tmp_path, "b", keys, text=text)
    (tmp_path / "b.idx").rename(tmp_path / "a.idx")
    found = list(check_tar(tmp_path, entry(tmp_path, "a", 2)))
    assert any(path == "a.idx" and says in what for path, what in found)


@pytest.mark.parametrize("role", ["tar", "idx"])
def test_a_file_that_is_something_else_is_named(tmp_path: Path, role: str) -> None:
    write_shard(tmp_path, "a", ["x"])
    shard = entry(tmp_path, "a", 1)
    (tmp_path / f"a.{role}").write_bytes(b"GIF89a" * 400)
    [(path, _)] = check_tar(tmp_path, shard)
    assert path == f"a.{role}"


def test_a_shard_without_tar_is_not_looked_at(tmp_path: Path) -> None:
    write_shard(tmp_path, "a", ["x"])
    assert list(check_tar(tmp_path, entry(tmp_path, "a", 7, "idx"))) == []
    assert len(open_index(tmp_path / "a.idx")) == 1
