"""NeMo's meta file: several data sets, each with its columns, role tags, media folder and ratio.

    {"name": {"file_name": "a.jsonl", "media_dir": "photos", "sample_ratio": 0.5,
              "columns": {"messages": "conversations", "images": "image", "videos": "video"},
              "tags": {"role_tag": "from", "content_tag": "value", "user_tag": "human",
                       "assistant_tag": "gpt", "system_tag": "system"}}}

Data sets come in the order of their names; relative paths begin at the meta file, and tables and
folders lie below it, or below what the user wants to `allow`. With `media_root`, a relative
`media_dir` begins there, as it begins for NeMo at the folder in which it is started. Rows leave
here with the columns `messages`, `images`, `videos` and the tags `role` and `content`, so that one
shape reads them all. Copies of a row, from a ratio above 1, have keys that end in `-x1`, `-x2`, ...

A ratio such as 0.25 or 2.5 gives exact counts. Row i has the number h(i), where h is a one-to-one
mixing of 64-bit numbers that depends on the seed; the n rows with the smallest numbers are the
sample. Whether a row is in it needs only h(i) and the n-th smallest number, which is found by four
passes of a radix selection in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError
from shardmill.model.codec import PlaceName, RootName, digest
from shardmill.model.rng import GOLDEN, stir_array
from shardmill.model.sample import kept_fields
from shardmill.sources.allowed import Allowed
from shardmill.sources.source import (
    ROWS_PER_PART,
    Read,
    Row,
    SourcePart,
    check_link,
    name_from_path,
    stamp,
    unique,
)
from shardmill.sources.tables import TableSource
from shardmill.storage.path import as_path

COLUMNS = ("messages", "images", "videos")
ROLE_TAGS = {"user_tag": "user", "assistant_tag": "assistant", "system_tag": "system"}
TAGS = ("role_tag", "content_tag", *ROLE_TAGS)
FIELDS = ("file_name", "columns", "tags", "media_dir", "sample_ratio")
CHUNK = 1 << 20
DIGIT_BITS = 16
DIGIT_MASK = np.uint64((1 << DIGIT_BITS) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NemoSource:
    """The data sets of a meta file, or those that `datasets` names."""

    shape: ClassVar[str] = "messages"

    meta: PlaceName
    datasets: tuple[str, ...] = ()
    seed: int = 42
    media_root: RootName | None = None
    max_row_bytes: int = 64 << 20
    allow: tuple[RootName, ...] = ()

    def places(self) -> tuple[str, ...]:
        return (self.meta,)

    def parts(self, per_shard: int | None) -> Iterator[SourcePart]:
        """Yield slices of about `per_shard` samples of each data set in turn."""
        for dataset in self._datasets():
            yield from _parts_of(dataset, per_shard or ROWS_PER_PART, self.seed)

    @contextmanager
    def open(self) -> Iterator[Read]:
        """Yield the reader of one part; each data set keeps its last file open."""
        datasets = {dataset.name: dataset for dataset in self._datasets()}
        with ExitStack() as stack:
            reads = {n: stack.enter_context(d.table.open()) for n, d in datasets.items()}

            def read(part: Mapping[str, Any]) -> Iterator[Row]:
                name = part["dataset"]
                return _read(datasets[name], reads[name], part)

            yield read

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of the meta file and of each table."""
        found = {self.meta: stamp(Path(self.meta))}
        for dataset in self._datasets():
            found.update(dataset.table.inputs())
        return found

    def apart(self) -> Iterator[NemoSource]:
        """Yield the source of each data set."""
        return (replace(self, datasets=(dataset.name,)) for dataset in self._datasets())

    def _datasets(self) -> list[_Dataset]:
        entries = load_meta(Path(self.meta))
        missing = sorted(set(self.datasets) - entries.keys())
        if missing:
            known = ", ".join(sorted(entries))
            raise ConfigError(f"{self.meta} has no data set {missing[0]!r}, only {known}")
        names = sorted(self.datasets or entries)
        return [self._dataset(name, entries[name]) for name in names]

    def _dataset(self, name: str, entry: Mapping[str, Any]) -> _Dataset:
        here = Path(self.meta).parent
        media_dir = entry.get("media_dir")
        allow = self.allow if self.media_root is None else (*self.allow, self.media_root)
        table = TableSource(
            files=(str(here / entry["file_name"]),),
            name=name,
            media_root=self._media_root(name, media_dir),
            max_row_bytes=self.max_row_bytes,
            allow=allow,
        )
        allowed = Allowed.below(str(here), allow)
        listed = (str(listed.path) for listed in table._listed())
        for place in (*table.files, *([table.media_root] if table.media_root else ()), *listed):
            check_link(place, allowed)
        return _Dataset(
            name=name,
            table=table,
            media_dir=media_dir,
            columns=entry.get("columns") or {},
            tags=entry.get("tags") or {},
            ratio=float(entry.get("sample_ratio", 1.0)),
        )

    def _media_root(self, name: str, media_dir: str | None) -> str | None:
        if media_dir is None:
            return self.media_root
        if self.media_root is not None:
            return str(as_path(self.media_root) / media_dir)
        place = Path(self.meta).parent / media_dir
        if not place.is_dir():
            raise ConfigError(
                f"{self.meta}: media_dir {media_dir!r} of {name} is no folder beside it. NeMo "
                "reads it from the folder in which it is started: name that one by --media-root"
            )
        return str(place)


@dataclass(frozen=True, slots=True)
class _Dataset:
    name: str
    table: TableSource
    media_dir: str | None
    columns: Mapping[str, str]
    tags: Mapping[str, str]
    ratio: float

    @property
    def digest(self) -> str:
        """The identity of what the meta file says about reading a row."""
        return digest([self.media_dir, self.columns, self.tags])

    def canonical(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields under the names that all data sets share."""
        names = {self.columns.get(name, name): name for name in COLUMNS}
        if "messages" not in self.columns and "messages" not in fields:
            names["conversations"] = "messages"
        found = {names.get(name, name): value for name, value in fields.items()}
        if isinstance(found.get("messages"), list):
            found["messages"] = [self._turn(turn) for turn in found["messages"]]
        return found

    def _turn(self, turn: Any) -> Any:
        if not isinstance(turn, dict):
            return turn
        role_tag = self.tags.get("role_tag", "role" if "role" in turn else "from")
        content_tag = self.tags.get("content_tag", "content" if "content" in turn else "value")
        speakers = {self.tags[tag]: role for tag, role in ROLE_TAGS.items() if tag in self.tags}
        speaker = turn.get(role_tag)
        known = speakers.get(speaker, speaker) if isinstance(speaker, str) else speaker
        return {**kept_fields(turn), "role": known, "content": turn.get(content_tag)}


def load_meta(path: Path) -> dict[str, dict[str, Any]]:
    """Return the data sets of a meta file, checked field by field."""
    try:
        meta = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise FormatError(f"is not JSON: {error}", path=path) from error
    if not is_meta(meta):
        raise FormatError("is not a meta file: no data sets with a file_name", path=path)
    for name, entry in meta.items():
        _check(path, name, entry, FIELDS)
        _check(path, f"{name}.columns", entry.get("columns") or {}, COLUMNS)
        _check(path, f"{name}.tags", entry.get("tags") or {}, TAGS)
        ratio = entry.get("sample_ratio", 1.0)
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not ratio > 0:
            where = f"{path}: {name}.sample_ratio"
            raise ConfigError(f"{where} must be a number above 0, got {ratio!r}")
    return dict(meta)


def is_meta(value: object) -> bool:
    """Say whether a JSON value is a meta file: an object of objects that name a file each."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(entry, dict) and isinstance(entry.get("file_name"), str)
            for entry in value.values()
        )
    )


def _check(path: Path, where: str, entry: Any, known: tuple[str, ...]) -> None:
    unknown = sorted(set(entry) - set(known)) if isinstance(entry, dict) else [repr(entry)]
    if unknown:
        raise ConfigError(f"{path}: {where} has {unknown[0]!r}, known are {', '.join(known)}")


def _parts_of(dataset: _Dataset, per_shard: int, seed: int) -> Iterator[SourcePart]:
    parts = dataset.table.parts(max(1, round(per_shard / dataset.ratio)))
    prefix = name_from_path(dataset.name)
    taken: dict[str, str] = {}
    names: set[str] = set()
    copies = Copies(1, -1, 0)
    if dataset.ratio != 1:
        listed = list(parts)
        num_rows = sum(part.num_rows or 0 for part in listed)
        copies = copies_for(dataset.ratio, num_rows, seed_of(seed, dataset.name))
        parts = iter(listed)
    first = 0
    for part in parts:
        count = part.num_rows or 0
        stem = str(part.input["name"])
        if stem not in taken:
            taken[stem] = unique(name_from_path(f"{prefix}/{stem}"), names)
        sampled = copies.of_rows(first, count)
        yield SourcePart(
            input={
                **part.input,
                "name": taken[stem],
                "dataset": dataset.name,
                "meta": dataset.digest,
                "copies": [copies.base, copies.threshold, copies.seed],
                "first_row": first,
            },
            num_rows=int(sampled.sum()),
        )
        first += count


def _read(dataset: _Dataset, read: Read, part: Mapping[str, Any]) -> Iterator[Row]:
    copies = Copies(*part["copies"]).of_rows(part["first_row"], part["num_rows"])
    for row, count in zip(read(part), copies.tolist(), strict=True):
        row = replace(row, fields=dataset.canonical(row.fields))
        for copy in range(count):
            yield row if copy == 0 else replace(row, key=f"{row.key}-x{copy}")


@dataclass(frozen=True, slots=True)
class Copies:
    """Every row `base` times, and once more if its number is at most `threshold` (-1: none)."""

    base: int
    threshold: int
    seed: int

    def of_rows(self, first: int, num_rows: int) -> NDArray[np.int64]:
        """Return how often each of these rows is taken."""
        copies = np.full(num_rows, self.base, np.int64)
        if self.threshold >= 0:
            copies += mixed(self.seed, first, num_rows) <= np.uint64(self.threshold)
        return copies


def copies_for(ratio: float, num_rows: int, seed: int) -> Copies:
    """Return the copies that make `num_rows` rows `ratio` times as many.

    Below 1 that is max(1, floor(num_rows * ratio)) different rows; above, every row int(ratio)
    times and floor(num_rows * rest) of them once more. The ratio is meant as it is written: 0.29 of
    100 rows are 29, though the float 0.29 is a little less.
    """
    exact = Fraction(str(ratio))
    if exact <= 0:
        raise ConfigError(f"a ratio must be above 0, got {ratio}: leave the data set out instead")
    base = int(exact)
    extra = int(num_rows * (exact - base))
    if base == 0:
        extra = min(max(1, extra), num_rows)
    return Copies(base, _nth_smallest(seed, num_rows, extra), seed)


def seed_of(seed: int, name: str) -> int:
    """Return a seed of its own for each data set, so that equal files give different samples."""
    return int(xxhash.xxh3_64_intdigest(name.encode(), seed=seed & 0xFFFFFFFFFFFFFFFF))


def mixed(seed: int, first: int, num_rows: int) -> NDArray[np.uint64]:
    """Return the numbers of rows first, first + 1, ...."""
    with np.errstate(over="ignore"):
        z = np.arange(first, first + num_rows, dtype=np.uint64)
        return stir_array((z + np.uint64(1)) * np.uint64(GOLDEN) + np.uint64(seed))


def _nth_smallest(seed: int, num_rows: int, count: int) -> int:
    """Return the `count`-th smallest number of the rows, -1 if `count` is 0.

    In decimal digits: the 3rd smallest of 17, 42, 45, 48 begins with 4, as one number begins with 1
    and three with 4; of those with 4 it is the 2nd, so its next digit is 5.
    """
    if count == 0:
        return -1
    prefix, left = 0, count
    for shift in range(64 - DIGIT_BITS, -1, -DIGIT_BITS):
        # How many of the numbers that begin with `prefix` go on with each digit.
        histogram = np.zeros(1 << DIGIT_BITS, np.int64)
        for numbers in _chunks(seed, num_rows):
            if shift + DIGIT_BITS < 64:
                numbers = numbers[numbers >> np.uint64(shift + DIGIT_BITS) == np.uint64(prefix)]
            digits = (numbers >> np.uint64(shift)) & DIGIT_MASK
            histogram += np.bincount(digits.astype(np.int64), minlength=1 << DIGIT_BITS)
        below = np.cumsum(histogram)
        digit = int(np.searchsorted(below, left))
        left -= int(below[digit - 1]) if digit else 0
        prefix = prefix << DIGIT_BITS | digit
    return prefix


def _chunks(seed: int, num_rows: int) -> Iterator[NDArray[np.uint64]]:
    for first in range(0, num_rows, CHUNK):
        yield mixed(seed, first, min(CHUNK, num_rows - first))
