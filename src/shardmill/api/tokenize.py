"""From the settings of `tokenize` to its stage: over samples, over plain text, or over tokens.

What the input is decides: a folder of samples is tokenized with a template, tables of plain text go
straight to tokens, and tokens of another program are adopted as they are. A setting that has no
meaning for the input is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from shardmill.api.values import refuse_hub_name, to_plugin, to_spec, to_table
from shardmill.errors import ConfigError, SampleError, near
from shardmill.formats.finder import build_reader, kind_of_tokens
from shardmill.model.codec import field_types, from_plain, to_plain
from shardmill.model.space import TokenSpace
from shardmill.plugins import CODE_SOURCES, TEMPLATES, TEXT_TOKENIZERS, VISUAL_RULES
from shardmill.sources.columns import unused_content
from shardmill.sources.guess import first_rows
from shardmill.sources.shapes.general import TextShape
from shardmill.sources.tables import TableSource
from shardmill.stages.adopt import AdoptTokens
from shardmill.stages.tokenize import Tokenize, TokenizeText
from shardmill.storage.path import as_path
from shardmill.tokens.codes import ShardCodes
from shardmill.tokens.layout import LAYOUTS, ImageLayout
from shardmill.tokens.templates.pairs import MixedPairs
from shardmill.tokens.templates.template import PlainText
from shardmill.tokens.text.tokenizer import PROBES, TextSpec, TextTokenizer, load_once

WORD = re.compile(r"\s?[a-z]+")
NUM_WORDS = 256
FOR_ALL = ("max_length", "block_size", "limit")
FOR_SAMPLES = (*FOR_ALL, "overlong", "hook", "seed", "epoch")
FOR_TEXT = (*FOR_ALL, "text_field", "per_shard", "allow")
FOR_TOKENS = ("from", "space", "tokenizer")
PLUGINS = ("tokenizer", "template", "codes", "rule", "space", "layout", "from")
KNOWN = {*PLUGINS, *FOR_SAMPLES, *FOR_TEXT, "extra"}


def tokenize_stage(
    settings: Mapping[str, Any], inputs: Sequence[str]
) -> Tokenize | TokenizeText | AdoptTokens:
    """Return the stage of these settings for these inputs."""
    unknown = sorted(settings.keys() - KNOWN)
    if unknown:
        use = f"{near(unknown[0], KNOWN)}\nUse {', '.join(sorted(KNOWN))}"
        raise ConfigError(f"tokenize has no {unknown[0]!r}{use}")
    if isinstance(settings.get("tokenizer"), str):
        refuse_hub_name(settings["tokenizer"], "--tokenizer")
    if "from" in settings or kind_of_tokens(inputs) is not None:
        return _adopt(settings, inputs)
    tokenizer = to_tokenizer(settings.get("tokenizer", "bundled"))
    template = to_plugin(TEMPLATES, settings.get("template", "text"), where="template")
    codes, layout = settings.get("codes"), _layout(settings.get("layout", "codes"))
    codes = None if codes is None else to_plugin(CODE_SOURCES, codes, where="codes")
    joined = codes if isinstance(codes, ShardCodes) and layout.patch is None else None
    space = _space(settings.get("space", {}), tokenizer, joined.num_codes if joined else 0)
    if not (as_path(inputs[0]) / "stage.json").exists():
        return _tokenize_text(settings, inputs, tokenizer, template, space)
    if len(inputs) > 1:
        raise ConfigError(f"tokenize takes one folder of samples at a time, got {len(inputs)}")
    for name in sorted(settings.keys() & {*FOR_TEXT} - {*FOR_SAMPLES}):
        raise ConfigError(
            f"--{name.replace('_', '-')} is for tables of text, and {inputs[0]} holds samples: "
            "leave it out"
        )
    if "overlong" in settings and "max_length" not in settings:
        raise ConfigError("--overlong is for rows beyond --max-length: give that too")
    if joined is not None:
        joined.check_space(space)
    rule = settings.get("rule")
    return Tokenize(
        input_dir=as_path(inputs[0]),
        tokenizer=tokenizer,
        template=template,
        space=space,
        layout=layout,
        codes=codes,
        rule=None if rule is None else to_plugin(VISUAL_RULES, rule, where="rule"),
        **_checked(Tokenize, settings, FOR_SAMPLES),
    )


def to_tokenizer(value: Any) -> TextSpec:
    """Return a tokenizer from its table or spec, or from a path that says what it is."""
    if isinstance(value, str | Path):
        is_sentencepiece = str(value) == "bundled" or Path(value).suffix == ".model"
        kind = "sentencepiece" if is_sentencepiece else "huggingface"
        value = {"kind": kind, "path": str(value)}
    spec: TextSpec = to_plugin(TEXT_TOKENIZERS, value, where="tokenizer")
    return spec


def _tokenize_text(
    settings: Mapping[str, Any],
    inputs: Sequence[str],
    tokenizer: TextSpec,
    template: Any,
    space: TokenSpace,
) -> TokenizeText:
    if isinstance(template, MixedPairs):  # rows without an image, which it says as plain text
        template = template.plain
    if not isinstance(template, PlainText):
        raise ConfigError(
            f"{inputs[0]} is no folder of samples, so only the template 'text' can read it: "
            "ingest it first for any other"
        )
    useless = sorted(settings.keys() - {"tokenizer", "template", "space", "extra", *FOR_TEXT})
    if useless:
        raise ConfigError(f"{useless[0]!r} needs samples: ingest {inputs[0]} first")
    stage = TokenizeText(
        files=tuple(inputs),
        tokenizer=tokenizer,
        template=template,
        space=space,
        **_checked(TokenizeText, settings, FOR_TEXT),
    )
    _check_columns(stage, settings.get("extra", ()))
    return stage


def _check_columns(stage: TokenizeText, extra: Sequence[str]) -> None:
    """Raise `ConfigError` if rows hold more content than the text, as `ingest` does."""
    shape = TextShape(text=(stage.text_field,))
    for place, rows, _ in first_rows(TableSource(files=stage.files, allow=stage.allow)):
        for row in rows:
            with suppress(SampleError):
                document = shape.shape(row.fields)
                for name, looks in unused_content(row.fields, document, extra, weak=False).items():
                    raise ConfigError(
                        f"{place}: {name!r} looks like {looks}, and only {stage.text_field!r} "
                        f"becomes tokens: ingest it first, or leave it out by --extra {name}"
                    )


def _adopt(settings: Mapping[str, Any], inputs: Sequence[str]) -> AdoptTokens:
    """Return the stage of tokens that exist already; without a space the kind's own is meant."""
    useless = sorted(settings.keys() - set(FOR_TOKENS))
    if useless:
        raise ConfigError(f"{useless[0]!r} has no meaning for rows that are tokens already")
    plain = {**to_table(settings.get("from") or {"kind": kind_of_tokens(inputs)}, where="from")}
    # They become part of the spec, which workers read in folders of their own.
    places = [str(Path(given).absolute()) for given in inputs]
    tokenizer = to_tokenizer(settings["tokenizer"]) if "tokenizer" in settings else None
    if tokenizer is not None:
        plain["space"] = to_plain(_space(settings.get("space", {}), tokenizer))
    elif "space" in settings:
        plain["space"] = to_plain(to_spec(settings["space"], TokenSpace, where="space"))
    return AdoptTokens(reader=build_reader(plain, places, where="from"), tokenizer=tokenizer)


def _space(value: Any, tokenizer: TextSpec, num_codes: int = 0) -> TokenSpace:
    """Return the space; without `text_size` the text part is the tokenizer's vocabulary.

    Without `num_codes` it has room for the codebook whose codes are joined.

    The tokenizer is loaded here already, so that one that does not fit, or that no fast engine can
    stand in for, is reported before any work begins.
    """
    found = load_once(tokenizer)
    if isinstance(value, str):
        value = to_table(f"fields,{value}", where="space")
        del value["kind"]
    if isinstance(value, Mapping):
        value = {"text_size": found.vocab_size, "num_codes": num_codes, **value}
    space: TokenSpace = to_spec(value, TokenSpace, where="space")
    space.check_tokenizer(found.vocab_size, found.name)
    if space.codes_at is not None or space.specials:
        space.check_text(_ids_of_text(found, space), found.name)
    return space


def _ids_of_text(tokenizer: TextTokenizer, space: TokenSpace) -> NDArray[Any]:
    """Return ids that texts have: of many scripts, and of words that lie where codes shall be."""
    end = min(space.code_offset + space.num_codes, tokenizer.vocab_size)
    step = max(1, (end - space.code_offset) // NUM_WORDS)
    numbers = [*range(space.code_offset, end, step), *space.specials.values()]
    texts = [tokenizer.decode([n]) for n in numbers if n < tokenizer.vocab_size]
    # Names of codes (Chameleon's IMGIMGAZ) are no words: nobody writes them.
    words = [text for text in texts if WORD.fullmatch(text)]
    return tokenizer.encode_batch([*PROBES, *words, *(f" {word}" for word in words)]).ids


def _layout(value: Any) -> ImageLayout:
    """Return a layout by its name, with fields of its own: 'patches,num_patches=64'."""
    if isinstance(value, str):
        fields = to_table(value, where="layout")
        name = fields.pop("kind")
        if name not in LAYOUTS:
            use = f"{near(name, LAYOUTS)}\nUse one of {', '.join(LAYOUTS)}"
            raise ConfigError(f"layout: unknown name {name!r}{use}")
        value = {**plain_fields(LAYOUTS[name]), **fields}
    layout: ImageLayout = to_spec(value, ImageLayout, where="layout")
    return layout


def plain_fields(layout: ImageLayout) -> dict[str, Any]:
    """Return the fields of a layout as a table has them."""
    plain = to_plain(layout)
    assert isinstance(plain, dict)
    return {name: value for name, value in plain.items() if name != "kind"}


def _checked(cls: type, settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    types = field_types(cls)
    return {
        n: from_plain(settings[n], types[n], where=n, trusted=True) for n in names if n in settings
    }
