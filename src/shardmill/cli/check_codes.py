"""What `check` says of codes besides their bytes: the use of the codebook, and bad pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardmill.cli import console
from shardmill.stages.codereport import codebook_use, outliers, reconstruct, spread_keys


def report_codes(folder: Path, num_decoded: int) -> dict[str, Any]:
    """Return the use of the codebook and, of pictures decoded again, those that come out badly."""
    use = codebook_use(folder)
    report: dict[str, Any] = {
        "codes": len(use.counts),
        "dead_codes": use.num_dead,
        "perplexity": round(use.perplexity, 1),
    }
    if num_decoded:
        pictures = list(reconstruct(folder, spread_keys(folder, num_decoded)))
        report["decoded"] = len(pictures)
        report["psnr"] = round(sum(p.psnr for p in pictures) / max(1, len(pictures)), 2)
        report["outliers"] = {f"{p.key} {p.medium}": round(p.psnr, 2) for p in outliers(pictures)}
    return report


def print_codes(report: dict[str, Any]) -> None:
    """Print the report of `report_codes`."""
    used = report["codes"] - report["dead_codes"]
    rows = [
        (
            "codebook",
            f"{used:,} of {report['codes']:,} codes occur, {report['dead_codes']:,} never",
        ),
        ("perplexity", f"{report['perplexity']:,}"),
    ]
    if "decoded" in report:
        rows.append(("decoded", f"{report['decoded']:,} pictures, {report['psnr']} dB on average"))
        rows += [("outlier", f"{name}: {value} dB") for name, value in report["outliers"].items()]
    console.facts(rows)
