"""The skip budget of a whole folder, looked at when every unit is done and before the manifest.

The budget of a unit stops a run early, but it is rounded up to a whole sample: units of one sample
could lose all of them. So the sum over all receipts must keep the same rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from shardmill.errors import TooManySkips
from shardmill.model.manifest import Receipt
from shardmill.model.stage import listed, skip_budget


def check_skips(out_dir: Path, receipts: Sequence[Receipt], max_skip_rate: float) -> None:
    """Raise `TooManySkips` if more samples are broken than the rate allows for all of them."""
    num_in = sum(receipt.num_in for receipt in receipts)
    broken: Counter[str] = Counter()
    for receipt in receipts:
        broken.update(receipt.broken)
    if broken.total() > skip_budget(num_in, max_skip_rate):
        raise TooManySkips(
            f"{out_dir} is not completed: of its {num_in} samples {broken.total()} are broken, "
            f"more than the allowed rate {max_skip_rate:g}: {listed(broken)}. "
            f"They are listed in {out_dir}/rejects. Mend what they need and try them again (ingest "
            "has --retry-rejects REASON for it), or raise --max-skip-rate: what is done stays done"
        )
