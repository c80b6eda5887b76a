"""Numbers and places as people read them: 12,345 samples, 1.4 GB, 2 min 05 s, 96.3 %."""

from __future__ import annotations

import re
from pathlib import Path


def count(number: float) -> str:
    """12345 -> '12,345'."""
    return f"{number:,.0f}"


def plural(number: int, word: str) -> str:
    """(1, 'sample') -> '1 sample'; (12345, 'sample') -> '12,345 samples'."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def size(num_bytes: float) -> str:
    """1400000000 -> '1.4 GB', decimal units."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(num_bytes) < 1000 or unit == "TB":
            break
        num_bytes /= 1000
    return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"


def duration(seconds: float) -> str:
    """0.25 -> '0.2 s'; 125 -> '2 min 05 s'; 7500 -> '2 h 05 min'."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 2 * 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def percent(share: float) -> str:
    """0.9634 -> '96.3 %'."""
    return f"{100 * share:.1f} %"


def place(path: Path) -> str:
    """Return a path as one would type it: relative to the current folder if it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path != here and path.is_relative_to(here) else str(path)


def typed(text: str) -> str:
    """Return a text with the paths in it as one would type them."""
    try:
        here = re.escape(f"{Path.cwd()}".rstrip("/"))
    except FileNotFoundError:  # somebody removed it
        return text
    return re.sub(rf"(?<![^\s'\"(=:,]){here}/(?=[^\s/])", "", text)
