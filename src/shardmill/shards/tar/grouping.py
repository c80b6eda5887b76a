"""Turns the members of a foreign tar into samples.

The key is the path up to the first dot after the last '/', without a leading "./"; the rest, in
lower case, is the extension; members of one sample are adjacent. The interleave rule: when a sample
begins with `K.json`, each `K-<rest>.ext` that follows joins it as `<rest>.ext`, except that
`K-<rest>.json` begins a sample of its own. Names without key or extension (`.DS_Store`, `README`)
and `__meta__` files are passed over and counted. A sample that cannot be addressed, also one with a
link among its members, is handed back with its reason, never dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

from shardmill.errors import SampleError
from shardmill.shards.tar.index import IndexRows
from shardmill.shards.tar.names import is_note, split_name
from shardmill.shards.tar.read import TarWalk

NOTHING = "\0"  # what no name begins with, since names in tars end at a zero byte


@dataclass(slots=True)
class Grouped:
    """The samples of a tar as rows of an index, those that cannot be used, and what was passed."""

    rows: IndexRows
    bad: list[tuple[str, SampleError]]
    passed: Counter[str]

    @property
    def num_samples(self) -> int:
        """Good and bad ones."""
        return len(self.rows) + len(self.bad)


@dataclass(slots=True)
class _Cut:
    """Samples before any check: sample i has the members first[i] .. first[i + 1]."""

    members: TarWalk
    keys: list[str]
    first: list[int]
    exts: list[str]

    def start(self, number: int) -> int:
        return self.members.starts[self.first[number]]


def group_members(walk: TarWalk, *, interleaved: bool = True) -> Grouped:
    """Return the samples of a walk; `interleaved` turns the interleave rule on or off."""
    cut = _cut(walk, interleaved)
    bad = _find_bad(cut)
    passed = walk.passed.copy()
    passed["not a sample"] += len(walk.names) - len(cut.exts)
    return Grouped(_rows(cut, bad), [(cut.keys[n], bad[n]) for n in sorted(bad)], +passed)


def _cut(walk: TarWalk, interleaved: bool) -> _Cut:
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
    plain_keys = [key.removeprefix("./") for key in keys]
    return _Cut(_without(walk, passed), plain_keys, first, [ext.lower() for ext in exts])


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


def _find_bad(cut: _Cut) -> dict[int, SampleError]:
    bad = _find_linked(cut)
    seen: dict[str, int] = {}
    for number, key in enumerate(cut.keys):
        before = seen.setdefault(key, number)
        if number in bad:
            continue
        exts = cut.exts[cut.first[number] : cut.first[number + 1]]
        if before != number:
            bad[number] = _duplicate_key(cut, before, number)
        elif len(set(exts)) != len(exts):
            bad[number] = _duplicate_member(cut, number, exts)
        elif key[0] == "/" or (".." in key and ".." in key.split("/")):
            where = f"member {key!r} at byte {cut.start(number)}"
            bad[number] = SampleError("climbs out of its folder", where)
    return bad


def _find_linked(cut: _Cut) -> dict[int, SampleError]:
    """Return the samples with a link, each with the first of its links."""
    found: dict[int, SampleError] = {}
    for member, link in cut.members.links.items():
        found.setdefault(bisect_right(cut.first, member) - 1, SampleError("link", link))
    return found


def _duplicate_key(cut: _Cut, before: int, number: int) -> SampleError:
    return SampleError(
        "duplicate key",
        f"{cut.keys[number]!r} at byte {cut.start(number)} was at byte {cut.start(before)} "
        "already; the members of a sample must be adjacent",
    )


def _duplicate_member(cut: _Cut, number: int, exts: list[str]) -> SampleError:
    ext = next(ext for ext, count in Counter(exts).items() if count > 1)
    first = cut.first[number]
    at = [cut.members.starts[first + i] for i, other in enumerate(exts) if other == ext]
    return SampleError(
        "duplicate member", f"{cut.keys[number]}.{ext} is at bytes {at[0]} and {at[1]}"
    )


def _rows(cut: _Cut, bad: dict[int, SampleError]) -> IndexRows:
    rows, members = IndexRows(), cut.members
    for number, key in enumerate(cut.keys):
        if number in bad:
            continue
        place = slice(cut.first[number], cut.first[number + 1])
        start = members.starts[place.start]
        offsets = [offset - start for offset in members.offsets[place]]
        rows.add(key, start, cut.exts[place], offsets, members.sizes[place])
    return rows
