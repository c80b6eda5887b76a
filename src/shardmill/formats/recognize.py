"""What lies in a folder or a file: the kind of reader that it needs, from the files themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.read_tars import is_packed_tar
from shardmill.formats.unidisc_parts import PART
from shardmill.io.megatron import MAGIC
from shardmill.io.memmaps import is_memmap_folder
from shardmill.io.urls import expand, is_remote

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
