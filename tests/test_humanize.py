"""Numbers as people read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill import humanize as wording


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1.4e9, "1.4 GB"), (5e15, "5000.0 TB")],
)
def test_size(num_bytes: float, text: str) -> None:
    assert wording.size(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.2 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (125, "2 min 05 s"),
        (7500, "2 h 05 min"),
        (5 * 86400 + 7200, "5 d 2 h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


def test_plural_and_shares() -> None:
    assert wording.plural(1, "sample") == "1 sample"
    assert wording.plural(12345, "sample") == "12,345 samples"
    assert wording.percent(0.9634) == "96.3 %"


def test_a_message_has_paths_as_one_would_type_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = f"error: {tmp_path}/out: see '{tmp_path}/a b', {tmp_path}-2/x, /x{tmp_path}/y"
    left = f"error: out: see 'a b', {tmp_path}-2/x, /x{tmp_path}/y"
    assert wording.typed(said) == left
