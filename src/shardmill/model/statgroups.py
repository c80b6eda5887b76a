"""How the statistics of a receipt are read: groups of counts, and histograms of powers of two.

A tally counts under names. "tokens" is a count by itself; "source|web" is the count "web" of the
group "source"; "text chars|<=64" and "text chars|sum" belong to a histogram (see `Tally.observe`).
"""

from __future__ import annotations

from collections.abc import Mapping

# A receipt from elsewhere may name any limit; more digits are no count of anything.
MAX_DIGITS = 18


def group_stats(stats: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the counts by group; those without a group stand under ""."""
    groups: dict[str, dict[str, int]] = {}
    for name, amount in stats.items():
        group, bar, rest = name.partition("|")
        groups.setdefault(group if bar else "", {})[rest if bar else name] = amount
    return groups


def power_bars(values: Mapping[str, int]) -> list[tuple[int, int]]:
    """{"<=64": 3, "<=256": 1, "sum": 400} -> [(64, 3), (128, 0), (256, 1)]; [] if there is none."""
    limits = {name[2:]: n for name, n in values.items() if name.startswith("<=")}
    counts = {
        int(limit): n
        for limit, n in limits.items()
        if limit.isascii() and limit.isdigit() and len(limit) <= MAX_DIGITS
    }
    bars = [min(counts)] if counts else []
    while bars and bars[-1] < max(counts):
        bars.append(max(1, bars[-1] * 2))
    return [(limit, counts.get(limit, 0)) for limit in bars]
