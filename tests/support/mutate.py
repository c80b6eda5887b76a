"""Broken bytes from whole ones: each function is pure in its bytes and its `random.Random`.

    mutate(jpeg, random.Random(7))              one to four faults, each of a random kind
    mutate(jpeg, random.Random(7), head=512)    faults in the first 512 bytes only: the header

A fuzzer keeps (seed, content) and nothing else: the same two give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

Mutator: TypeAlias = Callable[[bytes, Random], bytes]

MAX_FAULTS = 4
MAX_INSERTED = 64
MAX_REPEATED_BYTES = 1 << 16
# What a length or a count is never expected to be: nothing, one, all, negative, just too many.
LENGTHS = (0, 1, -1, -2, 1 << 7, 1 << 15, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
FIELD_SIZES = (1, 2, 4, 8)


def flip_bits(content: bytes, rng: Random) -> bytes:
    """Turn round one to eight bits anywhere."""
    broken = bytearray(content)
    for _ in range(rng.randint(1, 8) if content else 0):
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
    return bytes(broken)


def cut(content: bytes, rng: Random) -> bytes:
    """Keep only the beginning."""
    return content[: rng.randint(0, len(content))]


def drop(content: bytes, rng: Random) -> bytes:
    """Leave out a stretch in the middle, so that all offsets after it are wrong."""
    start, end = _stretch(content, rng)
    return content[:start] + content[end:]


def insert(content: bytes, rng: Random) -> bytes:
    """Put random bytes between two."""
    at = rng.randint(0, len(content))
    return content[:at] + rng.randbytes(rng.randint(1, MAX_INSERTED)) + content[at:]


def overwrite(content: bytes, rng: Random) -> bytes:
    """Put random bytes, or one byte again and again, over a stretch."""
    start, end = _stretch(content, rng)
    filler = rng.choice((rng.randbytes(end - start), bytes([rng.randrange(256)]) * (end - start)))
    return content[:start] + filler + content[end:]


def splice(content: bytes, rng: Random) -> bytes:
    """Put a stretch of the content itself over another place."""
    start, end = _stretch(content, rng)
    at = rng.randint(0, len(content))
    return content[:at] + content[start:end] + content[at + end - start :]


def repeat(content: bytes, rng: Random) -> bytes:
    """Put a stretch in again and again behind itself."""
    start, end = _stretch(content, rng)
    times = rng.randint(1, max(1, min(64, MAX_REPEATED_BYTES // max(1, end - start))))
    return content[:end] + content[start:end] * times + content[end:]


def set_length(content: bytes, rng: Random) -> bytes:
    """Make a field of 1 to 8 bytes, in either byte order, a number that no length should be."""
    size = rng.choice([size for size in FIELD_SIZES if size <= len(content)] or [0])
    if not size:
        return content
    value = rng.choice(LENGTHS) % (1 << 8 * size)
    at = rng.randint(0, len(content) - size)
    field = value.to_bytes(size, rng.choice(("big", "little")))
    return content[:at] + field + content[at + size :]


MUTATORS: tuple[Mutator, ...] = (
    flip_bits,
    cut,
    drop,
    insert,
    overwrite,
    splice,
    repeat,
    set_length,
)


def mutate(
    content: bytes,
    rng: Random,
    *,
    head: int | None = None,
    mutators: Sequence[Mutator] = MUTATORS,
) -> bytes:
    """Return the content with one to `MAX_FAULTS` faults, of its first `head` bytes if given."""
    whole, rest = (content, b"") if head is None else (content[:head], content[head:])
    for _ in range(rng.randint(1, MAX_FAULTS)):
        whole = rng.choice(mutators)(whole, rng)
    return whole + rest


def _stretch(content: bytes, rng: Random) -> tuple[int, int]:
    """Return where a stretch begins and ends; short ones are as likely as long ones."""
    start = rng.randint(0, len(content))
    length = rng.choice((1, 4, 16, 256, len(content)))
    return start, min(len(content), start + rng.randint(0, length))
