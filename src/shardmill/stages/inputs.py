"""Finished shards as the input of a stage: a unit for each, opened by its files, and counted.

Most stages read sample shards (`sample_units`, `open_unit`); those that take what there is, such as
`remove` and `diff`, open a shard of samples, codes or tokens with `open_content`. What a finished
folder was made from is found by what its manifest says that it reads (`tokens_behind`).

What a stage keeps is counted sample by sample as it is written (`count_sample`) or for a finished
shard as a whole (`count_shard`). Both use the same names, so that `status` and the page can add
them up: "samples|with images", "media|images", "missing|text", "source|NAME", and the histograms
"text chars", "pixels" and "video seconds" (see `Tally.observe`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import ConfigError, FormatError, UnitFailed
from shardmill.model.codec import Plain
from shardmill.model.manifest import Manifest, ShardEntry, manifest_digest
from shardmill.model.sample import MediaSize, Sample
from shardmill.model.space import TokenSpace
from shardmill.model.stage import Draft, Stage, Tally, Unit
from shardmill.shards.codes import ROLE as CODES
from shardmill.shards.codes import CodeShard, ImageCodes, open_codes
from shardmill.shards.ledger import open_manifest
from shardmill.shards.samples import SampleShard, foreign_tar
from shardmill.shards.tar.index import TarIndex, open_tar_index
from shardmill.shards.tokens.shard import ROLES as TOKEN_ROLES
from shardmill.shards.tokens.shard import TokenShard, open_token_shard, open_tokens
from shardmill.sources.source import media_kind
from shardmill.storage.blob import open_blob
from shardmill.storage.path import UrlPath, as_path, split_url
from shardmill.tokens.text.tokenizer import files_checksum

MANIFEST_NAME = "manifest.json"
PASSED_OVER = "passed over"  # members of tars that belong to no sample, by kind
ContentShard: TypeAlias = TarIndex | CodeShard | TokenShard
SIZE_COLUMNS = ("width", "height", "num_frames", "fps", "duration_s")
SAMPLES_WITH = {"image": "with images", "video": "with videos", "audio": "with audio"}
COUNTED = {"image": "images", "video": "videos", "audio": "audio clips"}
# What is tried before the work: the first samples of some shards.
TRIED_UNITS, TRIED_SAMPLES = 4, 32
MAX_STEPS = 4  # an export of packs of tokens without some


class SizedSample(NamedTuple):
    """A sample, and the size of each of its media by name: what a shard stores."""

    sample: Sample
    sizes: Mapping[str, MediaSize]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSamples:
    """What the specs of stages share that read a finished folder of sample shards."""

    input_dir: Path

    def files_used(self) -> list[Path]:
        """Return the files besides the samples that decide what is made, such as a tokenizer's."""
        return []

    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """Return {role: places} of what is read."""
        return {"samples": (str(self.input_dir),)}

    def units_name_content(self) -> bool:
        """Say that units do: they hold the checksums of a shard's files."""
        return shards_hold_bytes(self.input_dir)

    def inputs(self) -> Mapping[str, Any]:
        """Return the fingerprints of the input's manifest and of the files that are used."""
        return sample_inputs(self.input_dir, self.files_used())


def check_numbers(spec: object, *positive: str) -> None:
    """Raise `ConfigError` for a named field that is below 1, and for a `limit` below 0."""
    for name, least in (*((name, 1) for name in positive), ("limit", 0)):
        value = getattr(spec, name, None)
        if value is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")


def sample_units(
    folder: Path, limit: int | None, more: Mapping[str, Plain] | None = None
) -> Iterator[Unit]:
    """Yield a unit for each shard in the order of the manifest, up to `limit` samples in all."""
    manifest = open_manifest(folder)
    if manifest.content != "samples":
        raise ConfigError(f"{folder} holds {manifest.content}, and samples are needed")
    left = limit
    for shard in manifest.shards:
        files: dict[str, Plain] = {r: [e.path, e.checksum] for r, e in shard.files.items()}
        input: dict[str, Plain] = {"files": files, **(more or {})}
        count = shard.num_samples
        if left is not None:
            if left <= 0:
                return
            count = min(count, left)
            left -= count
            input["limit"] = count
        yield Unit(name=shard.name, input=input, num_samples=count)


def try_work(stage: Stage) -> Tally:
    """Return the counts of the first samples of a few shards; what they become is thrown away."""
    units, tally = list(stage.units()), Tally()
    chosen = units[:: max(1, len(units) // TRIED_UNITS)][:TRIED_UNITS]
    with tempfile.TemporaryDirectory(prefix="shardmill-") as folder, stage.open() as work:
        for unit in chosen:
            draft = Draft(Path(folder, unit.name))
            draft.dir.mkdir()
            num_samples = min(TRIED_SAMPLES, unit.num_samples or TRIED_SAMPLES)
            few = replace(unit, input={**unit.input, "limit": num_samples})
            # A shard that is damaged fails in its own unit, where it is told in full.
            with suppress(FormatError, UnitFailed, OSError):
                work(few, draft, tally)
    return tally


def shards_hold_bytes(folder: Path) -> bool:
    """Say whether every tar lies beside its index: the checksums do not speak of one elsewhere."""
    return all("tar" in shard.files for shard in open_manifest(folder).shards)


def sample_inputs(folder: Path, used: Iterable[Path] = ()) -> dict[str, Any]:
    """Return the identity of a finished folder, and the contents of files that are used."""
    return {**identities_of(folder), **contents_of(used)}


def identities_of(*folders: Path) -> dict[str, list[str]]:
    """Return path -> identity of the manifests of finished folders.

    A folder that was repaired, moved or made again in another place is the same.
    """
    return {
        str(folder / MANIFEST_NAME): [manifest_digest(open_manifest(folder))] for folder in folders
    }


def contents_of(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Return name -> checksums of files that belong to the settings, such as a tokenizer's.

    Where they lie and when they were written does not count: an installation may be made anew.
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(path.name, []).append(files_checksum([path]))
    return found


def open_unit(folder: Path, unit: Unit) -> SampleShard:
    """Open the shard of a unit; a tar may lie elsewhere, its index says where."""
    files: Any = unit.input["files"]
    paths = {role: folder / path for role, (path, _) in files.items()}
    index = open_tar_index(paths["idx"])
    url = str(paths["tar"]) if "tar" in paths else foreign_tar(folder, unit.name)
    return SampleShard(open_blob(url), index)


def num_wanted(unit: Unit, shard: SampleShard) -> int:
    """Return how many samples of its shard a unit takes, from the first on."""
    limit = unit.input.get("limit", len(shard))
    assert isinstance(limit, int)
    return limit


def files_of(folder: Path, shard: ShardEntry) -> dict[str, Path]:
    """Return role -> path of the files of a shard."""
    return {role: folder / entry.path for role, entry in shard.files.items()}


def stored_as(roles: Collection[str]) -> Literal["tokens", "codes", "tar", "other"]:
    """Return how a shard is stored, by the roles of its files.

    The `content` of a folder does not say it: packs are token shards or tars, and so are exports.
    """
    if "spans" in roles:
        return "tokens"
    if CODES in roles:
        return "codes"
    # Beside a .bin, an .idx is Megatron's and not that of a tar.
    return "tar" if "idx" in roles and "bin" not in roles else "other"


def open_content(files: Mapping[str, Path]) -> ContentShard:
    """Open a shard of samples (its index), codes or tokens; all of them have `keys`.

    Files that are none of these, such as those of an export, are a `ConfigError`.
    """
    match stored_as(files):
        case "tokens":
            return open_token_shard({role: files[role] for role in TOKEN_ROLES})
        case "codes":
            return open_codes(files[CODES])
        case "tar":
            return open_tar_index(files["idx"])
    names = ", ".join(sorted(path.name for path in files.values()))
    raise ConfigError(f"a shard of {names} holds no samples, codes or tokens")


def tokens_behind(folder: Path, manifest: Manifest) -> tuple[Path, Manifest]:
    """Return the folder of tokens behind packs and exports; any other folder is its own."""
    for _ in range(MAX_STEPS):
        place = _made_from(folder, manifest, "input", "tokens")
        if place is None:
            break
        folder, manifest = place, open_manifest(place)
    return folder, manifest


def samples_behind(folder: Path, manifest: Manifest) -> Path | None:
    """Return the folder of samples that tokens were made from, None if it is not known or gone."""
    return _made_from(folder, manifest, "samples") if manifest.content == "tokens" else None


def space_of(folder: Path, manifest: Manifest) -> TokenSpace | None:
    """Return the token space that packs and exports share with the tokens behind them.

    None if that is not known: for samples, packs of others, and tokens that cannot be read.
    """
    place, made = tokens_behind(folder, manifest)
    if place == folder or not any(stored_as(shard.files) == "tokens" for shard in made.shards):
        return None
    try:
        return open_tokens(place, made).space
    except (FormatError, OSError):
        return None


def _made_from(folder: Path, manifest: Manifest, *roles: str) -> Path | None:
    """Return the finished folder that a folder was made from, by the first role that has one.

    Manifests are data: what they name is looked at on the disk or in the bucket of the folder, and
    no other server is asked.
    """
    named = (place for role in roles for place in manifest.reads.get(role, ()))
    near = split_url(str(folder)).root if isinstance(folder, UrlPath) else ""
    places = (as_path(p) for p in named if p.startswith(f"{near}/"))
    return next((place for place in places if (place / MANIFEST_NAME).exists()), None)


def media_sizes(index: TarIndex) -> Callable[[int], dict[str, MediaSize]]:
    """Return the lookup of what a sample's index knows of its media."""
    columns = [index.column(name).tolist() for name in SIZE_COLUMNS]
    exts, ext, first = index.exts, index.ext, index.first

    def sizes_of(number: int) -> dict[str, MediaSize]:
        return {
            exts[ext[m]]: MediaSize(**{n: column[m] for n, column in zip(SIZE_COLUMNS, columns)})
            for m in range(first[number], first[number + 1])
        }

    return sizes_of


def count_sample(tally: Tally, sample: Sample, sizes: Mapping[str, MediaSize]) -> None:
    """Count a kept sample: its kind, its media, the length of its text, its source."""
    kinds = [segment.kind for segment in sample.document.segments]
    for kind, words in SAMPLES_WITH.items():
        if kind in kinds:
            tally.count(f"samples|{words}")
            tally.count(f"media|{COUNTED[kind]}", kinds.count(kind))
    if not sample.media:
        tally.count("samples|text only")
    num_chars = sum(len(segment.text) for segment in sample.document.segments)
    if num_chars == 0:
        tally.count("missing|text")
    if sample.origin is not None:
        tally.count(f"source|{sample.origin.source}")
    tally.observe("text chars", num_chars)
    for size in sizes.values():
        if size.width:
            tally.observe("pixels", size.width * size.height)
        if size.duration_s:
            tally.observe("video seconds", round(size.duration_s))


def count_images(tally: Tally, images: Iterable[ImageCodes]) -> None:
    """Count the images of a sample that became codes, by their size in codes."""
    for image in images:
        rows, columns = image.codes.shape
        tally.count("images")
        tally.count("codes", image.codes.size)
        tally.count(f"code grid|{columns}x{rows}")


def count_shard(tally: Tally, files: Mapping[str, Path]) -> None:
    """Count what a finished shard of samples, codes or tokens holds, from its index alone."""
    match open_content(files):
        case TokenShard() as shard:
            lengths = shard.lengths.astype(np.int64)
            tally.count("tokens", int(lengths.sum()))
            tally.count("visual tokens", int(shard.num_visual.sum(dtype=np.int64)))
            tally.count("loss tokens", int(shard.columns["loss_length"].sum(dtype=np.int64)))
            _observe(tally, "row tokens", lengths)
            for number, name in enumerate(shard.source_names):
                tokens = lengths[shard.source_numbers == number]
                if name and len(tokens):
                    tally.count(f"source|{name}", len(tokens))
                    tally.count(f"source tokens|{name}", int(tokens.sum()))
        case CodeShard() as codes:
            tally.count("images", codes.num_images)
            tally.count("codes", codes.codes.size)
            sizes = np.stack([codes.arrays["width"], codes.arrays["height"]], axis=1)
            for (width, height), count in zip(*np.unique(sizes, axis=0, return_counts=True)):
                tally.count(f"code grid|{width}x{height}", int(count))
        case index:
            _count_samples(tally, index)


def _count_samples(tally: Tally, index: TarIndex) -> None:
    first = index.arrays["first"].astype(np.int64)
    owners = np.repeat(np.arange(len(index)), np.diff(first))
    kinds = np.array([media_kind(ext) or "" for ext in index.exts], str)[index.arrays["ext"]]
    for kind, words in SAMPLES_WITH.items():
        if (kinds == kind).any():
            tally.count(f"samples|{words}", len(np.unique(owners[kinds == kind])))
            tally.count(f"media|{COUNTED[kind]}", int((kinds == kind).sum()))
    num_without = len(index) - len(np.unique(owners[kinds != ""]))
    chars = index.column("text_chars").astype(np.int64)
    for name, count in (("samples|text only", num_without), ("missing|text", (chars == 0).sum())):
        if count:
            tally.count(name, int(count))
    _observe(tally, "text chars", chars)
    pixels = index.column("width").astype(np.int64) * index.column("height")
    _observe(tally, "pixels", pixels[pixels > 0])
    seconds = index.column("duration_s")
    _observe(tally, "video seconds", np.round(seconds[seconds > 0]).astype(np.int64))
    source = index.column("source")
    for number, name in enumerate(index.sources):
        if name and (source == number).any():
            tally.count(f"source|{name}", int((source == number).sum()))


def _observe(tally: Tally, name: str, values: NDArray[Any]) -> None:
    """Do for many values what `Tally.observe` does for one."""
    if not len(values):
        return
    # 5 lies in the bucket of 8: log2(5) = 2.3, and 1 << 3 = 8.
    buckets = np.where(values > 0, 1 << np.ceil(np.log2(np.maximum(values, 1))).astype(int), 0)
    for bucket, count in zip(*np.unique(buckets, return_counts=True)):
        tally.count(f"{name}|<={bucket}", int(count))
    tally.count(f"{name}|sum", int(values.sum()))
