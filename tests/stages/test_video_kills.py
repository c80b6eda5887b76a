"""A video pipeline that is killed at every stage and started again ends in the same bytes."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("av")

from drivers import signal_quietly, snapshot, start_driver
from video_world import SHORT, World

from shardmill.media.samplers import Uniform
from shardmill.model.plan import PackSpec
from shardmill.model.space import TokenSpace
from shardmill.packing.plan import plan_packs
from shardmill.running.runner import run_stage
from shardmill.shards.plans import write_plan
from shardmill.shards.tokens.shard import token_lengths
from shardmill.sources.shapes.general import VideoShape
from shardmill.sources.tables import TableSource
from shardmill.stages.frames import SampleFrames
from shardmill.stages.ingest import Ingest
from shardmill.stages.pack import Materialize
from shardmill.stages.tokenize import Tokenize
from shardmill.tokens.layout import LAYOUTS
from shardmill.tokens.templates.documents import Captions
from shardmill.tokens.text.sentencepiece import SentencePieceText

NUM_ROWS = 24
SPACE = TokenSpace(text_size=32_768, added=("im_patch", "im_start", "im_end"))


def stages(world: World, folder: Path) -> dict[str, Any]:
    """Return the stages from rows to packs by the folder that each makes."""
    table = str(world.folder / "rows.jsonl")
    source = TableSource(files=(table,), media_root=str(world.media))
    return {
        "samples": Ingest(source=source, shape=VideoShape(), per_shard=3),
        "frames": SampleFrames(input_dir=folder / "samples", sampler=Uniform(count=12)),
        "tokens": Tokenize(
            input_dir=folder / "frames",
            tokenizer=SentencePieceText(path=Path("bundled")),
            template=Captions(),
            space=SPACE,
            layout=LAYOUTS["patches"],
        ),
        "packs": Materialize(
            tokens_dir=folder / "tokens",
            plan_path=folder / "packs.plan",
            format="tar",
            samples_dir=folder / "frames",
            packs_per_shard=2,
        ),
    }


def plan_if_due(name: str, folder: Path) -> None:
    if name == "packs":
        plan = plan_packs(token_lengths(folder / "tokens"), PackSpec(capacity=8000))
        write_plan(folder / "packs.plan", plan)


def kill_midway(stage: Any, out: Path, rng: random.Random) -> None:
    """Start a run, kill it with its workers after a receipt or two, and leave what it left."""
    driver = start_driver(stage, out, workers=rng.choice([0, 2]))
    wanted = rng.choice([0, 1, 2])
    while driver.poll() is None and len(list(out.glob("receipts/*"))) < wanted:
        time.sleep(0.005)
    time.sleep(rng.uniform(0, 0.1))
    signal_quietly(-driver.pid, signal.SIGKILL)
    driver.communicate()


def test_killed_runs_end_in_the_same_bytes(tmp_path: Path) -> None:
    world, rng = World(tmp_path / "raw"), random.Random(7)
    path = world.clip("a", SHORT)
    world.rows("rows.jsonl", [{"video_path": path, "value": f"take {n}"} for n in range(NUM_ROWS)])
    # Both in turn in one place, since tokens and packs name the folders they were made from.
    place, results = tmp_path / "work", []
    for is_killed in (False, True):
        for name, stage in stages(world, place).items():
            plan_if_due(name, place)
            if is_killed:
                kill_midway(stage, place / name, rng)
            assert run_stage(stage, place / name, workers=0).complete
        results.append({name: snapshot(place / name) for name in stages(world, place)})
        place.rename(tmp_path / f"done-{is_killed}")
    calm, killed = results
    assert all(len(files) > 4 for files in calm.values())
    for name, files in calm.items():
        assert content(files) == content(killed[name])


def content(files: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out the note of when the input was written, by which a finished run is recognised."""
    return {path: found for path, found in files.items() if path != "inputs.json"}
