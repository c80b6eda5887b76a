"""From a recipe and its inputs to the adoption of tokens that exist already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardmill.errors import ConfigError
from shardmill.formats.recognize import INPUT_FIELDS, kind_of_tokens
from shardmill.model.codec import to_plain
from shardmill.model.space import TokenSpace
from shardmill.plugins import READERS, build
from shardmill.stages.adopt import AdoptTokens
from shardmill.tokens.text import TextSpec

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
