"""Which files are meant: braces and globs spelled out, and a file or url opened for reading.

cc3m-{0000..0575}.tar    576 names, as wide as they are written
part-{a,b{1..3}}.tar     commas and nesting
data/**/*.tar            files that exist, sorted
s3://bucket/x-{0..9}.tar the same for urls; globs only where a store can be listed
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

from shardmill.errors import ConfigError
from shardmill.storage.blob import Blob, LocalBlob, RemoteBlob
from shardmill.storage.objects import list_all
from shardmill.storage.url import STORE_SCHEMES, is_remote

__all__ = ["expand", "expand_braces", "is_remote", "open_blob"]

MAX_NAMES = 1_000_000
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?")


def expand(pattern: str) -> list[str]:
    """Return the files and urls that a pattern names, in order; none is a `ConfigError`."""
    if not is_remote(pattern) and Path(pattern).exists():
        return [pattern]
    names = list(islice(expand_braces(pattern), MAX_NAMES + 1))
    if len(names) > MAX_NAMES:
        raise ConfigError(f"{pattern!r} names more than {MAX_NAMES} files")
    return [name for spelled in names for name in _expand_glob(spelled)]


def open_blob(url: str) -> Blob:
    """Open a file or url for reading anywhere in it."""
    if is_remote(url):
        return RemoteBlob(url)
    return LocalBlob(url.removeprefix("file://"))


def expand_braces(pattern: str) -> Iterator[str]:
    """Yield every way to fill the braces, the first brace changing slowest."""
    opening = pattern.find("{")
    if opening < 0:
        yield pattern
        return
    closing, commas = _matching(pattern, opening)
    choices = _choices(pattern, opening, closing, commas)
    for choice in choices:
        for rest in expand_braces(pattern[closing + 1 :]):
            yield pattern[:opening] + choice + rest


def _choices(pattern: str, opening: int, closing: int, commas: list[int]) -> Iterator[str]:
    if not commas:
        yield from _numbers(pattern[opening + 1 : closing], pattern)
        return
    bounds = [opening, *commas, closing]
    for left, right in pairwise(bounds):
        yield from expand_braces(pattern[left + 1 : right])


def _numbers(inside: str, pattern: str) -> Iterator[str]:
    found = _RANGE.fullmatch(inside)
    if found is None:
        raise ConfigError(f"{{{inside}}} in {pattern!r} is neither {{0..9}} nor {{a,b}}")
    first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
    if step == 0:
        raise ConfigError(f"{{{inside}}} in {pattern!r} has a step of 0")
    zeros = any(len(n.lstrip("-")) > 1 and n.lstrip("-")[0] == "0" for n in found.groups()[:2])
    width = max(len(found[1]), len(found[2])) if zeros else 0
    sign = 1 if last >= first else -1
    for number in range(first, last + sign, sign * step):
        yield f"{number:0{width}d}"


def _matching(pattern: str, opening: int) -> tuple[int, list[int]]:
    depth = 0
    commas: list[int] = []
    for at in range(opening, len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[at], 0)
        if depth == 0:
            return at, commas
        if pattern[at] == "," and depth == 1:
            commas.append(at)
    raise ConfigError(f"{pattern!r} has a brace that is not closed")


def _expand_glob(name: str) -> list[str]:
    if not glob.has_magic(name):
        return [name]
    if is_remote(name):
        return _expand_remote(name)
    found = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 (a pattern may be absolute)
    if not found:
        raise ConfigError(f"no file matches {name!r}")
    return found


def _expand_remote(pattern: str) -> list[str]:
    if not pattern.startswith(STORE_SCHEMES):
        # "?" and "[" may stand in the url of a web page, which cannot be listed.
        return [pattern]
    root = pattern[: glob.escape(pattern).index("[")].rpartition("/")[0]
    names = (f"{root}/{info.path}" for info in list_all(root))
    # "*" stays inside of a folder, "**" does not.
    parts = (re.escape(part).replace(r"\*", "[^/]*") for part in pattern.split("**"))
    wanted = re.compile(".*".join(parts).replace(r"\?", "[^/]"))
    found = [name for name in names if wanted.fullmatch(name)]
    if not found:
        raise ConfigError(f"no object matches {pattern!r}")
    return found
