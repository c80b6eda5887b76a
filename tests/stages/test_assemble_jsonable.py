from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.errors import SampleError
from shardmill.stages.assemble import jsonable

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.datetimes()
    | st.decimals()
)
values = st.recursive(
    leaves, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3)
)


@given(st.dictionaries(st.text(), values, max_size=4))
def test_whatever_arrow_gives_can_be_stored(fields: dict[str, object]) -> None:
    stored = jsonable(fields)
    assert orjson.loads(orjson.dumps(stored)) == stored


def test_values_that_json_does_not_know() -> None:
    fields = {
        "when": datetime(2024, 1, 2, 3, 4),
        "day": date(2024, 1, 2),
        "long": timedelta(seconds=90),
        "price": Decimal("1.50"),
        "nan": float("nan"),
        "raw": b"x",
        "big": 1 << 70,
        "inner": {"raw": b"x", "n": 1},
    }
    assert jsonable(fields) == {
        "when": "2024-01-02T03:04:00",
        "day": "2024-01-02",
        "long": 90.0,
        "price": "1.50",
        "nan": None,
        "big": str(1 << 70),
        "inner": {"n": 1},
    }


def test_what_cannot_be_stored_is_a_reject() -> None:
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    with pytest.raises(SampleError, match="nested too deep"):
        jsonable({"a": deep})
    with pytest.raises(SampleError, match="a field holds a object"):
        jsonable({"a": object()})
