"""TOML as a person wrote it: read, or refused with the file and what is wrong in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.errors import ConfigError
from shardmill.storage.text import read_toml


def test_tables_are_read(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('kind = "slurm"\n[[step]]\nverb = "tokenize"\n', encoding="utf-8")
    assert read_toml(path) == {"kind": "slurm", "step": [{"verb": "tokenize"}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = 1\nb = \n", "line 2"),
        (b"a = '\xff'", "codec"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (None, "No such file"),
    ],
    ids=["half a line", "not UTF-8", "too deep", "gone"],
)
def test_what_cannot_be_read_is_refused_by_name(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "tokens.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"cannot read .*tokens\.toml: .*{message}"):
        read_toml(path)
