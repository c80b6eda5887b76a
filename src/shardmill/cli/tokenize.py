"""`shardmill tokenize IN OUT`: samples or plain text to token shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardmill.api.tokenize import tokenize_stage
from shardmill.cli.options import PlaceType, RunOptions, parse_plugin, run_options
from shardmill.cli.running import run_and_report
from shardmill.plugins import READERS, TEMPLATES
from shardmill.storage.text import read_toml
from shardmill.tokens.layout import LAYOUTS


def _plugin(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Any:
    return None if text is None else parse_plugin(text)


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.argument("out", type=PlaceType(file_okay=False))
@click.option(
    "--recipe",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML file with all settings; flags win over it.",
)
@click.option(
    "--from",
    metavar="KIND,FIELD=VALUE",
    callback=_plugin,
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
    callback=_plugin,
    help=f"How a sample is written: {', '.join(TEMPLATES)} or package.module:Class.",
)
@click.option("--layout", metavar="NAME", help=f"How images stand: {', '.join(LAYOUTS)}.")
@click.option(
    "--codes",
    metavar="KIND,FIELD=VALUE",
    callback=_plugin,
    help="Where image codes are, such as field,field=vqcode_512.",
)
@click.option("--max-length", type=click.IntRange(1), help="The longest row in tokens.")
@click.option(
    "--overlong",
    type=click.Choice(["fail", "drop", "cut"]),
    help="What happens to longer rows; cut takes text only.  [default: drop]",
)
@click.option("--block-size", type=click.IntRange(1), help="Cut long rows into blocks instead.")
@click.option("--text-field", help="The field of a text table that holds the text.")
@click.option("--hook", metavar="MODULE:FUNCTION", help="A function that gets each row last.")
@click.option("--limit", type=click.IntRange(0), help="Only the first samples or rows.")
@click.option(
    "--per-shard",
    type=click.IntRange(1),
    help="Rows of a text table in each shard.  [default: a file is a shard]",
)
@click.option("--seed", type=int, help="For the random choices of templates.  [default: 0]")
@click.option("--epoch", type=int, help="Another number makes other choices.  [default: 0]")
@run_options
def tokenize(inputs: tuple[str, ...], out: Path, recipe: Path | None, **fields: Any) -> None:
    """Turn samples or plain text into token shards.

    INPUT is a folder of samples, or tables of plain text (jsonl, also .gz and .zst), which go
    straight to tokens. Tokens of another program (UniDisc's memory maps, Megatron's prefixes,
    tars with input_ids) are adopted as they are.

    \b
        shardmill tokenize shards tokens --recipe tokens.toml
        shardmill tokenize 'dclm/*.jsonl.zst' tokens --tokenizer models/qwen --block-size 8192
        shardmill tokenize unidisc/token_output_dir tokens
    """
    options = RunOptions.taken_from(fields)
    values = {} if recipe is None else read_toml(recipe)
    values |= {name: value for name, value in fields.items() if value is not None}
    run_and_report(tokenize_stage(values, inputs), out, options, next_step=f"shardmill show {out}")
