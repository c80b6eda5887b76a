"""What a driver says of a queue; the waiting itself is tested on a real SLURM."""

from __future__ import annotations

from collections import Counter

import pytest

from shardmill.run.slurm.engine import describe
from shardmill.run.slurm.queue import QueueState


@pytest.mark.parametrize(
    ("states", "reasons", "says"),
    [
        ({"RUNNING": 1, "PENDING": 3}, {"Resources": 3}, ""),
        ({"PENDING": 3}, {"None": 3}, ""),
        ({"PENDING": 3}, {"None": 1, "Resources": 2}, "SLURM lets 3 tasks wait: Resources"),
        ({"COMPLETING": 1}, {}, ""),
    ],
)
def test_only_a_queue_that_stands_still_is_worth_a_word(
    states: dict[str, int], reasons: dict[str, int], says: str
) -> None:
    assert describe(QueueState(Counter(states), Counter(reasons))) == says
