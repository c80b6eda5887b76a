"""Names of shards from a pattern, such as "{unit:06d}" or "shard-{machine}-{start}-{end}-{tar}".

{unit} is the number of the unit, {start} and {end} the rows it covers, {tar} the number of the
shard in its unit (more than one only with a byte limit), {machine} a number that the user chose.
A pattern needs {unit} or {start}, or two units would write one file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from string import Formatter

from shardmill.errors import ConfigError
from shardmill.model.stage import Unit

FIELDS = ("unit", "machine", "start", "end", "tar")
SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@-]*")


@dataclass(frozen=True, slots=True)
class ShardNames:
    """A checked pattern."""

    pattern: str

    def __post_init__(self) -> None:
        try:
            used = self._fields()
            name = self._format(dict.fromkeys(FIELDS, 1))
        except (ValueError, KeyError, IndexError) as error:
            raise ConfigError(f"name {self.pattern!r} is not a pattern: {error}") from error
        unknown = sorted(used - set(FIELDS))
        if unknown or not used & {"unit", "start"}:
            fields = ", ".join(f"{{{field}}}" for field in FIELDS)
            raise ConfigError(f"name {self.pattern!r} must use {{unit}} or {{start}}, of {fields}")
        if not SAFE.fullmatch(name):
            raise ConfigError(f"name {self.pattern!r} gives {name!r}, which is no plain file name")

    @property
    def needs_range(self) -> bool:
        """Whether the pattern names the rows, so that they must be counted."""
        return bool(self._fields() & {"start", "end"})

    def of_unit(self, unit: Unit, machine: int) -> Callable[[int], str]:
        """Return the function that names the shards of a unit, 0 for the first."""
        start = unit.input.get("start", 0)
        assert isinstance(start, int)
        values = {
            "unit": int(unit.name),
            "machine": machine,
            "start": start,
            "end": start + (unit.num_samples or 0),
        }

        def name_of(split: int) -> str:
            name = self._format({**values, "tar": split})
            return name if split == 0 or "tar" in self._fields() else f"{name}-{split:03d}"

        return name_of

    def _fields(self) -> set[str]:
        return {field for _, field, _, _ in Formatter().parse(self.pattern) if field is not None}

    def _format(self, values: dict[str, int]) -> str:
        return self.pattern.removesuffix(".tar").format_map(values)
