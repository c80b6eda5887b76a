"""`shardmill why PLAN --step N`: the packs, documents and source files behind a training step.

PLAN is the file of a plan, or a file with `[mix]`, which names the plans and data of its sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from shardmill import humanize
from shardmill.cli import output
from shardmill.cli.options import PlaceType, json_option
from shardmill.storage.path import as_path

if TYPE_CHECKING:
    from shardmill.train.order import Split
    from shardmill.train.plans import Plans
    from shardmill.train.provenance import DocumentOrigin, PackOrigin


@click.command()
@click.argument("plan", type=PlaceType(exists=True, dir_okay=False))
@click.option("--step", type=click.IntRange(0), required=True, help="The step, from 0.")
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Data-parallel.")
@click.option("--world", type=click.IntRange(1), default=1, show_default=True, help="Ranks.")
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Packs a rank and step.",
)
@click.option(
    "--remainder",
    type=click.Choice(["borrow", "pad", "drop"]),
    default="borrow",
    show_default=True,
    help="What the loader does with packs that do not fill a step.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The loader's seed.")
@click.option("--epoch", type=click.IntRange(0), default=0, help="Of the state to count from.")
@click.option("--consumed", type=click.IntRange(0), default=0, help="Of the state to count from.")
@click.option("--borrowed", type=click.IntRange(0), default=0, help="Of the state to count from.")
@click.option(
    "--data",
    type=PlaceType(exists=True, file_okay=False),
    help="The folder of token shards or samples, to name documents and source files.",
)
@click.option(
    "--epoch-plans",
    metavar="LENGTHS",
    type=PlaceType(exists=True),
    help="The loader has a plan for each epoch, made from these lengths.",
)
@click.option(
    "--lengths",
    type=PlaceType(exists=True),
    help="What `measure` counted, if --data holds samples.  [default: that of --epoch-plans]",
)
@click.option(
    "--state",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Of a mix: the loader's state_dict as JSON, to count from.",
)
@json_option
def why(
    plan: Path,
    step: int,
    rank: int,
    world: int,
    batch_size: int,
    remainder: str,
    seed: int,
    epoch: int,
    consumed: int,
    borrowed: int,
    data: Path | None,
    epoch_plans: Path | None,
    lengths: Path | None,
    state: Path | None,
    as_json: bool,
) -> None:
    """Name the packs, documents and source files of a training step.

    Steps count from the beginning, or from the state that a run was resumed from, given by --epoch,
    --consumed and --borrowed as the loader's state_dict has them.

    \b
        shardmill why packs.plan --data tokens --step 12345 --rank 7 --world 64

    PLAN may be a file with [mix], which says where its plans and data are: then each pack is shown
    with its source, and the step with its weights.

    \b
        shardmill why mix.toml --step 12345 --rank 7 --world 64
    """
    from shardmill.shards.tokens.shard import read_lengths
    from shardmill.train.order import LoaderState, Split
    from shardmill.train.provenance import open_rows, packs_of_step

    split = Split(
        rank=rank,
        world=world,
        batch_size=batch_size,
        remainder=remainder,  # type: ignore[arg-type]
    )
    title = f"step {step:,} of rank {rank} of {world}"
    if plan.suffix == ".toml":
        given: dict[str, object] = {
            "--data": data,
            "--epoch-plans": epoch_plans,
            "--lengths": lengths,
        }
        given |= {"--epoch": epoch, "--consumed": consumed, "--borrowed": borrowed}
        for name, value in {**given, "--remainder": remainder != "borrow"}.items():
            if value:
                raise click.UsageError(f"{name} is for the file of a plan: {plan} is that of a mix")
        _why_mix(plan, split, seed, state, step, title, as_json)
        return
    if state is not None:
        raise click.UsageError("--state is for a mix: give --epoch, --consumed and --borrowed")
    start = LoaderState(seed=seed, epoch=epoch, consumed=consumed, borrowed=borrowed)
    rows = None if data is None else open_rows(data)
    measured = lengths or epoch_plans
    table = None if measured is None else read_lengths(measured)
    with _plans(plan, epoch_plans) as plans:
        packs = packs_of_step(plans, split, start, step, rows, table)
    if as_json:
        output.print_json({"step": step, "packs": [asdict(pack) for pack in packs]})
        return
    output.say("✓", f"{title}: {humanize.plural(len(packs), 'pack')}")
    for pack in packs:
        _print_pack(pack)
    if data is None:
        output.hint("--data FOLDER names the documents and the files they came from")


def _why_mix(
    path: Path, split: Split, seed: int, saved: Path | None, step: int, title: str, as_json: bool
) -> None:
    from shardmill.storage.text import read_json
    from shardmill.train.mix import Interleaving, MixSampler, read_mix
    from shardmill.train.provenance import packs_of_mix

    mix = read_mix(path)
    interleaving = Interleaving(mix.weights(), run=mix.run, packs_per_step=mix.packs_per_step)
    with ExitStack() as opened:
        plans = {}
        for name, source in mix.sources.items():
            lengths = None if source.epoch_plans is None else source.lengths or source.data
            plans[name] = opened.enter_context(
                _plans(as_path(source.plan), None if lengths is None else as_path(lengths))
            )
        sampler = MixSampler(plans, interleaving, split, seed=seed)
        start = sampler.start if saved is None else sampler.from_plain(read_json(saved))
        found = packs_of_mix(mix, sampler, start, step)
    schedule_step = None if mix.packs_per_step is None else found.mixed // mix.packs_per_step
    if as_json:
        packs = [{"source": name, **asdict(pack)} for name, pack in found.packs]
        where = {"mixed": found.mixed, "schedule_step": schedule_step, "weights": found.weights}
        output.print_json({"step": step, **where, "packs": packs})
        return
    output.say("✓", f"{title}: {humanize.plural(len(found.packs), 'pack')}")
    at = "" if schedule_step is None else f", step {schedule_step:,} of the schedule"
    output.echo(f"  {found.mixed:,} packs were mixed before{at}")
    total = sum(found.weights.values())
    rows = [(name, f"{w:g}", f"{100 * w / total:.1f} %") for name, w in found.weights.items()]
    output.table(("source", "weight", "share"), rows)
    for name, pack in found.packs:
        _print_pack(pack, f"{name}: ")


@contextmanager
def _plans(plan: Path, lengths: Path | None) -> Iterator[Plans]:
    from shardmill.train.plans import EpochPlans, OnePlan

    if lengths is None:
        yield OnePlan(plan)
        return
    # Plans of later epochs are made for this question alone; the loader's own may be gone by now.
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield EpochPlans(plan, lengths, folder)


def _print_pack(pack: PackOrigin, source: str = "") -> None:
    if pack.pack < 0:
        output.heading("an empty pack: the epoch does not fill this step")
        return
    output.heading(
        f"{source}pack {pack.pack:,}, position {pack.position:,} of epoch {pack.epoch}: "
        f"{humanize.plural(len(pack.rows), 'document')}"
    )
    if pack.documents:
        header = ("row", "key", "lies in", "at byte", "bytes", "came from")
        output.table(header, [_row(*item) for item in zip(pack.rows, pack.documents)])
    else:
        output.echo(f"  rows {', '.join(map(str, pack.rows))}")


def _row(row: int, source: DocumentOrigin) -> tuple[str, ...]:
    origin = source.origin
    came_from = "" if origin is None else f"{origin.path}, row {origin.row}"
    where = f"{source.path} [{source.row_in_shard}]"
    return str(row), source.key, where, str(source.offset), str(source.num_bytes), came_from
