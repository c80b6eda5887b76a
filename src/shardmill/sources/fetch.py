"""The bytes of a medium, however a row refers to it.

    b"..."  {"bytes": b"..."}            bytes in the table, as Hugging Face stores images
    "data:image/png;base64,..."          a data url, or base64 of a known format
    "photos/1.jpg"  {"path": ...}        a file, relative to the row's media folder or absolute
    "photos.tar::1.jpg"                  a member of a tar
    "photos.lmdb::1"                     a value of an LMDB
    "s3://bucket/1.jpg"  {"url": ...}    an object in a store or on the web
    "0.jpg"                              a member of the row's own tar sample

`allowed` says what of it a row may read. What is refused, missing, empty, too large or unreadable
is a `SampleError`; a disk that fails is not: it stops the unit, which can be tried again. Urls may
be announced, so that several are on their way at a time; `download` says what may go wrong with
one. The last few tars and databases stay open.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, TypeAlias

from shardmill.errors import FormatError, SampleError, StoreError, foreign, need
from shardmill.machine import note
from shardmill.shards.tar.read import walk_tar
from shardmill.sources.allowed import Allowed
from shardmill.sources.download import PER_HOST, Downloads, Patience, download
from shardmill.sources.source import Row
from shardmill.storage.blob import Blob, LocalBlob, RemoteBlob
from shardmill.storage.path import WEB_SCHEMES, is_remote, plain_url

Content: TypeAlias = bytes | memoryview
MAX_MEDIA_BYTES = 1 << 30
MIN_MAPPED_BYTES = 1 << 20  # below it, reading is cheaper than page faults
MAX_OPEN = 8
MAX_URL = 8192  # what is longer is base64
# The first characters of base64 for JPEG, PNG, GIF, WebP and MP4.
BASE64_HEADS = ("/9j/", "iVBORw0KGgo", "R0lGOD", "UklGR", "AAAA")
MIN_BASE64 = 256  # a shorter text may be a path such as "AAAA/1.jpg"
# Hugging Face sets both: bytes win, the path is only the name that they had.
LOCATIONS = ("bytes", "path", "url", "image_url")


class _LastOpened:
    """The containers that were used last, kept open for the rows to come.

    One that cannot be opened is remembered too, so that each of its rows is rejected at once.
    """

    def __init__(self) -> None:
        self.opened: OrderedDict[tuple[str, Allowed], Any] = OrderedDict()

    def close(self) -> None:
        """Close all of them."""
        while self.opened:
            self._drop_oldest()

    def _get(self, place: str, allowed: Allowed) -> Any:
        asked = (place, allowed)
        if asked not in self.opened:
            if len(self.opened) >= MAX_OPEN:
                self._drop_oldest()
            try:
                self.opened[asked] = self._open(place, allowed)
            except SampleError as error:
                self.opened[asked] = error
        self.opened.move_to_end(asked)
        found = self.opened[asked]
        if isinstance(found, SampleError):
            raise SampleError(found.reason, found.detail)
        return found

    def _open(self, place: str, allowed: Allowed) -> Any:
        raise NotImplementedError

    def _drop_oldest(self) -> None:
        _, found = self.opened.popitem(last=False)
        if not isinstance(found, SampleError):
            found.close()


@dataclass(frozen=True, slots=True)
class _OpenTar:
    blob: Blob
    members: dict[str, tuple[int, int]]
    links: dict[str, str]

    def close(self) -> None:
        self.blob.close()


class TarMembers(_LastOpened):
    """Reads members by name; a tar's headers are walked once while it stays open."""

    def read(self, url: str, member: str, allowed: Allowed, max_bytes: int) -> bytes:
        """Return the content of a member."""
        tar = self._get(url, allowed)
        if member not in tar.members:
            raise SampleError("missing file", f"{url} has no member {member!r:.200}")
        if member in tar.links:
            raise SampleError("link", f"{url}: {tar.links[member]}")
        offset, size = tar.members[member]
        _check_bytes(f"{url}::{member}", size, max_bytes)
        content: bytes = tar.blob.read(offset, size)
        return content

    def _open(self, place: str, allowed: Allowed) -> _OpenTar:
        try:
            blob = RemoteBlob(place) if is_remote(place) else LocalBlob(place, allowed.open(place))
            walk = walk_tar(blob)
        except FormatError as error:
            raise SampleError("unreadable tar", str(error)) from error
        # The last member of a name counts, be it a link or not.
        last = {name: number for number, name in enumerate(walk.names)} if walk.links else {}
        links = {walk.names[n]: text for n, text in walk.links.items() if last[walk.names[n]] == n}
        return _OpenTar(blob, dict(zip(walk.names, zip(walk.offsets, walk.sizes))), links)


@dataclass(frozen=True, slots=True)
class _OpenDatabase:
    environment: Any
    num_bytes: int

    def close(self) -> None:
        self.environment.close()


class LmdbValues(_LastOpened):
    """Reads values by key from databases that are opened read-only and without a lock."""

    def read(self, path: str, key: str, allowed: Allowed) -> bytes:
        """Return the value of a key."""
        database = self._get(path, allowed)
        with _of_database(path), database.environment.begin(buffers=True) as transaction:
            value = transaction.get(key.encode("utf-8", "surrogatepass"))
            if value is None:
                raise SampleError("missing file", f"{path} has no key {key!r:.200}")
            # Nothing is copied before: a broken page may claim any length.
            if len(value) > database.num_bytes:
                raise SampleError("unreadable database", f"{path}: {len(value)} bytes at {key!r}")
            return bytes(value)

    def _open(self, place: str, allowed: Allowed) -> _OpenDatabase:
        lmdb = need("lmdb", extra="lmdb")
        descriptor = allowed.open(f"{place}/data.mdb" if Path(place).is_dir() else place)
        opened = f"/dev/fd/{descriptor}"
        # Without a lock, so that a database on a read-only disk can be opened.
        options = {"readonly": True, "lock": False, "readahead": False, "subdir": False}
        try:
            with _of_database(place, opened):
                try:
                    environment = lmdb.open(opened, **options)
                except lmdb.Error:
                    self.close()  # LMDB opens a file once a process, and it may have another name
                    environment = lmdb.open(opened, **options)
                needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
            found = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if found < needed:
            # A page behind the end of its file would end the process that reads it.
            environment.close()
            detail = f"{place}: cut short, {found} bytes of {needed}"
            raise SampleError("unreadable database", detail)
        return _OpenDatabase(environment, found)


@contextmanager
def _of_database(path: str, opened: str = "") -> Iterator[None]:
    """Let errors name the path of a database, not the name by which it was `opened`."""
    lmdb = need("lmdb", extra="lmdb")
    try:
        with foreign("unreadable database", lmdb.Error):
            yield
    except SampleError as error:
        detail = error.detail.replace(opened, path) if opened else error.detail
        detail = detail if path in detail else f"{path}: {detail}"
        raise SampleError(error.reason, detail) from error


@dataclass(slots=True)
class Fetcher:
    """Fetches media and keeps the last tars and databases open; close it at the end."""

    max_bytes: int = MAX_MEDIA_BYTES
    per_host: int = PER_HOST
    patience: Patience = field(default_factory=Patience)
    tars: TarMembers = field(default_factory=TarMembers)
    values: LmdbValues = field(default_factory=LmdbValues)
    downloads: Downloads = field(init=False)
    allowed: dict[tuple[str, tuple[str, ...]], Allowed] = field(default_factory=dict)
    hosts: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.downloads = Downloads(self._from_url, self.per_host)

    def announce(self, reference: Any, row: Row) -> bool:
        """Begin to fetch what a row refers to, if it is a url; say whether it is."""
        try:
            url = self._url_of(reference, row)
        except SampleError:
            return False  # whoever fetches it will meet it
        if url is not None:
            self.downloads.announce(url)
        return url is not None

    def is_remote(self, reference: Any, row: Row) -> bool:
        """Say whether a row refers to a url."""
        return self._url_of(reference, row) is not None

    def fetch(self, reference: Any, row: Row) -> Content:
        """Return the bytes that a row refers to."""
        note(f"{describe(reference)} of row {row.key!r}")
        content = self._fetch(reference, row)
        if not len(content):
            raise SampleError("empty file", describe(reference))
        _check_bytes(describe(reference), len(content), self.max_bytes)
        return content

    def close(self) -> None:
        """Close what is open."""
        self.downloads.close()
        self.tars.close()
        self.values.close()
        for allowed in self.allowed.values():
            allowed.close()

    def _fetch(self, reference: Any, row: Row) -> Content:
        if isinstance(reference, bytes | bytearray | memoryview):
            return reference if isinstance(reference, memoryview) else bytes(reference)
        if isinstance(reference, Mapping):
            return self._fetch(_inside(reference), row)
        if not isinstance(reference, str) or not reference:
            raise SampleError("missing field", f"a medium is {reference!r:.100}")
        if reference in row.media:
            return row.media[reference]
        if reference.startswith("data:"):
            return _data_url(reference)
        if len(reference) >= MIN_BASE64 and reference.startswith(BASE64_HEADS):
            return _base64(reference)
        allowed = self._allowed(row)
        container, mark, member = reference.rpartition("::")
        if mark:
            place = allowed.locate(container, is_container=True)
            return self._from_container(place, member, allowed)
        path = allowed.locate(reference)
        if is_remote(path):
            return self.downloads.take(path)
        return map_file(path, allowed, self.max_bytes)

    def _url_of(self, reference: Any, row: Row) -> str | None:
        if isinstance(reference, Mapping):
            return self._url_of(_inside(reference), row)
        if not isinstance(reference, str) or reference in row.media or "::" in reference:
            return None
        if reference.startswith("data:") or len(reference) > MAX_URL:
            return None
        path = self._allowed(row).locate(reference)
        return path if is_remote(path) else None

    def _allowed(self, row: Row) -> Allowed:
        """Return what a row may read; links of its folders are followed once, not once a row."""
        found = self.allowed.get((row.media_dir, row.allow))
        if found is None:
            found = Allowed.below(row.media_dir, row.allow)
            self.allowed[row.media_dir, row.allow] = found
            self.hosts |= found.hosts
        return found

    def _from_container(self, container: str, member: str, allowed: Allowed) -> Content:
        if container.rstrip("/").endswith(".lmdb"):
            return self.values.read(container, member, allowed)
        return self.tars.read(container, member, allowed, self.max_bytes)

    def _from_url(self, url: str) -> bytes:
        if url.startswith(WEB_SCHEMES):
            return download(url, self.max_bytes, self.patience, self.hosts)
        return read_object(url, self.max_bytes)


def describe(reference: Any) -> str:
    """Return a reference as messages say it: a path as it is, bytes by their number."""
    if isinstance(reference, bytes | bytearray | memoryview):
        return f"{len(reference)} bytes in the row"
    if isinstance(reference, Mapping):
        return describe(_inside(reference))
    if isinstance(reference, str):
        return f"{plain_url(reference) if '://' in reference else reference:.200}"
    return f"{reference!r:.200}"


def read_file(path: str, allowed: Allowed, max_bytes: int) -> bytes:
    """Return the content of a regular file; pipes and devices, which may never end, are refused."""
    with _open_file(path, allowed, max_bytes) as (descriptor, _):
        return _read_all(descriptor)


def map_file(path: str, allowed: Allowed, max_bytes: int) -> Content:
    """Return the content of a regular file, a large one as the page cache has it.

    So a video of an hour costs no memory, and is not copied before it is written. A file must not
    shrink while it is packed.
    """
    with _open_file(path, allowed, max_bytes) as (descriptor, num_bytes):
        if num_bytes < MIN_MAPPED_BYTES:
            return _read_all(descriptor)
        return memoryview(mmap(descriptor, num_bytes, access=ACCESS_READ))


@contextmanager
def _open_file(path: str, allowed: Allowed, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield descriptor and size of a regular file that is not too large."""
    descriptor = allowed.open(path)
    try:
        num_bytes = os.fstat(descriptor).st_size
        _check_bytes(path, num_bytes, max_bytes)
        yield descriptor, num_bytes
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        return file.read()


def read_object(url: str, max_bytes: int) -> bytes:
    """Return the content of an object of a store."""
    try:
        blob = RemoteBlob(url)
        _check_bytes(plain_url(url), blob.num_bytes, max_bytes)
        return blob.read(0, blob.num_bytes)
    except FormatError as error:
        raise SampleError("no such object", str(error)) from error
    except StoreError as error:
        # A store that does not answer has nothing to do with this sample: the unit stops.
        if error.passing:
            raise
        raise SampleError("no permission", str(error)) from error


def _check_bytes(what: str, num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise SampleError("too large", f"{what}: {num_bytes} bytes, the limit is {max_bytes}")


def _inside(reference: Mapping[str, Any]) -> Any:
    for name in LOCATIONS:
        if reference.get(name) is not None:
            return reference[name]
    names = ", ".join(map(str, reference))
    raise SampleError("missing field", f"a medium has no bytes, path or url, only: {names:.100}")


def _data_url(text: str) -> bytes:
    head, comma, body = text.partition(",")
    if not comma or not head.endswith(";base64"):
        raise SampleError("bad data url", f"{text:.60}: only base64 is understood")
    return _base64(body)


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise SampleError("bad base64", f"{text:.40}...: {error}") from error
