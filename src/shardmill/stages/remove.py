"""Remove: a folder without the samples of a list of keys, for people who opt out.

A shard is a unit. One that holds none of them is linked, not copied; one that does is written
again without them. Its receipt balances (in = kept + removed), its rejects name each key that went,
and the checksums show which shards are the very files of before. OUT/removal.json sums it up:

    {"asked": n, "removed": samples, "shards_rewritten": n, "shards_linked": n, "not_there": [key]}

The list is a text file with one key a line; empty lines and what follows a tab are passed over. A
dot means `_`, because no key has one and `ingest --key` stores "cat.jpg" as "cat_jpg". A key also
means the rows that a long sample was cut into: `K` means `K~+1`, `K~+2`, ... too. `K~2` is another
sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shardmill.errors import ConfigError, Filtered, FormatError
from shardmill.formats.sharedfiles import write_rest
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.model.tokenrow import sample_key
from shardmill.shards.arrays import hash_keys
from shardmill.shards.codes import ROLE as CODES
from shardmill.shards.codes import CodeShard, write_codes
from shardmill.shards.ledger import Ledger, open_manifest
from shardmill.shards.tar.index import cut_tar
from shardmill.shards.tokens.shard import TokenShard
from shardmill.shards.tokens.write import TokenWriter
from shardmill.stages.inputs import (
    ContentShard,
    count_shard,
    files_of,
    open_content,
    sample_inputs,
    stored_as,
)
from shardmill.storage.files import link_or_copy, write_file
from shardmill.storage.text import dump_page, parse_json

REASON = "removed on request"
SUMMARY_NAME = "removal.json"
LINKED, REWRITTEN = "shards|linked", "shards|rewritten"
LEVELS_BELOW = 2  # of the folders beside one, where what was made from it is looked for
MAX_FOLDERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveSamples:
    """The spec of a removal from a finished folder of samples, codes, tokens or packs."""

    version: ClassVar[int] = 1

    input_dir: Path
    keys_path: Path

    @property
    def content(self) -> str:
        """What the folder held before."""
        return open_manifest(self.input_dir).content

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return {role: places} of what is read."""
        return {"input": (str(self.input_dir),), "keys": (str(self.keys_path),)}

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard, with the rows that go."""
        keys = read_keys(self.keys_path)
        for shard in open_manifest(self.input_dir).shards:
            if stored_as(shard.files) == "tar" and "tar" not in shard.files:
                raise ConfigError(
                    f"{self.input_dir} only points at tars that lie elsewhere: ingest them to have "
                    "shards that can be written again"
                )
            rows = rows_with_keys(open_content(files_of(self.input_dir, shard)), keys)
            yield Unit(
                name=shard.name,
                input={
                    "files": {role: [e.path, e.checksum] for role, e in shard.files.items()},
                    "rows": [*rows],
                },
                num_samples=shard.num_samples,
            )

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Yield the work on one shard."""
        yield self._work

    def inputs(self) -> Mapping[str, Any]:
        """Return the fingerprints of the manifest and of the list of keys."""
        return sample_inputs(self.input_dir, [self.keys_path])

    def shared_files(self, units: Sequence[Unit]) -> Mapping[str, int]:
        """Return nothing: units write only their own files."""
        return {}

    def finish(self, manifest: Manifest, out_dir: Path) -> None:
        """Write removal.json."""
        keys = read_keys(self.keys_path)
        gone = {whole_key(key, keys) for key in _rejected(out_dir)}
        summary = {
            "asked": len(keys),
            "removed": manifest.skipped.get(REASON, 0),
            "shards_rewritten": manifest.stats.get(REWRITTEN, 0),
            "shards_linked": manifest.stats.get(LINKED, 0),
            "not_there": sorted(keys - gone),
        }
        write_file(out_dir / SUMMARY_NAME, dump_page(summary))
        write_rest(out_dir, manifest.shards)

    def _work(self, unit: Unit, draft: Draft, tally: Tally) -> None:
        stored: Any = unit.input["files"]
        rows: Any = unit.input["rows"]
        files = {role: self.input_dir / path for role, (path, _) in stored.items()}
        assert unit.num_samples is not None
        tally.num_in = unit.num_samples
        if rows:
            _rewrite(files, rows, unit, draft, tally)
        else:
            for role, path in files.items():
                link_or_copy(path, draft.file(unit.name, role))
        tally.num_kept = unit.num_samples - len(rows)
        tally.count(REWRITTEN if rows else LINKED)
        draft.finish(unit.name, num_samples=tally.num_kept)
        count_shard(tally, {role: draft.file(unit.name, role) for role in files})


def _rejected(out_dir: Path) -> Iterator[str]:
    for path in sorted((out_dir / "rejects").glob("*.jsonl")):
        with path.open("rb") as lines:
            yield from (parse_json(line)["key"] for line in lines)


def _rewrite(
    files: Mapping[str, Path], rows: list[int], unit: Unit, draft: Draft, tally: Tally
) -> None:
    new = {role: draft.file(unit.name, role) for role in files}
    shard = open_content(files)
    match shard:
        case TokenShard():
            _rewrite_tokens(shard, set(rows), new)
        case CodeShard():
            _rewrite_codes(shard, set(rows), new[CODES])
        case index:
            keep = np.ones(len(index), np.bool_)
            keep[rows] = False
            cut_tar(files["tar"], files["idx"], keep, new["tar"], new["idx"])
    for row in rows:
        tally.skip(shard.keys[row], Filtered(REASON, f"from shard {unit.name}"))


def _rewrite_tokens(shard: TokenShard, rows: set[int], new: Mapping[str, Path]) -> None:
    about = shard.spans.meta.get("about")
    is_first_gone = False
    with TokenWriter(new.__getitem__, shard.space, about or {}) as writer:
        for number, row in enumerate(shard):
            is_first_gone = is_first_gone and row.continues
            if number in rows:
                is_first_gone = is_first_gone or not row.continues
                continue
            # What is left of a pack or document begins again if its first row is gone.
            writer.append(replace(row, continues=row.continues and not is_first_gone))
            is_first_gone = False


def _rewrite_codes(shard: CodeShard, rows: set[int], new_path: Path) -> None:
    kept = ((shard.keys[n], shard.images(n)) for n in range(len(shard)) if n not in rows)
    known = {"num_codes", "factor"}
    about = {name: value for name, value in shard.arrays.meta.items() if name not in known}
    write_codes(new_path, kept, num_codes=shard.num_codes, factor=shard.factor, about=about)


def read_keys(path: Path) -> set[str]:
    """Return the keys of a file; one without any is a `ConfigError`."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the keys in {path}: {error}") from error
    keys = {line.partition("\t")[0].strip().replace(".", "_") for line in lines} - {""}
    if not keys:
        raise ConfigError(f"{path} names no keys")
    return keys


def rows_with_keys(shard: ContentShard, keys: set[str]) -> list[int]:
    """Return the rows of a shard of samples, codes or tokens that these keys mean, in order."""
    if isinstance(shard, TokenShard):
        return [row for row, name in enumerate(shard.keys) if whole_key(name, keys) is not None]
    # Few keys of a shard are looked at as text: only those whose hash is among the wanted ones.
    wanted = hash_keys([key.encode("utf-8", "surrogateescape") for key in keys])
    rows = shard.arrays["hash_order"][np.isin(shard.arrays["hash"], wanted)].tolist()
    return sorted(row for row in rows if shard.keys[row] in keys)


def whole_key(name: str, keys: set[str]) -> str | None:
    """Return the key that a row's name means, None if it is none of these."""
    if name in keys:
        return name
    key = sample_key(name)
    return key if key in keys else None


@dataclass(frozen=True, slots=True)
class Downstream:
    """What was made from a folder, where it was looked for, and whether all of that was seen."""

    folders: tuple[Path, ...]
    looked_in: Path
    saw_all: bool


def find_downstream(folder: Path) -> Downstream:
    """Find the folders that were made from one, or from what was made from it.

    Those beside it are looked at and those some levels below them; elsewhere nobody knows of them.
    What was made by leaving samples out, and what was made from that, does not count.
    """
    wanted, found = {folder.resolve()}, []
    parent = folder.resolve().parent
    seen = list(islice(_folders_below(parent, LEVELS_BELOW), MAX_FOLDERS + 1))
    near = [path for path in seen[:MAX_FOLDERS] if _is_stage(path)]
    neighbours = {path: _inputs_of(path) for path in near}
    # What was made from something that was made from it holds it too.
    while more := [p for p, used in neighbours.items() if p not in wanted and used & wanted]:
        wanted |= set(more)
        found += more
    return Downstream(tuple(sorted(found)), parent, len(seen) <= MAX_FOLDERS)


def _folders_below(parent: Path, levels: int) -> Iterator[Path]:
    """Yield the folders in a folder, then those in them; a stage's own are no inputs of others."""
    try:
        folders = sorted(path for path in parent.iterdir() if _may_hold_more(path))
    except OSError:  # not for us to read
        return
    yield from folders
    for path in folders if levels else ():
        if not _is_stage(path):
            yield from _folders_below(path, levels - 1)


def _may_hold_more(path: Path) -> bool:
    return not path.name.startswith(".") and path.is_dir() and not path.is_symlink()


def _is_stage(path: Path) -> bool:
    return (path / "stage.json").is_file()


def _inputs_of(folder: Path) -> set[Path]:
    try:
        record = Ledger(folder).read_stage()
    except FormatError:
        return set()
    # What was made by a removal from this folder is the way out, not a copy that is left.
    if record is None or "keys" in record.reads:
        return set()
    return {Path(place).resolve() for places in record.reads.values() for place in places}
