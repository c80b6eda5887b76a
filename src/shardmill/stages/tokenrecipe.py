"""A recipe for tokens as plain values (a TOML file, flags) to the stage that it describes.

From a recipe and its inputs to the adoption of tokens that exist already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardmill.errors import ConfigError
from shardmill.formats.exported import INPUT_FIELDS, kind_of_tokens
from shardmill.model.codec import field_types, from_plain, to_plain
from shardmill.model.space import TokenSpace
from shardmill.plugins import CODE_SOURCES, READERS, TEMPLATES, TEXT_TOKENIZERS, VISUAL_RULES, build
from shardmill.stages.adopt import AdoptTokens
from shardmill.stages.tokenize import Tokenize
from shardmill.stages.tokenize_text import TokenizeText
from shardmill.storage.path import as_path
from shardmill.tokens.layout import LAYOUTS, ImageLayout
from shardmill.tokens.templates.text import PlainText
from shardmill.tokens.text.tokenizer import TextSpec, load_once

MEANINGFUL = {"from", "space", "tokenizer"}


def is_adoption(recipe: Mapping[str, Any], inputs: Sequence[str]) -> bool:
    """Say whether the inputs hold tokens already: by what lies there, or because a user says so."""
    return "from" in recipe or kind_of_tokens(inputs) is not None


def adoption_of(
    recipe: Mapping[str, Any],
    inputs: Sequence[str],
    space: TokenSpace | None,
    tokenizer: TextSpec | None,
) -> AdoptTokens:
    """Return the stage; without a space the kind's own one is meant, if it has one."""
    useless = sorted(recipe.keys() - MEANINGFUL)
    if useless:
        raise ConfigError(f"{useless[0]!r} has no meaning for rows that are tokens already")
    chosen = recipe.get("from") or {"kind": kind_of_tokens(inputs)}
    if isinstance(chosen, str):
        chosen = {"kind": chosen}
    places = [str(Path(given).absolute()) for given in inputs]
    field = INPUT_FIELDS.get(chosen["kind"], "files")
    if field == "dir" and len(places) > 1:
        raise ConfigError(f"give one folder of this kind at a time, got {len(places)}")
    plain = {**chosen, field: places[0] if field == "dir" else places}
    if space is not None:
        plain["space"] = to_plain(space)
    return AdoptTokens(reader=build(READERS, plain, where="from"), tokenizer=tokenizer)


TABLES = {
    "tokenizer": TEXT_TOKENIZERS,
    "template": TEMPLATES,
    "codes": CODE_SOURCES,
    "rule": VISUAL_RULES,
}
LAYOUT_NAMES = tuple(LAYOUTS)
SHARED = ("max_length", "block_size", "limit")
FOR_SAMPLES = (*SHARED, "overlong", "hook", "seed", "epoch")
FOR_TEXT = (*SHARED, "text_field", "per_shard")
KNOWN = {*TABLES, "space", "layout", "from", *FOR_SAMPLES, *FOR_TEXT}


def stage_of(
    recipe: Mapping[str, Any], inputs: Sequence[str]
) -> Tokenize | TokenizeText | AdoptTokens:
    """Return the stage of a recipe for its inputs: samples, tables of plain text, or tokens."""
    unknown = sorted(recipe.keys() - KNOWN)
    if unknown:
        raise ConfigError(f"a recipe has no {unknown[0]!r}: use {', '.join(sorted(KNOWN))}")
    if is_adoption(recipe, inputs):
        tokenizer = tokenizer_of(recipe["tokenizer"]) if "tokenizer" in recipe else None
        return adoption_of(recipe, inputs, _given_space(recipe, tokenizer), tokenizer)
    tokenizer = tokenizer_of(recipe.get("tokenizer", "bundled"))
    template = _plugin("template", recipe.get("template", "text"))
    space = space_of(recipe.get("space", {}), tokenizer)
    if not (as_path(inputs[0]) / "stage.json").exists():
        return _text_stage(recipe, inputs, tokenizer, template, space)
    if len(inputs) > 1:
        raise ConfigError(f"tokenize takes one folder of samples at a time, got {len(inputs)}")
    if "per_shard" in recipe:
        raise ConfigError("per_shard is for text tables: a shard of samples stays a shard")
    return Tokenize(
        input_dir=as_path(inputs[0]),
        tokenizer=tokenizer,
        template=template,
        space=space,
        layout=layout_of(recipe.get("layout", "codes")),
        codes=_plugin("codes", recipe["codes"]) if "codes" in recipe else None,
        rule=_plugin("rule", recipe["rule"]) if "rule" in recipe else None,
        **_checked(Tokenize, recipe, FOR_SAMPLES),
    )


def tokenizer_of(value: Any) -> TextSpec:
    """Return a tokenizer from its table, or from a path that says what it is."""
    if isinstance(value, str):
        path = Path(value)
        is_sentencepiece = value == "bundled" or path.suffix == ".model"
        value = {"kind": "sentencepiece" if is_sentencepiece else "huggingface", "path": value}
    spec: TextSpec = _plugin("tokenizer", value)
    return spec


def space_of(value: Any, tokenizer: TextSpec) -> TokenSpace:
    """Return the space; without `text_size` the text part is the tokenizer's vocabulary.

    The tokenizer is loaded here already, so that one that does not fit, or that no fast engine can
    stand in for, is reported before any work begins.
    """
    found = load_once(tokenizer)
    if isinstance(value, dict):
        value = {"text_size": found.vocab_size, **value}
    space = from_plain(value, TokenSpace, where="space")
    assert isinstance(space, TokenSpace)
    space.check_tokenizer(found.vocab_size, found.name)
    return space


def _given_space(recipe: Mapping[str, Any], tokenizer: TextSpec | None) -> TokenSpace | None:
    """Return the space of tokens that exist already, None if the recipe says nothing of it."""
    if tokenizer is not None:
        return space_of(recipe.get("space", {}), tokenizer)
    if "space" not in recipe:
        return None
    space: TokenSpace = from_plain(recipe["space"], TokenSpace, where="space")
    return space


def layout_of(value: Any) -> ImageLayout:
    """Return a layout by its name, or from its fields."""
    if isinstance(value, str):
        if value not in LAYOUTS:
            raise ConfigError(f"unknown layout {value!r}: use one of {', '.join(LAYOUTS)}")
        return LAYOUTS[value]
    layout = from_plain(value, ImageLayout, where="layout")
    assert isinstance(layout, ImageLayout)
    return layout


def _text_stage(
    recipe: Mapping[str, Any],
    inputs: Sequence[str],
    tokenizer: TextSpec,
    template: Any,
    space: TokenSpace,
) -> TokenizeText:
    if not isinstance(template, PlainText):
        raise ConfigError(
            f"{inputs[0]} is no folder of samples, so only the template 'text' can read it: "
            "ingest it first for any other"
        )
    useless = sorted(recipe.keys() - {"tokenizer", "template", "space", *FOR_TEXT})
    if useless:
        raise ConfigError(f"{useless[0]!r} needs samples: ingest {inputs[0]} first")
    return TokenizeText(
        files=tuple(inputs),
        tokenizer=tokenizer,
        template=template,
        space=space,
        **_checked(TokenizeText, recipe, FOR_TEXT),
    )


def _checked(cls: type, recipe: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    types = field_types(cls)
    return {n: from_plain(recipe[n], types[n], where=n) for n in names if n in recipe}


def _plugin(name: str, value: Any) -> Any:
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a name or a table, got {value!r}")
    return build(TABLES[name], value, where=name)
