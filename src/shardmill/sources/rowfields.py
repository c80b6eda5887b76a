"""The members of a WebDataset sample as fields of a row.

    json                  merged into the row
    txt, caption, text    the field `text`
    cls, index            a whole number
    other texts           a field named by the extension
    media                 `image`, `video`, `audio`; several of a kind `images`, `videos`, `audios`
    anything else         its extension in the list `other_members`

Media stay beside the row, by extension ("0.jpg") and by member name ("K-0.jpg", "K-0"), so that a
json may name them any way. Where it names files that are no members, the members stand in for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardmill.errors import SampleError
from shardmill.sources.lines import json_fields
from shardmill.sources.records import Record
from shardmill.sources.suffixes import media_kind

TEXTS = ("txt", "caption", "text")
NUMBERS = ("cls", "cls2", "index", "inx", "id")
OTHER_TEXTS = ("html", "htm", "md", "prompt", "url", "key", "lang", "transcript")


def row_fields(
    key: str, members: Mapping[str, memoryview]
) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """Return the fields of a sample and its media by all the names they may be called by."""
    fields: dict[str, Any] = {}
    exts: dict[str, list[str]] = {}
    for ext, content in members.items():
        kind = media_kind(ext)
        if kind is not None:
            exts.setdefault(kind, []).append(ext)
        elif ext == "json":
            raw = bytes(content)
            fields = {**json_fields(Record(0, 0, len(raw), raw)), **fields}
        else:
            _add_field(fields, ext, bytes(content))
    media = _by_every_name(key, {ext: members[ext] for all_ in exts.values() for ext in all_})
    if "segments" not in fields:
        for name, found in exts.items():
            _name_media(fields, name, found, media)
    return fields, media


def _add_field(fields: dict[str, Any], ext: str, content: bytes) -> None:
    if ext in TEXTS:
        fields["text"] = _decode(ext, content).strip("\r\n")
    elif ext in NUMBERS:
        text = _decode(ext, content).strip()
        fields[ext] = int(text) if text.removeprefix("-").isdecimal() else text
    elif ext in OTHER_TEXTS:
        fields[ext] = _decode(ext, content)
    else:
        fields.setdefault("other_members", []).append(ext)


def _decode(ext: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        detail = f"member {ext!r}: byte {error.start}: {error.reason}"
        raise SampleError("not UTF-8", detail) from error


def _by_every_name(key: str, media: dict[str, memoryview]) -> dict[str, memoryview]:
    base = key.rpartition("/")[2]
    named: dict[str, memoryview] = {}
    for ext, content in media.items():
        for name in (f"{key}.{ext}", f"{key}-{ext}", f"{base}.{ext}", f"{base}-{ext}"):
            named[name] = named[name.removesuffix(f".{ext.rpartition('.')[2]}")] = content
    return {**named, **media}


def _name_media(
    fields: dict[str, Any], kind: str, exts: list[str], media: Mapping[str, memoryview]
) -> None:
    """Let the fields of a kind name the members, unless they do so already."""
    one, many = kind, f"{kind}s"
    given = fields.get(one) or fields.get(many)
    named = given if isinstance(given, list) else [given]
    if given and all(isinstance(name, str) and name in media for name in named):
        return
    fields.pop(one, None)
    fields.pop(many, None)
    ordered = sorted(exts, key=_number) if all(_number(ext) >= 0 for ext in exts) else exts
    fields[one if len(exts) == 1 else many] = ordered[0] if len(exts) == 1 else ordered


def _number(ext: str) -> int:
    # "10.jpg" comes after "2.jpg", though writers that sort names put it before.
    head = ext.partition(".")[0]
    return int(head) if head.isdecimal() else -1
