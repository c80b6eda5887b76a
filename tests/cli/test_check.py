"""`shardmill check`: bytes first, then what they say; specimens and lists on request."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from video_tars import write_video_tar

from shardmill.cli.main import cli

DATA = Path(__file__).parents[2] / "demo" / "data"


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, list(map(str, words)))


def report_of(*words: object, code: int = 0) -> Any:
    done = run(*words, "--json")
    assert done.exit_code == code, f"{done.output} {done.exception!r}"
    return json.loads(done.stdout)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    flags = ("--per-shard", 8, "--max-skip-rate", 0.2, "--workers", 0)
    assert run("ingest", DATA / "pairs.jsonl", tmp_path / "pairs", *flags).exit_code == 0
    return tmp_path / "pairs"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Return the index of two tars of packs by another pipeline."""
    for number in range(2):
        write_video_tar(tmp_path / "tars" / f"{number}.tar", [1, 2])
    assert run("index", tmp_path / "tars", tmp_path / "index", "--workers", 0).exit_code == 0
    return tmp_path / "index"


def test_counts_are_those_of_each_shard(pairs: Path) -> None:
    report = report_of("check", pairs, "--pairs")
    assert report["sound"] and report["content"]["pairs"] == 32
    assert [shard["num_samples"] for shard in report["shards"]] == [7, 8, 7, 8, 2]
    text = run("check", pairs).output
    assert "32 samples, 32 images, 32 pairs" in text and "5 shards of 2 to 8" in text


def test_quick_and_no_content_look_at_nothing_else(pairs: Path) -> None:
    assert "content" not in report_of("check", pairs, "--quick")
    assert "content" not in report_of("check", pairs, "--no-content")


def test_images_that_are_cut_off_are_found_by_decoding(tmp_path: Path) -> None:
    whole = next((DATA / "photos").glob("*.jpg")).read_bytes()
    for name, content in {"a": whole, "b": whole[: len(whole) // 2]}.items():
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw" / f"{name}.jpg").write_bytes(content)
        (tmp_path / "raw" / f"{name}.txt").write_text("words")
    run("ingest", tmp_path / "raw", tmp_path / "shards", "--workers", 0)
    assert report_of("check", tmp_path / "shards")["sound"]
    report = report_of("check", tmp_path / "shards", "--decode", 9, code=1)
    assert (report["sound"], report["num_decoded"]) == (False, 2)
    (broken,) = report["broken_images"]
    assert (broken["key"], broken["medium"]) == ("b", "jpg")
    text = run("check", tmp_path / "shards", "--quick", "--decode", 9).output
    assert "1 broken image of 2 decoded" in text
    assert f"000000.tar, sample b, jpg at byte {broken['offset']}: truncated image" in text


def test_samples_without_text_are_named_if_pairs_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "only words"}\n{"text": "more"}\n')
    run("ingest", tmp_path / "rows.jsonl", tmp_path / "rows", "--workers", 0)
    assert report_of("check", tmp_path / "rows")["sound"]
    report = report_of("check", tmp_path / "rows", "--pairs", code=1)
    assert not report["sound"] and report["num_faults"] == 2
    text = run("check", tmp_path / "rows", "--pairs").output
    assert "2 faults in 1 shard" in text and "rows-00000001: has no medium" in text


def test_packs_of_others_by_their_rules(index: Path) -> None:
    limits = ("--num-patches", 256, "--max-tokens", 8000)
    assert report_of("check", index, *limits)["content"]["images"] == 6
    assert report_of("check", index, "--max-tokens", 300, code=1)["num_faults"] == 2
    other = ("--space", 'text_size=40000,specials={"im_patch":32000,"im_start":1,"im_end":2}')
    assert report_of("check", index, *other, code=1)["num_faults"] == 4


def test_the_list_of_tars_is_json_and_a_pickle(pairs: Path) -> None:
    report = report_of("check", pairs, "--list-tars")
    listed, pickled = (Path(path).read_bytes() for path in report["lists"])
    assert json.loads(listed) == pickle.loads(pickled)
    assert json.loads(listed)[0] == {"url": str(pairs / "shards/000000.tar"), "nsamples": 7}


def test_a_folder_without_tars_has_no_list(pairs: Path, tmp_path: Path) -> None:
    run("tokenize", DATA / "texts.jsonl", tmp_path / "tokens", "--workers", 0)
    refused = run("check", tmp_path / "tokens", "--list-tars")
    assert "holds no tars" in str(refused.exception)


def test_specimens_are_written_even_of_faulty_packs(index: Path, tmp_path: Path) -> None:
    flags = ("--dump", tmp_path / "dump", "--dump-count", 2)
    report = report_of("check", index, "--max-tokens", 300, *flags, code=1)
    assert len(report["dumped"]) == 2 and "lists" not in report
    assert (Path(report["dumped"][0]) / "unmasked_tokens.txt").exists()
    assert "2 specimens in" in run("check", index, *flags).output


def test_a_broken_shard_is_named_with_the_others_checked(pairs: Path) -> None:
    tar = pairs / "shards" / "000001.tar"
    tar.write_bytes(tar.read_bytes()[:2000])
    report = report_of("check", pairs, code=1)
    assert [s["name"] for s in report["shards"] if s["faults"]] == ["000001"]
    assert report["content"]["samples"] == 24
