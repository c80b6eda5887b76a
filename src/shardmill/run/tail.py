"""What the tasks of a folder do, as their logs tell it while they grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shardmill.io.jsontext import parse_json
from shardmill.run.events import Event, event_from_plain

KINDS = ("start", "done", "failed")


class LogTail:
    """Reads what was appended to the logs of a folder since it was last asked."""

    def __init__(self, events_dir: Path, *, own_token: str) -> None:
        self._events_dir, self._own_name = events_dir, f"{own_token}.jsonl"
        self._offsets = {path.name: path.stat().st_size for path in self._logs()}

    def read(self) -> Iterator[Event]:
        """Yield what happened to units, in the order of each log."""
        for path in self._logs():
            with path.open("rb") as file:
                file.seek(self._offsets.get(path.name, 0))
                content = file.read()
            # A line without its end is being written right now.
            whole, newline, _ = content.rpartition(b"\n")
            self._offsets[path.name] = self._offsets.get(path.name, 0) + len(whole + newline)
            yield from _events(whole)

    def _logs(self) -> list[Path]:
        paths = sorted(self._events_dir.glob("*.jsonl"))
        return [path for path in paths if path.name != self._own_name]


def _events(content: bytes) -> Iterator[Event]:
    for line in content.splitlines():
        try:
            event = event_from_plain(parse_json(line))
        except (ValueError, TypeError):
            continue
        if event.kind in KINDS:
            yield event
