"""Runs as a user sees them end: budgets, a step that keeps nothing, and what would be submitted."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from drivers import snapshot
from invoked import invoke, run_main
from make_media import image

import shardmill as sm

Shardmill = Callable[..., subprocess.CompletedProcess[str]]

INGEST = ("ingest", "rows.jsonl", "out", "--per-shard", "1", "--workers", "1")


@pytest.fixture
def rows(tmp_path: Path) -> list[str]:
    """Five rows, of which all images but the first are missing."""
    names = [f"{number}.jpg" for number in range(5)]
    (tmp_path / "0.jpg").write_bytes(image())
    lines = [json.dumps({"image": name, "caption": name}) for name in names]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    return names


@pytest.mark.parametrize("per_shard", ["1", "2", "1000"])
def test_small_units_cannot_lose_everything(
    shardmill: Shardmill, tmp_path: Path, rows: list[str], per_shard: str
) -> None:
    words = (*INGEST[:4], per_shard, *INGEST[5:])
    refused = shardmill(*words, code=2 if per_shard == "1" else 1)
    assert "missing file" in refused.stderr + refused.stdout
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_repairing_and_trying_again_completes(
    shardmill: Shardmill, tmp_path: Path, rows: list[str]
) -> None:
    refused = shardmill(*INGEST, code=2).stderr
    assert "of its 5 samples 4 are broken" in refused and "4 x missing file" in refused
    assert "--retry-rejects" in refused and "--max-skip-rate" in refused
    waiting = shardmill("filter", "out", "next", "--filter", "media", code=2).stderr
    assert "all 5 units are done" in waiting
    for name in rows[1:]:
        shutil.copy(tmp_path / "data" / "photos" / "cat.jpg", tmp_path / name)
    report = json.loads(shardmill(*INGEST, "--retry-rejects", "missing", "--json").stdout)
    assert report["complete"] and report["num_kept"] == 5


def test_a_higher_limit_completes(shardmill: Shardmill, rows: list[str]) -> None:
    shardmill(*INGEST, code=2)
    done = json.loads(shardmill(*INGEST, "--max-skip-rate", "1", "--json").stdout)
    assert done["complete"] and done["run"]["num_done"] == 0 and done["num_kept"] == 1


def test_rows_of_which_none_can_be_kept_are_refused_before_the_work(
    shardmill: Shardmill, tmp_path: Path, rows: list[str]
) -> None:
    (tmp_path / "0.jpg").unlink()
    assert "--media-root" in shardmill(*INGEST, code=2).stderr
    assert not (tmp_path / "out").exists()
    done = json.loads(shardmill(*INGEST, "--max-skip-rate", "1", "--json", code=3).stdout)
    assert not done["complete"] and done["error"]["kind"] == "NothingKept"
    assert "5 samples in, 5 x missing file. " in done["error"]["message"]


EMPTY = {
    "ingest rows.jsonl out --limit 0": "kept of rows.jsonl: --limit 0 takes none",
    "filter texts out --filter text_length,min_chars=9999": "texts: 8 samples in, 8 x text too",
    "frames texts out": "texts: 8 samples in, and none has videos",
    "frames texts out --sampler whole": "none has videos",
    "codes texts out --from vqcode_512": "texts: 8 samples in, and none has images",
    "tokenize texts out --max-length 1": "8 x too long",
    "tokenize rows.jsonl out --limit 0": "of rows.jsonl: --limit 0 takes none",
    "measure texts out --model qwen3-vl --estimate --limit 0": "--limit 0 takes none",
    "remove texts out --keys keys.txt": "8 x removed on request",
    "plan tokens out --capacity 2 --overlong drop": "8 lengths: 8 x longer than a pack",
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with eight texts as rows, samples and tokens, and their keys."""
    folder = tmp_path_factory.mktemp("texts")
    rows = [json.dumps({"text": f"text {number}"}) for number in range(8)]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    (folder / "keys.txt").write_text("\n".join(f"rows-{number:08d}" for number in range(8)))
    invoke("ingest", folder / "rows.jsonl", folder / "texts", "--workers", 0)
    invoke("tokenize", folder / "texts", folder / "tokens", "--workers", 0)
    return folder


@pytest.mark.parametrize("words", EMPTY)
def test_nothing_done_is_no_tick(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(texts)
    out = tmp_path / "out"
    typed = [str(out) if word == "out" else word for word in words.split()]
    typed += [] if typed[0] == "plan" else ["--workers", "0", "--max-skip-rate", "1"]
    for _ in range(2):  # what is finished ends as it did
        done = "".join(run_main(*typed, code=3))
        assert EMPTY[words] in done and "✓" not in done and "--allow-empty" in done
    error = json.loads(run_main(*typed, "--json", code=3)[0])["error"]
    assert error["kind"] == "NothingKept" and EMPTY[words] in error["message"]
    assert "✓" in run_main(*typed, "--allow-empty")[0]


def test_a_recipe_stops_at_the_step_that_keeps_nothing(texts: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f"""
        [[step]]
        verb = "filter"
        in = "{texts}/texts"
        out = "{tmp_path}/none"
        filter = "text_length,min_chars=9999"
        workers = 0

        [[step]]
        verb = "tokenize"
        in = "{tmp_path}/none"
        out = "{tmp_path}/tokens"
        workers = 0
        """
    )
    out, err = run_main("run", recipe, code=3)
    assert "8 x text too short" in out and f"stopped at step 1, filter {texts}/texts" in err
    assert not (tmp_path / "tokens").exists()
    with pytest.raises(sm.NothingKept, match="8 x text too short") as caught:
        sm.run(recipe)
    assert not caught.value.report.complete and "in the step filter" in caught.value.__notes__[0]


def make_tars(folder: Path, photo: Path, *, cut: bool) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(3):
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            tar.add(photo.resolve(), f"{number}.jpg")
    if cut:
        content = (folder / "1.tar").read_bytes()
        (folder / "1.tar").write_bytes(content[: len(content) // 2])


def test_a_repaired_tar_costs_only_its_own_unit(shardmill: Shardmill, tmp_path: Path) -> None:
    photo, words = tmp_path / "data" / "photos" / "cat.jpg", ("--workers", "1")
    make_tars(tmp_path / "raw", photo, cut=True)
    shardmill("ingest", "raw/*.tar", "out", *words, code=1)
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out/shards").iterdir()}
    with tarfile.open(tmp_path / "raw" / "1.tar", "w") as tar:
        tar.add(photo.resolve(), "1.jpg")
    done = shardmill("ingest", "raw/*.tar", "out", *words, "--json")
    assert "inputs changed: 2 of 3 units are done and stay" in done.stderr
    assert json.loads(done.stdout)["run"]["num_done"] == 1
    shards = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out/shards").iterdir()}
    assert len(shards) == 6 and times.items() <= shards.items()
    shardmill("check", "out")
    shardmill("ingest", "raw/*.tar", "calm", *words)
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "calm")


def test_a_finished_folder_is_not_repaired_from_other_inputs(
    shardmill: Shardmill, tmp_path: Path
) -> None:
    make_tars(tmp_path / "raw", tmp_path / "data" / "photos" / "cat.jpg", cut=False)
    shardmill("ingest", "raw/*.tar", "out", "--workers", "1")
    content = bytearray((tmp_path / "raw" / "1.tar").read_bytes())
    content[700] ^= 1  # of the same size
    (tmp_path / "raw" / "1.tar").write_bytes(content)
    (tmp_path / "out" / "shards" / "000001.tar").write_bytes(b"damaged")
    before = snapshot(tmp_path / "out")
    for words in (("ingest", "raw/*.tar", "out"), ("check", "out", "--repair")):
        assert "begun with other inputs" in shardmill(*words, "--workers", "1", code=2).stderr
    assert snapshot(tmp_path / "out") == before


CLUSTER = """
kind = "slurm"
tasks = 101
at_once = 25

[task]
partition = "preempt"
time = "4:00:00"
gpus = 1
cpus = 4
memory = "16G"
warn_s = 600
options = ["--account=vision"]
"""


def test_a_dry_run_prints_the_script_and_writes_nothing(
    tmp_path: Path, shardmill: Shardmill
) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    words = ("ingest", "data/pairs.jsonl", "out", "--on", "cluster.toml", "--dry-run")
    script = shardmill(*words).stdout
    for line in (
        "#SBATCH --array=0-100%25",
        "#SBATCH --partition=preempt",
        "#SBATCH --gpus=1",
        "#SBATCH --signal=B:USR1@600",
        "#SBATCH --requeue",
        "#SBATCH --account=vision",
    ):
        assert f"{line}\n" in script
    assert "/out/jobs/" in script.splitlines()[-1] and not (tmp_path / "out").exists()
    assert shardmill(*words).stdout == script, "the same command gives the same script"


@pytest.mark.parametrize("flag", ["--dry-run", "--no-wait"])
def test_flags_for_schedulers_need_one(shardmill: Shardmill, flag: str) -> None:
    done = shardmill("ingest", "data/pairs.jsonl", "out", flag, code=2)
    assert 'kind = "slurm"' in done.stderr


def test_a_report_says_what_to_type_for_rows_that_were_refused(
    shardmill: Shardmill, tmp_path: Path
) -> None:
    photo = image("PNG", 20, 20)
    for folder in ("in", "my photos"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.png").write_bytes(photo)
    names = ["a.png", str(tmp_path / "my photos" / "a.png")]
    lines = [json.dumps({"image": name, "caption": name}) for name in names]
    (tmp_path / "in" / "rows.jsonl").write_text("\n".join(lines))
    words = ("ingest", "in/rows.jsonl", "--workers", "0", "--max-skip-rate", "1")
    flag = "--allow 'my photos'"
    said = shardmill(*words[:2], "out", *words[2:]).stdout
    assert "1 x path not allowed" in said
    assert f"run it into another folder with {flag}" in said
    allowed = shardmill(*words[:2], "out-2", *words[2:], *shlex.split(flag)).stdout
    assert "not allowed" not in allowed
    assert "2 in 1 shard" in allowed
