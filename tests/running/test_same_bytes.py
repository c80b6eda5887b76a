"""Bytes depend on input and settings alone, not on the installation that made them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from drivers import snapshot
from make_media import image

import shardmill
from shardmill.errors import SampleError
from shardmill.media.image import decode_image
from shardmill.model.stage import Tally
from shardmill.running.worker import describe


def test_another_installation_and_another_engine_give_the_same_folder(tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"row {n}: the text of it"}) for n in range(9)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))

    def run(verb: str, *words: str, package: Path | None = None) -> None:
        command = [sys.executable, "-m", "shardmill", verb, *words, "--workers", "0"]
        there = dict(os.environ) if package is None else os.environ | {"PYTHONPATH": str(package)}
        done = subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    # Copied without its times, and without the optional engines.
    other = tmp_path / "other"
    shutil.copytree(
        Path(shardmill.__file__).parent, other / "shardmill", copy_function=shutil.copyfile
    )
    for engine in ("gigatoken", "fastokens"):
        (other / f"{engine}.py").write_text("raise ModuleNotFoundError(__name__)")
    run("ingest", "rows.jsonl", "shards")
    for source, out in (("shards", "tokens"), ("rows.jsonl", "texts")):
        run("tokenize", source, out)
        first = snapshot(tmp_path / out)
        run("tokenize", source, out, package=other)  # finished, and not refused
        shutil.rmtree(tmp_path / out)
        run("tokenize", source, out, package=other)
        assert snapshot(tmp_path / out) == first


def test_no_address_of_an_object_is_said_of_a_sample() -> None:
    tally = Tally()
    with tally.sample("a"):
        raise SampleError("broken image", f"cannot read {object()!r} of 3")
    assert tally.rejects[0].detail == "cannot read <object object> of 3"
    assert " at 0x" not in describe(ValueError(f"{object()!r}"))


def test_an_image_that_cannot_be_opened_is_rejected_in_the_same_words() -> None:
    png = image("PNG", 8, 8, 0)
    with pytest.raises(SampleError, match="broken image") as caught:
        decode_image(png[:29] + bytes(4) + png[33:])  # the checksum of its header is wrong
    assert "BytesIO" not in caught.value.detail
