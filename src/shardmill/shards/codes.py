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
the stage adds "weights", the fingerprint of the tokenizer, and "resized_by".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import FormatError
from shardmill.shards.arrays import Arrays, open_arrays, write_arrays
from shardmill.shards.columns import Strings, check_bounds, open_strings, pack_strings
from shardmill.shards.tar.index import hash_keys
from shardmill.storage.atomic import open_to_write

FORMAT = "codes"
ROLE = "codes"
DTYPES = {
    "first": np.uint64,
    "medium": np.uint16,
    "height": np.uint16,
    "width": np.uint16,
    "start": np.uint64,
    "hash": np.uint64,
    "hash_order": np.uint32,
}


@dataclass(frozen=True, slots=True, eq=False)
class ImageCodes:
    """The codes [rows, columns] of one medium of a sample."""

    medium: str
    codes: NDArray[Any]


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
        raw = key.encode("utf-8", "surrogateescape")
        hashes, order = self.arrays["hash"], self.arrays["hash_order"]
        wanted = hash_keys([raw])[0]
        row = int(np.searchsorted(hashes, wanted))
        while row < len(hashes) and hashes[row] == wanted:
            if self.keys.raw(int(order[row])) == raw:
                return int(order[row])
            row += 1
        return None

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
        return ImageCodes(medium, arrays["codes"][start:end].reshape(shape))


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
        keys.append(key.encode("utf-8", "surrogateescape"))
        counts.append(len(images))
        for image in images:
            media.append(names.setdefault(image.medium, len(names)))
            shapes.append(image.codes.shape)
            codes.append(image.codes.reshape(-1))
    arrays = {
        **_key_columns(keys),
        **pack_strings("medium", [name.encode() for name in names]),
        "first": np.cumsum(counts, dtype=np.uint64),
        "medium": np.array(media, np.uint16),
        "height": np.array([shape[0] for shape in shapes], np.uint16),
        "width": np.array([shape[1] for shape in shapes], np.uint16),
        "start": np.cumsum([0, *(rows * columns for rows, columns in shapes)], dtype=np.uint64),
        "codes": np.concatenate([*codes, np.empty(0, np.uint8)]).astype(code_dtype(num_codes)),
    }
    meta = {"num_codes": num_codes, "factor": factor, **(about or {})}
    with open_to_write(path) as file:
        write_arrays(file, FORMAT, arrays, meta)


def open_codes(path: Path) -> CodeShard:
    """Map a code shard; one whose numbers point outside its own arrays is refused."""
    arrays = open_arrays(path, FORMAT)
    keys, media = open_strings(arrays, "key"), open_strings(arrays, "medium")
    num_codes, factor = arrays.meta.get("num_codes"), arrays.meta.get("factor")
    if not isinstance(num_codes, int) or not isinstance(factor, int) or num_codes < 1:
        raise FormatError("its meta lacks num_codes or factor", path=path)
    _check(arrays, len(keys), len(media), num_codes)
    return CodeShard(arrays, keys, tuple(media), num_codes, factor)


def _key_columns(keys: list[bytes]) -> dict[str, NDArray[Any]]:
    hashes = hash_keys(keys)
    order = np.argsort(hashes, kind="stable")
    return {
        **pack_strings("key", keys),
        "hash": hashes[order],
        "hash_order": order.astype(np.uint32),
    }


def _check(arrays: Arrays, num_samples: int, num_names: int, num_codes: int) -> None:
    num_images = len(arrays["medium"])
    lengths = {"first": num_samples + 1, "start": num_images + 1}
    lengths |= dict.fromkeys(("hash", "hash_order"), num_samples)
    lengths |= dict.fromkeys(("medium", "height", "width"), num_images)
    for name, length in lengths.items():
        found = arrays[name]
        if found.shape != (length,) or found.dtype != DTYPES[name]:
            raise FormatError(
                f"array {name!r} is {found.dtype}{list(found.shape)}, not {length} numbers",
                path=arrays.path,
            )
    codes, start = arrays["codes"], arrays["start"]
    check_bounds(arrays, "first", num_images)
    check_bounds(arrays, "start", codes.size)
    area = arrays["height"].astype(np.uint64) * arrays["width"]
    good = (
        codes.ndim == 1
        and codes.dtype == code_dtype(num_codes)
        and bool((start[1:] - start[:-1] == area).all())
        and bool((arrays["medium"] < num_names).all())
        and bool((arrays["hash_order"] < num_samples).all())
    )
    if not good:
        raise FormatError("its images do not match its codes", path=arrays.path)
