"""Adopt codes: those that samples carry in a field become code shards, and nothing is encoded.

Liquid's rows hold codes as JSON text, which every reader parses in every epoch; as a code shard
they are 16 bits each, mapped, and joined by key like those of `shardmill codes`. Where a sample has
codes but no picture any more, the picture is named after the field, and `tokenize` puts it in front
of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from shardmill.errors import ConfigError, SampleError
from shardmill.io.codefile import ROLE, PictureCodes, code_dtype, write_codes
from shardmill.io.sampleshard import parse_sample
from shardmill.model.sample import Sample
from shardmill.model.stage import Draft, Tally, Unit, Work
from shardmill.stages.codes import count_pictures
from shardmill.stages.samplefiles import open_unit, sample_inputs, sample_units
from shardmill.tokens.codes import CodeReader, FieldCodes


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptCodes:
    """The spec: where the codes are, the size of their codebook, the pixels a side of a code."""

    version: ClassVar[int] = 1

    input_dir: Path
    codes: FieldCodes
    num_codes: int = 8192
    factor: int = 16
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.num_codes < 1 or self.factor < 1:
            raise ConfigError("num_codes and factor must be positive")

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each shard of samples."""
        return sample_units(self.input_dir, self.limit)

    @contextmanager
    def open(self) -> Iterator[Work]:
        """Open the source of codes, once a process."""
        with self.codes.open() as reader:

            def work(unit: Unit, draft: Draft, tally: Tally) -> None:
                self._adopt(reader, unit, draft, tally)

            yield work

    def inputs(self) -> Mapping[str, Any]:
        """Return the fingerprint of the input's manifest."""
        return sample_inputs(self.input_dir)

    def _adopt(self, reader: CodeReader, unit: Unit, draft: Draft, tally: Tally) -> None:
        rows: list[tuple[str, list[PictureCodes]]] = []
        with open_unit(self.input_dir, unit) as shard:
            limit: Any = unit.input.get("limit", len(shard))
            for key, raw in shard.iter_raw(0, limit):
                with tally.sample(key):
                    pictures = self._pictures(reader, parse_sample(key, raw))
                    rows.append((key, pictures))
                    count_pictures(tally, pictures)
        path, field = draft.file(unit.name, ROLE), self.codes.field
        about = {"adopted": field}
        write_codes(path, rows, num_codes=self.num_codes, factor=self.factor, about=about)
        draft.finish(unit.name, num_samples=len(rows))

    def _pictures(self, reader: CodeReader, sample: Sample) -> list[PictureCodes]:
        found = []
        for segment in reader.complete(sample).document.media("image"):
            codes = reader.codes(sample, segment.media)
            largest = int(codes.values.max())
            if int(codes.values.min()) < 0 or largest >= self.num_codes:
                detail = f"a code is {largest}, the codebook has {self.num_codes}"
                raise SampleError("image code out of range", detail)
            values = codes.values.astype(code_dtype(self.num_codes))
            found.append(PictureCodes(segment.media, values.reshape(codes.height, codes.width)))
        return found
