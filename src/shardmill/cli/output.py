"""What a report looks like: marks for good and bad, aligned facts, tables, bars; JSON for machines.

Statistics are counts by name: groups of them are tables, histograms of powers of two are bars.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import orjson

from shardmill import humanize
from shardmill.errors import mask
from shardmill.model.manifest import group_stats, power_bars

# All but tab, line feed and the sequences that set a colour; 80 to 9f are controls of eight bits.
# The others end lines, or make text run the other way, so that it reads as something else.
CONTROL = re.compile(
    r"(?!\x1b\[[0-9;]*m)[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
GOOD, BAD, HINT = "green", "red", "cyan"


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print what may hold texts of others: of control characters only our colours pass.

    A terminal obeys others: they move the cursor, rename the window, or hide what was printed.
    """
    # Written as JSON writes them, whose lines pass here as well.
    click.echo(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", str(text)), err=err, nl=nl)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    echo(orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode())


def to_plain(found: Any) -> dict[str, Any]:
    """Return a report as `--json` prints it; the place that it is about is `path` in all verbs."""
    plain = asdict(found)
    place = {"path": str(Path(plain.pop("out_dir")).absolute())} if "out_dir" in plain else {}
    return place | plain


def error_to_plain(error: BaseException, message: str = "") -> dict[str, Any]:
    """Return an error as `--json` prints it; what is not known of it is null."""
    path = getattr(error, "path", None) or getattr(error, "filename", None)
    return {
        "kind": type(error).__name__,
        "message": mask(message or str(error)),
        "hint": getattr(error, "hint", "") or None,
        "path": None if path is None else str(path),
        "member": getattr(error, "member", None),
        "offset": getattr(error, "offset", None),
    }


def say(mark: str, text: str, *, colour: str = GOOD) -> None:
    """Print a line that begins with a mark: `✓ 32 samples kept`."""
    echo(f"{click.style(mark, fg=colour, bold=True)} {text}")


def hint(text: str) -> None:
    """Print what the reader may want to do next."""
    echo(f"  {click.style(text, fg=HINT)}")


def heading(text: str) -> None:
    """Print a heading with a blank line above."""
    echo(f"\n{click.style(text, bold=True)}")


def facts(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        echo(f"  {click.style(name.ljust(width), dim=True)}  {value}")


def listed(lines: Iterable[str], most: int) -> None:
    """Print the first lines of a list, and how many more there are."""
    lines = list(lines)
    for line in lines[:most]:
        echo(f"  {line}")
    if len(lines) > most:
        echo(f"  and {len(lines) - most:,} more")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; columns whose cells all begin with a digit are aligned right."""
    rows = [list(row) for row in rows]
    columns = list(zip(header, *rows))
    widths = [max(map(len, column)) for column in columns]
    # By the first character, since cells such as "12 %" or "3.1 GB" are numbers to a reader.
    right = [all(c[:1].isdigit() or c in ("", "-") for c in column[1:]) for column in columns]
    for number, row in enumerate([header, *rows]):
        cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right)]
        line = "  ".join(cells).rstrip()
        echo(f"  {click.style(line, dim=True) if number == 0 else line}")


def bar(share: float, width: int = 24) -> str:
    """0.5 -> '████████████', in eighths of a cell."""
    # 0.3 of 24 cells are 57.6 eighths: 7 whole cells and 2 eighths, which are one character.
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


MAX_ROWS = 12
# Groups that count samples: their shares are of all samples, those of others of the group.
OF_SAMPLES = ("samples", "source", "missing", "columns")


def print_statistics(stats: Mapping[str, int], num_samples: int) -> None:
    """Print "tokens" as a fact, "source|web" in a table "source", "text chars|<=64" as bars."""
    groups = group_stats(stats)
    facts((name, humanize.count(n)) for name, n in groups.pop("", {}).items())
    for group, values in groups.items():
        if "sum" in values and power_bars(values):
            _print_histogram(group, values)
        else:
            _print_counts(group, values, num_samples if group in OF_SAMPLES else None)


def _print_counts(group: str, values: Mapping[str, int], num_samples: int | None) -> None:
    heading(group)
    whole = sum(values.values()) if num_samples is None else num_samples
    rows = sorted(values.items(), key=lambda item: -item[1])
    table(
        ("", "count", "share"),
        [
            (name, humanize.count(n), humanize.percent(n / whole) if whole else "-")
            for name, n in rows[:MAX_ROWS]
        ],
    )
    if len(rows) > MAX_ROWS:
        echo(f"  and {len(rows) - MAX_ROWS} more")


def _print_histogram(group: str, values: Mapping[str, int]) -> None:
    rows = power_bars(values)
    total = sum(n for _, n in rows)
    heading(f"{group}: {humanize.count(values['sum'] / max(total, 1))} on average")
    most = max(n for _, n in rows)
    width = len(humanize.count(rows[-1][0]))
    for limit, n in rows:
        size = humanize.count(limit).rjust(width)
        echo(f"  up to {size}  {bar(n / most)} {humanize.count(n)}")
