"""WebDataset tars: packed samples of token shards, or samples as they are; with a list for wids.

A packed sample K (see packed.py) has these members; media are there if their folder is given:

    K.json                              {"lengths", "keys", "media", "image"}, and without arrays
                                        also "input_ids", "loss_mask", as video pipelines want them
    K.input_ids.npy, K.loss_mask.npy    with arrays
    K.0.jpg, K.1.mp4                    dotted, as stock webdataset groups them, or K-0.jpg, dashed

Tars of samples are linked, not copied. OUT/shardindex.json lists all tars; see wids.py.

The reader takes these tars, and those of video pipelines at 8k tokens. A sample of a foreign tar
has the key `{tar's name}/{K}`, as everywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import xxhash
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError, SampleError
from shardmill.formats.format import (
    OF_ROWS,
    OF_SAMPLES,
    Aspect,
    Format,
    Part,
    Place,
    Reader,
    Record,
    SamplesReader,
    guarded,
    needed_space,
    stamp,
    with_codes,
)
from shardmill.formats.packed import (
    identity_of,
    open_media,
    packed_documents,
    packed_row,
    parse_packed,
    read_media,
)
from shardmill.formats.rows import ExportInput, Piece, Slice, packed_samples
from shardmill.formats.wids import write_wids_index
from shardmill.model.codec import PlaceName
from shardmill.model.manifest import Manifest
from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft, Tally
from shardmill.shards.arrays import load_npy
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import Members, open_foreign
from shardmill.shards.tar.header import Layout
from shardmill.shards.tar.index import IndexedTar
from shardmill.shards.tar.write import Content
from shardmill.storage.files import link_or_copy
from shardmill.storage.path import expand

# numpy pads magic, version, length and description together to a multiple of 64 bytes.
NPY_HEAD = 128
ARRAYS = ("input_ids", "loss_mask")
# Llama-2 with the three control tokens of a multimodal vocabulary.
VIDEO_SPACE = TokenSpace(text_size=32000, added=("im_patch", "im_start", "im_end"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WebDatasetFormat(Format):
    """Tars; `samples` is the folder whose images and videos are copied into packed samples.

    With `md5` the list for wids has checksums, for which every tar is read once more.
    """

    samples: Path | None = None
    layout: Layout = "dotted"
    arrays: bool = False
    md5: bool = False

    @property
    def keeps(self) -> frozenset[Aspect]:
        """All that a row, a pack or a sample has."""
        return OF_ROWS | OF_SAMPLES | {"packs"}

    def __post_init__(self) -> None:
        # Workers may start in another folder.
        if self.samples is not None:
            object.__setattr__(self, "samples", self.samples.absolute())

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield which folder of samples the media come from; samples stay shard by shard."""
        if not source.has_tokens:
            _check_whole(source, ranges)
        identity = identity_of(self.samples)
        for _ in ranges:
            yield {"samples": identity} if identity else {}

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write one tar and its index."""
        if source.has_tokens:
            self._write_packed(source, piece, draft, tally)
        else:
            _link_samples(source, piece, draft, tally)

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write the list of tars for wids."""
        write_wids_index(out_dir, name=out_dir.name, with_md5=self.md5, shards=manifest.shards)

    def open(self, folder: Path, space: TokenSpace | None) -> Reader:
        """Return the reader of an export: of packed samples, or of samples as they are."""
        shards = open_manifest(folder).shards
        if not shards or not is_packed_tar(folder / shards[0].files["tar"].path):
            return SamplesReader(dir=str(folder))
        return TarReader(
            files=(str(folder / "shards"),),
            space=needed_space(space, folder),
            ours=True,
            images=self.samples is not None,
        )

    def _write_packed(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        samples = None if self.samples is None else open_media(self.samples)
        tar_path, index_path = (draft.file(piece.name, role) for role in ("tar", "idx"))
        with IndexedTar(tar_path, index_path) as tar:
            for key, fields in packed_samples(source, piece):
                with tally.sample(key):
                    media = [] if samples is None else read_media(fields, samples)
                    members: list[tuple[str, Content]] = [
                        *self._members(fields, len(media)),
                        *_numbered(media),
                    ]
                    tar.add(key, members, self.layout)
        draft.finish(piece.name, num_samples=len(tar.rows))

    def _members(self, fields: Mapping[str, Any], num_media: int) -> list[tuple[str, Content]]:
        """Return the members of a packed sample without its media."""
        # Names sort before all other fields, so that objects have their keys in order.
        described = {"image": [str(number) for number in range(num_media)], **fields}
        arrays = [(name, described.pop(name)) for name in ARRAYS] if self.arrays else []
        text = orjson.dumps(described, option=orjson.OPT_SERIALIZE_NUMPY)
        return [("json", text), *((f"{name}.npy", npy_bytes(values)) for name, values in arrays)]


def npy_bytes(values: NDArray[Any]) -> bytes:
    """Return a flat array as a .npy file of version 1.0, whose header has 128 bytes.

    `np.save` gives the same bytes, for a row of 512 ids in ten times the time.
    """
    shape = (
        f"{{'descr': '{values.dtype.str}', 'fortran_order': False, 'shape': ({len(values)},), }}"
    )
    magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", NPY_HEAD - 10)
    return (magic + shape.encode()).ljust(NPY_HEAD - 1) + b"\n" + values.tobytes()


def _numbered(media: Sequence[tuple[str, memoryview]]) -> Iterator[tuple[str, Content]]:
    return ((f"{number}.{ext}", content) for number, (ext, content) in enumerate(media))


def _check_whole(source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> None:
    for slices in ranges:
        if len(slices) != 1 or len(slices[0]) != source.shards[slices[0].shard].num_samples:
            raise ConfigError("tars of samples are linked as they are: leave out --shards")
    for shard in source.shards:
        if "tar" not in shard.files or "idx" not in shard.files:
            raise ConfigError(
                f"{source.folder}: shard {shard.name} has no tar of its own: give a folder of "
                "tokens, or one that ingest, filter or frames made"
            )


def _link_samples(source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
    shard = source.shards[piece.slices[0].shard]
    for role in ("tar", "idx"):
        link_or_copy(source.folder / shard.files[role].path, draft.file(piece.name, role))
    tally.num_in += shard.num_samples
    tally.num_kept += shard.num_samples
    draft.finish(piece.name, num_samples=shard.num_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class TarReader:
    """Tars by path, folder, glob or braces.

    `ours` says that shardmill wrote them, with documents and keys, and `images` that media were
    copied into them, as they always are by others.
    """

    files: tuple[PlaceName, ...]
    space: TokenSpace = VIDEO_SPACE
    ours: bool = False
    images: bool = True
    name: str = "tars"

    @staticmethod
    def recognizes(path: Path) -> bool:
        """Say whether a tar, or the first one below a folder, holds packed samples."""
        tar = min(path.rglob("*.tar"), default=None) if path.is_dir() else path
        try:
            return tar is not None and tar.suffix == ".tar" and tar.is_file() and is_packed_tar(tar)
        except FormatError:
            return False

    def holds(self) -> frozenset[Aspect]:
        """Return tokens, loss, media; all that a pack has only if we wrote the tars."""
        known: set[Aspect] = {"tokens", "words", "loss", "modality"}
        known |= {"media"} if self.images else set()
        known |= {*OF_ROWS, "packs"} if self.ours else set()
        known |= {"codes"} if self.space.num_codes else set()
        return frozenset(known)

    def token_space(self) -> TokenSpace:
        """Return the space that was given."""
        return self.space

    @guarded
    def parts(self) -> Iterator[Part]:
        """Yield a part for each tar; walks the headers."""
        for path in self.tars():
            shard, grouped = open_foreign(str(path))
            shard.close()
            yield Part(
                input={"raw": str(path), "tar": path.name, "size": stamp(path)[0]},
                num_records=grouped.num_samples,
                passed=dict(grouped.passed),
            )

    @guarded
    def read(self, input: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the samples of a tar; one that cannot be read has its problem."""
        path = Path(input["raw"])
        if stamp(path)[0] != input["size"]:
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
        return with_codes(Record(key=name, rows=rows, media=_checksums(raw)), self.space)


def is_packed_tar(path: Path) -> bool:
    """Say whether the first sample of a tar is a packed one; the others are not looked at."""
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
            member = f"{key}.{name}.npy"
            fields[name] = load_npy(raw[f"{name}.npy"], "not a packed sample", member)
    return fields


def _checksums(raw: Members) -> tuple[str, ...]:
    """Return the checksums of the images in the order of their numbers."""
    numbered = {ext: ext.partition(".")[0] for ext in raw}
    names = sorted((int(n), ext) for ext, n in numbered.items() if n.isdecimal())
    return tuple(xxhash.xxh3_64_hexdigest(raw[ext]) for _, ext in names)
