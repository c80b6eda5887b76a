from __future__ import annotations

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from shardmill.sources.tables.records import Record, cut, place, too_long


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=30), st.integers(1, 8))
def test_slices_cover_all_records_and_only_the_last_is_short(
    raws: list[bytes], per_slice: int
) -> None:
    records, offset = [], 0
    for number, raw in enumerate(raws):
        records.append(Record(number, offset, len(raw), raw))
        offset += len(raw)
    slices = list(cut(records, per_slice))
    assert sum(piece.num_rows for piece in slices) == len(raws)
    assert all(piece.num_rows == per_slice for piece in slices[:-1])
    whole = b"".join(raws)
    for piece in slices:
        content = whole[piece.offset : piece.end]
        assert piece.checksum.hexdigest() == xxhash.xxh3_64_hexdigest(content)


def test_a_record_says_where_it_is() -> None:
    record = too_long(Record(2, 70, 500), 100)
    assert place(record) == "row 3 at byte 70"
    assert str(record.problem) == "row too long: row 3 at byte 70: 500 bytes, the limit is 100"
