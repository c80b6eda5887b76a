"""Member names: key and extension, how they join in a tar and how a tar's names split again.

The key is the path up to the first dot after the last '/', the extension is the rest. Layout
"dotted" writes medium `0.jpg` of sample `K` as `K.0.jpg`, which stock webdataset groups; layout
"dashed" writes it as `K-0.jpg`, which joins `K.json` by the interleave rule (see `tar.read`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from shardmill.errors import SampleError

Layout = Literal["dotted", "dashed"]
MAX_KEY_BYTES = 200
MAX_EXT_BYTES = 100
NOTE = re.compile(r"__[^/]*__(/|$)")


def check_key(key: str) -> None:
    """Raise `SampleError` unless a key can be a member's name in every reader of tars."""
    if not key:
        raise SampleError("bad key", "it is empty")
    if "." in key:
        raise SampleError("bad key", f"{key!r} has a dot, at which readers would cut it")
    if key[0] == "/" or key[-1] == "/" or "//" in key:
        raise SampleError("bad key", f"{key!r} has an empty path part")
    if num_bytes(key) > MAX_KEY_BYTES:
        raise SampleError("bad key", f"{key[:50]!r}... is longer than {MAX_KEY_BYTES} bytes")
    if not key.isprintable():
        raise SampleError("bad key", f"{key!r} has characters that cannot be printed")
    if is_note(key):
        raise SampleError("bad key", f"{key!r} is a note to readers of tars, which pass it over")


def is_note(key: str) -> bool:
    """Say whether stock webdataset passes over members of this name: `__anything__`."""
    return key[:2] == "__" and NOTE.match(key) is not None


@lru_cache(maxsize=1024)
def check_ext(ext: str) -> None:
    """Raise `SampleError` unless an extension is plain text such as "json" or "0.jpg"."""
    parts = ext.split(".")
    if not all(parts) or "/" in ext or num_bytes(ext) > MAX_EXT_BYTES or not ext.isprintable():
        raise SampleError("bad extension", f"{ext[:120]!r} cannot end the name of a member")


def num_bytes(text: str) -> int:
    """Return the UTF-8 length; lone surrogates, which no tar can hold, are a `SampleError`."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise SampleError("bad name", f"{text!r} is not UTF-8: {error.reason}") from error


def member_name(key: str, ext: str, layout: Layout = "dotted") -> str:
    """Return the name of a member; only media with a number take the dash."""
    if layout == "dashed" and "." in ext:
        return f"{key}-{ext}"
    return f"{key}.{ext}"


def split_name(name: str) -> tuple[str, str]:
    """Return (key, extension); a name without a dot after its last '/' has extension ''."""
    dot = name.find(".", name.rfind("/") + 1)
    return (name, "") if dot < 0 else (name[:dot], name[dot + 1 :])
