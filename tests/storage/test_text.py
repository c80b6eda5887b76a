"""JSON bytes: sorted, one text for one value, also for names that are not UTF-8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import ConfigError, FormatError
from shardmill.storage.text import dump_line, dump_page, parse_json, read_json, read_toml

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.floats(-1e9, 1e9) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_lines_and_pages_hold_the_value(value: Any) -> None:
    line, page = dump_line(value), dump_page(value)
    assert parse_json(line) == parse_json(page) == value
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and page.endswith(b"\n")


@given(st.dictionaries(ANY_TEXT, st.integers(), max_size=5))
def test_the_order_of_keys_does_not_show(value: dict[str, int]) -> None:
    assert dump_line(value) == dump_line(dict(reversed(value.items())))


def test_a_name_that_is_not_utf_8_survives() -> None:
    name = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    assert parse_json(dump_line({"path": name})) == {"path": name}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"{} {}", b"\0" * 9])
def test_what_is_not_json_is_a_format_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "page.json").write_bytes(content)
    with pytest.raises(FormatError, match=r"page\.json: is not JSON"):
        read_json(tmp_path / "page.json")


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
