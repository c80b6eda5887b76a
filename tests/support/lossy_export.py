"""An export that drops whatever its format has no place for, for tests that are about the rest."""

from __future__ import annotations

from typing import Any

from shardmill.formats.format import ASPECTS, Format, kept_by
from shardmill.stages.export import ExportShards


def lossy_export(*, format: Format, **fields: Any) -> ExportShards:
    """Return the spec."""
    drop = tuple(aspect for aspect in ASPECTS if aspect not in kept_by(format))
    return ExportShards(format=format, drop=drop, **fields)
