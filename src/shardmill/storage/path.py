"""Names of files: local paths, urls that read like paths, and patterns of both.

Code that takes a `Path` takes a `UrlPath` as well: names, joining and comparing are those of paths,
and looking, listing and reading go to the store. Whatever is not defined here (renaming, linking,
opening to write) ends in `__fspath__`, which refuses, so no url is ever taken for a local file.

A folder stores the places that it refers to as seen from itself, by `Home`, so that it may be moved
or copied together with them.

The url of a place never carries a credential, neither a password nor a signature: those come from
the environment, so that no job file, log, manifest or message can hold one.

`expand` spells out a pattern:

    cc3m-{0000..0575}.tar     576 names, as wide as they are written
    part-{a,b{1..3}}.tar      commas and nesting
    data/**/*.tar             files that exist, sorted
    s3://bucket/x-{0..9}.tar  the same for urls; globs only where a store can be listed
"""

from __future__ import annotations

import glob
import io
import os
import posixpath
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain, islice, pairwise
from pathlib import Path, PosixPath
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

from shardmill.errors import SECRET, ConfigError, FormatError, mask, near

STORE_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "oss", "tos")
WEB_SCHEMES = ("http", "https")
REMOTE_SCHEMES = (*STORE_SCHEMES, *WEB_SCHEMES)
# A slip such as {0..9999999999} must not fill the memory.
MAX_NAMES = 1_000_000
MAX_NEIGHBOURS = 10_000
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?")
# A file "NAME.ROLE" must still fit into the 255 bytes that file systems allow.
MAX_NAME_BYTES = 200
SAFE_NAME = re.compile(r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*")
# Also what the front door opens: `os.fspath` of it is where it lies.
AnyPath: TypeAlias = str | os.PathLike[str]


class UrlParts(NamedTuple):
    """The root that a client is made for ("s3://bucket"), and the path of an object below it."""

    root: str
    path: str

    @property
    def scheme(self) -> str:
        """What stands before "://"."""
        return self.root.partition("://")[0]


def is_remote(url: str) -> bool:
    """Say whether a name is a url of an object store or a web server."""
    if url.startswith("pipe:"):
        raise ConfigError(f"{url!r} would run a command: give the file or url itself")
    scheme, colon, _ = url.partition("://")
    if not colon or scheme == "file":
        return False
    if scheme not in REMOTE_SCHEMES:
        known = ", ".join(REMOTE_SCHEMES)
        raise ConfigError(f"unknown scheme in {url!r}: use a path, file:// or one of {known}")
    return True


def split_url(url: str) -> UrlParts:
    """Return root and path of a url; one with a user or password in it is refused."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{plain_url(url)} is not a url: {error}") from error
    user, at, _ = parts.netloc.rpartition("@")
    if at and (":" in user or parts.scheme not in ("abfs", "abfss")):
        raise ConfigError(
            f"{plain_url(url)} was given with a user or password in it: put credentials into the "
            "environment"
        )
    if not parts.netloc:
        raise ConfigError(f"{url!r} names no bucket or host")
    if parts.scheme in WEB_SCHEMES:
        query = f"?{parts.query}" if parts.query else ""
        return UrlParts(f"{parts.scheme}://{parts.netloc}", unquote(parts.path).lstrip("/") + query)
    return UrlParts(f"{parts.scheme}://{parts.netloc}", url.partition("://")[2].partition("/")[2])


def plain_url(url: str) -> str:
    """Return a url as messages and logs may say it: without user, password and query."""
    try:
        urlsplit(url)
    except ValueError:  # nobody can tell what is secret in it
        return f"{url.partition('://')[0]:.20}://..."
    return mask(url)


def refuse_secret(place: str) -> None:
    """Raise `ConfigError` if a url that would be stored holds a password or a signature."""
    scheme, colon, rest = place.partition("://")
    if colon and scheme.lower() in REMOTE_SCHEMES and "@" in rest.partition("/")[0]:
        split_url(place)
    found = SECRET.search(rest.partition("?")[2]) if colon else None
    if found is not None:
        raise ConfigError(
            f"{plain_url(place)} was given with {found[1].rstrip('=')} in it, and the folder would "
            "store that: put credentials into the environment and name the object by its plain "
            "url, or download it first"
        )


def check_name(name: str) -> str:
    """Return a name of a unit, a shard or a role if it is safe as a file name in every folder."""
    if not SAFE_NAME.fullmatch(name) or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise ConfigError(
            f"{name!r} cannot be the name of a unit or shard: use at most {MAX_NAME_BYTES} bytes, "
            "no '/', no control characters, and no '.' at the start"
        )
    return name


def as_path(name: AnyPath) -> Path:
    """Return a path, a `UrlPath` if the name is a url; "file://" is taken off, "~" spelled out."""
    if isinstance(name, Path):
        return name
    name = os.fspath(name)
    if is_remote(name):
        split_url(name)
        refuse_secret(name)
        return UrlPath(name)
    return Path(os.path.expanduser(name.removeprefix("file://")))  # noqa: PTH111 (may be no user)


def near_path(name: str) -> str:
    """Return "; did you mean 'rows.jsonl'?" for what lies beside a path that is missing, or ''."""
    if is_remote(name):
        return ""
    folder, last = os.path.split(os.path.normpath(name))
    with suppress(OSError), os.scandir(folder or ".") as entries:
        # A folder of a million files would take minutes.
        found = near(last, [entry.name for entry in islice(entries, MAX_NEIGHBOURS)])
        return found.replace("mean '", f"mean '{folder}/") if folder else found
    return ""


def _store() -> Any:
    # Loaded by the first url: a run on local files needs no client of a store.
    from shardmill.storage import objects

    return objects


class UrlPath(PosixPath):
    """The url of an object, or of a folder: what the objects below it have in common."""

    __slots__ = ()

    def __str__(self) -> str:
        # A path drops the second slash of "s3://bucket".
        return super().__str__().replace(":/", "://", 1)

    def __fspath__(self) -> str:
        raise ConfigError(f"{self} is a url: this needs a local file or folder")

    def __reduce__(self) -> tuple[type[UrlPath], tuple[str]]:
        return UrlPath, (str(self),)

    @property
    def is_web(self) -> bool:
        """Whether a web server is behind it, which can neither be listed nor written to."""
        return self.parts[0].rstrip(":") in WEB_SCHEMES

    def absolute(self) -> UrlPath:
        return self

    def is_absolute(self) -> bool:
        return True

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        if len(self.parts) <= 2:
            return False
        try:
            _store().look(str(self))
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        return not self.is_web and next(_store().list_all(str(self), limit=1), None) is not None

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        found: os.stat_result = _store().look(str(self)).stat()
        return found

    def iterdir(self) -> Iterator[UrlPath]:  # type: ignore[override]
        self._check_listable()
        folders, infos = _store().list_here(str(self))
        yield from (self / name for name in [*folders, *(info.path for info in infos)])

    def glob(self, pattern: str, **_: Any) -> Iterator[UrlPath]:  # type: ignore[override]
        """Yield what is directly below and has such a name."""
        return (path for path in self.iterdir() if fnmatchcase(path.name, pattern))

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        if mode == "rb":
            return _store().open_reader(str(self))
        if mode == "r":
            return io.TextIOWrapper(_store().open_reader(str(self)), "utf-8")
        raise ConfigError(f"{self} is a url: it cannot be opened with mode {mode!r}")

    def read_bytes(self) -> bytes:
        content: bytes = _store().get(str(self))
        return content

    def unlink(self, missing_ok: bool = False) -> None:
        _store().delete([str(self)])

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a folder of a store is there when something lies in it."""

    def _check_listable(self) -> None:
        if self.is_web:
            raise ConfigError(f"{self}: a web server does not list its files, so name each file")


def absolute(place: str) -> str:
    """Return a place as every process finds it, in whatever folder it works; "~" is one's own.

    Links stay as they were typed, unless ".." climbs over them.
    """
    if is_remote(place):
        return place.rstrip("/")
    path = os.path.join(os.getcwd(), os.path.expanduser(place.removeprefix("file://")))  # noqa: PTH109, PTH111, PTH118
    return os.path.realpath(path) if ".." in path.split("/") else os.path.normpath(path)


def is_same_place(first: str, second: str) -> bool:
    """Say whether two absolute places are one, however they are written."""
    return first == second or (
        "://" not in first + second and os.path.realpath(first) == os.path.realpath(second)
    )


@dataclass(frozen=True, slots=True)
class Home:
    """A folder as the point from which the places it names are seen.

    `relative` gives what is stored: "../raw/rows.jsonl". A url stays whole unless it is of the same
    bucket, and so does a path that has nothing in common with the folder but the root of the disk.
    `locate` gives it back, from where the folder is by then.
    """

    folder: Path
    known: dict[str, str] = field(default_factory=dict)

    def relative(self, place: str) -> str:
        """Return an absolute place as the folder stores it."""
        if isinstance(self.folder, UrlPath):
            return self._relative_url(place)
        if is_remote(place):
            return place
        parent, _, name = place.rpartition("/")
        if parent not in self.known:
            self.known[parent] = self._relative_folder(parent or "/")
        return os.path.normpath(f"{self.known[parent].rstrip('/')}/{name}")

    def locate(self, stored: str) -> str:
        """Return the absolute place that a stored one means."""
        if stored.startswith("/") or "://" in stored:
            return stored
        if not isinstance(self.folder, UrlPath):
            return os.path.normpath(f"{self._real()}/{stored}")
        root, path = split_url(str(self.folder))
        found = posixpath.normpath(f"{path}/{stored}")
        if found.startswith(".."):
            raise FormatError(
                f"names {stored!r:.200}, which is outside of {root}", path=self.folder
            )
        return f"{root}/{found}"

    def seen(self, text: str) -> str:
        """Return a text with the paths in it that are below the folders above this one, as seen.

        From /data/project/raw, "/data/project/a.jpg" is "../a.jpg", and "/etc/a.jpg" what it is.
        """
        for top, way in self._tops():
            if top in text:
                # A whole folder of a whole path: "/old/data/x" and "/data-2/x" are not in "/data".
                path = rf"(?<![^\s'\"(=:,]){re.escape(top)}(?=[/'\"),:\s]|$)"
                text = re.sub(path, lambda _, way=way: way, text)  # type: ignore[misc]
        return re.sub(r"(?<![^\s'\"(=:,])\./", "", text)

    def _tops(self) -> Iterator[tuple[str, str]]:
        """Yield the folders above, as given and as they really are, each with the way to it."""
        if isinstance(self.folder, UrlPath):
            return
        for start in dict.fromkeys((os.path.abspath(self.folder), self._real())):  # noqa: PTH100
            tops = [start, *(str(parent) for parent in Path(start).parents)]
            yield from ((top, os.path.relpath(top, start)) for top in tops[:-1])

    def _real(self) -> str:
        if "" not in self.known:
            self.known[""] = os.path.realpath(self.folder)
        return self.known[""]

    def _relative_url(self, place: str) -> str:
        if "://" not in place:
            return place
        (root, path), (own_root, own_path) = split_url(place), split_url(str(self.folder))
        return posixpath.relpath(path, own_path) if root == own_root else place

    def _relative_folder(self, folder: str) -> str:
        """Return the shortest way to a folder that leads there from where we really are.

        Over links as they were typed if that is shorter: they may lead elsewhere after a move.
        """
        real, there = self._real(), os.path.realpath(folder)
        # With the links of the first parts of the path followed, or of none, or of all.
        tops = (folder, *map(str, Path(folder).parents))
        ways = [(os.path.abspath(self.folder), folder)]  # noqa: PTH100
        ways += [(real, os.path.realpath(top) + folder[len(top) :]) for top in tops]
        found = [
            way
            for start, target in ways
            if not f"{(way := os.path.relpath(target, start))}/".startswith(
                "../" * start.count("/")
            )
            and os.path.realpath(f"{real}/{way}") == there
        ]
        return min(found, key=len, default=folder)


def expand(pattern: str) -> list[str]:
    """Return the files and urls that a pattern names, in order; none is a `ConfigError`."""
    refuse_secret(pattern)
    if not is_remote(pattern) and Path(pattern).exists():
        return [pattern]
    names = list(islice(expand_braces(pattern), MAX_NAMES + 1))
    if len(names) > MAX_NAMES:
        raise ConfigError(f"{pattern!r} names more than {MAX_NAMES} files")
    return [name for spelled in names for name in _expand_glob(spelled)]


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
    # As wide as it is written, if it is written with zeros: {08..10} is 08, 09, 10.
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
        head, slash, last = name.rpartition("/")
        # Two levels, not all: below a home there may be millions of files.
        deeper = (glob.iglob(f"{head}{slash}{stars}/{last}") for stars in ("*", "*/*"))  # noqa: PTH207
        first = next(chain.from_iterable(deeper), None)
        below = f", but {first} is below: write '{head}{slash}**/{last}'" if first else ""
        raise ConfigError(f"no file matches {name!r}{below}")
    return found


def _expand_remote(pattern: str) -> list[str]:
    if not pattern.startswith(STORE_SCHEMES):
        # "?" and "[" may stand in the url of a web page, which cannot be listed.
        return [pattern]
    # `escape` puts each special character in brackets: the first bracket is at the first of them,
    # and the folder before it is all that must be listed.
    root = pattern[: glob.escape(pattern).index("[")].rpartition("/")[0]
    names = (f"{root}/{info.path}" for info in _store().list_all(root))
    # "*" stays inside of a folder, "**" does not.
    parts = (re.escape(part).replace(r"\*", "[^/]*") for part in pattern.split("**"))
    wanted = re.compile(".*".join(parts).replace(r"\?", "[^/]"))
    found = [name for name in names if wanted.fullmatch(name)]
    if not found:
        raise ConfigError(f"no object matches {pattern!r}")
    return found
