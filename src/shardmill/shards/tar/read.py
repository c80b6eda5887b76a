"""Reads any tar: where each member lies, and which members make a sample. No content is read.

By hand because indexing a tar takes a nineteenth of the CPU time of `widsindex create`, which walks
it with `tarfile` (benchmarks/index_tars.py).

**Walking.** Understood are ustar with prefix, PAX `path` and `size` (also global), GNU long names,
base-256 sizes, and tars from before POSIX. Folders and devices are passed over and counted. A link
is a member with no bytes of its own, and is told apart: nothing follows it, neither in the tar nor
on a disk. Refused, with their offset: sparse and multi-volume members, wrong checksums, sizes
beyond the file, and a tar that does not end with a zero block, since a copy that was cut off at a
member looks just like that.

The run of plain members that a WebDataset tar mostly is goes fast. Plain means: a ustar header of
type '0' with an octal size and a right checksum, whose content lies inside the file, perhaps behind
one PAX header that says nothing of path or size. The first member that is anything else, damage
included, ends the run, and the careful walk decides what it means. The compiled scanner of local
files and the one in Python find the same members.

**Grouping.** The key is the path up to the first dot after the last '/', without a leading "./";
the rest, in lower case, is the extension; members of one sample are adjacent. By the interleave
rule, when a sample begins with `K.json`, each `K-<rest>.ext` that follows joins it as `<rest>.ext`,
except that `K-<rest>.json` begins a sample of its own. Names without key or extension (`.DS_Store`,
`README`) and `__meta__` files are passed over and counted. A sample that cannot be addressed, also
one with a link among its members, is handed back with its reason, never dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import NoReturn
from zlib import adler32

from shardmill.errors import FormatError, SampleError
from shardmill.shards.tar.header import (
    ADLER_MODULUS,
    BLOCK,
    Override,
    cut_text,
    has_right_sum,
    header_path,
    is_note,
    padded,
    parse_number,
    pax_override,
    split_name,
)
from shardmill.storage.blob import Blob, LocalBlob

try:
    from shardmill.shards.tar import _tarscan  # type: ignore[attr-defined, unused-ignore]
except ImportError:  # no compiler was there at the installation
    _tarscan = None

MAX_PAX_BYTES = 2048
MAX_META_BYTES = 1 << 20
MAX_TAIL_BYTES = 1 << 20
ZERO_BLOCK = bytes(BLOCK)
REGULAR = "0\x007"
META = "xXgLK"
REFUSED = {"S": "a sparse file", "M": "a file that continues from another volume"}
HOW_TO_FOLLOW = {"1": "--hard-dereference", "2": "--dereference"}
WITHOUT_CONTENT = {
    "3": "device",
    "4": "device",
    "5": "folder",
    "6": "device",
}
# Of plain members.
REGULAR_TYPE, PAX = b"0x"
ENDS = b"\0 "
NOTHING = "\0"  # what no name begins with, since names in tars end at a zero byte


@dataclass(slots=True)
class TarWalk:
    """The regular files of a tar in columns; `starts` are the offsets of their first headers.

    A link has a row of size 0, and `links` says by its number what it is and what to do. `passed`
    counts by kind what is neither; `end` is where the last member ends.
    """

    names: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    links: dict[int, str] = field(default_factory=dict)
    passed: Counter[str] = field(default_factory=Counter)
    end: int = 0


def walk_tar(blob: Blob) -> TarWalk:
    """Return the members of a tar; anything that is not a whole, sound tar is a `FormatError`."""
    walker = _Walker(blob)
    at: int | None = 0
    while at is not None:
        if walker.for_all == Override():
            at = scan_plain(blob, at, walker.found)
        walker.found.end = at
        at = walker.member(at)
    walker.check_tail(walker.found.end)
    return walker.found


class _Walker:
    def __init__(self, blob: Blob) -> None:
        self.blob = blob
        self.num_bytes, self.window = blob.num_bytes, blob.window
        self.buffer, self.base = b"", 0
        self.found = TarWalk()
        self.for_all = Override()

    def member(self, start: int) -> int | None:
        """Record the member whose first header is at `start`; return where it ends.

        None means that the tar ends here.
        """
        at, override = start, self.for_all
        while True:
            header = self._header(at)
            if header is None:
                if at != start:
                    self._fail("the tar ends between a member's extended header and the member", at)
                return None
            kind = chr(header[156])
            size = self._size(header, at)
            if kind not in META:
                return self._place(header, kind, size, override, start, at)
            override = self._override(kind, size, override, at)
            at += BLOCK + padded(size)

    def check_tail(self, end: int) -> None:
        """Refuse a tar with something after its end: a second tar, or another kind of file."""
        rest = self.num_bytes - end
        tail = self.blob.read(end, min(rest, MAX_TAIL_BYTES))
        if rest > MAX_TAIL_BYTES or tail.count(0) != len(tail):
            self._fail("there is more after the end of the tar: were several tars joined?", end)

    def _header(self, at: int) -> bytes | None:
        skip = at - self.base
        header = self.buffer[skip : skip + BLOCK]
        if len(header) < BLOCK:
            header = self._refill(at)
        if header == ZERO_BLOCK:
            return None
        if not has_right_sum(header):
            self._fail_header(header, at)
        return header

    def _refill(self, at: int) -> bytes:
        left = self.num_bytes - at
        if left < BLOCK:
            self._fail(
                "it ends without the zero blocks that close a tar, so it was probably cut off"
                if left == 0
                else f"only {left} bytes are left, a header has {BLOCK}: the tar was cut off",
                at,
            )
        self.buffer, self.base = self.blob.read(at, min(self.window, left)), at
        return self.buffer[:BLOCK]

    def _size(self, header: bytes, at: int) -> int:
        try:
            return parse_number(header[124:136])
        except ValueError as error:
            self._fail(f"its header holds {error}", at, header)

    def _override(self, kind: str, size: int, override: Override, at: int) -> Override:
        content = self._meta_content(size, at)
        if kind == "L":
            return override._replace(path=cut_text(content))
        if kind == "K":
            return override._replace(link=cut_text(content))
        try:
            if kind == "g":
                self.for_all = pax_override(content, self.for_all)
            return pax_override(content, override)
        except ValueError as error:
            self._fail(f"its extended header holds {error}", at)

    def _meta_content(self, size: int, at: int) -> bytes:
        if size > MAX_META_BYTES:
            self._fail(f"claims an extended header of {size} bytes", at)
        self._check_room(size, at)
        skip = at + BLOCK - self.base
        content = self.buffer[skip : skip + size]
        return content if len(content) == size else self.blob.read(at + BLOCK, size)

    def _place(
        self, header: bytes, kind: str, size: int, override: Override, start: int, at: int
    ) -> int:
        if kind in REFUSED:
            self._fail(f"is {REFUSED[kind]}, which cannot be read in place", at, header)
        name = header_path(header) if override.path is None else override.path
        if kind in HOW_TO_FOLLOW:
            return self._place_link(header, kind, name, override, start, at)
        passed = WITHOUT_CONTENT.get(kind)
        if kind == "\0" and name.endswith("/"):
            passed = "folder"
        if passed is not None:
            self.found.passed[passed] += 1
            return at + BLOCK
        if override.size is not None:
            size = override.size
        self._check_room(size, at, name)
        if kind in REGULAR:
            self._record(name, start, at, size)
        else:
            self.found.passed["other"] += 1
        return at + BLOCK + padded(size)

    def _place_link(
        self, header: bytes, kind: str, name: str, override: Override, start: int, at: int
    ) -> int:
        target = cut_text(header[157:257]) if override.link is None else override.link
        self.found.links[len(self.found.names)] = (
            f"{name!r:.200} at byte {start} is a link to {target!r:.200}: write the tar with "
            f"{HOW_TO_FOLLOW[kind]}"
        )
        self._record(name, start, at, 0)
        return at + BLOCK

    def _record(self, name: str, start: int, at: int, size: int) -> None:
        self.found.names.append(name)
        self.found.starts.append(start)
        self.found.offsets.append(at + BLOCK)
        self.found.sizes.append(size)

    def _check_room(self, size: int, at: int, name: str | None = None) -> None:
        left = self.num_bytes - at - BLOCK
        if padded(size) > left:
            raise FormatError(
                f"claims {size} bytes, but only {left} follow: the tar was cut off, or the header "
                "is wrong",
                path=self.blob.url,
                member=name,
                offset=at,
            )

    def _fail_header(self, header: bytes, at: int) -> NoReturn:
        if at == 0 and header[:2] == b"\x1f\x8b":
            self._fail("is gzipped, so it has no random access: unpack it first", at)
        problem = "is not a tar" if at == 0 else "this is not a header: the tar is damaged"
        self._fail(f"{problem} (wrong checksum)", at)

    def _fail(self, problem: str, at: int, header: bytes | None = None) -> NoReturn:
        member = None if header is None else header_path(header)
        raise FormatError(problem, path=self.blob.url, member=member, offset=at)


def scan_plain(blob: Blob, at: int, found: TarWalk) -> int:
    """Record the plain members from `at` on; return the offset of the first that is not plain."""
    if _tarscan is not None and isinstance(blob, LocalBlob):
        columns = found.names, found.starts, found.offsets, found.sizes
        return int(_tarscan.scan(blob.fileno(), at, blob.num_bytes, *columns))
    return scan_in_python(blob, at, found)


def scan_in_python(blob: Blob, at: int, found: TarWalk) -> int:
    """Do what the compiled scanner does, for any blob."""
    num_bytes, window = blob.num_bytes, blob.window
    buffer, base, start = b"", at, at
    while True:
        skip = at - base
        header = buffer[skip : skip + BLOCK]
        if len(header) < BLOCK:
            if at + BLOCK > num_bytes:
                return start
            buffer, base, skip = blob.read(at, min(window, num_bytes - at)), at, 0
            header = buffer[:BLOCK]
        size, kind = _size_if_sound(header), header[156]
        if size < 0 or size > num_bytes - at - BLOCK:
            return start
        end = at + BLOCK + size + -size % BLOCK
        if kind == PAX and at == start:
            skip += BLOCK
            if size > MAX_PAX_BYTES or not _is_harmless(buffer[skip : skip + size], size):
                return start
            at = end
            continue
        if kind != REGULAR_TYPE or header[257:262] != b"ustar" or end > num_bytes:
            return start
        found.names.append(header_path(header))
        found.starts.append(start)
        found.offsets.append(at + BLOCK)
        found.sizes.append(size)
        at = start = end


def _size_if_sound(header: bytes) -> int:
    digits, stored = header[124:135], header[148:154]
    if not (digits.isdigit() and stored.isdigit() and header[135] in ENDS and header[154] in ENDS):
        return -1
    # The low half of adler32 is 1 + the sum of all bytes: see `header.has_right_sum`.
    quick = (adler32(header) & 0xFFFF) - (adler32(header[148:156]) & 0xFFFF) + 8 * ord(" ")
    try:
        sound = (quick - int(stored, 8)) % ADLER_MODULUS == 0
        return int(digits, 8) if sound else -1
    except ValueError:  # an 8 or a 9
        return -1


def _is_harmless(content: bytes, size: int) -> bool:
    return (
        len(content) == size
        and b"path=" not in content
        and b"size=" not in content
        and b"GNU.sparse" not in content
    )


@dataclass(slots=True)
class Grouped:
    """The samples of a tar: sample i has the members first[i] .. first[i + 1].

    `problems` says by its number why a sample cannot be used. `passed` counts by kind the members
    that belong to no sample.
    """

    members: TarWalk
    keys: list[str]
    first: list[int]
    exts: list[str]
    passed: Counter[str]
    problems: dict[int, SampleError] = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        """Good and bad ones."""
        return len(self.keys)

    @property
    def bad(self) -> list[tuple[str, SampleError]]:
        """The keys of the samples that cannot be used, each with its problem."""
        return [(self.keys[number], self.problems[number]) for number in sorted(self.problems)]

    def start(self, number: int) -> int:
        """Return the offset of a sample's first header."""
        return self.members.starts[self.first[number]]


def group_members(walk: TarWalk, *, interleaved: bool = True) -> Grouped:
    """Return the samples of a walk; `interleaved` turns the interleave rule on or off."""
    keys: list[str] = []
    first: list[int] = []
    exts: list[str] = []
    passed: set[int] = set()
    key = dashed = NOTHING
    for number, name in enumerate(walk.names):
        own_key, ext = split_name(name)
        if _is_no_sample(own_key, ext):
            passed.add(number)
        elif own_key == key:
            exts.append(ext)
        elif interleaved and own_key.startswith(dashed) and not name.endswith(".json"):
            exts.append(f"{own_key[len(dashed) :]}.{ext}")
        else:
            key, dashed = own_key, f"{own_key}-" if ext == "json" else NOTHING
            keys.append(key)
            first.append(len(exts))
            exts.append(ext)
    first.append(len(exts))
    counts = walk.passed + Counter({"not a sample": len(passed)})
    plain_keys = [key.removeprefix("./") for key in keys]
    lower = [ext.lower() for ext in exts]
    grouped = Grouped(_without(walk, passed), plain_keys, first, lower, counts)
    grouped.problems = _find_bad(grouped)
    return grouped


def _is_no_sample(key: str, ext: str) -> bool:
    return not ext or not key or key[-1] == "/" or is_note(key)


def _without(walk: TarWalk, passed: set[int]) -> TarWalk:
    if not passed:
        return walk
    kept = [number for number in range(len(walk.names)) if number not in passed]
    return TarWalk(
        [walk.names[n] for n in kept],
        [walk.starts[n] for n in kept],
        [walk.offsets[n] for n in kept],
        [walk.sizes[n] for n in kept],
        {new: walk.links[n] for new, n in enumerate(kept) if n in walk.links},
    )


def _find_bad(grouped: Grouped) -> dict[int, SampleError]:
    bad = _find_linked(grouped)
    seen: dict[str, int] = {}
    for number, key in enumerate(grouped.keys):
        before = seen.setdefault(key, number)
        if number in bad:
            continue
        exts = grouped.exts[grouped.first[number] : grouped.first[number + 1]]
        if before != number:
            bad[number] = _duplicate_key(grouped, before, number)
        elif len(set(exts)) != len(exts):
            bad[number] = _duplicate_member(grouped, number, exts)
        elif key[0] == "/" or (".." in key and ".." in key.split("/")):
            where = f"member {key!r} at byte {grouped.start(number)}"
            bad[number] = SampleError("climbs out of its folder", where)
    return bad


def _find_linked(grouped: Grouped) -> dict[int, SampleError]:
    """Return the samples with a link, each with the first of its links."""
    found: dict[int, SampleError] = {}
    for member, link in grouped.members.links.items():
        found.setdefault(bisect_right(grouped.first, member) - 1, SampleError("link", link))
    return found


def _duplicate_key(grouped: Grouped, before: int, number: int) -> SampleError:
    return SampleError(
        "duplicate key",
        f"{grouped.keys[number]!r} at byte {grouped.start(number)} was at byte "
        f"{grouped.start(before)} already; the members of a sample must be adjacent",
    )


def _duplicate_member(grouped: Grouped, number: int, exts: list[str]) -> SampleError:
    ext = next(ext for ext, count in Counter(exts).items() if count > 1)
    first = grouped.first[number]
    at = [grouped.members.starts[first + i] for i, other in enumerate(exts) if other == ext]
    return SampleError(
        "duplicate member", f"{grouped.keys[number]}.{ext} is at bytes {at[0]} and {at[1]}"
    )
