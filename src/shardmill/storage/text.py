"""JSON and TOML as text: JSON in one form for one value, TOML as a person wrote it.

JSON has sorted keys and is UTF-8. Names of files may hold bytes that are not UTF-8, which Python
carries as lone surrogates; orjson refuses those, so they go through the standard library as escapes
("\\udcff").
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import orjson

from shardmill.errors import ConfigError, FormatError

# What stands at the beginning of a file that is not what its name says, and what to do about it.
MISTAKEN = (
    (rb"version https://git-lfs", "a pointer of Git LFS: run git lfs pull where it lies"),
    (rb"\s*<(!doctype html|html)", "a web page (HTML): download the file itself"),
    (rb"\xff\xfe|\xfe\xff", "text in UTF-16: write it as UTF-8"),
    (rb"\x1f\x8b", "compressed by gzip: give its name the suffix .gz"),
    (rb"\x28\xb5\x2f\xfd", "compressed by zstd: give its name the suffix .zst"),
    (rb"PK\x03\x04", "a zip archive or a spreadsheet: unpack it, or save it as csv"),
)
_LINE = orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
_PAGE = _LINE | orjson.OPT_INDENT_2


def mistaken_for(head: bytes) -> str:
    """Return what a file is that begins so and is no table or medium, "" if that cannot be told."""
    found = (what for pattern, what in MISTAKEN if re.match(pattern, head, re.IGNORECASE))
    return next(found, "")


def dump_page(value: Any) -> bytes:
    """Return JSON for a person to read: indented, with a newline at the end."""
    try:
        return orjson.dumps(value, option=_PAGE)
    except orjson.JSONEncodeError:
        return json.dumps(value, sort_keys=True, indent=2).encode() + b"\n"


def dump_line(value: Any) -> bytes:
    """Return JSON as one line with its newline."""
    try:
        return orjson.dumps(value, option=_LINE)
    except orjson.JSONEncodeError:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text, or raise `ValueError`."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        try:
            return json.loads(content)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


def read_json(path: Path) -> Any:
    """Return the value of a JSON file, or raise `FormatError`."""
    try:
        content = path.read_bytes()
    except ValueError as error:  # a zero byte in a name, which data may have given
        raise FormatError(f"cannot be the name of a file: {error}", path=repr(str(path))) from error
    return parse_page(content, path)


def parse_page(content: bytes, path: object) -> Any:
    """Return the value of a JSON file's content, or raise `FormatError`."""
    try:
        return parse_json(content)
    except ValueError as error:
        mistake = mistaken_for(content[:256])
        problem = f"it is {mistake}" if mistake else str(error)
        raise FormatError(f"is not JSON: {problem}", path=path) from error


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file, or raise `ConfigError` that names the file and the line."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except RecursionError:
        raise ConfigError(f"cannot read {path}: it is nested too deeply") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
