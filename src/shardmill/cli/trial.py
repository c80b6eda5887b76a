"""What stands in for the runner while a recipe is quoted; a verb finds it in its context."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shardmill.cli.options import RunOptions
from shardmill.model.manifest import Manifest
from shardmill.model.stage import Stage
from shardmill.run.trial import Tried, try_units


@dataclass(slots=True)
class Trial:
    """Tries a few units where all would be run, and notes what they took."""

    num_units: int
    tried: list[Tried] = field(default_factory=list)

    def run(self, stage: Stage, out: Path, options: RunOptions) -> Manifest:
        """Try a few units, and return the manifest of what they made."""
        found = try_units(
            stage,
            out,
            num_units=self.num_units,
            workers=options.workers,
            max_skip_rate=options.max_skip_rate,
        )
        self.tried.append(found)
        return found.manifest
