"""Finds the reader of what holds samples, codes or tokens: our folders, exports, foreign tokens.

An export says in its stage.json which format made it, and that format opens it, a user's own like
a built-in one. A place without a stage.json is shown to each reader of the table READERS in turn.
Formats and readers are loaded by their names in the tables: nothing here knows one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardmill.errors import ConfigError, ShardmillError
from shardmill.formats.format import Completing, Format, LackingReader, Reader, open_folder
from shardmill.model.codec import build, field_types, from_plain, load_class, place_in, to_plain
from shardmill.model.space import TokenSpace
from shardmill.plugins import FORMATS, READERS, resolve
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.storage.path import expand, is_remote, near_path


def open_reader(
    place: str, *, space: TokenSpace | None = None, codes_dir: str | None = None
) -> Reader:
    """Return the reader of a place; `ConfigError` if nothing tells what lies there.

    `space` is for tokens that do not say theirs, `codes_dir` for a folder of samples.
    """
    folder = Path(place)
    record = Ledger(folder).read_stage() if folder.is_dir() else None
    stage = None if record is None else record.stage
    if isinstance(stage, dict) and isinstance(stage.get("format"), dict):
        open_manifest(folder)  # says what is missing in a folder that is not finished
        format = from_plain(stage["format"], Format, where=f"{folder}: format")
        dropped = from_plain(stage.get("drop", []), tuple[str, ...], where=f"{folder}: drop")
        space = space or _space_of(place_in(stage.get("input_dir")))
        return _open_export(format, folder, space, dropped)
    if isinstance(stage, dict) and stage.get("format") == "tar" and "tokens_dir" in stage:
        # `shardmill pack` writes such tars as well.
        plain = {"kind": FORMATS["webdataset"], "samples": stage.get("samples_dir")}
        format = from_plain(plain, Format, where=f"{folder}: format")
        return _open_export(format, folder, space or _space_of(place_in(stage["tokens_dir"])))
    if record is not None or (folder / "manifest.json").exists():
        return open_folder(folder, codes_dir)
    return _open_foreign(place, space)


def kind_of_tokens(inputs: Sequence[str]) -> str | None:
    """Return the kind of foreign tokens that these inputs hold, None if they hold others."""
    if not inputs or is_remote(inputs[0]):
        return None
    path = Path(inputs[0])
    if (path / "stage.json").exists():
        return None
    # A Megatron prefix has no file of its own name, so a path that does not exist is shown too.
    for place in [path] if path.exists() else [path, *_first_of(inputs[0])]:
        for kind, name in READERS.items():
            reader: Any = load_class(name)
            if reader.recognizes(place):
                return kind
    return None


def build_reader(plain: Mapping[str, Any], places: Sequence[str], *, where: str) -> Reader:
    """Return the reader that `{"kind": name, field: value, ...}` describes, for these places.

    They go into its field `files`; a reader that has `dir` instead takes one folder.
    """
    given: dict[str, Any] = {"files": list(places)}
    if "files" not in field_types(load_class(resolve(READERS, str(plain["kind"]), "from"))):
        if len(places) > 1:
            raise ConfigError(f"give one folder of this kind at a time, got {len(places)}")
        given = {"dir": places[0]}
    reader: Reader = build(READERS, {**plain, **given}, where=where)
    return reader


def _first_of(pattern: str) -> list[Path]:
    try:
        return [Path(expand(pattern)[0])]
    except ConfigError:
        return []


def _open_export(
    format: Any, folder: Path, space: TokenSpace | None, dropped: Sequence[str] = ()
) -> Reader:
    assert isinstance(format, Format)
    reader = format.open(folder, space)
    lacks = reader.holds() & frozenset(dropped)
    if "modality" in lacks:  # by which it is known what are the codes of an image
        lacks |= {"codes"}
    return LackingReader(reader, lacks) if lacks else reader


def _space_of(folder: str | None) -> TokenSpace | None:
    """Return the space of the folder that something was made from, if it is still there."""
    try:
        return None if folder is None else open_folder(Path(folder)).token_space()
    except ShardmillError:
        return None


def _open_foreign(place: str, space: TokenSpace | None) -> Reader:
    kind = kind_of_tokens([place])
    if kind is None:
        if not is_remote(place) and not Path(place).exists():
            raise ConfigError(f"{place!r} does not exist{near_path(place)}")
        raise ConfigError(
            f"cannot tell what {place} holds: give a folder of shardmill, an export, or one of "
            f"{', '.join(READERS)}; raw images, tables and tars become samples by: shardmill "
            f"ingest {place} OUT (sm.ingest)"
        )
    plain = {"kind": kind} if space is None else {"kind": kind, "space": to_plain(space)}
    reader = build_reader(plain, [place], where=kind)
    # Looked at and compared as it is stored, not as it is trained.
    return reader.as_stored() if isinstance(reader, Completing) else reader
