"""The counts of a unit: samples in = kept + skipped, or the unit fails."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import ConfigError, Filtered, SampleError, UnitFailed
from shardmill.model.stage import Draft, Tally, Unit, unit_from_plain, unit_to_plain
from shardmill.storage.path import check_name

FATES = st.lists(st.sampled_from(["keep", "broken", "filtered"]), max_size=30)


def live(fates: list[str]) -> tuple[Tally, Draft]:
    tally, draft = Tally(), Draft(Path("draft"))
    for number, fate in enumerate(fates):
        with tally.sample(f"s{number}"):
            if fate == "broken":
                raise SampleError("broken", f"at {number}")
            if fate == "filtered":
                raise Filtered("unwanted")
    draft.file("a", "tar")
    draft.finish("a", num_samples=tally.num_kept)
    return tally, draft


@given(FATES)
def test_every_sample_is_kept_or_skipped_with_its_reason(fates: list[str]) -> None:
    tally, draft = live(fates)
    assert tally.num_in == len(fates) and tally.num_kept == fates.count("keep")
    assert tally.skipped["broken"] == fates.count("broken")
    assert tally.skipped["unwanted"] == fates.count("filtered")
    tally.check(draft, max_skip_rate=1.0)


@given(FATES, st.floats(0, 1))
def test_only_broken_samples_count_against_the_budget(fates: list[str], rate: float) -> None:
    tally, draft = live(fates)
    if fates.count("broken") > math.ceil(rate * len(fates)):
        with pytest.raises(UnitFailed, match="raise --max-skip-rate"):
            tally.check(draft, max_skip_rate=rate)
    else:
        tally.check(draft, max_skip_rate=rate)


@given(FATES, st.sampled_from(["num_in", "num_kept"]), st.integers(-3, 3).filter(bool))
def test_books_that_do_not_balance_fail(fates: list[str], field: str, error: int) -> None:
    tally, draft = live(fates)
    setattr(tally, field, getattr(tally, field) + error)
    with pytest.raises(UnitFailed, match="counts do not balance"):
        tally.check(draft, max_skip_rate=1.0)


def test_a_shard_that_was_begun_must_be_finished() -> None:
    draft = Draft(Path("draft"))
    draft.file("a", "tar")
    with pytest.raises(UnitFailed, match="begun but not finished"):
        Tally().check(draft, max_skip_rate=0.0)


def test_other_errors_are_not_skipped() -> None:
    tally = Tally()
    with pytest.raises(ZeroDivisionError), tally.sample("a"):
        raise ZeroDivisionError
    assert tally.num_in == 1 and tally.num_kept == 0


@given(st.lists(st.integers(-5, 10_000)))
def test_histograms_count_every_value_in_its_bucket(values: list[int]) -> None:
    tally = Tally()
    for value in values:
        tally.observe("length", value)
    buckets = {name: n for name, n in tally.stats.items() if "<=" in name}
    assert sum(buckets.values()) == len(values)
    assert tally.stats["length|sum"] == sum(values)
    for limit in (0, 1, 64, 16384):
        within = sum(n for name, n in buckets.items() if int(name.split("<=")[1]) <= limit)
        assert within == sum(value <= limit for value in values)


def test_a_draft_names_files_by_shard_and_role() -> None:
    draft = Draft(Path("draft"))
    assert draft.file("a", "tar") == draft.file("a", "tar") == Path("draft/a.tar")
    draft.file("a", "idx")
    assert draft.shards["a"].roles == ["tar", "idx"]


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "../a", "a\0", "a\n", "x" * 201])
def test_names_that_are_not_safe_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        check_name(name)
    with pytest.raises(ConfigError):
        Draft(Path("draft")).file(name, "tar")
    with pytest.raises(ConfigError):
        Draft(Path("draft")).file("a", name)
    with pytest.raises(ConfigError):
        unit_from_plain({"name": name, "input": {}})


@pytest.mark.parametrize("name", ["00042", "a b", "größe", "shard-0-1-2", "a.b", "x" * 200])
def test_names_that_are_safe_are_kept(name: str) -> None:
    assert check_name(name) == name


@given(st.text(min_size=1), st.dictionaries(st.text(), st.integers()), st.none() | st.integers())
def test_units_survive_their_plain_form(
    text: str, input: dict[str, int], num_samples: int | None
) -> None:
    unit = Unit(name=f"u{text.encode().hex()[:100]}", input=input, num_samples=num_samples)
    assert unit_from_plain(unit_to_plain(unit)) == unit


@pytest.mark.parametrize("plain", [None, [], {}, {"name": "a"}, {"name": 1, "input": {}}])
def test_what_is_not_a_unit_is_refused(plain: object) -> None:
    with pytest.raises(ConfigError, match="not a unit"):
        unit_from_plain(plain)


def test_the_digest_of_a_unit_is_that_of_its_name_and_input() -> None:
    unit = Unit(name="a", input={"row": 1}, num_samples=3)
    assert unit.digest == Unit(name="a", input={"row": 1}).digest
    assert unit.digest != Unit(name="b", input={"row": 1}).digest
    assert unit.digest != Unit(name="a", input={"row": 2}).digest
