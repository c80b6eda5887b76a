"""Foreign tokens are recognised by what lies there, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tars import tar_bytes
from unidisc_folder import write_interleaved
from video_tars import write_video_tar

from shardmill.formats.exported import kind_of_tokens
from shardmill.shards.tokens.ids import MAGIC


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_interleaved(tmp_path / "unidisc" / "tmp_train_0", [0])
    write_video_tar(tmp_path / "video" / "0-1" / "shard_0-0-50.tar", [0])
    (tmp_path / "mega").mkdir()
    (tmp_path / "mega" / "x.idx").write_bytes(MAGIC)
    (tmp_path / "pairs.tar").write_bytes(tar_bytes([("k.json", b"{}")]))
    (tmp_path / "rows.jsonl").write_text("{}")
    (tmp_path / "x.idx").write_bytes(b"SHMLARR1")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("unidisc", "unidisc"),
        ("unidisc/tmp_train_0", "unidisc"),
        ("video", "packed-tars"),
        ("video/*/*.tar", "packed-tars"),
        ("mega", "megatron"),
        ("mega/x", "megatron"),
        ("mega/x.bin", "megatron"),
        ("mega/x.idx", "megatron"),
        ("pairs.tar", None),
        ("rows.jsonl", None),
        ("x.idx", None),
        ("nothing", None),
        ("nothing*.tar", None),
    ],
)
def test_what_lies_there_decides(place: Path, given: str, kind: str | None) -> None:
    assert kind_of_tokens([str(place / given)]) == kind


def test_a_url_is_not_looked_at() -> None:
    assert kind_of_tokens(["s3://bucket/x.tar"]) is None
