"""Code shards: the image codes of every sample, by key and medium, mapped and not parsed.

An array file (see arrays.py) of format "codes". For N samples with M images:

    key_*            texts     the keys, in the order of the sample shard
    hash, hash_order u64, u32  xxh3-64 of the keys, rising, and the number of the sample of each
    first            u64[N+1]  number of a sample's first image; a sample may have none
    medium           u16[M]    number of the image's name in the table medium_*
    height, width    u16[M]    rows and columns of codes
    start            u64[M+1]  where an image's codes begin, row by row
    codes            u8, u16 or u32: the smallest type that holds every code of the codebook

`meta` holds "num_codes" of the codebook and "factor", the pixels of one side of a code's square;
the stage adds "weights", the fingerprint of the tokenizer.

`CodeJoin` finds the codes of samples by key: the next of the shard of the same name, or any other.
A sample that was skipped when codes were made is found in the list of rejects beside its shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, Filtered, FormatError, SampleError
from shardmill.model.manifest import shards_digest
from shardmill.model.stage import Reject
from shardmill.shards.arrays import (
    Arrays,
    Strings,
    check_bounds,
    encoded,
    find_keys,
    hash_columns,
    open_arrays,
    open_strings,
    pack_strings,
    write_arrays,
)
from shardmill.shards.ledger import open_manifest, read_rejects, reject_lists

FORMAT = "codes"
ROLE = "codes"
# Shards are mapped, so an open one takes little; keys are looked for in all of them.
MAX_OPEN = 256
# A file may say any number; readers count how often each code occurs.
MAX_CODES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class ImageCodes:
    """The codes [rows, columns] of one medium of a sample, each a square of `factor` pixels.

    Writers need not give the factor: it is stored once a shard.
    """

    medium: str
    codes: NDArray[Any]
    factor: int = 0

    @property
    def width(self) -> int:
        """The width in pixels."""
        return int(self.codes.shape[1]) * self.factor

    @property
    def height(self) -> int:
        """The height in pixels."""
        return int(self.codes.shape[0]) * self.factor


@dataclass(frozen=True, slots=True)
class CodeShard:
    """A mapped code shard; numbers count from 0."""

    arrays: Arrays
    keys: Strings
    media: tuple[str, ...]
    num_codes: int
    factor: int

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def num_images(self) -> int:
        """Images of all samples."""
        return len(self.arrays["medium"])

    @property
    def codes(self) -> NDArray[Any]:
        """The codes of all images, one after the other."""
        return self.arrays["codes"]

    def find(self, key: str) -> int | None:
        """Return the number of the sample with this key, or None."""
        hashes, order = self.arrays["hash"], self.arrays["hash_order"]
        row = int(find_keys([key], hashes, order, self.keys.raw)[0])
        return None if row < 0 else row

    def images(self, number: int) -> list[ImageCodes]:
        """Return the images of a sample in the order of its document."""
        first, last = (int(self.arrays["first"][number + i]) for i in (0, 1))
        return [self.image(image) for image in range(first, last)]

    def image(self, image: int) -> ImageCodes:
        """Return one image by its number among all of the shard."""
        arrays = self.arrays
        start, end = (int(arrays["start"][image + i]) for i in (0, 1))
        shape = int(arrays["height"][image]), int(arrays["width"][image])
        medium = self.media[int(arrays["medium"][image])]
        return ImageCodes(medium, arrays["codes"][start:end].reshape(shape), self.factor)


def code_dtype(num_codes: int) -> Any:
    """Return the smallest unsigned type that holds the codes 0 .. num_codes - 1."""
    return np.min_scalar_type(max(num_codes - 1, 0))


def write_codes(
    path: Path,
    samples: Iterable[tuple[str, list[ImageCodes]]],
    *,
    num_codes: int,
    factor: int,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a code shard; `about` is kept in the meta for people who look at it later."""
    keys, counts, media, shapes, codes = [], [0], [], [], []
    names: dict[str, int] = {}
    for key, images in samples:
        keys.append(encoded(key))
        counts.append(len(images))
        for image in images:
            media.append(names.setdefault(image.medium, len(names)))
            shapes.append(image.codes.shape)
            codes.append(image.codes.reshape(-1))
    arrays = {
        **pack_strings("key", keys),
        **hash_columns(keys),
        **pack_strings("medium", [name.encode() for name in names]),
        "first": np.cumsum(counts, dtype=np.uint64),
        "medium": np.array(media, np.uint16),
        "height": np.array([shape[0] for shape in shapes], np.uint16),
        "width": np.array([shape[1] for shape in shapes], np.uint16),
        "start": np.cumsum([0, *(rows * columns for rows, columns in shapes)], dtype=np.uint64),
        "codes": np.concatenate([*codes, np.empty(0, np.uint8)]).astype(code_dtype(num_codes)),
    }
    meta = {"num_codes": num_codes, "factor": factor, **(about or {})}
    with path.open("wb") as file:
        write_arrays(file, FORMAT, arrays, meta)


def open_codes(path: Path) -> CodeShard:
    """Map a code shard; one whose numbers point outside its own arrays is refused."""
    arrays = open_arrays(path, FORMAT)
    keys, media = open_strings(arrays, "key"), open_strings(arrays, "medium")
    num_codes, factor = arrays.meta.get("num_codes"), arrays.meta.get("factor")
    if type(num_codes) is not int or type(factor) is not int or not 1 <= num_codes <= MAX_CODES:
        raise FormatError("its meta lacks num_codes or factor", path=path)
    _check(arrays, len(keys), len(media), num_codes)
    return CodeShard(arrays, keys, tuple(media), num_codes, factor)


@dataclass(slots=True)
class CodeJoin:
    """The codes of samples by key, over all shards of a folder.

    `identity` stands for the spec and the inputs that made the folder. Samples come in the order in
    which they were encoded, so the shard of the last one nearly always has the next.
    """

    folder: Path
    identity: str
    paths: dict[str, Path]
    rejects: dict[str, Path]
    _last: str = ""
    _open: dict[str, CodeCursor] = field(default_factory=dict)

    @property
    def num_codes(self) -> int:
        """The size of the codebook, 0 if there are no codes."""
        return next((open_codes(path).num_codes for path in self.paths.values()), 0)

    def images(self, key: str, shard_name: str = "") -> list[ImageCodes]:
        """Return the images of a sample in the order of its document.

        `shard_name` is the shard of the sample: `codes` gives its own the same names. A sample
        without codes is a `SampleError`, or `Filtered` if it was filtered when codes were made.
        """
        for name in self._names(shard_name):
            cursor = self._cursor(name)
            found = cursor.find(key)
            if found is not None:
                self._last = name
            if isinstance(found, Reject):
                raise without_codes(found)
            if found is not None:
                return cursor.images(found)
        raise SampleError("no image codes", f"{key!r} is in no code shard of {self.folder}")

    def _names(self, shard_name: str) -> Iterator[str]:
        """Yield the names of all units: the likely one, and only then all that follow it."""
        is_known = shard_name in self.paths or shard_name in self.rejects
        likely = shard_name if is_known else self._last
        if likely:
            yield likely
        names = sorted({*self.paths, *self.rejects})
        first = names.index(likely) + 1 if likely else 0
        yield from (name for name in names[first:] + names[:first] if name != likely)

    def _cursor(self, name: str) -> CodeCursor:
        if name not in self._open:
            while len(self._open) >= MAX_OPEN:
                del self._open[next(iter(self._open))]
            path, rejects_path = self.paths.get(name), self.rejects.get(name)
            shard = None if path is None else open_codes(path)
            rejects = () if rejects_path is None else read_rejects(rejects_path)
            self._open[name] = CodeCursor(shard, {reject.key: reject for reject in rejects})
        return self._open[name]


class CodeCursor:
    """Reads the codes of a unit in order; any other order works too, but is slower."""

    def __init__(self, shard: CodeShard | None, rejects: Mapping[str, Reject]) -> None:
        self.shard, self.rejects, self._row = shard, rejects, -1

    def find(self, key: str) -> int | Reject | None:
        """Return the number of the sample with this key, why it has no codes, or None."""
        if self.shard is None:
            return self.rejects.get(key)
        # The next sample, or the same again for its next image.
        likely = range(max(self._row, 0), min(self._row + 2, len(self.shard)))
        row = next((row for row in reversed(likely) if self.shard.keys[row] == key), None)
        if row is None:
            row = self.shard.find(key)
        if row is None:
            return self.rejects.get(key)
        self._row = row
        return row

    def images(self, row: int) -> list[ImageCodes]:
        """Return the images of a sample that `find` found."""
        assert self.shard is not None
        return self.shard.images(row)


def join_codes(folder: Path) -> CodeJoin:
    """Open a finished folder of codes."""
    manifest = open_manifest(folder)
    if any(ROLE not in shard.files for shard in manifest.shards):
        raise ConfigError(f"{folder} holds no codes: make them with shardmill codes")
    paths = {shard.name: folder / shard.files[ROLE].path for shard in manifest.shards}
    return CodeJoin(folder, shards_digest(manifest.shards), paths, reject_lists(folder))


def without_codes(reject: Reject) -> SampleError:
    """Return the problem of a sample that was skipped when codes were made.

    One that was filtered there is filtered here, and costs no budget either.
    """
    kind = Filtered if reject.filtered else SampleError
    return kind("no image codes", f"{reject.reason} ({reject.detail}) when codes were made")


def _check(arrays: Arrays, num_samples: int, num_names: int, num_codes: int) -> None:
    medium = arrays.checked("medium", np.uint16, None)
    arrays.checked("hash", np.uint64, num_samples)
    hash_order = arrays.checked("hash_order", np.uint32, num_samples)
    height, width = (arrays.checked(n, np.uint16, len(medium)) for n in ("height", "width"))
    codes = arrays.checked("codes", code_dtype(num_codes), None)
    check_bounds(arrays, "first", len(medium), num_samples)
    start = check_bounds(arrays, "start", len(codes), len(medium))
    good = (
        bool((start[1:] - start[:-1] == height.astype(np.uint64) * width).all())
        and bool((medium < num_names).all())
        and bool((hash_order < num_samples).all())
    )
    if not good:
        raise FormatError("its images do not match its codes", path=arrays.path)
