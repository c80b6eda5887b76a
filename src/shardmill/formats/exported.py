"""Opens anything that can be compared: our folders, our exports, and foreign tokens.

What lies in a folder or a file: the kind of reader that it needs, from the files themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from shardmill.errors import ConfigError, FormatError, ShardmillError
from shardmill.formats.huggingface.read import LiquidReader, TokenTableReader
from shardmill.formats.litdata import LitDataReader
from shardmill.formats.mds import MdsReader
from shardmill.formats.megatron import MegatronReader
from shardmill.formats.own import open_folder
from shardmill.formats.reader import Reader
from shardmill.formats.unidisc.parts import PART, is_memmap_folder
from shardmill.formats.unidisc.read import UnidiscReader
from shardmill.formats.webdataset.read import TarReader, is_packed_tar
from shardmill.model.codec import build, to_plain
from shardmill.model.space import TokenSpace
from shardmill.plugins import READERS
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.shards.tokens.ids import MAGIC
from shardmill.storage.path import expand
from shardmill.storage.url import is_remote

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


Spec: TypeAlias = Mapping[str, Any]


def open_reader(
    place: str, *, space: TokenSpace | None = None, codes_dir: str | None = None
) -> Reader:
    """Return the reader of a place; `space` is for foreign tokens that do not say theirs."""
    folder = Path(place)
    record = Ledger(folder).read_stage() if folder.is_dir() else None
    stage = None if record is None else record.stage
    if isinstance(stage, dict) and "format" in stage and isinstance(stage["format"], dict):
        return _open_export(folder, stage, space)
    if isinstance(stage, dict) and stage.get("format") == "tar" and "tokens_dir" in stage:
        images = {"samples": stage.get("samples_dir")}
        return _tars(folder, images, space or _space_of(str(stage["tokens_dir"])))
    if record is not None or (folder / "manifest.json").exists():
        reader: Reader = open_folder(folder, codes_dir)
        return reader
    return _open_foreign(place, space)


def _open_export(folder: Path, stage: Spec, space: TokenSpace | None) -> Reader:
    open_manifest(folder)  # says what is missing in a folder that is not finished
    format = {"codes": stage.get("codes_dir"), **stage["format"]}
    name = str(format["kind"]).removeprefix("format/")
    if name not in OPENERS:
        raise ConfigError(f"{folder}: there is no reader of exports of kind {name!r}")
    return OPENERS[name](folder, format, space or _space_of(str(stage.get("input_dir"))))


def _space_of(folder: str) -> TokenSpace | None:
    """Return the space of the folder that something was made from, if it is still there."""
    try:
        reader: Reader = open_folder(Path(folder))
        return reader.token_space()
    except ShardmillError:
        return None


def _open_foreign(place: str, space: TokenSpace | None) -> Reader:
    kind = kind_of_tokens([place])
    if kind is None:
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


def _needed(space: TokenSpace | None, folder: Path) -> TokenSpace:
    if space is None:
        raise ConfigError(
            f"{folder} does not say its token space, and the folder that it was exported from is "
            "gone: compare it with a folder of tokens"
        )
    return space


def _megatron(folder: Path, format: Spec, space: TokenSpace | None) -> Reader:
    prefix = format.get("prefix")
    place = folder / "shards" if prefix is None else folder / str(prefix)
    return MegatronReader(files=(str(place),), space=space)


def _tensors(folder: Path, format: Spec, space: TokenSpace | None) -> Reader:
    known = _needed(space, folder)
    return UnidiscReader(dir=str(folder), codes=format["codes"], end=False, space=known)


def _tars(folder: Path, format: Spec, space: TokenSpace | None) -> Reader:
    shards = open_manifest(folder).shards
    if not shards or not is_packed_tar(folder / shards[0].files["tar"].path):
        reader: Reader = open_folder(folder)
        return reader
    known = _needed(space, folder)
    images = format.get("samples") is not None
    return TarReader(files=(str(folder / "shards"),), space=known, ours=True, images=images)


def _mds(folder: Path, format: Spec, space: TokenSpace | None) -> Reader:
    return MdsReader(dir=str(folder), space=_needed(space, folder))


def _litdata(folder: Path, format: Spec, space: TokenSpace | None) -> Reader:
    return LitDataReader(dir=str(folder), space=space)


def _table(folder: Path, format: Spec, space: TokenSpace | None) -> Reader:
    columns = tuple(format["columns"])
    return TokenTableReader(dir=str(folder), files=format["files"], columns=columns, space=space)


def _liquid(folder: Path, format: Spec, space: TokenSpace | None) -> Reader:
    return LiquidReader(dir=str(folder), files=format["files"])


def _liquid_pairs(folder: Path, format: Spec, space: TokenSpace | None) -> Reader:
    return LiquidReader(dir=str(folder), files="jsonl", has_codes=bool(format["codes"]))


OPENERS: dict[str, Callable[[Path, Spec, TokenSpace | None], Reader]] = {
    "megatron": _megatron,
    "hf": _table,
    "liquid": _liquid,
    "liquid-pairs": _liquid_pairs,
    "tensordict": _tensors,
    "tensordict-pairs": _tensors,
    "webdataset": _tars,
    "energon": _tars,
    "mds": _mds,
    "litdata": _litdata,
}
