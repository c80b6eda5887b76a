"""Whatever lies somewhere is opened by the reader that it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lossy_export import lossy_export
from tars import tar_bytes
from token_folder import write_token_folder
from unidisc_folder import write_interleaved
from video_tars import write_video_tar

from shardmill.errors import ConfigError, ShardmillError
from shardmill.formats.adapters.unidisc import UnidiscReader
from shardmill.formats.finder import kind_of_tokens, open_reader
from shardmill.formats.format import Format, TokensReader
from shardmill.formats.megatron import MegatronFormat, MegatronReader
from shardmill.model.codec import load_class
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow
from shardmill.plugins import FORMATS
from shardmill.running.runner import run_stage
from shardmill.shards.tokens.ids import MAGIC

SPACE = TokenSpace(text_size=40, specials={"image": 3}, num_codes=20)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(n + 1)) for n in range(4)]
    return write_token_folder(tmp_path / "tokens", [rows], SPACE)


@pytest.mark.parametrize("prefix", [None, "all"])
def test_an_export_knows_its_format_and_the_space_of_its_input(
    tmp_path: Path, tokens: Path, prefix: str | None
) -> None:
    stage = lossy_export(input_dir=tokens, format=MegatronFormat(prefix=prefix))
    run_stage(stage, tmp_path / "out", workers=0)
    reader = open_reader(str(tmp_path / "out"))
    assert isinstance(reader, MegatronReader)
    assert reader.token_space() == SPACE
    assert sum(part.num_records for part in reader.parts()) == 4


def test_an_export_that_is_not_finished_is_refused(tmp_path: Path, tokens: Path) -> None:
    run_stage(lossy_export(input_dir=tokens, format=MegatronFormat()), tmp_path / "out", workers=0)
    (tmp_path / "out" / "manifest.json").unlink()
    (tmp_path / "out" / "receipts" / "00000.json").unlink()
    with pytest.raises(ShardmillError, match="1 of 1 units are missing"):
        open_reader(str(tmp_path / "out"))


def test_folders_and_foreign_tokens_are_told_apart(tmp_path: Path, tokens: Path) -> None:
    assert isinstance(open_reader(str(tokens)), TokensReader)
    assert isinstance(open_reader(str(tokens / "shards")), MegatronReader)
    write_interleaved(tmp_path / "in" / "train_0", [0])
    lent = open_reader(str(tmp_path / "in"), space=SPACE)
    assert isinstance(lent, UnidiscReader)
    assert lent.token_space() == SPACE
    with pytest.raises(ConfigError, match=r"nothing'? does not exist"):
        open_reader(str(tmp_path / "nothing"))


def test_every_format_can_be_compared() -> None:
    for name, path in FORMATS.items():
        cls: Any = load_class(path)
        assert cls.open is not Format.open or cls.records is not Format.records, name


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
