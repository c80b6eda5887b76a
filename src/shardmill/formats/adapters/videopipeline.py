"""Tars of Video-Data-Pipeline: our samples, with the fields in its JSON that its readers look for.

A sample is `K.json` first, then its media, where K counts from 000000000 in every tar:

    K.json     what shardmill stores (see model/sample.py), and of a conversation
        conversations    [{"from": "human", "value": "<video>"}, {"from": "gpt", "value": T}]
        prompt, txt      what is asked and what is answered, if there is one of each
        caption          the same answer;      video_id, key   K, and what it was called before
        videos, image_name_list                ["K"], ["K-0", "K-1"]: the names of the media
    K.mp4      a whole video, byte for byte
    K-0.jpg    frames; "<image>" in the prompt, or "<Iimage>#0<Pimage>#41" where marks say when

Nothing of a sample is lost, and `ingest`, `check --same` and `show` read these tars like our own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from shardmill.errors import SampleError
from shardmill.formats.format import OF_SAMPLES, Aspect, Format, Place, Record, SamplesReader
from shardmill.formats.rows import ExportInput, Piece, Slice
from shardmill.model.manifest import ShardEntry
from shardmill.model.sample import Sample, Segment, said_in_turns, sample_to_plain
from shardmill.model.stage import Draft, Tally
from shardmill.shards.samples import parse_sample
from shardmill.shards.tar.index import IndexedTar

SPEAKERS = {"user": "human", "assistant": "gpt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoPipelineFormat(Format):
    """Tars for Video-Data-Pipeline; a frame at `time_scale` is the last one, which it calls I."""

    time_scale: int = 1000

    @property
    def keeps(self) -> frozenset[Aspect]:
        """All that a sample has but its key as the name of a member."""
        return OF_SAMPLES - {"keys"}

    def plan(self, source: ExportInput, ranges: Sequence[tuple[Slice, ...]]) -> Iterator[Place]:
        """Yield nothing for each unit of samples."""
        source.check_samples()
        yield from ({} for _ in ranges)

    def write(self, source: ExportInput, piece: Piece, draft: Draft, tally: Tally) -> None:
        """Write one tar and its index."""
        tar_path, index_path = (draft.file(piece.name, role) for role in ("tar", "idx"))
        with IndexedTar(tar_path, index_path) as tar:
            for part in piece.slices:
                with source.sample_shard(part.shard) as shard:
                    for key, raw in shard.iter_raw(part.start, part.stop):
                        with tally.sample(key):
                            name = f"{len(tar.rows):09d}"
                            sample = parse_sample(key, raw)
                            text = orjson.dumps(self.fields(sample, name))
                            tar.add(name, [("json", text), *sample.media.items()], "dashed")
        draft.finish(piece.name, num_samples=len(tar.rows))

    def records(self, folder: Path, shard: ShardEntry) -> Iterator[Record]:
        """Yield the samples of a tar."""
        return SamplesReader(dir=str(folder)).records(shard)

    def fields(self, sample: Sample, name: str) -> dict[str, Any]:
        """Return the JSON of a sample that is called `name`."""
        names = {media: _member(name, media) for media in sample.media}
        videos, images = (
            [names[segment.media] for segment in sample.document.media(kind)]
            for kind in ("video", "image")
        )
        turns = self._turns(sample)
        plain = {
            **sample_to_plain(sample),
            "key": sample.key,
            "video_id": name,
            "conversations": [{"from": speaker, "value": said} for speaker, said in turns],
            **({"videos": videos} if videos else {}),
            **({"image_name_list": images} if images else {}),
        }
        if [speaker for speaker, _ in turns] == ["human", "gpt"]:
            (_, prompt), (_, text) = turns
            plain |= {"prompt": prompt, "txt": text, "caption": text}
        return plain

    def _turns(self, sample: Sample) -> list[tuple[str, str]]:
        listed = sample.extra.get("frames")
        listed = listed if isinstance(listed, list) else []
        frames = {str(f.get("media")): f for f in listed if isinstance(f, dict)}
        # Marks are texts of the same moment as the frame before them.
        moments = {s.time_s for s in sample.document.segments if s.kind == "text" and s.time_s}

        def show(segment: Segment) -> str:
            frame = frames.get(segment.media)
            if frame is None or segment.time_s not in moments:
                return f"<{segment.kind}>"
            is_i = frame.get("type") == "I" or frame.get("at") == self.time_scale
            return "<Iimage>" if is_i else "<Pimage>"

        turns = said_in_turns(sample.document, show)
        for role, _ in turns:
            if role not in SPEAKERS:
                raise SampleError("unknown role", f"{role!r} is neither user nor assistant")
        return [(SPEAKERS[role], said) for role, said in turns]


def _member(name: str, media: str) -> str:
    """Return the name of a medium without its extension: "mp4" is K, "3.jpg" is K-3."""
    number, dot, _ = media.rpartition(".")
    return f"{name}-{number}" if dot else name
