"""Mistakes as a table: what a user has, what they type, and what must happen.

A case ends in a refusal, with a message that holds certain words and without a manifest in `out`,
or in the right data, told by what is written there. Nothing else passes: not a tick over wrong or
empty data, not a traceback, not two messages.

Data read as a person would say them: `user: <red>\\nWhat? | assistant: Red.` is a conversation with
the image of that name in its place.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_media import clip, encode

import shardmill as sm
from shardmill.cli.main import main
from shardmill.plugins import STAGES

COLOURS = {
    "red": (200, 20, 20),
    "green": (20, 200, 20),
    "blue": (20, 20, 200),
    "grey": (90, 90, 90),
}
# Verbs that start workers, which take too long to start for a test of a message.
RUNS = STAGES.keys()

SHELL: Mapping[str, Callable[..., object]] = {"cd": os.chdir, "mv": shutil.move, "rm": os.remove}

MESSAGE = re.compile(r"^error: ", re.MULTILINE)
# What is said of a unit, as it fails and in the end.
UNIT = re.compile(r"^ *(?:unit )?\d+(?: failed)?: (.*)$", re.MULTILINE)

Content = bytes | str | list[Any] | dict[str, Any] | Callable[[Path], object]
Check = Callable[[Path, str], None]


@dataclass(frozen=True)
class Case:
    """One mistake: `has` are files to write, `uses` finished folders, `types` the command lines.

    They are joined by `&&`: each but the last must end well, and `then` looks at the last.
    """

    name: str
    types: str
    then: Outcome
    has: Mapping[str, Content] = field(default_factory=dict)
    uses: str = ""


@dataclass(frozen=True)
class Refused:
    """The command fails, its message holds all these words, and `out` is not finished."""

    words: tuple[str, ...]
    out: str = "out"


@dataclass(frozen=True)
class Right:
    """The command ends well and every check of (folder, what was printed) passes."""

    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Either:
    """Refused, or right: both are fair to the user."""

    refused: Refused
    right: Right


Outcome = Refused | Right | Either


def case(
    name: str,
    types: str,
    then: Outcome,
    *,
    has: Mapping[str, Content] | None = None,
    uses: str = "",
) -> Any:
    """Return a row of a table of mistakes."""
    return pytest.param(Case(name, types, then, has or {}, uses), id=name)


def refused(*words: str, out: str = "out") -> Refused:
    return Refused(words, out)


def right(*checks: Check) -> Right:
    return Right(checks)


def either(words: Refused, data: Right) -> Either:
    return Either(words, data)


def holds(folder: str, *said: str) -> Check:
    """Check that a folder of samples says exactly this, in this order."""

    def check(place: Path, printed: str) -> None:
        assert [spoken(sample) for sample in sm.open(place / folder)] == list(said)

    return check


def prints(*words: str) -> Check:
    def check(place: Path, printed: str) -> None:
        for word in words:
            assert word in printed, f"{word!r} is not in what was printed"

    return check


def is_true(test: Callable[[Path], object]) -> Check:
    def check(place: Path, printed: str) -> None:
        assert test(place)

    return check


def try_case(row: Case, place: Path, world: Path) -> None:
    """Type what the case types, in a folder of its own, and see that it ends right."""
    prepare(row.has, row.uses, place, world)
    *before, last = [shlex.split(line) for line in row.types.split(" && ")]
    for words in before:
        code, printed = shardmill(*words)
        assert code == 0, f"{words} ended with {code}: {printed}"
    code, printed = shardmill(*last)
    printed = printed.replace(f"{place}/", "")  # its name is that of the case, which proves nothing
    sys.stdout.write(f"$ shardmill {shlex.join(last)}\n{printed}(exit code {code})\n")
    judge(row.then, code, printed, place)


def judge(then: Outcome, code: int, printed: str, place: Path) -> None:
    assert "Traceback" not in printed, printed
    if isinstance(then, Either):
        then = then.refused if code else then.right
    if isinstance(then, Right):
        assert code == 0, f"ended with {code}: {printed}"
        for check in then.checks:
            check(place, printed)
        return
    assert code != 0, f"ended well: {printed}"
    said = printed.lower()
    assert len(MESSAGE.findall(said)) <= 1, f"more than one message: {printed}"
    causes = [re.sub(r"\d+", "", line) for line in UNIT.findall(printed)]
    assert len(causes) == len(set(causes)), f"one cause is told twice: {printed}"
    missing = [word for word in then.words if not any(one in said for one in either_of(word))]
    assert not missing, f"{missing} not said in: {printed}"
    assert not (place / then.out / "manifest.json").exists(), f"{then.out} looks finished"


def either_of(word: str) -> list[str]:
    """Return the ways to say it: "html or web page" is one of two."""
    return word.lower().split(" or ")


def shardmill(*words: str) -> tuple[int, str]:
    """Run a command in this process; return its exit code and all that it printed.

    `cd`, `mv` and `rm` are those of a shell.
    """
    if words[0] in SHELL:
        SHELL[words[0]](*words[1:])
        return 0, ""
    argv, printed = sys.argv, io.StringIO()
    flags = ["--workers", "0"] if words[:1] and words[0] in RUNS and "--help" not in words else []
    sys.argv = ["shardmill", *words, *([] if "--workers" in words else flags)]
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            main()
    except SystemExit as ended:
        return int(ended.code or 0), printed.getvalue()
    finally:
        sys.argv = argv


def prepare(has: Mapping[str, Content], uses: str, place: Path, world: Path) -> None:
    """Write the files that a user has, and copy the finished folders that they made before."""
    for name in uses.split():
        if (world / name).is_dir():
            shutil.copytree(world / name, place / name)
        else:
            shutil.copy(world / name, place / name)
    for name, content in has.items():
        write(place / name, content)


def write(path: Path, content: Content) -> None:
    """Write rows as the suffix says, images by their names, and other content as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(content):
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    elif path.suffix in (".csv", ".tsv"):
        _write_csv(path, content)
    elif path.suffix == ".parquet":
        _write_parquet(path, content)
    else:
        path.write_text(json.dumps(content))


def _write_csv(path: Path, rows: Any) -> None:
    with path.open("w", newline="") as file:
        names = list(rows[0]) if isinstance(rows[0], dict) else None
        delimiter = "\t" if path.suffix == ".tsv" else ","
        table = csv.writer(file, delimiter=delimiter)
        if names:
            table.writerow(names)
        table.writerows([row.values() if names else row for row in rows])


def _write_parquet(path: Path, rows: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)


@cache
def image(name: str, side: int = 32) -> bytes:
    """Return the png of a colour; a few pixels differ, so that no encoder sees nothing."""
    pixels = np.full((side, side, 3), COLOURS[name], np.uint8)
    pixels[::4, ::4] += 30
    return encode("PNG", pixels)


@cache
def _names() -> dict[bytes, str]:
    return {image(name): name for name in COLOURS}


IMAGES: dict[str, Content] = {f"{name}.png": image(name) for name in COLOURS}


def film(path: Path) -> None:
    """Write a short video."""
    clip(path, codec="libx264")


def spoken(sample: Any) -> str:
    """Return a sample as a line: turns with their roles, and media by name where they stand."""
    said, turn = "", None
    for segment in sample.document.segments:
        if (segment.role, segment.turn) != turn:
            said += " | " if said else ""
            said += f"{segment.role}: " if segment.role else ""
            turn = (segment.role, segment.turn)
        if segment.kind == "text":
            said += segment.text
        else:
            content = bytes(sample.media[segment.media])
            said += f"<{_names().get(content, segment.kind)}>"
    return said


def lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
