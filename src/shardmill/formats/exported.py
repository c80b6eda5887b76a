"""Opens whatever holds samples, codes or tokens: our folders, our exports, and foreign tokens.

An export says in its stage.json which format made it, and that format opens it, a user's own like
a built-in one. Folders without a stage.json are recognized by their files: Megatron's prefixes,
tars of packed samples, UniDisc's memory maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardmill.errors import ConfigError, FormatError, ShardmillError
from shardmill.formats.adapters.unidisc.memmaps import is_memmap_folder
from shardmill.formats.adapters.unidisc.parts import PART
from shardmill.formats.format import Format
from shardmill.formats.own import open_folder
from shardmill.formats.reader import Reader
from shardmill.formats.webdataset import WebDatasetFormat, is_packed_tar
from shardmill.model.codec import build, from_plain, to_plain
from shardmill.model.space import TokenSpace
from shardmill.plugins import READERS
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.shards.tokens.ids import MAGIC
from shardmill.storage.path import expand, is_remote

# What each kind calls its input; those with `files` take more than one.
INPUT_FIELDS = {"unidisc": "dir", "megatron": "files", "packed-tars": "files"}


def kind_of_tokens(inputs: Sequence[str]) -> str | None:
    """Return the kind of foreign tokens that these inputs hold, None if they hold others."""
    if not inputs or is_remote(inputs[0]):
        return None
    path = Path(inputs[0])
    if (path / "stage.json").exists():
        return None
    if path.is_dir():
        return _kind_of_folder(path)
    if _is_megatron(path) or _is_megatron(path.with_name(path.name + ".idx")):
        return "megatron"
    return _kind_of_tars(inputs[0])


def _kind_of_folder(path: Path) -> str | None:
    if is_memmap_folder(path) or any(
        PART.fullmatch(part.name) and is_memmap_folder(part) for part in path.iterdir()
    ):
        return "unidisc"
    if any(map(_is_megatron, path.glob("*.idx"))):
        return "megatron"
    first = min(path.rglob("*.tar"), default=None)
    return "packed-tars" if first is not None and _is_packed(first) else None


def _kind_of_tars(pattern: str) -> str | None:
    try:
        path = Path(expand(pattern)[0])
    except ConfigError:
        return None
    if path.is_dir():
        return _kind_of_folder(path)
    return "packed-tars" if path.suffix == ".tar" and _is_packed(path) else None


def _is_megatron(path: Path) -> bool:
    index = path.with_suffix(".idx") if path.suffix == ".bin" else path
    if index.suffix != ".idx" or not index.is_file():
        return False
    with index.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _is_packed(path: Path) -> bool:
    try:
        return is_packed_tar(path)
    except FormatError:
        return False


def open_reader(
    place: str, *, space: TokenSpace | None = None, codes_dir: str | None = None
) -> Reader:
    """Return the reader of a place; `space` is for foreign tokens that do not say theirs."""
    folder = Path(place)
    record = Ledger(folder).read_stage() if folder.is_dir() else None
    stage = None if record is None else record.stage
    if isinstance(stage, dict) and isinstance(stage.get("format"), dict):
        return _open_export(folder, stage["format"], space or _space_of(stage.get("input_dir")))
    if isinstance(stage, dict) and stage.get("format") == "tar" and "tokens_dir" in stage:
        # `shardmill pack` writes such tars as well.
        media = stage.get("samples_dir")
        tars = WebDatasetFormat(samples=None if media is None else Path(str(media)))
        return tars.open(folder, space or _space_of(stage["tokens_dir"]))
    if record is not None or (folder / "manifest.json").exists():
        return open_folder(folder, codes_dir)
    return _open_foreign(place, space)


def _open_export(folder: Path, plain: Any, space: TokenSpace | None) -> Reader:
    open_manifest(folder)  # says what is missing in a folder that is not finished
    format = from_plain(plain, Format, where=f"{folder}: format")
    assert isinstance(format, Format)
    return format.open(folder, space)


def _space_of(folder: Any) -> TokenSpace | None:
    """Return the space of the folder that something was made from, if it is still there."""
    try:
        return open_folder(Path(str(folder))).token_space()
    except ShardmillError:
        return None


def _open_foreign(place: str, space: TokenSpace | None) -> Reader:
    kind = kind_of_tokens([place])
    if kind is None:
        if not is_remote(place) and not Path(place).exists():
            raise ConfigError(f"{place} does not exist")
        raise ConfigError(
            f"cannot tell what {place} holds: give a folder of shardmill, an export, or one of "
            f"{', '.join(READERS)}"
        )
    field = INPUT_FIELDS[kind]
    plain: dict[str, Any] = {"kind": kind, field: place if field == "dir" else [place]}
    if space is not None:
        plain["space"] = to_plain(space)
    reader: Reader = build(READERS, plain, where=kind)
    return reader
