"""`shardmill measure IN OUT`: exact lengths of samples for a model that takes pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardmill import humanize as wording
from shardmill.cli import output as console
from shardmill.cli.options import PlaceType, RunOptions, folder_argument, parse_plugin, run_options
from shardmill.cli.running import run_and_report
from shardmill.model.codec import build
from shardmill.plugins import VISUAL_RULES

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@folder_argument("input")
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
@click.option("--limit", type=click.IntRange(0), help="Only the first samples.")
@run_options
def measure(input: Path, out: Path, model: str, estimate: bool, **flags: Any) -> None:
    """Count the tokens of samples for a model that takes pixels.

    Writes OUT/lengths.bin, which `shardmill plan` reads. No media are decoded: text is counted by
    the tokenizer and its chat template, images and videos by the rule of the model's processor,
    from the sizes in the index.

    \b
        shardmill measure shards lengths --model models/Qwen2.5-VL-7B-Instruct
        shardmill measure shards lengths --model qwen3-vl --tokenizer models/qwen3
        shardmill measure shards lengths --model llava --estimate
    """
    from shardmill.stages.measure import Measure, merge_lengths

    options = RunOptions.taken_from(flags)
    tokenizer = flags.pop("tokenizer") or (Path(model) if Path(model).is_dir() else None)
    if tokenizer is None and not estimate:
        raise click.UsageError("give --tokenizer, or --estimate to guess without one")
    stage = Measure(
        input_dir=input,
        rule=_rule(model),
        tokenizer=None if estimate else tokenizer,
        **flags,
    )
    run_and_report(
        stage, out, options, next_step=f"shardmill plan {out} packs.plan --capacity 8192"
    )
    table = merge_lengths(out)
    if not options.as_json:
        _print_lengths(table)


def _rule(model: str) -> Any:
    if Path(model).is_dir():
        from shardmill.tokens.visual.pretrained import rule_of_folder

        return rule_of_folder(Path(model))
    return build(VISUAL_RULES, parse_plugin(model), where="--model")


def _print_lengths(table: Any) -> None:
    kept = table.num_tokens[table.reject == 0].astype("i8")
    if not len(kept):
        return
    kept.sort()
    visual = int(table.num_visual.sum(dtype="i8"))
    middle, late, longest = kept[len(kept) // 2], kept[len(kept) * 99 // 100], kept[-1]
    console.facts(
        [
            ("tokens", f"{wording.count(int(kept.sum()))}, {wording.count(visual)} of them visual"),
            ("length", f"median {middle:,}, 99 % up to {late:,}, longest {longest:,}"),
            ("counts", "exact" if table.exact else "estimates: the planner leaves headroom"),
        ]
    )
