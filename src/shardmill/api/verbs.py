"""The verbs as functions: each builds one spec, runs it, and returns what it made.

They take what the commands of the same names take. A plugin is a string ("t2i,bos=true"), a table
or the spec itself; a place is a path, a url, or what an earlier verb returned. Those that run a
stage take the options of `RunOptions` (on, workers, retries, max_skip_rate, part, wait, progress).
They go on where an earlier run stopped, refuse a folder that was made with other settings, and
raise `RunFailed` if units failed, and `NothingKept` if nothing came of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Unpack

from numpy.typing import ArrayLike

from shardmill.api import data
from shardmill.api.data import Codes, Data, Export, Lengths, Packs, Plan, Samples, Tokens
from shardmill.api.running import (
    RUN_DEFAULTS,
    RunOptions,
    checked,
    is_local,
    refuse_inside,
    run_report,
)
from shardmill.api.values import (
    Place,
    Plugin,
    many,
    refuse_hub_name,
    to_bytes,
    to_clip,
    to_codes,
    to_geometry,
    to_path,
    to_plugin,
    to_plugins,
    to_prices,
    to_spec,
    to_table,
    to_texts,
)
from shardmill.errors import ConfigError, FormatError, NothingKept, check_packages, near
from shardmill.machine import environment
from shardmill.media.image import Decoding
from shardmill.model.stage import Stage, listed
from shardmill.model.tokenrow import Overlong
from shardmill.plugins import (
    CODE_SOURCES,
    FILTERS,
    FORMATS,
    FRAME_SAMPLERS,
    GEOMETRIES,
    IMAGE_TOKENIZERS,
    READERS,
    SHAPES,
    SOURCES,
    TEMPLATES,
    TEXT_TOKENIZERS,
    VISUAL_RULES,
)
from shardmill.storage.path import expand_braces, is_remote, plain_url, refuse_secret, split_url
from shardmill.storage.text import read_toml

if TYPE_CHECKING:
    from shardmill.model.plan import LengthTable, PackPlan, PackSpec
    from shardmill.train.calibrate import Calibration

Inputs = Place | Sequence[Place]
# The columns of lengths that a user may give; shards and rejects are for the stages.
OWN_COLUMNS = ("num_tokens", "num_visual", "num_fixed", "source", "source_names", "exact")
Made = TypeVar("Made", bound=Data[Any])


@checked
def ingest(
    src: Inputs,
    out: Place,
    *,
    source: Annotated[Plugin | None, SOURCES] = None,
    shape: Annotated[Plugin | None, SHAPES] = None,
    media_root: Place | None = None,
    allow: Inputs = (),
    filter: Annotated[Plugin | Sequence[Plugin], FILTERS] = (),
    key: str | None = None,
    extra: str | Sequence[str] = (),
    trim: bool = False,
    limit: int | None = None,
    per_shard: int | None = None,
    max_shard_bytes: int | str | None = None,
    max_media_bytes: int | str = "1GiB",
    name: str = "{unit:06d}",
    machine: int = 0,
    layout: Literal["dotted", "dashed"] = "dotted",
    per_host: int | None = None,
    retry_rejects: str | Sequence[str] = (),
    **run: Unpack[RunOptions],
) -> Samples:
    """Turn raw folders, tables or tars into shards.

    `src` is a folder of images with captions, tables, tars, globs, urls, or a list of them.
    `source` and `shape` say what the input and its rows are where that cannot be seen. A column
    that looks like content and that the shape does not use is refused unless `extra` names it.
    Texts stay as they are, byte for byte; `trim` takes white space off their ends. Rows may
    name files below the folder of their table or `media_root`, and public urls; `allow` names other
    folders, stores and web servers that they may read. Every row ends up in a shard or among the
    rejects, with a reason. `retry_rejects` tries those again whose reason begins so.

        sm.ingest("pairs.jsonl", "shards", filter="aspect_ratio,max_ratio=2", workers=8)
    """
    from shardmill.running.runner import retry_rejects as retry
    from shardmill.sources.download import PER_HOST_VARIABLE
    from shardmill.sources.guess import first_rows, shape_of, source_from_input
    from shardmill.stages.ingest import Ingest

    inputs = to_texts(src)
    refuse_inside(to_path(out), inputs)
    _reach(inputs, run)
    chosen = to_table(source, where="source") if source else {"kind": None}
    root = None if media_root is None else to_texts(media_root)[0]
    given = {"media_root": root, "allow": to_texts(allow)}
    raw = source_from_input(inputs, **{**given, **chosen})
    named = to_plugin(SHAPES, shape, where="shape") if shape else None
    beside = tuple(many(extra))
    heads = first_rows(raw)
    stage = Ingest(
        source=raw,
        shape=shape_of(raw, named, heads=heads, extra=beside, known=[key] if key else []),
        filters=to_plugins(FILTERS, filter, where="filter"),
        key=key,
        extra=beside,
        trim=trim,
        limit=limit,
        per_shard=per_shard,
        max_shard_bytes=None if max_shard_bytes is None else to_bytes(max_shard_bytes),
        max_media_bytes=to_bytes(max_media_bytes),
        name=name,
        machine=machine,
        layout=layout,
    )
    rate = run.get("max_skip_rate", RUN_DEFAULTS["max_skip_rate"])
    stage.check(heads, may_lose_all=rate >= 1 or run.get("allow_empty", False))
    if retry_rejects:
        # Sets the receipts of such units aside, so that the run below finds them left to do.
        retry(to_path(out), stage, many(retry_rejects))
    # How fast workers ask is no part of the spec; they inherit the environment.
    with environment({PER_HOST_VARIABLE: per_host}):
        return _run(Samples, stage, out, run)


@checked
def index(
    src: Inputs,
    out: Place,
    *,
    media_sizes: bool = False,
    interleaved: bool = True,
    md5: bool = False,
    name: str | None = None,
    allow: Inputs = (),
    **run: Unpack[RunOptions],
) -> Samples:
    """Index existing tars where they lie, and write the lists that wids and others read.

    Nothing is copied and only headers are read. Samples of other programs have no documents, so
    that `ingest` comes before filter, tokenize or measure. Links in a folder of tars may lead to
    `allow`.
    """
    from shardmill.formats.wids import (
        FILE_NAME,
        JSON_NAME,
        has_list,
        write_shard_list,
        write_wids_index,
    )
    from shardmill.stages.index import IndexTars

    _reach(to_texts(src), run)
    stage = IndexTars(
        tars=tuple(to_texts(src)),
        media_sizes=media_sizes,
        interleaved=interleaved,
        allow=tuple(str(to_path(place)) for place in many(allow)),
    )
    made = _run(Samples, stage, out, run)
    # Made once, unless they are asked for anew or the tars are elsewhere now.
    if made.complete and (md5 or name or not has_list(made.path, FILE_NAME)):
        write_wids_index(made.path, name=name or made.path.name, with_md5=md5)
    if made.complete and not has_list(made.path, JSON_NAME):
        write_shard_list(made.path)
    return made


@checked
def filter(
    src: Place,
    out: Place,
    *,
    filter: Annotated[Plugin | Sequence[Plugin], FILTERS] = (),
    drop_duplicates: bool = False,
    **run: Unpack[RunOptions],
) -> Samples:
    """Keep the samples that pass all filters; of samples with the same content keep the first."""
    from shardmill.stages.filter import FilterSamples

    stage = FilterSamples(
        input_dir=to_path(src),
        filters=to_plugins(FILTERS, filter, where="filter"),
        drop_duplicates=drop_duplicates,
    )
    return _run(Samples, stage, out, run)


@checked
def frames(
    src: Place,
    out: Place,
    *,
    preset: Literal["vdp-un", "vdp-kf"] | None = None,
    sampler: Annotated[Plugin | None, FRAME_SAMPLERS] = None,
    clip: str | tuple[float, float] | None = None,
    format: Literal["jpg", "webp"] = "jpg",
    quality: int | None = None,
    long_side: int | None = None,
    mark: str | None = None,
    time_scale: int = 1000,
    at_by: Literal["time", "number"] | None = None,
    interleave: bool = False,
    list_fps: float | None = None,
    max_frames: int = 1024,
    layout: Literal["dashed", "dotted"] = "dashed",
    limit: int | None = None,
    **run: Unpack[RunOptions],
) -> Samples:
    """Turn the videos of samples into frames, or keep them whole.

    `clip` is the part of a video that is meant where a row does not say its own: "2.5,10" in
    seconds. `mark` is written behind each frame, from {at}, {time_s}, {number} and {type}; {at}
    goes by time, or by number as Video-Data-Pipeline counts. A `preset` stands for a sampler
    ("uniform" without one), quality (90), mark and `at_by`; what you say yourself comes first.

        sm.frames(clips, "frames", sampler="uniform,count=16", long_side=512)
    """
    from shardmill.media.frames import ImageFormat
    from shardmill.stages.frames import PRESETS, SampleFrames

    given: dict[str, Any] = {"sampler": sampler, "quality": quality, "mark": mark, "at_by": at_by}
    chosen = {name: PRESETS[preset][name] if v is None else v for name, v in given.items()}
    stage = SampleFrames(
        input_dir=to_path(src),
        sampler=to_plugin(FRAME_SAMPLERS, chosen["sampler"], where="sampler"),
        images=ImageFormat(format=format, quality=chosen["quality"], long_side=long_side),
        clip_s=to_clip(clip),
        mark=chosen["mark"],
        time_scale=time_scale,
        at_by=chosen["at_by"],
        interleave=interleave,
        list_fps=list_fps,
        max_frames=max_frames,
        layout=layout,
        limit=limit,
    )
    return _run(Samples, stage, out, run)


@checked
def codes(
    src: Place,
    out: Place,
    *,
    tokenizer: Annotated[Plugin | None, IMAGE_TOKENIZERS] = None,
    weights: Place | None = None,
    take: Literal["ema", "model"] | None = None,
    preset: Literal["unidisc", "llamagen", "liquid", "chameleon"] | None = None,
    resolution: int | None = None,
    geometry: Annotated[Plugin | None, GEOMETRIES] = None,
    decoding: str | Mapping[str, str] | Decoding | None = None,
    precision: Literal["fp32", "tf32", "fp16"] | None = None,
    allow_truncated: bool = False,
    from_: str | None = None,
    num_codes: int = 8192,
    limit: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    **run: Unpack[RunOptions],
) -> Codes:
    """Turn the images of samples into VQ codes, written once and used by every later choice.

    Whose `weights` they are, they say themselves; a `tokenizer` that is named must be theirs.
    Of a checkpoint with averaged weights, too, `take` says which. A `preset` gives the pixels of
    another program at any `resolution`; else `geometry` says how images are brought to size, and
    `decoding` what becomes of transparency, 16 bits and EXIF ("alpha=drop,orientation=ignore").
    `from_` names a field of the samples that holds codes already, of a codebook of `num_codes`.
    Without a GPU the precision is fp32, else fp16, and the share of codes that equal those of fp32
    is counted.

        sm.codes(shards, "codes", weights="vqgan", resolution=512)
    """
    stage: Any
    making = (tokenizer, weights, take, preset, resolution, geometry, decoding)
    if from_ is not None and any(value is not None for value in making):
        raise ConfigError(
            "codes come from a field (--from) or are made (--tokenizer, --weights, and how)"
        )
    if from_ is not None:
        from shardmill.stages.adopt import AdoptCodes
        from shardmill.tokens.codes import FieldCodes

        source = FieldCodes(field=from_)
        stage = AdoptCodes(input_dir=to_path(src), codes=source, num_codes=num_codes, limit=limit)
        return _run(Codes, stage, out, run)
    from shardmill.stages.codes import PRESETS, EncodeImages

    chosen = None if preset is None else PRESETS[preset]
    if chosen is not None and not geometry is decoding is None:
        raise ConfigError(
            f"--preset {preset} says how images are decoded and brought to size: leave --geometry "
            "and --decoding out, or the preset. A --resolution may stand beside it"
        )
    check_packages(EncodeImages.needs)  # before the first import of torch
    from shardmill.tokens.vq.encode import count_devices
    from shardmill.tokens.vq.tokenizer import recognise

    given: dict[str, Any] = {} if weights is None else {"weights": str(to_path(weights))}
    if tokenizer is not None:
        given |= {} if take is None else {"take": take}
        if isinstance(tokenizer, str | Mapping):
            tokenizer = {**to_table(tokenizer, where="tokenizer"), **given}
            if tokenizer.get("kind") in IMAGE_TOKENIZERS and "weights" not in tokenizer:
                raise ConfigError(f"{tokenizer['kind']} needs weights: name them by --weights PATH")
        encoder = to_plugin(IMAGE_TOKENIZERS, tokenizer, where="tokenizer").pinned()
    elif given:
        encoder = recognise(given["weights"], take)
    else:
        raise ConfigError(
            "give the weights that encode images (--weights), or the field that holds their codes "
            "(--from)"
        )
    if chosen is not None and hasattr(encoder, "scaling"):
        encoder = replace(encoder, scaling=chosen.scaling)
    # Which device and how many threads change no code, so they are no part of the spec.
    with environment({"SHARDMILL_THREADS": threads, "SHARDMILL_DEVICE": device}):
        num_devices = count_devices()
        stage = EncodeImages(
            input_dir=to_path(src),
            tokenizer=encoder,
            geometry=to_geometry(chosen.geometry if chosen else geometry, resolution),
            decoding=chosen.decoding
            if chosen
            else to_spec(decoding or "", Decoding, where="decoding"),
            precision=precision or ("fp16" if num_devices else "fp32"),
            allow_truncated=allow_truncated or bool(chosen and chosen.allow_truncated),
            limit=limit,
        )
        # A process a GPU, not a CPU: each holds the model.
        if run.get("workers") is None and is_local(run):
            run["workers"] = max(1, num_devices)
        return _run(Codes, stage, out, run)


@checked
def tokenize(
    src: Inputs,
    out: Place,
    *,
    recipe: Place | None = None,
    from_: Annotated[Plugin | None, READERS] = None,
    tokenizer: Annotated[Plugin | None, TEXT_TOKENIZERS] = None,
    template: Annotated[Plugin | None, TEMPLATES] = None,
    layout: str | Mapping[str, Any] | None = None,
    codes: Annotated[Plugin | Place | None, CODE_SOURCES] = None,
    rule: Annotated[Plugin | None, VISUAL_RULES] = None,
    space: str | Mapping[str, Any] | None = None,
    max_length: int | None = None,
    overlong: Overlong | None = None,
    block_size: int | None = None,
    text_field: str | None = None,
    hook: str | None = None,
    limit: int | None = None,
    per_shard: int | None = None,
    seed: int | None = None,
    epoch: int | None = None,
    allow: Inputs = (),
    extra: str | Sequence[str] = (),
    **run: Unpack[RunOptions],
) -> Tokens:
    """Turn samples or plain text into token shards.

    `src` is a folder of samples, tables of plain text, or tokens of another program. `recipe` is a
    TOML file with any of these settings; arguments win over it. `codes` is what `sm.codes` made,
    its folder, or another source of codes. Of text tables only the text becomes tokens: columns
    that look like other content are refused unless `extra` names them; links may lead to `allow`.

        sm.tokenize(shards, "tokens", template="t2i", tokenizer="models/qwen", codes=codes)
    """
    from shardmill.api.tokenize import KNOWN, tokenize_stage

    given = {
        "from": from_,
        "tokenizer": tokenizer,
        "template": template,
        "layout": layout,
        "codes": to_codes(codes),
        "rule": rule,
        "space": space,
        "max_length": max_length,
        "overlong": overlong,
        "block_size": block_size,
        "text_field": text_field,
        "hook": hook,
        "limit": limit,
        "per_shard": per_shard,
        "seed": seed,
        "epoch": epoch,
        "allow": [str(to_path(place)) for place in many(allow)] or None,
        "extra": many(extra) or None,
    }
    _reach(to_texts(src), run)
    values = {} if recipe is None else read_toml(to_path(recipe))
    if unknown := sorted(values.keys() - KNOWN):
        use = near(unknown[0], KNOWN) or f": use {', '.join(sorted(KNOWN))}"
        raise ConfigError(f"{recipe}: tokenize has no {unknown[0]!r}{use}")
    values |= {name: value for name, value in given.items() if value is not None}
    return _run(Tokens, tokenize_stage(values, to_texts(src)), out, run)


@checked
def measure(
    src: Place,
    out: Place,
    *,
    model: Annotated[Plugin | Place, VISUAL_RULES],
    tokenizer: Place | None = None,
    template: Place | None = None,
    estimate: bool = False,
    unknown: Literal["reject", "estimate"] = "reject",
    control: Literal["count", "reject"] = "count",
    today: str | None = None,
    limit: int | None = None,
    **run: Unpack[RunOptions],
) -> Lengths:
    """Count the tokens of samples for a model that takes pixels; no media are decoded.

    `model` is a model folder, or the visual rule of one ("qwen3-vl"); then `tokenizer` is the model
    folder or tokenizer.json whose chat template is used. `estimate` guesses without a tokenizer.
    """
    from shardmill.stages.measure import Measure, merge_lengths
    from shardmill.tokens.visual.rule import rule_of_folder

    folder = Path(model) if isinstance(model, str | os.PathLike) and Path(model).is_dir() else None
    tokenizer = folder if tokenizer is None else tokenizer
    if tokenizer is None and not estimate:
        if isinstance(model, str) and model.partition(",")[0] not in VISUAL_RULES:
            refuse_hub_name(model, "--model")
        raise ConfigError(
            "give the folder of the model as --model, its tokenizer by --tokenizer, or guess "
            "lengths by --estimate"
        )
    stage = Measure(
        input_dir=to_path(src),
        rule=to_plugin(VISUAL_RULES, model, where="model")
        if folder is None
        else rule_of_folder(folder),
        tokenizer=None if estimate or tokenizer is None else Path(tokenizer),
        template=None if template is None else Path(template),
        unknown=unknown,
        control=control,
        today=today,
        limit=limit,
    )
    made = _run(Lengths, stage, out, run)
    if made.complete:
        merge_lengths(made.path)
    return made


@checked
def plan(
    lengths: Place | ArrayLike | Mapping[str, Any],
    out: Place,
    *,
    capacity: int,
    alignment: int = 1,
    overlong: Overlong = "fail",
    max_documents: int | None = None,
    max_packs: int | None = None,
    headroom: float = 0.05,
    method: str = "auto",
    balance: str = "halving",
    block: int = 512,
    seed: int = 0,
    epoch: int = 0,
    model: str | Mapping[str, Any] = "",
    prices: Place | Mapping[str, float] | None = None,
    allow_empty: bool = False,
) -> Plan:
    """Plan packs from the lengths of tokens, from those that `measure` counted, or from your own.

    Your own are a list or an array of the tokens of each sample, or a table of such columns:
    `num_tokens`, `num_visual` (of these, visual ones), `num_fixed` (those that must not be cut),
    `source` with its `source_names`, `exact`. A sample is known by its place among them.

    Writes one file, which is refused for any other data than the lengths it was made from. A file
    that is there already stays: it is this plan, or `ConfigError` says what differs. `method` and
    `balance` name how packs are filled and ordered ("window,window=512", or your own
    "package.module:Class"). `prices` is the file that `calibrate` wrote, or {"token": seconds,
    "visual": ..., "attention": ..., "pack": ...}: packs are ordered by that time too, and the
    report is in seconds. Without it, `model` is the shape of a model whose FLOPs the report
    compares: "layers=32,hidden=4096". A plan without
    packs is `NothingKept`, unless you `allow_empty`.

        sm.plan(tokens, "packs.plan", capacity=8192).report.padding
        sm.plan([812, 90, 4403], "packs.plan", capacity=8192)[0]
    """
    from shardmill.model.codec import names_in, parse_plugin, trust
    from shardmill.model.plan import PackSpec, length_table
    from shardmill.packing.balance import ModelShape
    from shardmill.packing.plan import plan_packs
    from shardmill.packing.report import report_plan
    from shardmill.shards.plans import write_plan
    from shardmill.shards.tokens.shard import read_lengths

    # A plan that is only read does not say what may be loaded.
    trust(*names_in(parse_plugin(method)), *names_in(parse_plugin(balance)))
    spec = PackSpec(
        capacity=capacity,
        alignment=alignment,
        overlong=overlong,
        max_documents=max_documents,
        max_packs=max_packs,
        headroom=headroom,
        method=method,
        balance=balance,
        block=block,
        seed=seed,
        epoch=epoch,
        prices=to_prices(prices),
    )
    shape = to_spec(model, ModelShape, where="model")
    if model and prices is not None:
        raise ConfigError("prices were measured with a model: give --prices or --model, not both")
    if isinstance(lengths, str | os.PathLike):
        table = read_lengths(to_path(lengths))
    else:
        columns = lengths if isinstance(lengths, Mapping) else {"num_tokens": lengths}
        if unknown := columns.keys() - {*OWN_COLUMNS}:
            raise ConfigError(f"no column {min(unknown)!r}: use {', '.join(OWN_COLUMNS)}")
        if "num_tokens" not in columns:
            raise ConfigError("own lengths need the column 'num_tokens'")
        table = length_table(**columns)
    found = _existing_plan(to_path(out), spec, table)
    made = plan_packs(table, spec) if found is None else found
    report = report_plan(made, table, shape, seed=seed)
    if not len(made) and not allow_empty:
        why = f"{listed(report.dropped)}: choose a larger --capacity" if report.dropped else "empty"
        raise NothingKept(f"nothing was planned of {report.num_samples:,} lengths: {why}")
    if found is None:
        write_plan(to_path(out), made)
    return Plan(out, report, table)


def calibrate(
    model: Place,
    plan: Place,
    data: Place,
    out: Place,
    *,
    lengths: Place | None = None,
    steps: int = 24,
    attn_implementation: str | None = None,
    checkpointing: bool = True,
    device: str = "cuda",
    on_step: Callable[[Any], None] | None = None,
) -> Calibration:
    """Measure what packs cost to train on here, and write the prices to a file for `plan`.

    `model` is the folder of a model of transformers: its config.json is enough for tokens, a
    processor is needed for samples. Weights are random, so nothing is downloaded. `plan` and `data`
    are what you train on, with `lengths` for samples: as many of its packs as `steps` are run,
    forward and backward in bf16, with activations recomputed if `checkpointing`. Give the
    `attn_implementation` that you train with; the default is `sm.attention()`. `on_step` gets each
    measured step.

        sm.calibrate("Qwen2.5-VL-3B", "packs.plan", "samples", "prices.json", lengths="lengths")
        sm.plan("lengths", "timed.plan", capacity=16384, prices="prices.json")
    """
    from shardmill.storage.files import write_file
    from shardmill.storage.text import dump_page
    from shardmill.train.calibrate import measure_prices

    made = measure_prices(
        to_path(model),
        to_path(plan),
        to_path(data),
        lengths=None if lengths is None else to_path(lengths),
        steps=steps,
        attn_implementation=attn_implementation,
        checkpointing=checkpointing,
        device=device,
        on_step=on_step,
    )
    write_file(to_path(out), dump_page(asdict(made)))
    return made


@checked
def pack(
    tokens: Place,
    plan: Place,
    out: Place,
    *,
    preset: Literal["vdp"] | None = None,
    format: Literal["megatron", "tar"] | None = None,
    samples: Place | None = None,
    packs_per_shard: int = 1000,
    seed: int = 0,
    epoch: int = 0,
    order: Literal["trained", "planned"] | None = None,
    one_bos: int | None = None,
    text: bool | None = None,
    **run: Unpack[RunOptions],
) -> Packs:
    """Write the packs of a plan to disk, in the order of an epoch or in that of the plan.

    `samples` is the folder of samples whose images, and with `text` whose texts, are copied into
    the tars. `one_bos` is the begin token that only the first document of a pack keeps. A `preset`
    stands for format ("megatron" without one), order, `one_bos` and `text`; what you say comes
    first.
    """
    from shardmill.shards.plans import open_plan
    from shardmill.stages.pack import PRESETS, Materialize

    given: dict[str, Any] = {"format": format, "order": order, "one_bos": one_bos, "text": text}
    chosen = {name: PRESETS[preset][name] if v is None else v for name, v in given.items()}

    open_plan(to_path(plan))  # what is no plan is told before a folder is made
    stage = Materialize(
        tokens_dir=to_path(tokens),
        plan_path=to_path(plan),
        samples_dir=None if samples is None else to_path(samples),
        packs_per_shard=packs_per_shard,
        seed=seed,
        epoch=epoch,
        **chosen,
    )
    return _run(Packs, stage, out, run)


@checked
def export(
    src: Place,
    out: Place,
    *,
    format: Annotated[Plugin, FORMATS],
    codes: Place | None = None,
    shards: int | None = None,
    drop: str | Sequence[str] = (),
    **run: Unpack[RunOptions],
) -> Export:
    """Write finished shards for the readers of other projects.

    `codes` is the folder of codes of these samples; `shards` cuts the rows into so many even parts.
    What the data has and the format has no place for is refused by name, until it is in `drop`.

        sm.export(tokens, "megatron", format="megatron,prefix=train")
    """
    from shardmill.stages.export import ExportShards

    stage = ExportShards(
        input_dir=to_path(src),
        format=to_plugin(FORMATS, format, where="format"),
        codes_dir=None if codes is None else to_path(codes),
        num_shards=shards,
        drop=tuple(name for one in many(drop) for name in one.split(",") if name),
    )
    return _run(Export, stage, out, run)


@checked
def remove(src: Place, out: Place, *, keys: Place, **run: Unpack[RunOptions]) -> Data[Any]:
    """Leave samples out by their keys, for those who opt out; `keys` is a file with a key a line.

    `src` holds samples, codes, tokens or packs. Shards that hold none of the keys are linked.
    """
    from shardmill.stages.remove import RemoveSamples

    stage = RemoveSamples(input_dir=to_path(src), keys_path=_keys_path(keys))
    return _run(type(data.open(src)), stage, out, run)


def _keys_path(keys: Place) -> Path:
    if isinstance(keys, list | tuple):
        raise ConfigError(f"keys must be the path of a text file, got {keys!s:.100}")
    return to_path(keys)


def _run(made: type[Made], stage: Stage, out: Place, options: RunOptions) -> Made:
    """Run a stage into a folder, and return what lies there."""
    return made(out, run_report(stage, out, options))


def _reach(inputs: Sequence[str], run: RunOptions) -> None:
    """Raise `ConfigError` if nobody answers at a url that is read, before anything is begun."""
    from shardmill.running.progress import say_if_slow
    from shardmill.storage.objects import check_answers

    urls = [next(expand_braces(given)) for given in inputs if is_remote(given)]
    for url in urls:
        refuse_secret(url)
    for root, url in {split_url(url).root: url for url in reversed(urls)}.items():
        slow = say_if_slow(sys.stderr, f"waiting for {plain_url(root)}")
        with slow if run.get("progress") else nullcontext():
            check_answers(url)


def _existing_plan(path: Path, spec: PackSpec, table: LengthTable) -> PackPlan | None:
    """Return the plan at `path` if it is the one asked for; any other file there is refused.

    It is left untouched, so that what was made from it stays fresh.
    """
    from shardmill.model.codec import differences, to_plain
    from shardmill.shards.plans import open_plan

    another = "Plan into another file, or remove this one"
    if not path.exists():
        return None
    try:
        found = open_plan(path)
    except FormatError as error:
        raise ConfigError(f"{error}\n{path} is there, and is no plan: {another}") from error
    # The arrays follow from spec and lengths, so these two say whether it is the same plan.
    changes = differences(to_plain(found.spec), to_plain(spec))
    if found.lengths_digest != table.digest:
        changes.append("the lengths are others")
    if changes:
        listed = "".join(f"\n  {line}" for line in changes)
        raise ConfigError(f"{path} was planned with other parameters:{listed}\n{another}")
    return found
