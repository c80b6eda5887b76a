"""A folder for Megatron-Energon: WebDataset tars, a table of offsets beside each, and `.nv-meta`.

    shards/00000.tar.idx        u64 offset of each sample's first header, and the end of the last
    .nv-meta/.info.json         {"energon_version", "shard_counts": {tar: samples}}
    .nv-meta/split.yaml         which tars belong to train, val and test
    .nv-meta/dataset.yaml       the type of the samples
    .nv-meta/sample_loader.py   makes them of the members, where a map of fields is not enough
    .nv-meta/index.sqlite       key and place of every sample and of every member of the tars
    .nv-meta/index.uuid         stands for the content

The tables of index.sqlite:

    samples       tar_file_id, sample_key, sample_index, byte_offset, byte_size
    sample_parts  tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size

An InterleavedSample is the sequence of a document's texts and media or, of a packed sample,
[input_ids, loss_mask, lengths, medium, ...]. Pairs (`K.jpg`, `K.txt`) can be CaptioningSamples, and
anything can be crude, for a cooker to take apart. YAML here is JSON, which every YAML reader takes.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import numpy as np
import orjson

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.format import Place
from shardmill.formats.rows import ExportInput, Piece, Slice
from shardmill.formats.webdataset import WebDatasetFormat
from shardmill.model.codec import digest
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally
from shardmill.shards.tar.index import TarIndex, open_tar_index
from shardmill.storage.files import made_file, write_file

META_DIR = ".nv-meta"
LOADER_NAME = "sample_loader.py"
# The release whose layout this is; `energon info` prints it.
VERSION = "7.4.1"
LOADER_PATH = Path(__file__).with_name("energon_loader.py")
IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tiff")
# Rows are written in the order of their primary keys, which appends to both tables, and the unique
# index over the keys is made last, by one sort. Until the file is whole and has its name, nobody
# reads it, so there is no journal.
SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -64000;
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER,
    PRIMARY KEY (tar_file_id, sample_index)) WITHOUT ROWID;
CREATE TABLE sample_parts (
    tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER,
    content_byte_size INTEGER,
    PRIMARY KEY (tar_file_id, sample_index, content_byte_offset)) WITHOUT ROWID;
BEGIN;
"""
ADD_SAMPLE = "INSERT INTO samples VALUES (?, ?, ?, ?, ?)"
ADD_PART = "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)"
UNIQUE_KEYS = "CREATE UNIQUE INDEX samples_by_key ON samples(sample_key)"
TWICE = """
SELECT sample_key, min(tar_file_id), max(tar_file_id) FROM samples
GROUP BY sample_key HAVING count(*) > 1 LIMIT 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergonFormat(WebDatasetFormat):
    """`val` and `test` are the shares of tars that belong to them; they are the last ones.

    `sample_type` "captioning" is for folders of samples that are all pairs of an image and a text.
    """

    arrays: bool = True
    val: float = 0.0
    test: float = 0.0
    sample_type: Literal["interleaved", "captioning", "crude"] = "interleaved"

    def __post_init__(self) -> None:
        # Slots and super() do not go together in a dataclass that is made anew.
        WebDatasetFormat.__post_init__(self)
        if self.val < 0 or self.test < 0 or self.val + self.test > 1:
            raise ConfigError(f"val and test are shares of the tars, got {self.val}, {self.test}")
        if self.layout != "dotted":
            raise ConfigError("Energon groups members by the name before the first dot: use dotted")

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield where media come from; refuses samples that are no pairs if they must be."""
        yield from WebDatasetFormat.plan(self, source, ranges)
        if self.sample_type == "captioning":
            if source.has_tokens:
                raise ConfigError("captioning is for folders of samples, this one holds tokens")
            for shard in source.shards:
                _check_pairs(open_tar_index(source.folder / shard.files["idx"].path))

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write one tar, its index, and Energon's table of offsets."""
        WebDatasetFormat.write(self, source, piece, draft, tally)
        index = open_tar_index(draft.file(piece.name, "idx"))
        starts = index.arrays["start"].astype("<u8")
        draft.file(piece.name, "tar.idx").write_bytes(starts.tobytes())

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write `.nv-meta`."""
        WebDatasetFormat.finish(self, source, manifest, out_dir)
        meta_dir = out_dir / META_DIR
        meta_dir.mkdir(exist_ok=True)
        filled = [shard for shard in manifest.shards if shard.num_samples]
        counts = {shard.files["tar"].path: shard.num_samples for shard in filled}
        identity = UUID(digest([manifest.stage_digest, manifest.units_digest]))
        tars = (open_tar_index(out_dir / shard.files["idx"].path) for shard in filled)
        write_index(meta_dir / "index.sqlite", tars)
        if self.sample_type == "interleaved":
            write_file(meta_dir / LOADER_NAME, LOADER_PATH.read_bytes())
        _write_json(meta_dir / "dataset.yaml", self._dataset())
        _write_json(meta_dir / "split.yaml", self._split(list(counts)))
        write_file(meta_dir / "index.uuid", str(identity).encode())
        info = {"energon_version": VERSION, "shard_counts": counts}
        _write_json(meta_dir / ".info.json", info)

    def _dataset(self) -> dict[str, Any]:
        if self.sample_type == "crude":
            return {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
        name = f"{self.sample_type.capitalize()}Sample"
        made = {"sample_type": {"__module__": "megatron.energon", "__class__": name}}
        if self.sample_type == "captioning":
            return {**made, "field_map": {"image": ",".join(IMAGES), "caption": "txt"}}
        functions = ("sample_loader", "part_filter")
        return {**made, **{function: f"{LOADER_NAME}:{function}" for function in functions}}

    def _split(self, tars: list[str]) -> dict[str, Any]:
        num_test, num_val = round(len(tars) * self.test), round(len(tars) * self.val)
        num_train = max(0, len(tars) - num_test - num_val)
        parts = {
            "train": tars[:num_train],
            "val": tars[num_train : num_train + num_val],
            "test": tars[num_train + num_val :],
        }
        return {"split_parts": parts, "exclude": []}


def _check_pairs(index: TarIndex) -> None:
    for number in range(len(index)):
        exts = {member.ext for member in index.members(number)}
        if "txt" not in exts or not exts & {*IMAGES}:
            raise ConfigError(
                f"sample {index.keys[number]!r} has {', '.join(sorted(exts))}, not an image and a "
                "txt: filter the samples, or export them as interleaved ones"
            )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    write_file(path, orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")


def write_index(path: Path, tars: Iterable[TarIndex]) -> None:
    """Write the index of these tars, at once or not at all.

    A key that two samples have, or that is not UTF-8, is a `FormatError` that names the tar.
    """
    with made_file(path) as draft_path:
        try:
            # Autocommit, so that BEGIN and COMMIT stand where we put them.
            with closing(sqlite3.connect(draft_path, isolation_level=None)) as database:
                database.executescript(SCHEMA)
                places = [_add_tar(database, number, index) for number, index in enumerate(tars)]
                database.execute("COMMIT")
                _add_keys(database, places)
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"cannot write: {error}", str(path)) from error


def _add_tar(database: sqlite3.Connection, tar: int, index: TarIndex) -> Path:
    try:
        database.executemany(ADD_SAMPLE, _samples(tar, index))
        database.executemany(ADD_PART, _parts(tar, index))
    except UnicodeEncodeError as error:
        raise FormatError("a key is not UTF-8, as texts must be", path=index.arrays.path) from error
    except sqlite3.IntegrityError as error:
        raise FormatError("two members lie at the same byte", path=index.arrays.path) from error
    return index.arrays.path


def _samples(tar: int, index: TarIndex) -> Iterator[tuple[int, str, int, int, int]]:
    starts = index.arrays["start"].astype(np.int64)
    places = zip(index.keys, starts.tolist(), np.diff(starts).tolist())
    return ((tar, key, number, start, size) for number, (key, start, size) in enumerate(places))


def _parts(tar: int, index: TarIndex) -> Iterator[tuple[int, int, str, int, int]]:
    counts = np.diff(index.arrays["first"].astype(np.int64))
    owners = np.repeat(np.arange(len(index)), counts).tolist()
    columns = (index.arrays[name].tolist() for name in ("ext", "offset", "size"))
    exts = index.exts
    return (
        (tar, owner, exts[ext], offset, size) for owner, ext, offset, size in zip(owners, *columns)
    )


def _add_keys(database: sqlite3.Connection, places: Sequence[Path]) -> None:
    try:
        database.execute(UNIQUE_KEYS)
    except sqlite3.IntegrityError as error:
        key, first, last = database.execute(TWICE).fetchone()
        raise FormatError(
            f"has key {key!r}, which {places[first]} has already, and Energon finds samples by "
            "their keys: leave out one of the two, or give it another key",
            path=places[last],
        ) from error
