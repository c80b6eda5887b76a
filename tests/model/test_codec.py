"""Specs survive the way through JSON, every difference shows in the digest, mistakes are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs_for_tests import Inner, Outer, Twin

from shardmill.errors import ConfigError
from shardmill.model.codec import (
    build,
    differences,
    digest,
    from_plain,
    load_class,
    stored_kind,
    to_plain,
)
from shardmill.model.space import TokenSpace
from shardmill.plugins import TABLES, TEMPLATES, resolve_stored
from shardmill.tokens.templates.documents import Turns
from shardmill.tokens.templates.pairs import MixedPairs

TEXTS = st.text(max_size=8)
INNERS = st.builds(Inner, size=st.integers(), name=TEXTS)
OUTERS = st.builds(
    Outer,
    inner=INNERS,
    many=st.lists(INNERS, max_size=3).map(tuple),
    pair=st.tuples(st.integers(), TEXTS),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    mode=st.sampled_from(["fast", "slow"]),
    path=st.none() | TEXTS.map(Path),
    table=st.dictionaries(TEXTS, st.integers(), max_size=3),
    either=st.integers() | TEXTS,
)


@given(OUTERS)
def test_plain_json_and_back(spec: Outer) -> None:
    plain = json.loads(json.dumps(to_plain(spec)))
    assert from_plain(plain, trusted=True) == spec
    assert digest(from_plain(plain, trusted=True)) == digest(spec)


@given(OUTERS, OUTERS)
def test_equal_digests_mean_equal_specs(one: Outer, other: Outer) -> None:
    assert (digest(one) == digest(other)) == (to_plain(one) == to_plain(other))
    assert bool(differences(to_plain(one), to_plain(other))) == (to_plain(one) != to_plain(other))


def test_the_class_is_part_of_the_digest_at_every_level() -> None:
    assert digest(Inner(size=1)) != digest(Twin(size=1))
    assert digest(Outer(inner=Inner(size=1))) != digest(Outer(inner=Twin(size=1)))  # type: ignore[arg-type]


def test_differences_name_the_field() -> None:
    old, new = Outer(inner=Inner(size=1)), Outer(inner=Inner(size=2), rate=0.5)
    assert differences(to_plain(old), to_plain(new)) == ["inner.size: 1 -> 2", "rate: 0.0 -> 0.5"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"inner": {"size": "many"}}, "spec.inner.size must be int, got 'many'"),
        ({"inner": {"size": True}}, "spec.inner.size must be int, got True"),
        ({"inner": {}}, "spec.inner needs size"),
        ({"inner": {"size": 1, "colour": 1}}, "spec.inner has no field 'colour'"),
        ({"mode": "quick"}, "spec.mode must be one of fast, slow, got 'quick'"),
        ({"pair": [1]}, "spec.pair must have 2 values, got 1"),
        ({"pair": 5}, "spec.pair must be list, got 5"),
        ({"many": [{"size": 1}, {"size": None}]}, r"spec.many\[1\].size must be int"),
        ({"table": {"a": "b"}}, "spec.table.a must be int, got 'b'"),
        ({"inner": {"kind": "os:environ", "size": 1}}, "'os:environ' is not a class"),
        ({"inner": {"kind": "os:PathLike"}}, "is not a dataclass"),
        ({"inner": {"kind": "specs_for_tests:Twin", "size": 1}}, "must be a Inner"),
        ({"inner": {"kind": "no.such:Thing"}}, "cannot load 'no.such:Thing'"),
        ({"inner": {"kind": "nonsense"}}, "not of the form"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], says: str) -> None:
    plain = {"kind": "specs_for_tests:Outer", "inner": {"size": 1}} | changes
    with pytest.raises(ConfigError, match=says):
        from_plain(plain, trusted=True)


def test_an_int_does_for_a_float_and_defaults_are_filled_in() -> None:
    plain = {"kind": "specs_for_tests:Outer", "inner": {"size": 1}, "rate": 2}
    spec = from_plain(plain, trusted=True)
    assert spec == Outer(inner=Inner(size=1), rate=2.0) and isinstance(spec.rate, float)


@pytest.mark.parametrize("value", [{1: "a"}, {1, 2}, b"bytes", float("nan"), float("inf"), object])
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="cannot store"):
        to_plain({"value": value})


def test_plugins_are_stored_by_the_name_of_their_table() -> None:
    template = Turns()
    plain = to_plain(template)
    assert isinstance(plain, dict) and plain["kind"] == "template/turns"
    assert from_plain(plain) == template
    assert build(TEMPLATES, {"kind": "turns"}) == template


def test_every_name_of_every_table_is_a_class_that_is_stored_under_a_name() -> None:
    for table, entries in TABLES.items():
        for name, path in entries.items():
            cls = load_class(path.partition(",")[0])
            kind = stored_kind(cls)
            assert kind is not None and resolve_stored(kind) == path.partition(",")[0], (
                table,
                name,
            )


def test_a_preset_is_a_class_with_some_of_its_fields() -> None:
    drawn = build(TEMPLATES, {"kind": "t2i", "bos": False})
    assert drawn == MixedPairs(t2i_ratio=1.0, bos=False)
    plain = to_plain(drawn)
    assert isinstance(plain, dict) and plain["kind"] == "template/mixed"
    assert from_plain(plain) == drawn
    assert build(TEMPLATES, {"kind": "t2i", "t2i_ratio": 0.5}) == MixedPairs()


def test_a_class_of_ours_that_is_no_plugin_is_known_by_its_field() -> None:
    space = TokenSpace(text_size=100)
    assert "kind" not in to_plain(space)  # type: ignore[operator]
    assert from_plain(to_plain(space), TokenSpace) == space
