from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from token_folder import write_token_folder
from video_tars import write_video_tar

from shardmill.errors import ConfigError
from shardmill.formats.webdataset import VIDEO_SPACE
from shardmill.run.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.stages.check.specimens import Collection, open_collection
from shardmill.stages.index import IndexTars


def test_a_pack_of_others_has_its_text_and_images(tmp_path: Path) -> None:
    write_video_tar(tmp_path / "a.tar", [1, 2])
    run_stage(IndexTars(tars=(str(tmp_path / "a.tar"),)), tmp_path / "index", workers=0)
    with open_collection(tmp_path / "index", VIDEO_SPACE) as collection:
        specimen = collection.take(0, 0.5)
    assert specimen is not None
    assert specimen.truth == ["question 1\nanswer</s>"]
    assert sorted(specimen.media) == ["0.jpg", "1.jpg"]
    assert len(specimen.rows) == 1 and len(specimen.rows[0].media) == 2


def test_an_empty_shard_has_none(tmp_path: Path) -> None:
    folder = write_token_folder(tmp_path / "tokens", [[]])
    with open_collection(folder, VIDEO_SPACE) as collection:
        assert collection.take(0, 0.5) is None


def test_what_is_neither_samples_nor_tokens_cannot_be_shown(tmp_path: Path) -> None:
    folder = write_token_folder(tmp_path / "tokens", [[]])
    manifest = open_manifest(folder)
    shard = replace(manifest.shards[0], num_samples=1, files={})
    strange = Collection(folder, replace(manifest, shards=(shard,)), None, VIDEO_SPACE)
    with pytest.raises(ConfigError, match="neither samples nor tokens"):
        strange.take(0, 0.0)
