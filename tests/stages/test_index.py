"""The index stage: foreign tars, local and remote, with books that balance."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from servers import web_server
from tars import tar_bytes

from shardmill.errors import ConfigError, FormatError
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import foreign_tar, open_samples
from shardmill.shards.tar.index import open_tar_index
from shardmill.stages.index import IndexTars


def image(width: int, height: int) -> bytes:
    """Return a small JPEG."""
    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, "JPEG")
    return out.getvalue()


def make_tars(folder: Path) -> Path:
    """Write two tars of images; the second has an empty medium and a name without extension."""
    first = [(f"{i}.{ext}", c) for i in range(3) for ext, c in pair(i)]
    second = [("9.jpg", b""), ("README", b"hello"), ("9.txt", b"nine")]
    (folder / "x-0.tar").write_bytes(tar_bytes(first))
    (folder / "x-1.tar").write_bytes(tar_bytes(second))
    return folder


def pair(number: int) -> list[tuple[str, bytes]]:
    """Return the members of a caption pair."""
    return [("jpg", image(40 + number, 30)), ("txt", b"caption %d" % number)]


def test_tars_are_read_where_they_lie(tmp_path: Path) -> None:
    make_tars(tmp_path)
    out = tmp_path / "out"
    stage = IndexTars(tars=(f"{tmp_path}/x-{{0..1}}.tar",), media_sizes=True)
    report = run_stage(stage, out, workers=0)
    assert report.failures == ()
    samples = open_samples(out)
    assert [samples.key(i) for i in range(4)] == ["0", "1", "2", "9"]
    assert bytes(samples.raw(1)["txt"]) == b"caption 1"
    index = open_tar_index(out / "shards" / "000000.idx")
    assert foreign_tar(out, "000000") == f"{tmp_path}/x-0.tar"
    assert index.column("width").tolist() == [40, 0, 41, 0, 42, 0]
    manifest = open_manifest(out)
    assert (manifest.num_in, manifest.num_kept) == (4, 4)
    assert manifest.stats == {"passed over|not a sample": 1, "unknown size|not an image": 1}
    assert run_stage(stage, out, workers=0).num_done == 0


def test_a_folder_of_tars_and_remote_ones(tmp_path: Path) -> None:
    make_tars(tmp_path)
    with web_server(tmp_path) as url:
        stage = IndexTars(tars=(str(tmp_path), f"{url}/x-{{0,1}}.tar"), media_sizes=True)
        assert run_stage(stage, tmp_path / "out", workers=0).failures == ()
        samples = open_samples(tmp_path / "out")
        assert len(samples) == 8
        assert bytes(samples.raw(5)["txt"]) == b"caption 1"
        assert bytes(samples.raw(6)["txt"]) == b"caption 2"
    remote = open_tar_index(tmp_path / "out" / "shards" / "000002.idx")
    assert foreign_tar(tmp_path / "out", "000002") == f"{url}/x-0.tar"
    assert remote.column("width").tolist() == [40, 0, 41, 0, 42, 0]


def test_tars_are_listed_as_by_ingest(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    make_tars(tmp_path / "a" / "deep")
    make_tars(tmp_path / "b")
    (tmp_path / "a" / "y.tar").symlink_to(tmp_path / "b" / "x-0.tar")
    stage = IndexTars(tars=(str(tmp_path / "a"),))
    with pytest.raises(FormatError, match=f"--allow {tmp_path / 'b'}"):
        list(stage.units())
    stage = IndexTars(tars=(str(tmp_path / "a"),), allow=(str(tmp_path / "b"),))
    names = [Path(place).relative_to(tmp_path / "a") for place in stage.inputs()]
    assert list(map(str, names)) == ["y.tar", "deep/x-0.tar", "deep/x-1.tar"]
    with pytest.raises(ConfigError, match=r"x-0.tar is named twice"):
        list(IndexTars(tars=(f"{tmp_path}/b/*.tar", f"{tmp_path}/b/x-0.tar")).units())
    with pytest.raises(ConfigError, match="no file matches"):
        list(IndexTars(tars=(f"{tmp_path}/c*.tar",)).units())


def test_samples_that_cannot_be_addressed_are_rejected(tmp_path: Path) -> None:
    named = [("a.txt", b"1"), ("../b.txt", b"2"), ("a.jpg", b"3"), ("c.txt", b"4")]
    (tmp_path / "x.tar").write_bytes(tar_bytes(named + [("d.txt", b""), ("a.json", b"")]))
    stage = IndexTars(tars=(f"{tmp_path}/x.tar",))
    report = run_stage(stage, tmp_path / "out", workers=0, max_skip_rate=0.9)
    assert report.failures == ()
    manifest = open_manifest(tmp_path / "out")
    assert manifest.skipped == {"climbs out of its folder": 1, "duplicate key": 2}
    assert (manifest.num_in, manifest.num_kept) == (6, 3)


def test_a_damaged_tar_fails_its_unit_alone(tmp_path: Path) -> None:
    make_tars(tmp_path)
    data = (tmp_path / "x-1.tar").read_bytes()
    (tmp_path / "x-1.tar").write_bytes(data[:1024])
    report = run_stage(IndexTars(tars=(f"{tmp_path}/*.tar",)), tmp_path / "out", workers=0)
    ((unit, message),) = report.failures
    assert unit == "000001"
    assert "x-1.tar" in message
    assert "cut off" in message
    assert report.num_done == 1


def test_empty_tars_have_an_empty_index(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(bytes(1024))
    run_stage(IndexTars(tars=(f"{tmp_path}/x.tar",)), tmp_path / "out", workers=0)
    assert len(open_samples(tmp_path / "out")) == 0


def test_what_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.tar"):
        list(IndexTars(tars=(f"{tmp_path}/no.tar",)).units())
    with pytest.raises(ConfigError, match=r"no \.tar"):
        list(IndexTars(tars=(str(tmp_path),)).units())


def test_a_tar_that_changes_changes_the_units(tmp_path: Path) -> None:
    make_tars(tmp_path)
    stage = IndexTars(tars=(f"{tmp_path}/x-0.tar",))
    before = [unit.digest for unit in stage.units()]
    with (tmp_path / "x-0.tar").open("ab") as file:
        file.write(bytes(512))
    assert [unit.digest for unit in stage.units()] != before
