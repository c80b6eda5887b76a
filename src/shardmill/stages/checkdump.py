"""A few samples, rows or packs of a folder as people read them, in a folder each:

    ground_truth.txt          the documents as they were ingested
    detokenized_tokens.txt    all tokens
    unmasked_tokens.txt       those that are learned
    images/                   the pictures and videos

They are spread over the shards by arithmetic, so that the same folder always shows the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from shardmill.errors import ConfigError, SampleError
from shardmill.formats.read_tars import VIDEO_SPACE
from shardmill.io.receipts import open_manifest
from shardmill.model.manifest import Manifest
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow
from shardmill.sources.keys import name_from_path
from shardmill.stages.checkmakers import space_of, tokens_behind
from shardmill.stages.checkspecimens import Collection, Specimen, open_collection
from shardmill.tokens.paint import Numbers, Run, open_painter, paint

Show: TypeAlias = Callable[[TokenRow], list[Run]]
MAX_NAME = 60  # characters of a key, which may take four bytes each


def dump_specimens(
    folder: Path, to_dir: Path, count: int, space: TokenSpace | None = None
) -> list[Path]:
    """Write `count` specimens of a finished folder below `to_dir`, and return their folders.

    `space` is that of packs by others; ours know their own.
    """
    manifest = open_manifest(folder)
    space = space or space_of(folder, manifest) or VIDEO_SPACE
    show = _painter(tokens_behind(folder, manifest)[1], space)
    made: dict[tuple[int, str], Path] = {}
    with open_collection(folder, space) as collection:
        for number, (shard, share) in enumerate(spread(len(manifest.shards), count)):
            specimen = _take(collection, shard, share)
            # Of few samples some are hit twice.
            if specimen is not None and (shard, specimen.name) not in made:
                made[shard, specimen.name] = _write(specimen, to_dir, number, show)
    return list(made.values())


def spread(num_shards: int, count: int) -> list[tuple[int, float]]:
    """Return (shard, share of the way through it) of `count` places over all shards."""
    places = [(2 * i + 1) * num_shards / (2 * count) for i in range(count)] if num_shards else []
    return [(int(place), place - int(place)) for place in places]


def _take(collection: Collection, shard: int, share: float) -> Specimen | None:
    try:
        return collection.take(shard, share)
    except SampleError as error:
        return Specimen("broken", [str(error)])


def _painter(manifest: Manifest, space: TokenSpace) -> Show:
    try:
        return open_painter(manifest)
    except ConfigError:  # packs of others: nobody says which tokenizer made them
        return lambda row: paint(row, Numbers(), space)


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
