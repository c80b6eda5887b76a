"""Which files are meant: braces and globs spelled out, and a file or url opened for reading.

cc3m-{0000..0575}.tar    576 names, as wide as they are written
part-{a,b{1..3}}.tar     commas and nesting
data/**/*.tar            files that exist, sorted
s3://bucket/x-{0..9}.tar urls take braces, but no globs
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

from shardmill.errors import ConfigError
from shardmill.io.blob import Blob, LocalBlob, RemoteBlob

MAX_NAMES = 1_000_000
REMOTE_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https")
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?")


def expand(pattern: str) -> list[str]:
    """Return the files and urls that a pattern names, in order; none is a `ConfigError`."""
    if not is_remote(pattern) and Path(pattern).exists():
        return [pattern]
    names = list(islice(expand_braces(pattern), MAX_NAMES + 1))
    if len(names) > MAX_NAMES:
        raise ConfigError(f"{pattern!r} names more than {MAX_NAMES} files")
    return [name for spelled in names for name in _expand_glob(spelled)]


def is_remote(url: str) -> bool:
    """Say whether a name is a url of an object store or a web server."""
    scheme, colon, _ = url.partition("://")
    if not colon:
        if url.startswith("pipe:"):
            raise ConfigError(f"{url!r} would run a command: give the file or url itself")
        return False
    if scheme == "file":
        return False
    if scheme not in REMOTE_SCHEMES:
        known = ", ".join(REMOTE_SCHEMES)
        raise ConfigError(f"unknown scheme in {url!r}: use a path, file:// or one of {known}")
    return True


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
    if is_remote(name) or not glob.has_magic(name):
        return [name]
    found = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 (a pattern may be absolute)
    if not found:
        raise ConfigError(f"no file matches {name!r}")
    return found
