"""Reads tars of packed samples: those of video pipelines at 8k, and those that shardmill writes.

`K.json` is a packed sample (see packed.py), `K-0.jpg` ... are its images. A sample of a foreign
tar has the key `{tar's name}/{K}`, as everywhere.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.formats.packed import packed_documents, packed_row, parse_packed
from shardmill.formats.reader import Aspect, Part, Record, stamp, with_codes
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace
from shardmill.shards.samples import Members, open_foreign
from shardmill.storage.path import expand

ARRAYS = ("input_ids", "loss_mask")
# Llama-2 with the three control tokens of a multimodal vocabulary.
VIDEO_SPACE = TokenSpace(text_size=32000, added=("im_patch", "im_start", "im_end"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TarReader:
    """Tars by path, folder, glob or braces.

    `ours` says that shardmill wrote them, with documents and keys, and `images` that media were
    copied into them, as they always are by others.
    """

    files: tuple[str, ...]
    space: TokenSpace = VIDEO_SPACE
    ours: bool = False
    images: bool = True
    name: str = "tars"

    def holds(self) -> frozenset[Aspect]:
        """Return tokens, loss, media; documents and keys only if we wrote the tars."""
        known: set[Aspect] = {"tokens", "words", "loss", "modality"}
        known |= {"media"} if self.images else set()
        known |= {"documents", "keys"} if self.ours else set()
        known |= {"codes"} if self.space.num_codes else set()
        return frozenset(known)

    def token_space(self) -> TokenSpace:
        """Return the space that was given."""
        return self.space

    def parts(self) -> Iterator[Part]:
        """Yield a part for each tar; walks the headers."""
        for path in self.tars():
            shard, grouped = open_foreign(str(path))
            shard.close()
            yield Part(
                input={"tar": str(path), "stamp": [*stamp(path)]},
                num_records=grouped.num_samples,
                passed=dict(grouped.passed),
            )

    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the samples of a tar; one that cannot be read has its problem."""
        path = Path(input["tar"])
        if stamp(path) != input["stamp"]:
            raise FormatError("was changed after it was listed", path=path)
        shard, grouped = open_foreign(str(path))
        with shard:
            for key, raw in shard.iter_raw():
                yield self._record(path, key, raw)
            for key, problem in grouped.bad:
                yield Record(key=self._key(path, key), problem=problem)

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of each tar."""
        return {str(path): stamp(path) for path in self.tars()}

    def tars(self) -> list[Path]:
        """Return the tars in order, each once."""
        found: dict[Path, None] = {}
        for given in self.files:
            for path in map(Path, expand(given)):
                tars = sorted(path.rglob("*.tar")) if path.is_dir() else [path]
                if not tars:
                    raise ConfigError(f"{path} holds no .tar files")
                found |= dict.fromkeys(tars)
        return list(found)

    def _key(self, path: Path, key: str) -> str:
        return key if self.ours else f"{path.stem.replace('.', '_')}/{key}"

    def _record(self, path: Path, key: str, raw: Members) -> Record:
        name = self._key(path, key)
        try:
            fields = _fields(raw, key)
            origin = Origin(source=self.name, path=path.name, row=key)
            row = packed_row(name, fields, self.space, origin)
            rows = packed_documents(row, fields) if self.ours else (row,)
        except SampleError as problem:
            return Record(key=name, problem=problem)
        record = Record(key=name, rows=rows, media=_checksums(raw))
        return with_codes(record, self.space) if self.space.num_codes else record


def is_packed_tar(path: Path) -> bool:
    """Say whether the first sample of a tar is a packed one."""
    shard, _ = open_foreign(str(path))
    with shard:
        try:
            return len(shard) > 0 and bool(parse_packed(shard.raw(0).get("json", b""), ""))
        except SampleError:
            return False


def _fields(raw: Members, key: str) -> dict[str, Any]:
    """Return the fields of a packed sample, its arrays read from members of their own."""
    fields = parse_packed(raw.get("json", b""), key)
    for name in ARRAYS:
        if f"{name}.npy" in raw:
            fields[name] = _array(raw[f"{name}.npy"], f"{key}.{name}.npy")
    return fields


def _array(content: memoryview, name: str) -> Any:
    try:
        return np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise SampleError("not a packed sample", f"{name}: {error}") from error


def _checksums(raw: Members) -> tuple[str, ...]:
    """Return the checksums of the images in the order of their numbers."""
    numbered = {ext: ext.partition(".")[0] for ext in raw}
    names = sorted((int(n), ext) for ext, n in numbered.items() if n.isdecimal())
    return tuple(xxhash.xxh3_64_hexdigest(raw[ext]) for _, ext in names)
