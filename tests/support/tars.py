"""Keys, members and tars for tests."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from hypothesis import strategies as st

from shardmill.shards.tar.header import is_note

# Letters that sort around '-' and '/', and some that take more than a byte.
LETTERS = "abcxyz0159-_ +é漢"
words = st.text(LETTERS, min_size=1, max_size=12)
keys = st.lists(words, min_size=1, max_size=3).map("/".join).filter(lambda key: not is_note(key))
exts = st.sampled_from(["json", "jpg", "txt", "cls", "0.jpg", "1.jpg", "10.mp4", "seg.png"])
contents = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 1600).map(lambda n: bytes(i % 251 for i in range(n))),
)
members = st.dictionaries(exts, contents, min_size=1, max_size=5)
samples = st.dictionaries(keys, members, max_size=6)


def tar_bytes(
    named: Iterable[tuple[str, bytes]], format: int = tarfile.USTAR_FORMAT, **header: object
) -> bytes:
    """Return a tar that Python's tarfile makes of (name, content) pairs."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for name, content in named:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for field, value in header.items():
                setattr(member, field, value)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def read_tar(path: Path) -> list[tuple[str, bytes]]:
    """Return (name, content) of the regular files of a tar, as Python's tarfile reads it."""
    with tarfile.open(path) as tar:
        files = [member for member in tar if member.isreg()]
        return [(m.name, tar.extractfile(m).read()) for m in files]  # type: ignore[union-attr]
