"""What `check --decode` says of the pictures of samples."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill import wording
from shardmill.cli import console

if TYPE_CHECKING:
    from shardmill.stages.checkdecode import DecodeReport

MAX_PRINTED = 20


def decode_pictures(folder: Path, count: int, workers: int) -> DecodeReport:
    """Decode so many pictures of a folder of samples."""
    from shardmill.stages.checkdecode import check_decoding

    return check_decoding(folder, count, workers=workers)


def decoding_as_plain(report: DecodeReport) -> dict[str, Any]:
    """Return the report for --json."""
    return {
        "pictures": report.num_pictures,
        "decoded": report.num_decoded,
        "num_broken_pictures": report.num_broken,
        "broken_pictures": [asdict(picture) for picture in report.broken],
    }


def print_decoding(report: DecodeReport) -> None:
    """Print how many pictures were decoded, and those that are broken."""
    of_all = f"{report.num_decoded:,} of {wording.plural(report.num_pictures, 'picture')}"
    console.facts([("decoded", of_all)])
    if not report.num_broken:
        return
    broken = wording.plural(report.num_broken, "broken picture")
    console.say("✗", f"{broken} of {report.num_decoded:,} decoded", colour=console.BAD)
    lines = [
        f"{picture.tar}, sample {picture.key}, {picture.medium} at byte {picture.offset}: "
        f"{picture.what}"
        for picture in report.broken
    ]
    console.listed(lines, MAX_PRINTED)
