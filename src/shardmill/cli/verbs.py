"""The commands that make a folder: each declares how its options are typed, and makes one call.

Defaults and choices are those of the front door's function of the same name, where they are written
once (see `report.defaults_of`); the report is printed by `report.call`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import shardmill as sm
from shardmill.cli.options import (
    FILE,
    FOLDER,
    PlaceType,
    filter_option,
    folder_argument,
    kinds,
    limit_option,
    names,
    raw_allow_option,
    run_options,
)
from shardmill.cli.report import (
    call,
    choice,
    defaults_of,
    print_codes,
    print_export,
    print_frames,
    print_lengths,
    print_removal,
)
from shardmill.formats.format import ASPECTS
from shardmill.plugins import (
    FORMATS,
    FRAME_SAMPLERS,
    GEOMETRIES,
    IMAGE_TOKENIZERS,
    READERS,
    SHAPES,
    SOURCES,
    TEMPLATES,
    VISUAL_RULES,
)
from shardmill.tokens.layout import LAYOUTS


@click.command(context_settings=defaults_of(sm.ingest))
@click.argument("src", nargs=-1, required=True, metavar="INPUT...")
@click.argument("out", type=PlaceType())
@click.option(
    "--source",
    shell_complete=kinds(SOURCES),
    metavar="KIND,FIELD=VALUE",
    help=f"What INPUT is, if it does not tell: {', '.join(SOURCES)}, with fields of its class.",
)
@click.option(
    "--shape",
    shell_complete=kinds(SHAPES),
    metavar="KIND",
    help=f"What a row is: {', '.join(SHAPES)} or package.module:Class.  [default: look at rows]",
)
@click.option("--media-root", metavar="DIR", help="Where relative paths of media in rows begin.")
@raw_allow_option
@filter_option
@click.option("--key", metavar="COLUMN", help="The column that holds a unique key of each row.")
@click.option(
    "--extra",
    multiple=True,
    metavar="COLUMN",
    help="Keep this column beside the sample, whatever it looks like.",
)
@click.option("--trim", is_flag=True, help="Leave white space out at both ends of texts.")
@limit_option
@click.option(
    "--per-shard", type=click.IntRange(1), help="Rows a shard.  [default: 1000; a tar stays one]"
)
@click.option("--max-shard-bytes", metavar="SIZE", help="Begin a new tar at this size.")
@click.option(
    "--max-media-bytes",
    metavar="SIZE",
    help="Reject larger media.",
)
@click.option(
    "--name",
    help="Name of a shard, from {unit}, {machine}, {start}, {end}, {tar}.",
)
@click.option("--machine", type=int, help="The number that {machine} stands for.")
@click.option(
    "--layout",
    type=choice(sm.ingest, "layout"),
    help="Several media of sample K are K.0.jpg (dotted) or K-0.jpg (dashed).",
)
@click.option(
    "--per-host",
    type=click.IntRange(1),
    help="Downloads from one host at a time, of each process.  [default: 8]",
)
@click.option(
    "--retry-rejects",
    multiple=True,
    metavar="REASON",
    help="Try rejects again whose reason begins so, such as 'http 5' or time-out.",
)
@run_options
def ingest(src: tuple[str, ...], out: Path, **flags: Any) -> None:
    """Turn raw folders, tables or tars into shards.

    INPUT is a folder of images with captions beside them, tables (jsonl, json, csv, parquet,
    arrow, also .gz and .zst), WebDataset tars, or a meta file that names several of them; globs
    and braces work, quoted or not. Every row ends up in a shard, or in OUT/rejects with a reason.

    \b
        shardmill ingest pairs.jsonl shards
        shardmill ingest 'cc3m-train-{0000..0575}.tar' shards --filter aspect_ratio,max_ratio=2
        shardmill ingest photos/ shards --per-shard 500 --limit 10000
    """
    call(sm.ingest, src, out, next_step=f"shardmill status {out}", **flags)


@click.command(context_settings=defaults_of(sm.index))
@click.argument("src", nargs=-1, required=True, metavar="TAR...")
@click.argument("out", type=PlaceType())
@click.option(
    "--media-sizes", is_flag=True, help="Also read width, height, frames from media headers."
)
@click.option(
    "--interleaved/--not-interleaved",
    help="Let K-0.jpg belong to the sample that begins with K.json.",
)
@click.option("--md5", is_flag=True, help="Put md5 sums into shardindex.json; reads every byte.")
@click.option("--name", help="The name in shardindex.json.  [default: the folder's]")
@raw_allow_option
@run_options
def index(src: tuple[str, ...], out: Path, **flags: Any) -> None:
    """Index existing tars where they lie.

    TAR is a file, a folder, a glob, braces or a url (s3://, gs://, https://); nothing is copied and
    only headers are read. OUT holds the lists that others read (shardindex.json for wids,
    shardlist.json and .pkl with {url, nsamples}), can be checked, and serves members to loaders.
    Tars of ours it opens wherever a folder of samples is asked for; those of others have no
    documents, so that `shardmill ingest` comes before filter, tokenize or measure.

    \b
        shardmill index 'cc3m-train-{0000..0575}.tar' cc3m-index
        shardmill index 's3://bucket/laion/{00000..00999}.tar' laion-index --media-sizes
    """
    call(sm.index, src, out, next_step=f"shardmill show {out}", **flags)


@click.command(name="filter", context_settings=defaults_of(sm.filter))
@folder_argument("src", metavar="IN")
@click.argument("out", type=PlaceType())
@filter_option
@click.option(
    "--drop-duplicates",
    is_flag=True,
    help="Of samples with the same text and media keep the first, in the whole folder.",
)
@run_options
def filter_(src: Path, out: Path, **flags: Any) -> None:
    """Keep the samples that pass; drop duplicates."""
    call(sm.filter, src, out, next_step=f"shardmill status {out}", **flags)


@click.command(context_settings=defaults_of(sm.frames))
@folder_argument("src", metavar="IN")
@click.argument("out", type=PlaceType())
@click.option(
    "--preset",
    type=choice(sm.frames, "preset"),
    help="Frames and marks of Video-Data-Pipeline; other flags come first.",
)
@click.option(
    "--sampler",
    shell_complete=kinds(FRAME_SAMPLERS),
    metavar="KIND,FIELD=VALUE",
    help=f"Which frames: {', '.join(FRAME_SAMPLERS)} or package.module:Class. [default: uniform]",
)
@click.option(
    "--clip", metavar="START,END", help="Only this part, where a row does not say its own."
)
@click.option("--format", type=choice(sm.frames, "format"))
@click.option("--quality", type=click.IntRange(1, 100), help="Of the images. [default: 90]")
@click.option("--long-side", type=click.IntRange(1), help="Scale larger frames down to this.")
@click.option(
    "--mark",
    metavar="TEXT",
    show_default=False,
    help="Write this behind each frame, from {at}, {time_s}, {number} and {type}.",
)
@click.option(
    "--time-scale",
    type=click.IntRange(1),
    help="What {at} is at the last frame.",
)
@click.option(
    "--at-by",
    type=choice(sm.frames, "at_by"),
    help="Whether {at} is rounded by time, or cut off by number. [default: time]",
)
@click.option("--interleave", is_flag=True, help="Put frames between the texts of their times.")
@click.option(
    "--list-fps",
    type=float,
    metavar="FPS",
    help="Choose among images that follow each other, too: frames at this rate.",
)
@click.option(
    "--max-frames",
    type=click.IntRange(1),
    help="Reject a video of which more frames are chosen.",
)
@click.option(
    "--layout",
    type=choice(sm.frames, "layout"),
    help="Frame 3 of sample K is K-3.jpg (dashed) or K.3.jpg (dotted).",
)
@limit_option
@run_options
def frames(src: Path, out: Path, **flags: Any) -> None:
    """Turn videos into frames, or keep them whole.

    \b
        shardmill frames clips frames --sampler uniform,count=16 --long-side 512
        shardmill frames clips frames --sampler keyframes,i_frames=8,p_frames=16 --mark '#{at}'
        shardmill frames clips frames --sampler fps,fps=2,max_frames=64
    """
    call(sm.frames, src, out, next_step=f"shardmill show {out}", report=print_frames, **flags)


@click.command(context_settings=defaults_of(sm.codes))
@folder_argument("src", metavar="IN")
@click.argument("out", type=PlaceType())
@click.option(
    "--from",
    "from_",
    metavar="FIELD",
    help="The samples carry codes already, such as Liquid's vqcode_512; nothing is encoded.",
)
@click.option(
    "--num-codes",
    type=click.IntRange(1),
    help="With --from: the size of the codebook.",
)
@click.option(
    "--tokenizer",
    shell_complete=kinds(IMAGE_TOKENIZERS),
    metavar="KIND,weights=PATH",
    help=f"Whose weights they are: {', '.join(IMAGE_TOKENIZERS)} or package.module:Class.  "
    "[default: what they say]",
)
@click.option(
    "--weights",
    type=PlaceType(exists=True),
    help="The weights that encode: a checkpoint, or the folder of one.",
)
@click.option(
    "--take",
    type=choice(sm.codes, "take"),
    help="Which weights of a checkpoint of training: averaged (ema) or as trained (model).",
)
@click.option(
    "--preset",
    type=choice(sm.codes, "preset"),
    help="Decode and resize to the pixels that this program encodes, to the last bit.",
)
@click.option("--resolution", type=int, help="Pixels a side of the middle square.  [default: 512]")
@click.option(
    "--geometry",
    shell_complete=kinds(GEOMETRIES),
    metavar="KIND,FIELD=VALUE",
    help=f"Another way to bring images to size: {', '.join(GEOMETRIES)}.",
)
@click.option(
    "--decoding",
    metavar="FIELD=VALUE,...",
    help="Other colours: alpha=white|drop, depth=scale|clip, orientation=apply|ignore.",
)
@click.option(
    "--precision",
    type=choice(sm.codes, "precision"),
    help="What a GPU multiplies.  [default: fp16 on a GPU, fp32 without]",
)
@click.option("--allow-truncated", is_flag=True, help="Take images whose end is missing.")
@limit_option
@click.option("--threads", type=click.IntRange(1), help="Threads that decode, of each process.")
@click.option("--device", help="Such as cuda:1 or cpu.  [default: a free GPU for each process]")
@click.option("--print-sizes", is_flag=True, help="Print the sizes that can come out, and stop.")
@run_options
def codes(src: Path, out: Path, print_sizes: bool, **flags: Any) -> None:
    """Turn images into VQ codes, written once.

    \b
        shardmill codes shards codes --weights vqgan --resolution 512
        shardmill codes liquid codes --from vqcode_512
    """
    if print_sizes:
        from shardmill.api.values import to_geometry

        for width, height in to_geometry(flags["geometry"], flags["resolution"]).sizes():
            click.echo(f"{width} x {height}")
        return
    call(sm.codes, src, out, next_step=f"shardmill show {out}", report=print_codes, **flags)


@click.command(context_settings=defaults_of(sm.tokenize))
@click.argument("src", nargs=-1, required=True, metavar="INPUT...")
@click.argument("out", type=PlaceType(file_okay=False))
@click.option("--recipe", type=FILE, help="A TOML file with all settings; flags win over it.")
@click.option(
    "--from",
    "from_",
    shell_complete=kinds(READERS),
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
    shell_complete=kinds(TEMPLATES),
    metavar="KIND,FIELD=VALUE",
    help=f"How a sample is written: {', '.join(TEMPLATES)} or package.module:Class.",
)
@click.option(
    "--layout",
    shell_complete=names(LAYOUTS),
    metavar="NAME,FIELD=VALUE",
    help=f"How images stand: {', '.join(LAYOUTS)}, with fields such as num_patches.",
)
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
    type=choice(sm.tokenize, "overlong"),
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
@raw_allow_option
@click.option(
    "--extra",
    multiple=True,
    metavar="COLUMN",
    help="Leave this column of a text table out, whatever it looks like.",
)
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


@click.command(context_settings=defaults_of(sm.measure))
@folder_argument("src", metavar="IN")
@click.argument("out", type=PlaceType())
@click.option(
    "--model",
    shell_complete=kinds(VISUAL_RULES),
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
    type=choice(sm.measure, "unknown"),
    help="What becomes of samples with media of unknown size.",
)
@click.option(
    "--control",
    type=choice(sm.measure, "control"),
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


@click.command(context_settings=defaults_of(sm.pack))
@folder_argument("tokens")
@click.argument("plan", type=FILE)
@click.argument("out", type=PlaceType(file_okay=False))
@click.option(
    "--preset",
    type=choice(sm.pack, "preset"),
    help="Packs as Video-Data-Pipeline writes them; other flags come first.",
)
@click.option(
    "--format",
    type=choice(sm.pack, "format"),
    help="Megatron's bin and idx with a document a pack, or WebDataset tars with a sample a pack. "
    "[default: megatron]",
)
@click.option(
    "--samples", type=FOLDER, help="The folder of samples whose images are copied into the tars."
)
@click.option(
    "--text/--no-text", default=None, help="Write the text of each document into tars, too."
)
@click.option(
    "--one-bos",
    type=int,
    metavar="ID",
    help="The begin token that only the first document of a pack keeps.",
)
@click.option(
    "--order",
    type=choice(sm.pack, "order"),
    help="Packs in the order of an epoch, or in that of the plan. [default: trained]",
)
@click.option("--packs-per-shard", type=click.IntRange(1))
@click.option("--seed", type=int, help="For the order of packs.")
@click.option("--epoch", type=int, help="Another number gives another order.")
@run_options
def pack(tokens: Path, plan: Path, out: Path, **flags: Any) -> None:
    """Write the packs of a plan to disk.

    The packs come in the order of an epoch, so that neighbours cost alike; every token that was
    planned is written.

    \b
        shardmill pack tokens packs.plan packs
        shardmill pack tokens packs.plan packs --format tar --samples shards
    """
    call(sm.pack, tokens, plan, out, next_step=f"shardmill status {out}", **flags)


@click.command(context_settings=defaults_of(sm.export))
@folder_argument("src", metavar="IN")
@click.argument("out", type=PlaceType(file_okay=False))
@click.option(
    "--format",
    required=True,
    shell_complete=kinds(FORMATS),
    metavar="KIND,FIELD=VALUE",
    help=f"What is written: {', '.join(FORMATS)} or package.module:Class.",
)
@click.option("--codes", type=FOLDER, help="The folder of codes of these samples.")
@click.option(
    "--shards",
    type=click.IntRange(1),
    help="Cut the rows into this many even shards.  [default: as the input]",
)
@click.option(
    "--drop",
    multiple=True,
    shell_complete=names(ASPECTS),
    metavar="NAME,...",
    help="Leave out what the format has no place for; what that is, a refusal says.",
)
@run_options
def export(src: Path, out: Path, **flags: Any) -> None:
    """Write finished shards for the readers of other projects.

    \b
        shardmill export tokens megatron --format megatron,prefix=train
        shardmill export tokens arrow --format hf --shards 256
        shardmill export pairs liquid --codes pairs-codes --format liquid
        shardmill export tokens tensors --format tensordict,length=2048,pad_id=0
    """
    hint = f"shardmill check {out}"
    call(sm.export, src, out, next_step=hint, report=print_export, **flags)


@click.command(context_settings=defaults_of(sm.remove))
@folder_argument("src", metavar="FOLDER")
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--keys", type=FILE, required=True, help="A text file with a key a line.")
@run_options
def remove(src: Path, out: Path, **flags: Any) -> None:
    """Leave samples out by their keys, for those who opt out.

    FOLDER holds samples, codes, tokens or packs. Shards that hold none of the keys are linked, the
    others are written again; OUT/rejects names every sample that went, and from which shard, and
    OUT/removal.json sums it up.

    \b
        shardmill remove shards shards-2 --keys optout.txt
        shardmill diff shards shards-2
    """
    hint = f"shardmill diff {src} {out}"
    call(sm.remove, src, out, next_step=hint, report=print_removal, **flags)
