"""The list of samples that a unit skipped: a line of JSON each, as `Tally.skip` noted it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shardmill.errors import Filtered, FormatError, SampleError
from shardmill.model.stage import Reject
from shardmill.storage.folder import list_names
from shardmill.storage.text import parse_json


def reject_lists(folder: Path) -> dict[str, Path]:
    """Return the lists of a folder by the names of their units; a unit may have none."""
    lists = folder / "rejects"
    return {Path(name).stem: lists / name for name in list_names(lists)}


def without_codes(reject: Reject) -> SampleError:
    """Return the problem of a sample that was skipped when codes were made.

    One that was filtered there is filtered here, and costs no budget either.
    """
    kind = Filtered if reject.filtered else SampleError
    return kind("no image codes", f"{reject.reason} ({reject.detail}) when codes were made")


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
