"""Which task works on which unit, without a server: the files claims/UNIT.N.

N counts the tries of a unit from 1. Whoever creates UNIT.1 works on it; creating is exclusive, so
it is one. The file holds the token of its maker, who writes FREE into it to give the unit back.
UNIT.2 may be created when UNIT.1 is free, or when its maker is dead. No claim goes away before the
folder is complete, so that two tasks never believe to have the same try.

A claim only saves double work. What is done is said by receipts.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shardmill.io.depot import depot_of

FREE = "free"
# What is read from a claim becomes a part of paths.
TOKEN = re.compile(r"[0-9a-z]{1,64}")


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a folder, as the task `token` sees and makes them."""

    claims_dir: Path
    token: str

    def latest(self) -> dict[str, int]:
        """Return the number of the last try of every unit that was ever claimed."""
        tries: dict[str, int] = {}
        # Without the folder, another task has just completed everything.
        with suppress(FileNotFoundError):
            for path in self.claims_dir.iterdir():
                unit_name, _, number = path.name.rpartition(".")
                if unit_name and number.isdigit():
                    tries[unit_name] = max(tries.get(unit_name, 0), int(number))
        return tries

    def take(self, unit_name: str, number: int) -> bool:
        """Make the claim and return True, unless somebody else was faster."""
        path = self._path(unit_name, number)
        try:
            return depot_of(self.claims_dir).create(path, self.token.encode())
        except FileNotFoundError:
            return False

    def free(self, unit_name: str, number: int) -> None:
        """Give back a unit; the claim must be our own."""
        mine = self.token.encode()
        with suppress(OSError):
            depot_of(self.claims_dir).renew(
                self._path(unit_name, number),
                lambda content: content == mine,
                FREE.encode().ljust(len(mine)),
            )

    def owner(self, unit_name: str, number: int) -> str:
        """Return the token of a claim's maker, FREE, or '' if it died before it could say so."""
        try:
            text = self._path(unit_name, number).read_bytes().decode().strip()
        except (OSError, UnicodeDecodeError):
            return ""
        return text if TOKEN.fullmatch(text) else ""

    def num_deaths(self, unit_name: str, number: int) -> int:
        """Return how many of the tries up to `number` were not given back."""
        return sum(self.owner(unit_name, n) != FREE for n in range(1, number + 1))

    def _path(self, unit_name: str, number: int) -> Path:
        return self.claims_dir / f"{unit_name}.{number}"
