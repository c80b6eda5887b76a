"""`shardmill measure IN OUT`: exact lengths of samples for a model that takes pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import shardmill as sm
from shardmill import humanize
from shardmill.api.data import Lengths
from shardmill.cli import output
from shardmill.cli.options import FILE, PlaceType, folder_argument, limit_option, run_options
from shardmill.cli.report import call, print_data
from shardmill.plugins import VISUAL_RULES


@click.command()
@folder_argument("src", metavar="IN")
@click.argument("out", type=PlaceType())
@click.option(
    "--model",
    required=True,
    metavar="KIND|DIR",
    help=f"Whose rule: {', '.join(VISUAL_RULES)}, a model folder, or package.module:Class.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    help="Model folder or tokenizer.json.  [default: the folder given as --model]",
)
@click.option("--template", type=FILE, help="A chat template other than the tokenizer's own.")
@click.option("--estimate", is_flag=True, help="Guess lengths without a tokenizer; marked so.")
@click.option(
    "--unknown",
    type=click.Choice(["reject", "estimate"]),
    default="reject",
    show_default=True,
    help="What becomes of samples with media of unknown size.",
)
@click.option(
    "--control",
    type=click.Choice(["count", "reject"]),
    default="count",
    show_default=True,
    help="What becomes of control tokens that stand in people's text.",
)
@click.option("--today", metavar="YYYY-MM-DD", help="For templates that write the date.")
@limit_option
@run_options
def measure(src: Path, out: Path, **flags: Any) -> None:
    """Count the tokens of samples for a model that takes pixels.

    Writes OUT/lengths.bin, which `shardmill plan` reads. No media are decoded: text is counted by
    the tokenizer and its chat template, images and videos by the rule of the model's processor,
    from the sizes in the index.

    \b
        shardmill measure shards lengths --model models/Qwen2.5-VL-7B-Instruct
        shardmill measure shards lengths --model qwen3-vl --tokenizer models/qwen3
        shardmill measure shards lengths --model llava --estimate
    """
    hint = f"shardmill plan {out} packs.plan --capacity 8192"
    call(sm.measure, src, out, next_step=hint, report=print_lengths, **flags)


def print_lengths(made: Lengths, as_json: bool) -> None:
    """Print the run, and how long the samples are."""
    print_data(made, as_json)
    if as_json or not made.complete or not made.counts.num_kept:
        return
    table = made.table
    kept = table.num_tokens[table.reject == 0].astype("i8")
    kept.sort()
    visual = int(table.num_visual.sum(dtype="i8"))
    median, late, longest = kept[len(kept) // 2], kept[len(kept) * 99 // 100], kept[-1]
    tokens = f"{humanize.count(int(kept.sum()))}, {humanize.count(visual)} of them visual"
    output.facts(
        [
            ("tokens", tokens),
            ("length", f"median {median:,}, 99 % up to {late:,}, longest {longest:,}"),
            ("counts", "exact" if table.exact else "estimates: the planner leaves headroom"),
        ]
    )
