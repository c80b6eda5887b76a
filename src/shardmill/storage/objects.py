"""Object stores: look at, get, open, put, create, exchange, list and delete objects by url.

    s3://  gs://  az://   the variables of their own tools (AWS_*, GOOGLE_*, AZURE_*)
    oss://  tos://        spoken to by S3's protocol, with OSS_* and TOS_*
    http(s)://            reading only, no credentials

Puts are whole or not at all, by the promise of every store. Large files go up in parts.

There is one client a bucket and process. A request that meets a 5xx, a throttled answer, a time-out
or a broken connection is sent again by the client, after a pause that doubles and is jittered,
until `$SHARDMILL_STORE_PATIENCE_S` has gone by. What the client does not repeat by itself (an
answer that breaks off while it is read) is repeated here.

What a store refuses becomes an error that says what to do. The client's own messages hold whole
requests; of those only the status and the store's code for the problem are taken over, so that no
signature or token can end in a log.
"""

from __future__ import annotations

import errno
import io
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from pathlib import Path
from stat import S_IFREG
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

from shardmill.errors import ConfigError, StoreError, need
from shardmill.machine import environment
from shardmill.storage.path import plain_url, split_url

FILE_MODE = S_IFREG | 0o644
# S3 takes at most 10,000 parts: an object may have 160 GiB, and its upload holds 64 MiB.
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 4
# The most that S3 lists or deletes by one request.
LIST_AT_ONCE = 1000
DELETE_AT_ONCE = 1000
# Who reads a header or a footer pays for little; who reads on soon has few requests.
FIRST_WINDOW = 256 << 10
LARGEST_WINDOW = 8 << 20
PATIENCE_VARIABLE = "SHARDMILL_STORE_PATIENCE_S"
PATIENCE_S = 120.0
FIRST_PATIENCE_S = 5.0  # before any work; connecting may take 10 s more
NUM_TRIES = 5
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")
CLIENT_OPTIONS = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "300s"}
# variable -> setting of the client, for stores that speak S3's protocol under another name
COMPATIBLE: Mapping[str, Mapping[str, str]] = {
    "oss": {
        "OSS_ENDPOINT": "endpoint",
        "OSS_REGION": "region",
        "OSS_ACCESS_KEY_ID": "access_key_id",
        "OSS_ACCESS_KEY_SECRET": "secret_access_key",
        "OSS_SESSION_TOKEN": "token",
    },
    "tos": {
        "TOS_ENDPOINT": "endpoint",
        "TOS_REGION": "region",
        "TOS_ACCESS_KEY": "access_key_id",
        "TOS_SECRET_KEY": "secret_access_key",
        "TOS_SECURITY_TOKEN": "token",
    },
}
# What decides about a client; another value makes another client.
PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "OSS_", "TOS_", PATIENCE_VARIABLE)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as a listing shows it; `path` is relative to the folder that was listed."""

    path: str
    num_bytes: int
    mtime_ns: int
    tag: str

    def stat(self) -> os.stat_result:
        """Return size and time as files have them."""
        seconds = self.mtime_ns // 1_000_000_000
        values = (FILE_MODE, 0, 0, 1, 0, 0, self.num_bytes, seconds, seconds, seconds)
        return os.stat_result(values, {"st_mtime_ns": self.mtime_ns})


@dataclass(frozen=True, slots=True)
class Object:
    """An object of a store: the client of its bucket, its path in it, and its url for messages."""

    client: Any
    path: str
    url: str


class NotOffered(StoreError):
    """The store, by its kind or its settings, has no such request: a put on a condition, mostly."""

    def __init__(self, url: str, *, verb: str) -> None:
        super().__init__(
            f"cannot {verb} {plain_url(url)}: the store does not offer it", passing=False
        )


def look(url: str) -> ObjectInfo:
    """Return what is known of an object; `FileNotFoundError` if it is not there."""
    found = find_object(url)
    try:
        meta = call(found, "head")
    except StoreError as error:
        if not error.passing:
            # The answer to a HEAD has no body that could say why.
            call(found, "get_range", start=0, length=1)
        raise
    return _info(meta, found.path.rpartition("/")[2])


def check_answers(url: str) -> None:
    """Raise `ConfigError` within some seconds if nobody answers at a url.

    What is not there, or not ours to read, is for whoever reads it.
    """
    patience_s = float(os.environ.get(PATIENCE_VARIABLE) or PATIENCE_S)
    try:
        with environment({PATIENCE_VARIABLE: min(FIRST_PATIENCE_S, patience_s)}):
            look(url)
    except FileNotFoundError:
        return
    except StoreError as error:
        if error.passing:
            root = split_url(url).root
            raise ConfigError(
                f"nobody answers at {plain_url(root)}, which {plain_url(url)} needs: check the "
                "address, the network and the proxy"
            ) from None


def get(url: str) -> bytes:
    """Return the whole content of an object; `FileNotFoundError` if it is not there."""
    return _fetch(find_object(url))[0]


def open_reader(url: str) -> BinaryIO:
    """Open an object for reading; `FileNotFoundError` if it is not there."""
    return io.BufferedReader(ObjectFile(find_object(url)), 64 << 10)


def put(url: str, content: bytes) -> None:
    """Create or replace an object."""
    call(find_object(url), "put", verb="write", file=content, use_multipart=False)


def put_file(url: str, path: Path) -> None:
    """Create or replace an object by the content of a local file; a large one goes up in parts."""
    options = {"chunk_size": PART_BYTES, "max_concurrency": PARTS_AT_ONCE}
    call(find_object(url), "put", verb="write", file=path, **options)


def create(url: str, content: bytes) -> bool:
    """Create an object unless there is one; say whether it now has this content."""
    found = find_object(url)
    try:
        call(found, "put", verb="write", file=content, mode="create", use_multipart=False)
    except FileExistsError:
        # The request may have been repeated because only the answer to the first was lost.
        return _content(url) == content
    except NotOffered:
        there = _content(url)
        if there is not None:
            return there == content
        put(url, content)
    return True


def exchange(url: str, is_mine: Callable[[bytes], bool], content: bytes) -> bool:
    """Replace an object if `is_mine` accepts its content; say whether it did.

    Where the store can compare versions, an object that changed in between is looked at again.
    """
    found = find_object(url)
    while True:
        current, meta = _fetch(found)
        if not is_mine(current):
            return False
        version = {name: meta[name] for name in ("e_tag", "version") if meta[name] is not None}
        try:
            call(found, "put", verb="write", file=content, mode=version, use_multipart=False)
        except BlockingIOError:
            # As above: it may have been us who changed it.
            if _content(url) == content:
                return True
            continue
        except NotOffered:
            put(url, content)
        return True


def delete(urls: Iterable[str]) -> None:
    """Remove objects, which may already be gone."""
    by_client: dict[int, list[Object]] = {}
    for found in map(find_object, urls):
        by_client.setdefault(id(found.client), []).append(found)
    for group in by_client.values():
        for first in range(0, len(group), DELETE_AT_ONCE):
            _delete(group[first : first + DELETE_AT_ONCE])


def list_all(url: str, *, limit: int | None = None) -> Iterator[ObjectInfo]:
    """Yield the objects below a folder, however deep, in the order of their names."""
    found = find_object(url)
    prefix = f"{found.path.rstrip('/')}/" if found.path else ""
    entries = patient(lambda: _listed(found.client, prefix, limit), url, verb="read")
    yield from _infos(entries, prefix)


def list_here(url: str) -> tuple[list[str], list[ObjectInfo]]:
    """Return the names of the folders directly below a folder, and the objects in it."""
    found = find_object(url)
    prefix = f"{found.path.rstrip('/')}/" if found.path else ""
    obstore = need("obstore", extra="remote")
    page = patient(
        lambda: obstore.list_with_delimiter(found.client, prefix or None), url, verb="read"
    )
    folders = sorted(str(name)[len(prefix) :].strip("/") for name in page["common_prefixes"])
    return folders, _infos(page["objects"], prefix)


def _infos(entries: Iterable[Any], prefix: str) -> list[ObjectInfo]:
    infos = [_info(entry, entry["path"][len(prefix) :]) for entry in entries]
    # Some stores and tools mark a folder by an empty object with the folder's own name.
    return sorted((info for info in infos if info.path), key=lambda info: info.path)


def _listed(client: Any, prefix: str, limit: int | None) -> list[Any]:
    obstore = need("obstore", extra="remote")
    pages = obstore.list(client, prefix or None, chunk_size=limit or LIST_AT_ONCE)
    return list(islice((entry for page in pages for entry in page), limit))


def _delete(group: list[Object]) -> None:
    obstore = need("obstore", extra="remote")
    client, url = group[0].client, group[0].url
    paths = [found.path for found in group]
    try:
        patient(lambda: obstore.delete(client, paths), url, verb="write")
    except FileNotFoundError:
        # Some stores mind that an object is gone: then the others are removed one by one.
        for path in paths if len(paths) > 1 else ():
            _delete([Object(client, path, url)])


def _fetch(found: Object) -> tuple[bytes, Any]:
    obstore = need("obstore", extra="remote")

    def ask() -> tuple[bytes, Any]:
        answer = obstore.get(found.client, found.path)
        return bytes(answer.bytes()), answer.meta

    return patient(ask, found.url, verb="read")


def _content(url: str) -> bytes | None:
    try:
        return get(url)
    except FileNotFoundError:
        return None


def _info(entry: Any, path: str) -> ObjectInfo:
    modified: datetime = entry["last_modified"]
    mtime_ns = int(modified.timestamp() * 1_000_000) * 1000
    return ObjectInfo(path, int(entry["size"]), mtime_ns, str(entry["e_tag"] or ""))


class ObjectFile(io.RawIOBase):
    """Reads a window at a time; one that follows the last is twice as large, up to 8 MiB."""

    def __init__(self, target: Object) -> None:
        self._target = target
        self._size = int(call(target, "head")["size"])
        self._position = 0
        self._start, self._content, self._window = 0, memoryview(b""), FIRST_WINDOW

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        if self._position >= self._size:
            return 0
        inside = self._position - self._start
        if not 0 <= inside < len(self._content):
            self._fetch(len(buffer))
            inside = 0
        part = self._content[inside : inside + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _fetch(self, wanted: int) -> None:
        goes_on = self._position == self._start + len(self._content)
        self._window = min(2 * self._window, LARGEST_WINDOW) if goes_on else FIRST_WINDOW
        length = min(max(self._window, wanted), self._size - self._position)
        content = call(self._target, "get_range", start=self._position, length=length)
        self._start, self._content = self._position, memoryview(content)


# The processes that have used a client: this one and, in a fork, those that it came from.
_users: set[int] = set()


def is_in_use() -> bool:
    """Say whether this process talks to stores, so that it must not fork workers that do."""
    return os.getpid() in _users


def find_object(url: str) -> Object:
    """Return the object that a url names, which need not exist."""
    place = split_url(url)
    _users.add(os.getpid())
    if len(_users) > 1:
        # The client's threads do not survive a fork, and their locks may be held for ever.
        raise ConfigError(
            f"{plain_url(url)}: this process was forked from one that talks to stores, which does "
            "not work: start workers with multiprocessing_context='spawn'"
        )
    return Object(_client(place.root, _settings()), place.path, url)


def call(target: Object, method: str, *, verb: str = "read", **options: Any) -> Any:
    """Call a function of the client on an object; its errors become ours."""
    obstore = need("obstore", extra="remote")
    function = getattr(obstore, method)
    return patient(lambda: function(target.client, target.path, **options), target.url, verb=verb)


def patient(ask: Callable[[], T], url: str, *, verb: str) -> T:
    """Return what `ask` returns; an answer that breaks off is asked for again, a few times."""
    obstore = need("obstore", extra="remote")
    for tries in range(1, NUM_TRIES + 1):
        try:
            return ask()
        except obstore.exceptions.AlreadyExistsError:
            raise FileExistsError(errno.EEXIST, "exists already", plain_url(url)) from None
        except obstore.exceptions.PreconditionError:
            raise BlockingIOError(errno.EAGAIN, "was changed", plain_url(url)) from None
        except (NotImplementedError, obstore.exceptions.NotSupportedError):
            raise NotOffered(url, verb=verb) from None
        except (obstore.exceptions.BaseError, FileNotFoundError) as error:
            if tries == NUM_TRIES or not was_interrupted(error):
                # The client's message, which holds whole requests, must not be shown with ours.
                raise explain(error, url, verb=verb) from None
        time.sleep(random.uniform(0, FIRST_PAUSE_S * 2**tries))
    raise AssertionError("the last try returns or raises")


def _settings() -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in os.environ.items() if name.startswith(PREFIXES))


@lru_cache(maxsize=64)
def _client(root: str, settings: tuple[tuple[str, str], ...]) -> Any:
    store = need("obstore.store", extra="remote")
    scheme, _, bucket = root.partition("://")
    options = _options(scheme, bucket)
    retry = {"retry_config": _retry(), "client_options": _client_options(options, root)}
    try:
        if scheme in COMPATIBLE:
            return store.S3Store(bucket, **options, **retry)
        return store.from_url(root, **options, **retry)
    except need("obstore", extra="remote").exceptions.BaseError as error:
        raise ConfigError(f"{root} cannot be used: {str(error).splitlines()[0]}") from None


def _options(scheme: str, bucket: str) -> dict[str, Any]:
    if scheme in ("s3", "s3a"):
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        return {"endpoint": endpoint, "virtual_hosted_style_request": False} if endpoint else {}
    if ALIASES.get(scheme, scheme) == "az":
        endpoint = os.environ.get("AZURE_ENDPOINT") or os.environ.get("AZURE_STORAGE_ENDPOINT")
        return {"endpoint": endpoint} if endpoint else {}
    if scheme not in COMPATIBLE:
        return {}
    names = COMPATIBLE[scheme]
    options: dict[str, Any] = {names[n]: os.environ[n] for n in names if os.environ.get(n)}
    if "endpoint" not in options:
        raise ConfigError(f"{scheme}://{bucket} needs {scheme.upper()}_ENDPOINT in the environment")
    # They have no If-None-Match: the client then says so, and we look before we put.
    options["conditional_put"] = "disabled"
    return {**options, **_addressing(str(options["endpoint"]), bucket)}


def _addressing(endpoint: str, bucket: str) -> dict[str, Any]:
    """Name the bucket in the host, as these stores want it; a server on loopback has one host."""
    parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    if parts.hostname in LOOPBACK:
        return {"endpoint": parts.geturl(), "virtual_hosted_style_request": False}
    host = f"{parts.scheme}://{bucket}.{parts.netloc}"
    return {"endpoint": host, "virtual_hosted_style_request": True}


def _client_options(options: Mapping[str, Any], root: str) -> dict[str, Any]:
    # Whoever writes http:// means it; requests are signed with a key, which does not travel along.
    place = str(options.get("endpoint") or root)
    return {**CLIENT_OPTIONS, **({"allow_http": True} if place.startswith("http://") else {})}


def _retry() -> dict[str, Any]:
    patience_s = float(os.environ.get(PATIENCE_VARIABLE, PATIENCE_S))
    pauses = {
        "init_backoff": timedelta(seconds=FIRST_PAUSE_S),
        "max_backoff": timedelta(seconds=LONGEST_PAUSE_S),
        "base": 2,
    }
    # Pauses of 0.1, 0.2, ... 10 s: the patience ends before the number does.
    num_retries = 5 + int(patience_s)
    return {
        "max_retries": num_retries,
        "retry_timeout": timedelta(seconds=patience_s),
        "backoff": pauses,
    }


VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "oss": "OSS_ACCESS_KEY_ID, OSS_ACCESS_KEY_SECRET and OSS_ENDPOINT",
    "tos": "TOS_ACCESS_KEY, TOS_SECRET_KEY, TOS_REGION and TOS_ENDPOINT",
}
ALIASES = {"s3a": "s3", "abfs": "az", "abfss": "az"}
EXPIRED = "its credential has expired: get a new one and run the same command again"
UNKNOWN_KEY = "the store does not know this credential, or its secret is wrong: check {variables}"
REGION = "the bucket is in another region or behind another endpoint: check {variables}"
NO_BUCKET = "there is no such bucket: make it, or correct its name"
CLOCK = "the clock of this machine is wrong: set it, and run the same command again"
FORBIDDEN = "no permission: ask for the right to {verb} there, or check {variables}"
NO_KEY = "no credential: set {variables} in the environment"
BUSY = "the store does not answer{status}: run the same command again later, it goes on"
PROBLEMS = {
    "ExpiredToken": EXPIRED,
    "TokenRefreshRequired": EXPIRED,
    "RequestExpired": EXPIRED,
    "InvalidToken": EXPIRED,
    "InvalidAccessKeyId": UNKNOWN_KEY,
    "SignatureDoesNotMatch": UNKNOWN_KEY,
    "PermanentRedirect": REGION,
    "AuthorizationHeaderMalformed": REGION,
    "IllegalLocationConstraintException": REGION,
    "NoSuchBucket": NO_BUCKET,
    "RequestTimeTooSkewed": CLOCK,
    "AccessDenied": FORBIDDEN,
}
STATUSES = {301: REGION, 307: REGION, 401: NO_KEY, 403: FORBIDDEN}
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
# What the client says by itself: a redirect that leads nowhere, nobody who gives a credential.
_WORDS = (
    (re.compile(r"incorrectly configured region"), REGION),
    (re.compile(r"169\.254\.|metadata\.google|credential", re.IGNORECASE), NO_KEY),
)


def explain(error: Exception, url: str, *, verb: str) -> OSError:
    """Return the error to raise in place of the client's; `verb` is "read" or "write"."""
    text = str(error)
    code, status = _found(_CODE, text), int(_found(_STATUS, text) or 0)
    if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
        return FileNotFoundError(errno.ENOENT, "does not exist", plain_url(url))
    problem = PROBLEMS.get(code) or STATUSES.get(status)
    if problem is None and not status:
        problem = next((said for words, said in _WORDS if words.search(text)), None)
    passing = problem is None
    if problem is None:
        problem = BUSY if _is_busy(status) else "the store refused{status}"
        passing = _is_busy(status)
    what = problem.format(verb=verb, variables=_variables(url), status=_said(code, status))
    return StoreError(f"cannot {verb} {plain_url(url)}: {what}", passing=passing)


def was_interrupted(error: Exception) -> bool:
    """Say whether a connection broke where the client does not ask again by itself.

    That is while an answer is read, and for requests that it does not know to be repeatable, such
    as deleting several objects. If it asked again, it says ", after 3 retries".
    """
    said = str(error).partition("\n")[0]
    return "HTTP error" in said and " retries, " not in said and _STATUS.search(said) is None


def _is_busy(status: int) -> bool:
    return status == 0 or status == 429 or status >= 500


def _said(code: str, status: int) -> str:
    said = ", ".join(str(part) for part in (status, code) if part)
    return f" ({said})" if said else ""


def _variables(url: str) -> str:
    scheme = url.partition("://")[0]
    return VARIABLES.get(ALIASES.get(scheme, scheme), "the environment")


def _found(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""
