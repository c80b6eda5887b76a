"""shardindex.json: what the real widsindex writes, made from our books."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from samples_for_tests import store_samples

from shardmill.formats.webdataset.wids import write_wids_index
from shardmill.model.sample import Document, Sample, Segment

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
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
