"""The list of samples that a unit skipped: a line of JSON each, as `Tally.skip` noted it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shardmill.errors import FormatError
from shardmill.io.jsontext import parse_json
from shardmill.model.stage import Reject


def read_rejects(path: Path) -> Iterator[Reject]:
    """Yield the rejects of a unit; none if it has no such file."""
    try:
        with path.open("rb") as lines:
            for line in lines:
                plain = parse_json(line)
                yield Reject(
                    key=str(plain["key"]),
                    reason=str(plain["reason"]),
                    detail=str(plain["detail"]),
                    filtered=bool(plain["filtered"]),
                )
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"is not a list of rejects: {error}", path=path) from error
