"""The verbs of the spine from raw rows to a repaired folder, as processes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Shardmill = Callable[..., subprocess.CompletedProcess[str]]

PAIRS = ("ingest", "data/pairs.jsonl", "pairs", "--per-shard", "8", "--max-skip-rate", "0.2")


def output_of(shardmill: Shardmill, *words: str) -> Any:
    return json.loads(shardmill(*words, "--json").stdout)


def test_ingest_does_not_write_into_the_folder_that_it_reads(
    shardmill: Shardmill, tmp_path: Path
) -> None:
    (tmp_path / "album").mkdir()
    shutil.copy(tmp_path / "data" / "photos" / "cat.jpg", tmp_path / "album")
    done = shardmill("ingest", "album", "album/../album/shards", code=2)
    assert "lies inside of the input album" in done.stderr
    assert not (tmp_path / "album" / "shards").exists()
    shardmill("ingest", "album", "album-shards")


def test_ingest_accounts_for_every_row(shardmill: Shardmill) -> None:
    report = output_of(shardmill, *PAIRS)
    assert report["complete"] and report["failures"] == []
    assert (report["num_shards"], report["num_in"], report["num_kept"]) == (5, 34, 32)
    assert report["skipped"] == {"missing file": 1, "not an image": 1}


def test_running_again_does_nothing_and_other_settings_are_refused(
    shardmill: Shardmill, tmp_path: Path
) -> None:
    shardmill(*PAIRS)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "pairs" / "shards").iterdir()}
    assert output_of(shardmill, *PAIRS)["run"]["num_done"] == 0
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "pairs" / "shards").iterdir()}
    refused = shardmill(*PAIRS, "--layout", "dashed", code=2)
    assert 'layout: "dotted" -> "dashed"' in refused.stderr


def test_too_many_broken_rows_fail_the_unit_by_name(shardmill: Shardmill) -> None:
    failed = shardmill(*PAIRS[:-1], "0", code=1)
    assert "000000: skipped 1 of 8 samples" in failed.stdout
    assert "unicorn.jpg" in failed.stdout
    status = output_of(shardmill, "status", "pairs")
    assert (status["num_done"], status["num_units"]) == (3, 5)
    assert [failure["unit"] for failure in status["failures"]] == ["000000", "000002"]


def test_parts_of_three_machines_make_one_folder(shardmill: Shardmill) -> None:
    for part in ("2/3", "3/3", "1/3"):
        report = output_of(shardmill, *PAIRS, "--part", part)
    assert report["complete"]
    assert output_of(shardmill, "check", "pairs")["sound"]


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "a/b"])
def test_a_part_that_cannot_be_is_refused(shardmill: Shardmill, part: str) -> None:
    assert "part" in shardmill(*PAIRS, "--part", part, code=2).stderr


def test_check_finds_and_repairs_only_what_is_broken(shardmill: Shardmill, tmp_path: Path) -> None:
    shardmill(*PAIRS)
    broken = tmp_path / "pairs" / "shards" / "000000.tar"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:5000] + b"x" + whole[5001:])
    verdict = json.loads(shardmill("check", "pairs", "--json", code=1).stdout)
    assert [problem["path"] for problem in verdict["problems"]] == ["shards/000000.tar"]
    assert output_of(shardmill, "check", "pairs", "--repair")["run"]["num_done"] == 1
    assert broken.read_bytes() == whole
    assert output_of(shardmill, "check", "pairs")["sound"]


def test_show_prints_a_chat_by_key_with_its_media_in_place(shardmill: Shardmill) -> None:
    shardmill("ingest", "data/chats.json", "chats", "--max-skip-rate", "0.2")
    text = shardmill("show", "chats", "--sample", "chats-00000016").stdout
    assert text.index("user") < text.index("[image 0.jpg]") < text.index("[image 1.webp]")
    assert text.index("[image 1.webp]") < text.index("assistant") < text.index("The first:")
    missing = shardmill("show", "chats", "--sample", "nobody", code=2)
    assert "'nobody'" in missing.stderr and "chats-00000000" in missing.stderr


def test_filter_drops_duplicates_and_unwanted_words(shardmill: Shardmill) -> None:
    shardmill(*PAIRS)
    words = ("--filter", 'words,words=["cat","galaxies"]', "--drop-duplicates")
    report = output_of(shardmill, "filter", "pairs", "kept", *words)
    assert report["skipped"] == {"unwanted word": 3}
    assert report["num_kept"] == 29


def test_status_of_another_folder_says_what_is_missing(shardmill: Shardmill) -> None:
    assert "cannot tell what data holds" in shardmill("status", "data", code=2).stderr


def test_check_names_a_key_that_two_shards_have(shardmill: Shardmill, tmp_path: Path) -> None:
    # More than are looked at before the work, where it would be refused.
    rows = [{"text": f"text {i}", "id": str(i % 69)} for i in range(70)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shardmill("ingest", "rows.jsonl", "rows", "--shape", "text", "--key", "id", "--per-shard", "35")
    verdict = json.loads(shardmill("check", "rows", "--json", code=1).stdout)
    assert [problem["path"] for problem in verdict["problems"]] == ["shards/000001.idx"]
    assert "'0'" in verdict["problems"][0]["what"]
    assert "--repair" not in shardmill("check", "rows", code=1).stdout  # it would not help


def test_a_pattern_names_the_one_folder_that_a_verb_reads(shardmill: Shardmill) -> None:
    shardmill("ingest", "data/texts.jsonl", "texts-a")
    assert output_of(shardmill, "status", "texts-*")["complete"]
    shardmill("ingest", "data/texts.jsonl", "texts-b")
    assert "names 2 places" in shardmill("status", "texts-{a,b}", code=2).stderr
    assert "no file matches 'gone-*'" in shardmill("status", "gone-*", code=2).stderr


def test_show_says_that_a_folder_is_empty(shardmill: Shardmill) -> None:
    shardmill("ingest", "data/texts.jsonl", "none", "--limit", "0", "--allow-empty")
    shardmill("tokenize", "none", "tokens", "--template", "text", "--allow-empty")
    for folder in ("none", "tokens"):
        assert f"{folder} is empty" in shardmill("show", folder).stdout
        told = shardmill("show", folder, "--json")
        assert (told.stdout, "is empty" in told.stderr) == ("", True)


def test_help_tells_how_much_json_is_printed(shardmill: Shardmill) -> None:
    for verb in ("show", "run"):
        assert "an object a line" in " ".join(shardmill(verb, "--help").stdout.split())


def test_tokens_and_packs_are_shown_with_what_is_learned(
    shardmill: Shardmill, tmp_path: Path
) -> None:
    (tmp_path / "patches.toml").write_text(
        'layout = "patches"\n[space]\nadded = ["im_patch", "im_start", "im_end"]\n'
    )
    shardmill("ingest", "data/chats.json", "chats")
    shardmill("tokenize", "chats", "tokens", "--recipe", "patches.toml", "--template", "chat")
    shardmill("plan", "tokens", "packs.plan", "--capacity", "2048")
    shardmill("pack", "tokens", "packs.plan", "packs")
    rows = {}
    for folder in ("tokens", "packs"):
        row = json.loads(shardmill("show", folder, "--sample", "chats-00000003", "--json").stdout)
        rows[folder] = (row["ids"], row["loss"], row["runs"])
        learned = "".join(run["text"] for run in row["runs"] if run["learned"])
        assert "Green." in learned and "What colour" not in learned
    assert rows["tokens"] == rows["packs"]
