"""`shardmill tokenize IN OUT`: samples or plain text to token shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import shardmill as sm
from shardmill.cli.options import FILE, PlaceType, limit_option, run_options
from shardmill.cli.report import call
from shardmill.plugins import READERS, TEMPLATES, VISUAL_RULES
from shardmill.tokens.layout import LAYOUTS


@click.command()
@click.argument("src", nargs=-1, required=True, metavar="INPUT...")
@click.argument("out", type=PlaceType(file_okay=False))
@click.option("--recipe", type=FILE, help="A TOML file with all settings; flags win over it.")
@click.option(
    "--from",
    "from_",
    metavar="KIND,FIELD=VALUE",
    help=f"INPUT holds tokens already: {', '.join(READERS)}.  [default: look at it]",
)
@click.option(
    "--tokenizer",
    metavar="PATH",
    help="A tokenizer.json, a model folder or a .model.  [default: the bundled one]",
)
@click.option(
    "--template",
    metavar="KIND,FIELD=VALUE",
    help=f"How a sample is written: {', '.join(TEMPLATES)} or package.module:Class.",
)
@click.option("--layout", metavar="NAME", help=f"How images stand: {', '.join(LAYOUTS)}.")
@click.option(
    "--codes",
    metavar="DIR|KIND,FIELD=VALUE",
    help="Where image codes are: a folder of codes, or such as field,field=vqcode_512.",
)
@click.option(
    "--rule",
    metavar="KIND,FIELD=VALUE",
    help=f"How many tokens an image takes: {', '.join(VISUAL_RULES)}.",
)
@click.option("--space", metavar="FIELD=VALUE,...", help="The token space, such as num_codes=8192.")
@click.option("--max-length", type=click.IntRange(1), help="The longest row in tokens.")
@click.option(
    "--overlong",
    type=click.Choice(["fail", "drop", "cut"]),
    help="What happens to longer rows; cut takes text only.  [default: drop]",
)
@click.option("--block-size", type=click.IntRange(1), help="Cut long rows into blocks instead.")
@click.option("--text-field", help="The field of a text table that holds the text.")
@click.option("--hook", metavar="MODULE:FUNCTION", help="A function that gets each row last.")
@limit_option
@click.option(
    "--per-shard",
    type=click.IntRange(1),
    help="Rows of a text table in each shard.  [default: a file is a shard]",
)
@click.option("--seed", type=int, help="For the random choices of templates.  [default: 0]")
@click.option("--epoch", type=int, help="Another number makes other choices.  [default: 0]")
@run_options
def tokenize(src: tuple[str, ...], out: Path, **flags: Any) -> None:
    """Turn samples or plain text into token shards.

    INPUT is a folder of samples, or tables of plain text (jsonl, also .gz and .zst), which go
    straight to tokens. Tokens of another program (UniDisc's memory maps, Megatron's prefixes,
    tars with input_ids) are adopted as they are.

    \b
        shardmill tokenize shards tokens --recipe tokens.toml
        shardmill tokenize 'dclm/*.jsonl.zst' tokens --tokenizer models/qwen --block-size 8192
        shardmill tokenize unidisc/token_output_dir tokens
    """
    call(sm.tokenize, src, out, next_step=f"shardmill show {out}", **flags)
