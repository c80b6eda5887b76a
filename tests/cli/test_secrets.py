"""No file that a run leaves and nothing that it prints holds a secret of a url."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import shardmill as sm
from shardmill.errors import ConfigError, FormatError, SampleError, StoreError, mask
from shardmill.running.engine import keep_failure
from shardmill.running.events import Event
from shardmill.shards.ledger import Ledger

SECRET = "hushhush7"
URLS = [
    f"https://host.invalid/a.jpg?X-Amz-Signature={SECRET}&X-Amz-Credential={SECRET}",
    f"https://host.invalid/a.jpg?se=2030&sig={SECRET}",
    f"http://user:{SECRET}@host.invalid/a.jpg",
    f"https://{SECRET}@host.invalid/a.jpg",
    f"https://host.invalid/a.jpg?AWSAccessKeyId={SECRET}&Signature={SECRET}",
    f"s3://KEY:{SECRET}@bucket/a.jpg",
    f"abfs://container:{SECRET}@account/a.jpg",
    f"s3://bucket/a.jpg?token={SECRET}",
    f"http://[::1/a.jpg?token={SECRET}",
    f"HTTPS://host.invalid/a b.jpg?sig={SECRET}",
    f"https://host.invalid/a.jpg#access_token={SECRET}",
    f"ftp://user:{SECRET}@host.invalid/a.jpg",
]
# What stands in rows is fetched as it is; a row is rejected, and its reason says no secret.
WEB = [url for url in URLS if url.startswith("https://host") and "@" not in url]


@pytest.mark.parametrize("url", URLS)
def test_every_text_is_masked(url: str, tmp_path: Path) -> None:
    said = f"cannot read {url!r} ({url}): refused"
    assert SECRET not in mask(said) and mask(said).endswith("refused")
    assert SECRET not in str(ConfigError(said)) + str(FormatError("x", path=url))
    assert SECRET not in str(StoreError(said, passing=True))
    error = SampleError("not found", said)
    assert SECRET not in error.detail + str(error)
    assert SECRET not in Event(kind="failed", message=said).message
    ledger = Ledger(tmp_path, "run")
    ledger.make_folders()
    ledger.make_drafts()
    keep_failure(ledger, "0", said, f"Traceback\n{said}")
    assert SECRET not in (tmp_path / "failures" / "0.json").read_text()


def test_other_texts_stay_as_they_are() -> None:
    for text in (
        "s3://bucket/a/b.tar: 12 tokens, num_tokens=5",
        "abfs://container@account/x",
        "row 7 of /data/a?b.jsonl, member 'x=1'",
    ):
        assert mask(text) == text


@pytest.mark.parametrize(
    "url", [url for url in URLS if not url.startswith(("ftp", "http://["))][:8]
)
def test_a_place_with_a_secret_is_refused_before_anything_is_written(
    url: str, tmp_path: Path
) -> None:
    place = url.replace("a.jpg", "a.jsonl")
    with pytest.raises(sm.ShardmillError, match="environment") as caught:
        sm.ingest(place, tmp_path / "out", workers=0)
    assert SECRET not in str(caught.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "given",
    [
        {"media_root": f"https://host.invalid/?sig={SECRET}"},
        {"allow": [f"https://user:{SECRET}@host.invalid/"]},
        {"allow": [f"s3://KEY:{SECRET}@bucket"]},
    ],
)
def test_a_secret_in_any_setting_is_refused(tmp_path: Path, given: Any) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(sm.ShardmillError, match="environment") as caught:
        sm.ingest(tmp_path / "rows.jsonl", tmp_path / "out", shape="text", workers=0, **given)
    assert SECRET not in str(caught.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("rate", ["1", "0"])
def test_a_run_over_rows_with_secrets_keeps_none(tmp_path: Path, rate: str) -> None:
    rows = [{"text": f"row {n}", "image": url} for n, url in enumerate(WEB)]
    rows += [{"text": "good"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["ingest", "rows.jsonl", "out", "--shape", "pair", "--workers", "1"]
    printed = run(tmp_path, *words, "--max-skip-rate", rate)
    printed += run(tmp_path, "status", "out") + run(tmp_path, "status", "out", "--json")
    printed += run(tmp_path, "check", "out") + run(tmp_path, "show", "out")
    assert SECRET not in printed, printed
    leaks = [
        str(path)
        for path in (tmp_path / "out").rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert leaks == []
    left = {"1": "rejects", "0": "failures"}[rate]
    assert list((tmp_path / "out" / left).iterdir())


@pytest.mark.parametrize("words", [["show"], ["check"], ["status"], ["plan"]])
def test_commands_do_not_repeat_a_secret(tmp_path: Path, words: list[str]) -> None:
    printed = run(tmp_path, *words, URLS[2].replace(".jpg", ""), "out")
    assert SECRET not in printed and printed


@dataclass(frozen=True)
class Stubborn:
    """A filter that fails with the words of a library."""

    def check(self, sample: object, sizes: object) -> None:
        raise RuntimeError(f"GET {URLS[0]}: 403")


def test_what_other_libraries_say_is_masked(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(sm.ShardmillError, match="403") as caught:
        sm.ingest(tmp_path / "rows.jsonl", tmp_path / "out", filter=[Stubborn()], workers=0)
    assert SECRET not in str(caught.value)
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert any(b"403" in path.read_bytes() for path in left)
    assert not any(SECRET.encode() in path.read_bytes() for path in left)


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "shardmill", *words],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr
