"""`shardmill work JOB` by hand: no scheduler, any number of machines that share a folder."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Shardmill = Callable[..., subprocess.CompletedProcess[str]]


def make_job(tmp_path: Path, shardmill: Shardmill) -> str:
    """Plan a folder, and leave all of its units to tasks."""
    from shardmill.running.engine import Job, write_job
    from shardmill.shards.ledger import Ledger

    words = ("ingest", "data/pairs.jsonl", "out", "--per-shard", "4", "--part", "1/99999")
    shardmill(*words)
    record = Ledger(tmp_path / "out").read_stage()
    assert record is not None
    job = Job(
        stage=record.stage,
        out_dir=str(tmp_path / "out"),
        token="",
        retries=1,
        max_skip_rate=0.1,
    )
    return str(write_job(job))


def test_a_task_does_what_is_left_and_completes_the_folder(
    tmp_path: Path, shardmill: Shardmill
) -> None:
    job = make_job(tmp_path, shardmill)
    report = json.loads(shardmill("work", job, "--workers", "2", "--json").stdout)
    assert report["complete"] and report["num_left"] == 0 and report["run"]["num_done"] > 1
    again = shardmill("work", job, "--workers", "1").stdout
    assert "is complete" in again and "0 units done by this task" in again


def test_mistakes_are_errors_without_a_traceback(tmp_path: Path, shardmill: Shardmill) -> None:
    assert "shared with this machine" in shardmill("work", "gone.json", code=2).stderr
    (tmp_path / "odd.json").write_text("[1, 2]")
    assert "is not a job" in shardmill("work", "odd.json", code=2).stderr
    job = make_job(tmp_path, shardmill)
    content = json.loads(Path(job).read_text())
    Path(job).write_text(json.dumps(content | {"format": 7, "shardmill": "8.0"}))
    assert "job of shardmill 8.0 in format 7" in shardmill("work", job, code=2).stderr
