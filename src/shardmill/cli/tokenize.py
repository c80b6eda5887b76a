"""`shardmill tokenize IN OUT`: samples or plain text to token shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardmill.cli.options import RunOptions, run_options
from shardmill.cli.running import run_and_report
from shardmill.cli.values import parse_plugin


def _plugin(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Any:
    return None if text is None else parse_plugin(text)


@click.command()
@click.argument("input")
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--recipe",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML file with all settings; flags win over it.",
)
@click.option("--tokenizer", help="A tokenizer.json, a model folder, a .model, or 'bundled'.")
@click.option("--template", callback=_plugin, help="text, chat, turns, t2i, i2t, mixed, pair, ...")
@click.option("--layout", help="Pictures as codes, patches, marker or vision.")
@click.option("--codes", callback=_plugin, help="Where image codes are: field,field=vqcode_512")
@click.option("--max-length", type=click.IntRange(1), help="The longest row in tokens.")
@click.option("--overlong", type=click.Choice(["fail", "drop", "cut"]), help="What to do then.")
@click.option("--block-size", type=click.IntRange(1), help="Cut long rows into blocks instead.")
@click.option("--text-field", help="The field of plain text tables that holds the text.")
@click.option("--hook", help="package.module:function that gets each row last.")
@click.option(
    "--limit", type=click.IntRange(0), help="Only the first samples; of plain text, of each file."
)
@click.option("--seed", type=int, help="For the random choices of templates.")
@click.option("--epoch", type=int, help="Another number makes other choices.")
@run_options
def tokenize(input: str, out: Path, recipe: Path | None, **flags: Any) -> None:
    """Turn samples or plain text into token shards."""
    from shardmill.stages.tokenrecipe import read_recipe, stage_of

    options = RunOptions(
        **{name: flags.pop(name) for name in RunOptions.__dataclass_fields__}  # flags of the run
    )
    values = {} if recipe is None else read_recipe(recipe)
    values |= {name: value for name, value in flags.items() if value is not None}
    stage = stage_of(values, input)
    run_and_report(stage, out, options, next_step=f"shardmill show {out}")
