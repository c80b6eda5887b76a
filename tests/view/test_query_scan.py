from __future__ import annotations

from shardmill.view.query import Budget


def test_a_budget_ends() -> None:
    assert Budget(0.0).is_spent
    assert not Budget(3600.0).is_spent
