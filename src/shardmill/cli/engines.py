"""`--on`: where the units of a stage are worked off; and what it would do, with `--dry-run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from shardmill.cli.values import parse_plugin
from shardmill.errors import ConfigError
from shardmill.io.tomltext import read_toml
from shardmill.model.codec import to_plain
from shardmill.model.stage import Stage
from shardmill.plugins import ENGINES, build
from shardmill.run.engine import Engine
from shardmill.run.job import Job


def parse_engine(text: str) -> Engine:
    """Return the engine of 'local', 'cluster.toml', 'ray', 'ray://host:port' or 'ray,gpus=0.5'."""
    if text.endswith(".toml"):
        return _build(read_toml(Path(text)), text)
    if text.startswith("ray://"):
        address, *_ = text.split(",")
        return _build(parse_plugin("ray" + text.removeprefix(address)) | {"address": address}, text)
    return _build(parse_plugin(text), text)


def set_waiting(engine: Engine, *, wait: bool) -> Engine:
    """Return the engine with --no-wait taken into account."""
    from shardmill.run.slurm import Slurm

    if wait:
        return engine
    if not isinstance(engine, Slurm):
        raise ConfigError('--no-wait needs --on with a file that says kind = "slurm"')
    return replace(engine, wait=False)


def preview(
    engine: Engine, stage: Stage, out: Path, *, workers: int | None, **settings: Any
) -> str:
    """Return the batch scripts that would be submitted; nothing is written."""
    from shardmill.run.slurm import Slurm
    from shardmill.run.slurm_queue import max_array_size

    if not isinstance(engine, Slurm):
        raise ConfigError('--dry-run needs --on with a file that says kind = "slurm"')
    job = Job(stage=to_plain(stage), out_dir=str(out.absolute()), token="", **settings)
    scripts = engine.scripts(
        job, num_tasks=engine.tasks, num_workers=workers, max_size=max_array_size()
    )
    return "\n".join(scripts)


def _build(plain: dict[str, Any], text: str) -> Engine:
    engine: Engine = build(ENGINES, plain, where=f"--on {text}")
    return engine
