"""A folder for Megatron-Energon: WebDataset tars, a table of offsets beside each, and `.nv-meta`.

    shards/00000.tar.idx        u64 offset of each sample's first header, and the end of the last
    .nv-meta/.info.json         {"energon_version", "shard_counts": {tar: samples}}
    .nv-meta/split.yaml         which tars belong to train, val and test
    .nv-meta/dataset.yaml       the type of the samples
    .nv-meta/sample_loader.py   makes them of the members, where a map of fields is not enough
    .nv-meta/index.sqlite       tables `samples` and `sample_parts`: key and place of every member
    .nv-meta/index.uuid         stands for the content

An InterleavedSample is the sequence of a document's texts and media or, of a packed sample,
[input_ids, loss_mask, lengths, medium, ...]. Pairs (`K.jpg`, `K.txt`) can be CaptioningSamples, and
anything can be crude, for a cooker to take apart. YAML here is JSON, which every YAML reader takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import orjson

from shardmill.errors import ConfigError
from shardmill.formats.energon.index import write_index
from shardmill.formats.format import ExportInput, Piece, Place, Slice
from shardmill.formats.webdataset import WebDatasetFormat
from shardmill.model.codec import digest
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Draft, Tally
from shardmill.shards.tar.index import TarIndex, open_tar_index
from shardmill.storage.files import write_file

META_DIR = ".nv-meta"
LOADER_NAME = "sample_loader.py"
VERSION = "7.4.1"
LOADER_PATH = Path(__file__).with_name("loader.py")
IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tiff")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergonFormat(WebDatasetFormat):
    """`val` and `test` are the shares of tars that belong to them; they are the last ones.

    `sample_type` "captioning" is for folders of samples that are all pairs of an image and a text.
    """

    arrays: bool = True
    val: float = 0.0
    test: float = 0.0
    sample_type: Literal["interleaved", "captioning", "crude"] = "interleaved"

    def __post_init__(self) -> None:
        # Slots and super() do not go together in a dataclass that is made anew.
        WebDatasetFormat.__post_init__(self)
        if self.val < 0 or self.test < 0 or self.val + self.test > 1:
            raise ConfigError(f"val and test are shares of the tars, got {self.val}, {self.test}")
        if self.layout != "dotted":
            raise ConfigError("Energon groups members by the name before the first dot: use dotted")

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield where media come from; refuses samples that are no pairs if they must be."""
        yield from WebDatasetFormat.plan(self, source, ranges)
        if self.sample_type == "captioning":
            if source.has_tokens:
                raise ConfigError("captioning is for folders of samples, this one holds tokens")
            for shard in source.shards:
                _check_pairs(open_tar_index(source.folder / shard.files["idx"].path))

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write one tar, its index, and Energon's table of offsets."""
        WebDatasetFormat.write(self, source, piece, draft, tally)
        index = open_tar_index(draft.file(piece.name, "idx"))
        starts = index.arrays["start"].astype("<u8")
        draft.file(piece.name, "tar.idx").write_bytes(starts.tobytes())

    def finish(self, source: ExportInput, manifest: Manifest, out_dir: Path) -> None:
        """Write `.nv-meta`."""
        WebDatasetFormat.finish(self, source, manifest, out_dir)
        meta_dir = out_dir / META_DIR
        meta_dir.mkdir(exist_ok=True)
        filled = [shard for shard in manifest.shards if shard.num_samples]
        counts = {shard.files["tar"].path: shard.num_samples for shard in filled}
        identity = UUID(digest([manifest.stage_digest, manifest.units_digest]))
        tars = (open_tar_index(out_dir / shard.files["idx"].path) for shard in filled)
        write_index(meta_dir / "index.sqlite", tars)
        if self.sample_type == "interleaved":
            write_file(meta_dir / LOADER_NAME, LOADER_PATH.read_bytes())
        _write_json(meta_dir / "dataset.yaml", self._dataset())
        _write_json(meta_dir / "split.yaml", self._split(list(counts)))
        write_file(meta_dir / "index.uuid", str(identity).encode())
        info = {"energon_version": VERSION, "shard_counts": counts}
        _write_json(meta_dir / ".info.json", info)

    def _dataset(self) -> dict[str, Any]:
        if self.sample_type == "crude":
            return {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
        name = f"{self.sample_type.capitalize()}Sample"
        made = {"sample_type": {"__module__": "megatron.energon", "__class__": name}}
        if self.sample_type == "captioning":
            return {**made, "field_map": {"image": ",".join(IMAGES), "caption": "txt"}}
        functions = ("sample_loader", "part_filter")
        return {**made, **{function: f"{LOADER_NAME}:{function}" for function in functions}}

    def _split(self, tars: list[str]) -> dict[str, Any]:
        num_test, num_val = round(len(tars) * self.test), round(len(tars) * self.val)
        num_train = max(0, len(tars) - num_test - num_val)
        parts = {
            "train": tars[:num_train],
            "val": tars[num_train : num_train + num_val],
            "test": tars[num_train + num_val :],
        }
        return {"split_parts": parts, "exclude": []}


def _check_pairs(index: TarIndex) -> None:
    for number in range(len(index)):
        exts = {member.ext for member in index.members(number)}
        if "txt" not in exts or not exts & {*IMAGES}:
            raise ConfigError(
                f"sample {index.keys[number]!r} has {', '.join(sorted(exts))}, not an image and a "
                "txt: filter the samples, or export them as interleaved ones"
            )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    write_file(path, orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")
