"""WebDataset tars as a source: each sample of a tar is a row, a tar is a part.

Which members are one sample, with the interleave rule `K.json` + `K-i.ext`, is decided by
`shards.tar.grouping`. A tar that is cut off or damaged stops its unit with the offset; a sample
that cannot be addressed is a reject. The members of a sample become fields of a row:

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

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from shardmill.errors import SampleError
from shardmill.model.codec import PlaceName, Plain, RootName
from shardmill.model.sample import Origin
from shardmill.shards.samples import SampleShard, open_foreign
from shardmill.shards.tar.read import Grouped
from shardmill.sources.source import (
    Listed,
    Read,
    Row,
    SourcePart,
    check_unchanged,
    fingerprint,
    list_files,
    media_kind,
    name_from_path,
    size_or_tag,
)
from shardmill.sources.text import decode_text, json_object
from shardmill.storage.path import as_path

TEXTS = ("txt", "caption", "text")
NUMBERS = ("cls", "cls2", "index", "inx", "id")
OTHER_TEXTS = ("html", "htm", "md", "prompt", "url", "key", "lang", "transcript")
MAX_SAMPLE_BYTES = 1 << 31
MAX_DIGITS = 18
ROWS_AHEAD = 32  # fetched together, where a tar is remote


@dataclass(frozen=True, slots=True, kw_only=True)
class TarSource:
    """The samples of tars, given by paths, folders, globs, braces or urls.

    Keys are `{tar's name}/{key in the tar}`. `interleaved` turns the interleave rule on or off.
    Relative paths in the json begin at `media_root`, or beside the tar; rows read below it, and
    below what the user wants to `allow`.
    """

    tars: tuple[PlaceName, ...]
    name: str = "tars"
    media_root: RootName | None = None
    allow: tuple[RootName, ...] = ()
    interleaved: bool = True
    max_sample_bytes: int = MAX_SAMPLE_BYTES

    def places(self) -> tuple[str, ...]:
        return self.tars

    def parts(self, per_shard: int | None) -> Iterator[SourcePart]:
        """Yield a part for each tar; with `per_shard` their headers are walked and they are cut."""
        for tar in self._listed():
            whole: dict[str, Plain] = {
                "raw": str(tar.path),
                "relative": tar.relative,
                "name": tar.name,
                "size": [*size_or_tag(tar.path)],
            }
            if per_shard is None:
                yield SourcePart(input=whole, num_rows=None)
                continue
            shard, grouped = open_foreign(str(tar.path), interleaved=self.interleaved)
            shard.close()
            num_rows = grouped.num_samples
            for first in range(0, num_rows, per_shard):
                count = min(per_shard, num_rows - first)
                yield SourcePart(input={**whole, "first": first, "num_rows": count}, num_rows=count)

    @contextmanager
    def open(self) -> Iterator[Read]:
        """Yield the reader of one part; it keeps the last tar open."""
        with closing(_Reader(self)) as reader:
            yield reader.read

    def inputs(self) -> Mapping[str, Any]:
        """Return size and time of each tar, size and tag of a remote one."""
        return fingerprint(tar.path for tar in self._listed())

    def apart(self) -> Iterator[TarSource]:
        """Yield the source of each tar."""
        return (replace(self, tars=(str(tar.path),)) for tar in self._listed())

    def _listed(self) -> Iterator[Listed]:
        return list_files([t.removeprefix("file://") for t in self.tars], tar_stem, self.allow)


def tar_stem(file_name: str) -> str | None:
    """Return a tar's name without its suffix, None for other files."""
    is_tar = file_name.lower().endswith(".tar") and not file_name.startswith(".")
    return file_name[:-4] if is_tar else None


@dataclass(slots=True)
class _Reader:
    """Reads parts of one tar source, and holds the tar that the last one came from."""

    source: TarSource
    url: str = ""
    shard: SampleShard | None = None
    grouped: Grouped | None = None

    def read(self, part: Mapping[str, Any]) -> Iterator[Row]:
        shard, grouped = self._open(part["raw"])
        bad = grouped.bad
        check_unchanged(as_path(part["raw"]), part["size"])
        first = part.get("first", 0)
        num_rows = part.get("num_rows", len(shard) + len(bad))
        for number in range(first, first + num_rows):
            if (number - first) % ROWS_AHEAD == 0:
                self._announce(shard, number, first + num_rows)
            if number < len(shard):
                row = self._good_row(shard, number, part)
            else:
                key, problem = bad[number - len(shard)]
                row = self._row(key, part, problem=problem)
            yield row if number else replace(row, passed=grouped.passed)

    def _announce(self, shard: SampleShard, number: int, end: int) -> None:
        """Have the next rows fetched together, where the tar is remote."""
        limit = self.source.max_sample_bytes
        coming = range(number, min(number + ROWS_AHEAD, end, len(shard)))
        spans = ((n, shard.index.span(n)) for n in coming)
        shard.prefetch([n for n, (start, stop) in spans if stop - start <= limit])

    def close(self) -> None:
        if self.shard is not None:
            self.shard.close()
        self.url, self.shard, self.grouped = "", None, None

    def _open(self, url: str) -> tuple[SampleShard, Grouped]:
        if self.shard is None or self.grouped is None or self.url != url:
            self.close()
            self.shard, self.grouped = open_foreign(url, interleaved=self.source.interleaved)
            self.url = url
        return self.shard, self.grouped

    def _good_row(self, shard: SampleShard, number: int, part: Mapping[str, Any]) -> Row:
        key = shard.index.keys[number]
        start, end = shard.index.span(number)
        limit = self.source.max_sample_bytes
        try:
            if end - start > limit:
                detail = f"{end - start} bytes at byte {start}, the limit is {limit}"
                raise SampleError("too large", detail)
            fields, media = row_fields(key, shard.raw(number))
        except SampleError as problem:
            return self._row(key, part, problem=problem)
        return self._row(key, part, fields=fields, media=media)

    def _row(self, key: str, part: Mapping[str, Any], **content: Any) -> Row:
        folder = str(as_path(part["raw"]).parent)
        return Row(
            key=name_from_path(f"{part['name']}/{key}"),
            origin=Origin(source=self.source.name, path=part["relative"], row=key),
            media_dir=self.source.media_root or folder,
            allow=self.source.allow,
            **content,
        )


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
            # Members win over fields of the json with their name, in whatever order they come.
            fields = {**json_object(bytes(content), "member 'json'"), **fields}
        else:
            _add_field(fields, ext, bytes(content))
    media = _by_every_name(key, {ext: members[ext] for all_ in exts.values() for ext in all_})
    if "segments" not in fields:
        for name, found in exts.items():
            _name_media(fields, name, found, media)
    return fields, media


def _add_field(fields: dict[str, Any], ext: str, content: bytes) -> None:
    if ext not in (*TEXTS, *NUMBERS, *OTHER_TEXTS):
        fields.setdefault("other_members", []).append(ext)
        return
    text = decode_text(content, f"member {ext!r}")
    if ext in TEXTS:
        fields["text"] = text
    elif ext in NUMBERS:
        number = _whole(text.strip())
        fields[ext] = text.strip() if number is None else number
    else:
        fields[ext] = text


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
    # Two or more may each have a field: `source` and `target`. One may be named by its key alone.
    apart = {id(media[v]) for v in fields.values() if isinstance(v, str) and v in media}
    if len(exts) > 1 and all(id(media[ext]) in apart for ext in exts):
        return
    fields.pop(one, None)
    fields.pop(many, None)
    ordered = sorted(exts, key=_number) if all(_number(ext) >= 0 for ext in exts) else exts
    fields[one if len(exts) == 1 else many] = ordered[0] if len(exts) == 1 else ordered


def _number(ext: str) -> int:
    # "10.jpg" comes after "2.jpg", though writers that sort names put it before.
    number = _whole(ext.partition(".")[0])
    return -1 if number is None else number


def _whole(text: str) -> int | None:
    # Python refuses to read thousands of digits, and nothing has as many.
    is_number = len(text) <= MAX_DIGITS and text.removeprefix("-").isdecimal()
    return int(text) if is_number else None
