"""shardindex.json: what the real widsindex writes, made from our receipts."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from samples_for_tests import store_samples
from tars import tar_bytes

import shardmill as sm
from shardmill.errors import ShardmillError
from shardmill.formats.wids import tar_places, write_shard_list, write_wids_index
from shardmill.model.sample import Document, Sample, Segment
from shardmill.running.runner import run_stage
from shardmill.stages.index import IndexTars

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from peers import peer_environment


def make_folder(folder: Path) -> Path:
    """Write seven texts to two shards."""
    texts = [Document((Segment(kind="text", text=f"{i}"),)) for i in range(7)]
    samples = [Sample(key=f"k{i}", document=text) for i, text in enumerate(texts)]
    store_samples(folder, samples, per_shard=4)
    return folder


def test_shards_are_named_relative_to_the_list(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x")
    described = json.loads(write_wids_index(folder, name="mine").read_text())
    shards = described.pop("shardlist")
    assert described == {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "mine"}
    assert [shard["nsamples"] for shard in shards] == [4, 3]
    for shard in shards:
        assert shard["filesize"] == (folder / shard["url"]).stat().st_size
        assert "md5sum" not in shard


def test_it_says_what_the_real_widsindex_says(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "x")
    tars = sorted(map(str, (folder / "shards").glob("*.tar")))
    create = [sys.executable, "-m", "wids.wids_index", "create", *tars]
    create += ["--name", "mine", "--output", str(tmp_path / "theirs.json")]
    code = "import sys; from wids.wids_index import main; sys.argv = sys.argv[1:]; main()"
    create[1:3] = ["-c", code, "widsindex"]
    try:
        environment = peer_environment("wids")
    except subprocess.CalledProcessError:
        pytest.skip("wids cannot be installed here")
    subprocess.run(create, env=environment, capture_output=True, check=True)
    theirs = json.loads((tmp_path / "theirs.json").read_text())
    ours = json.loads(write_wids_index(folder, name="mine", with_md5=True).read_text())
    for shard in ours["shardlist"]:
        shard["url"] = str(folder / shard["url"])
        assert shard["md5sum"] == hashlib.md5(Path(shard["url"]).read_bytes()).hexdigest()
    assert ours == theirs


def test_own_tars_are_inside(tmp_path: Path) -> None:
    text = Document((Segment(kind="text", text="x"),))
    store_samples(
        tmp_path / "x", [Sample(key=f"{i}", document=text) for i in range(3)], per_shard=2
    )
    places = list(tar_places(tmp_path / "x"))
    assert [(place.num_samples, place.is_inside) for place in places] == [(2, True), (1, True)]
    for place in places:
        assert Path(place.absolute(tmp_path / "x")).stat().st_size == place.num_bytes


def test_foreign_tars_are_named_as_their_index_does(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_bytes([("1.txt", b"")]))
    run_stage(IndexTars(tars=(f"{tmp_path}/a.tar",)), tmp_path / "out", workers=0)
    (place,) = tar_places(tmp_path / "out")
    assert place.url == place.absolute(tmp_path / "out") == f"{tmp_path}/a.tar"


def test_tars_elsewhere_are_named_relative_to_the_list(tmp_path: Path) -> None:
    for name, keys in (("a", "12"), ("b", "345")):
        (tmp_path / "raw" / name).mkdir(parents=True)
        members = [(f"{name}{key}.txt", b"") for key in keys]
        (tmp_path / "raw" / name / "x.tar").write_bytes(tar_bytes(members))
    out = tmp_path / "index"
    sm.index(f"{tmp_path}/raw/*/x.tar", out, md5=True, workers=0)
    index_path = out / "shardindex.json"
    shards = json.loads(index_path.read_text())["shardlist"]
    assert [shard["url"] for shard in shards] == ["../raw/a/x.tar", "../raw/b/x.tar"]
    assert [shard["nsamples"] for shard in shards] == [2, 3]
    for shard in shards:
        content = (out / shard["url"]).read_bytes()
        assert shard["md5sum"] == hashlib.md5(content).hexdigest()
        assert shard["filesize"] == len(content)
    # After a move the list still holds, with its checksums; the lists of whole paths follow.
    moved = (tmp_path / "moved").resolve()
    moved.mkdir()
    for name in ("raw", "index"):
        (tmp_path / name).rename(moved / name)
    sm.index(f"{moved}/raw/*/x.tar", moved / "index", workers=0)
    assert json.loads((moved / "index/shardindex.json").read_text())["shardlist"] == shards
    listed = json.loads((moved / "index/shardlist.json").read_text())
    assert [shard["url"] for shard in listed] == [f"{moved}/raw/{name}/x.tar" for name in "ab"]


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardmillError):
        list(tar_places(tmp_path))


def test_both_files_hold_the_same_list(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_bytes([("1.txt", b""), ("2.txt", b"")]))
    (tmp_path / "b.tar").write_bytes(tar_bytes([("1.txt", b"")]))
    run_stage(IndexTars(tars=(f"{tmp_path}/*.tar",)), tmp_path / "out", workers=0)
    json_path, pickle_path = write_shard_list(tmp_path / "out")
    expected = [
        {"url": f"{tmp_path}/a.tar", "nsamples": 2},
        {"url": f"{tmp_path}/b.tar", "nsamples": 1},
    ]
    assert json.loads(json_path.read_text()) == expected
    assert pickle.loads(pickle_path.read_bytes()) == expected
