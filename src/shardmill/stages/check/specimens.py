"""A few samples, rows or packs of a folder as people read them, with what they were made from.

    ground_truth.txt          the documents as they were ingested
    detokenized_tokens.txt    all tokens
    unmasked_tokens.txt       those that are learned
    images/                   the images and videos

They are spread over the shards by arithmetic, so that the same folder always shows the same ones.
What a folder does not say of itself (tokenizer, token space, documents) is looked up in the folders
that it was made from, as long as they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from shardmill.errors import ConfigError, SampleError
from shardmill.formats.packed import packed_documents, packed_row
from shardmill.formats.webdataset import VIDEO_SPACE
from shardmill.model.manifest import Manifest
from shardmill.model.sample import Origin, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow
from shardmill.packing.build import num_stored_packs, stored_rows
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import Members, SampleDataset, open_entry, open_samples, parse_sample
from shardmill.shards.tokens.shard import open_tokens
from shardmill.sources.source import media_kind, name_from_path
from shardmill.stages.check.content import fields_of
from shardmill.stages.inputs import samples_behind, space_of, stored_as, tokens_behind
from shardmill.tokens.text.readable import Numbers, Run, open_readable, readable_runs

Show: TypeAlias = Callable[[TokenRow], list[Run]]
MAX_NAME = 60  # characters of a key, which may take four bytes each


@dataclass(frozen=True, slots=True)
class Specimen:
    """A sample, a row or a pack: its texts as they were, its rows of tokens, its media."""

    name: str
    truth: Sequence[str]
    rows: Sequence[TokenRow] = ()
    media: Mapping[str, bytes | memoryview] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Collection:
    """A finished folder; `samples` are those behind its tokens, None if they are not there.

    `space` tells the images of packs that do not say where theirs lie.
    """

    folder: Path
    manifest: Manifest
    samples: SampleDataset | None
    space: TokenSpace

    def take(self, number: int, share: float) -> Specimen | None:
        """Return what lies at this share of a shard, from 0 to 1; None if the shard is empty."""
        entry = self.manifest.shards[number]
        if not entry.num_samples:
            return None
        match stored_as(entry.files):
            case "tokens":
                return self._of_tokens(number, share)
            case "tar":
                return self._of_tar(number, share)
        raise ConfigError(f"{self.folder} holds neither samples nor tokens: nothing to show")

    def _of_tokens(self, number: int, share: float) -> Specimen:
        shard = open_tokens(self.folder, self.manifest).shard(number)
        about = shard.spans.meta.get("about")
        if isinstance(about, dict) and about.get("packs"):
            pack = int(share * num_stored_packs(shard))
            rows = stored_rows(shard, pack)
            name = f"pack-{int(about.get('first', 0)) + pack:09d}"
        else:
            rows = [shard[int(share * len(shard))]]
            name = rows[0].key
        return Specimen(name, self._truth(rows), rows, self._media(rows))

    def _of_tar(self, number: int, share: float) -> Specimen:
        with open_entry(self.folder, self.manifest.shards[number]) as shard:
            inside = int(share * len(shard))
            key, raw = shard.index.keys[inside], shard.raw(inside)
            media = {ext: bytes(view) for ext, view in raw.items() if media_kind(ext) is not None}
            plain = fields_of(raw)
            if plain is not None and "input_ids" in plain:
                return self._of_pack(key, plain, media)
            return Specimen(key, [_said(key, raw)], media=media)

    def _of_pack(self, key: str, plain: Mapping[str, Any], media: dict[str, bytes]) -> Specimen:
        row = packed_row(key, plain, self.space, Origin(source="", path="", row=key))
        if "lengths" in plain:
            rows: Sequence[TokenRow] = packed_documents(row, plain)
            return Specimen(key, self._truth(rows), rows, media)
        return Specimen(key, [str(text) for text in plain.get("text", ())], [row], media)

    def _truth(self, rows: Sequence[TokenRow]) -> list[str]:
        if self.samples is None:
            return []
        found = self.samples.find_behind([row.key for row in rows]).tolist()
        return [
            _told(self.samples[number]) if number >= 0 else f"{row.key} is not among the samples"
            for row, number in zip(rows, found)
        ]

    def _media(self, rows: Sequence[TokenRow]) -> dict[str, memoryview]:
        """Return the media of the rows, numbered in the order of the tokens."""
        media: dict[str, memoryview] = {}
        if self.samples is None:
            return media
        numbers = self.samples.find_behind([row.key for row in rows]).tolist()
        for row, number in zip(rows, numbers):
            raw = self.samples.raw(number) if row.media and number >= 0 else {}
            for span in row.media:
                if span.name in raw:
                    media[f"{len(media)}.{span.name.rpartition('.')[2]}"] = raw[span.name]
        return media


@contextmanager
def open_collection(folder: Path, space: TokenSpace) -> Iterator[Collection]:
    """Open a finished folder, and the samples that it was made from if they are still there."""
    manifest = open_manifest(folder)
    place = samples_behind(*tokens_behind(folder, manifest))
    samples = None if place is None else open_samples(place)
    try:
        yield Collection(folder, manifest, samples, space)
    finally:
        if samples is not None:
            samples.close()


def _said(key: str, members: Members) -> str:
    try:
        return _told(parse_sample(key, members))
    except SampleError:
        texts = [bytes(view) for ext, view in members.items() if media_kind(ext) is None]
        return "\n".join(text.decode("utf-8", "replace") for text in texts)


def _told(sample: Sample) -> str:
    return "\n".join(_line(segment) for segment in sample.document.segments)


def _line(segment: Segment) -> str:
    who = "" if segment.role is None else f"{segment.role}: "
    when = "" if segment.time_s is None else " {:.2f}-{:.2f} s".format(*segment.time_s)
    if segment.kind == "text":
        return f"{who}{segment.text}"
    return f"{who}[{segment.kind} {segment.media}{when}]"


def dump_specimens(
    folder: Path, to_dir: Path, count: int, space: TokenSpace | None = None
) -> list[Path]:
    """Write `count` specimens of a finished folder below `to_dir`, and return their folders.

    `space` is that of packs by others; ours know their own.
    """
    manifest = open_manifest(folder)
    space = space or space_of(folder, manifest) or VIDEO_SPACE
    show: Show
    try:
        show = open_readable(tokens_behind(folder, manifest)[1])
    except ConfigError:  # packs of others: nobody says which tokenizer made them
        show = partial(readable_runs, tokenizer=Numbers(), space=space)
    made: dict[tuple[int, str], Path] = {}
    with open_collection(folder, space) as collection:
        for number, (shard, share) in enumerate(spread(len(manifest.shards), count)):
            specimen: Specimen | None
            try:
                specimen = collection.take(shard, share)
            except SampleError as error:
                specimen = Specimen("broken", [str(error)])
            # Of few samples some are hit twice.
            if specimen is not None and (shard, specimen.name) not in made:
                made[shard, specimen.name] = _write(specimen, to_dir, number, show)
    return list(made.values())


def spread(num_shards: int, count: int) -> list[tuple[int, float]]:
    """Return (shard, share of the way through it) of `count` places over all shards."""
    places = [(2 * i + 1) * num_shards / (2 * count) for i in range(count)] if num_shards else []
    return [(int(place), place - int(place)) for place in places]


def _write(specimen: Specimen, to_dir: Path, number: int, show: Show) -> Path:
    name = name_from_path(specimen.name).replace("/", "_")[:MAX_NAME]
    folder = to_dir / f"{number:03d}-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ground_truth.txt").write_text("\n\n".join(specimen.truth) + "\n", "utf-8")
    if specimen.rows:
        shown = [show(row) for row in specimen.rows]
        learned = [[run for run in runs if run.learned] for runs in shown]
        (folder / "detokenized_tokens.txt").write_text(_joined(shown), "utf-8")
        (folder / "unmasked_tokens.txt").write_text(_joined(learned), "utf-8")
    for medium, content in specimen.media.items():
        (folder / "images").mkdir(exist_ok=True)
        (folder / "images" / Path(medium).name).write_bytes(content)
    return folder


def _joined(rows: Sequence[Sequence[Run]]) -> str:
    return "\n\n".join("".join(run.text for run in runs) for runs in rows) + "\n"
