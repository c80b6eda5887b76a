"""The {url, nsamples} list, as JSON and as a pickle."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

from tars import tar_bytes

from shardmill.formats.webdataset.wids import write_shard_list
from shardmill.run.runner import run_stage
from shardmill.stages.index import IndexTars


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
