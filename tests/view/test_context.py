from __future__ import annotations

import pytest

from shardmill.errors import ConfigError
from shardmill.view.context import MAX_KEPT, Desk
from shardmill.view.library import Library


def test_what_was_made_is_kept_and_the_oldest_goes(desk: Desk) -> None:
    fresh, made = Desk(Library(desk.library.shelf.root)), list[int]()

    def make(number: int) -> int:
        made.append(number)
        return number

    for number in (*range(MAX_KEPT), *range(MAX_KEPT), MAX_KEPT, 0):
        assert fresh.keep((number,), lambda number=number: make(number)) == number  # type: ignore[misc]
    assert made == [*range(MAX_KEPT + 1), 0]


def test_packs_are_decoded_by_the_tokenizer_of_their_tokens(desk: Desk) -> None:
    assert desk.decoder("packs").problem == desk.decoder("tokens").problem == ""


def test_only_plans_and_packs_have_packs(desk: Desk) -> None:
    assert desk.plan_of("packs") is not None
    with pytest.raises(ConfigError):
        desk.packs("tokens")
