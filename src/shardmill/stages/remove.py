"""Remove: a folder without the samples of a list of keys, for people who opt out.

A shard is a unit. One that holds none of them is linked, not copied; one that does is written
again without them. Its receipt balances (in = kept + removed), its rejects name each key that went,
and the checksums show which shards are the very files of before. OUT/removal.json sums it up:

    {"asked": n, "removed": samples, "shards_rewritten": n, "shards_linked": n, "not_there": [key]}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from shardmill.errors import ConfigError, Filtered
from shardmill.io.atomic import write_file
from shardmill.io.codefile import ROLE as CODES
from shardmill.io.codefile import open_codes, write_codes
from shardmill.io.cutsamples import cut_shard
from shardmill.io.index import open_index
from shardmill.io.jsontext import dump_page, parse_json
from shardmill.io.links import link_or_copy
from shardmill.io.receipts import open_manifest
from shardmill.io.tokenfile import ROLES, open_token_shard
from shardmill.io.tokenwrite import TokenWriter
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.stages.keylist import read_keys, rows_with_keys, whole_key
from shardmill.stages.samplefiles import sample_inputs
from shardmill.stages.shardstats import count_shard

REASON = "removed on request"
SUMMARY_NAME = "removal.json"
LINKED, REWRITTEN = "shards|linked", "shards|rewritten"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveSamples:
    """The spec of a removal from a finished folder of samples, codes, tokens or packs."""

    version: ClassVar[int] = 1

    input_dir: Path
    keys_path: Path

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard, with the rows that go."""
        keys = read_keys(self.keys_path)
        for shard in open_manifest(self.input_dir).shards:
            if "idx" in shard.files and not {"tar", "spans"} & shard.files.keys():
                raise ConfigError(
                    f"{self.input_dir} only points at tars that lie elsewhere: ingest them to have "
                    "shards that can be written again"
                )
            rows = rows_with_keys(self.input_dir, shard, keys)
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
    if "spans" in files:
        names = _rewrite_tokens(files, set(rows), new)
    elif CODES in files:
        names = _rewrite_codes(files[CODES], set(rows), new[CODES])
    else:
        index = open_index(files["idx"])
        keep = np.ones(len(index), np.bool_)
        keep[rows] = False
        names = [index.keys[row] for row in rows]
        cut_shard(files["tar"], files["idx"], keep, new["tar"], new["idx"])
    for name in names:
        tally.skip(name, Filtered(REASON, f"from shard {unit.name}"))


def _rewrite_tokens(
    files: Mapping[str, Path], rows: set[int], new: Mapping[str, Path]
) -> list[str]:
    shard = open_token_shard({role: files[role] for role in ROLES})
    about = shard.spans.meta.get("about")
    is_first_gone = False
    with TokenWriter(new.__getitem__, shard.space, about or {}) as writer:
        for number, row in enumerate(shard):
            is_first_gone = is_first_gone and row.continues
            if number in rows:
                is_first_gone = is_first_gone or not row.continues
                continue
            # What is left of a pack or document begins anew if its first row is gone.
            writer.append(replace(row, continues=row.continues and not is_first_gone))
            is_first_gone = False
    return [shard.keys[row] for row in sorted(rows)]


def _rewrite_codes(path: Path, rows: set[int], new_path: Path) -> list[str]:
    shard = open_codes(path)
    kept = ((shard.keys[n], shard.pictures(n)) for n in range(len(shard)) if n not in rows)
    known = {"num_codes", "factor"}
    about = {name: value for name, value in shard.arrays.meta.items() if name not in known}
    write_codes(new_path, kept, num_codes=shard.num_codes, factor=shard.factor, about=about)
    return [shard.keys[row] for row in sorted(rows)]
