"""The keys and member names that a tar has already: nothing is in it twice.

Keys that rise from batch to batch, as numbered ones do, cannot meet and are not looked up; they are
kept, and become entries of a set when the first key comes that does not rise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardmill.errors import SampleError
from shardmill.io.weave import Column, rises


@dataclass(slots=True)
class TakenNames:
    """Keys have no dot and names have one, so that one set holds both."""

    tar_name: str
    _taken: set[str] = field(default_factory=set)
    _rising: list[Column] = field(default_factory=list)
    _last_key: bytes = b""

    def take(self, key: str, names: Sequence[str]) -> None:
        """Take a sample's key and names; a `SampleError` if one is taken.

        Names can meet when keys do not: in the dashed layout `a-0.jpg` may belong to `a` and `a-0`.
        """
        self._look_up_rising()
        if key in self._taken:
            raise SampleError("duplicate key", f"{key!r} is in {self.tar_name} already")
        for name in names:
            if name in self._taken:
                raise SampleError("duplicate member", f"{name!r} is in {self.tar_name} already")
        self._taken.add(key)
        self._taken.update(names)

    def take_all(self, keys: Column) -> bool:
        """Take keys whose names have a dot after them, and so meet if keys do; False if one is."""
        if not self._taken and rises(keys, after=self._last_key):
            self._rising.append(keys)
            self._last_key = bytes(keys[len(keys) - 1]) if len(keys) else self._last_key
            return True
        self._look_up_rising()
        wanted = [key.decode() for key in keys.contents()]
        if not self._taken.isdisjoint(wanted) or len(set(wanted)) < len(wanted):
            return False
        self._taken.update(wanted)
        return True

    def _look_up_rising(self) -> None:
        for keys in self._rising:
            self._taken.update(key.decode() for key in keys.contents())
        self._rising.clear()
