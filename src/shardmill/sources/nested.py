"""Tables whose rows hold lists of rows: each element becomes a row of its own.

    {"video_id": "x", "clips": [{"clip_path": "a", ...}, {"clip_path": "b", ...}]}

gives two rows with `video_id`, the fields of their clip and keys that end in its number. How many
there are is known only when they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from shardmill.errors import SampleError
from shardmill.sources.part import Part, Read, Row
from shardmill.sources.table import TableSource


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedSource(TableSource):
    """A table of which `each` names the list; the element's fields win over the row's."""

    each: str = "clips"

    def parts(self, per_shard: int | None) -> Iterator[Part]:
        """Yield slices of the table; a slice holds `per_shard` of its rows."""
        parts = TableSource.parts(self, per_shard)
        return (replace(part, num_rows=None) for part in parts)

    @contextmanager
    def open(self) -> Iterator[Read]:
        """Yield the reader of one part."""
        with TableSource.open(self) as read:
            yield lambda part: self._rows(read(part))

    def _rows(self, rows: Iterator[Row]) -> Iterator[Row]:
        for row in rows:
            yield from [row] if row.problem is not None else self._elements(row)

    def _elements(self, row: Row) -> Iterator[Row]:
        elements = row.fields.get(self.each)
        if not isinstance(elements, list) or not elements:
            problem = SampleError("missing field", f"{self.each!r} is no list of rows")
            yield replace(row, fields={}, problem=problem)
            return
        shared = {name: value for name, value in row.fields.items() if name != self.each}
        for number, element in enumerate(elements):
            key = f"{row.key}-{number:03d}"
            origin = replace(row.origin, row=f"{row.origin.row}.{self.each}.{number}")
            if isinstance(element, Mapping):
                fields = {**shared, **element}
                yield replace(row, key=key, origin=origin, fields=fields)
            else:
                detail = f"element {number} of {self.each!r} is {element!r:.60}"
                problem = SampleError("row is not an object", detail)
                yield replace(row, key=key, origin=origin, fields={}, problem=problem)
