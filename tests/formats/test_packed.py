"""Packed samples as JSON: what can be believed becomes rows, the rest has a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis.strategies import booleans, integers, lists
from mixed_folder import Mixed

from shardmill.errors import ConfigError, SampleError
from shardmill.formats.packed import (
    open_media,
    packed_documents,
    packed_row,
    parse_packed,
    read_media,
)
from shardmill.formats.rows import Piece, open_input, packed_samples
from shardmill.formats.webdataset import VIDEO_SPACE
from shardmill.model.sample import Origin
from shardmill.model.tokenrow import TokenRow, mask_of

ORIGIN = Origin(source="s", path="p", row=0)
PATCH, START, END = 32000, 32001, 32002


def row_of(**fields: object) -> TokenRow:
    return packed_row("k", fields, VIDEO_SPACE, ORIGIN)


def test_images_are_found_between_their_marks() -> None:
    ids = [1, START, *[PATCH] * 4, END, 7, START, *[PATCH] * 6, END]
    row = row_of(input_ids=ids, loss_mask=[0] * 7 + [1] + [0] * 8, image=["0", "1"])
    assert [(s.name, s.position, s.num_tokens, s.grid) for s in row.media] == [
        ("0.jpg", 2, 4, (1, 2, 2)),
        ("1.jpg", 9, 6, (1, 1, 6)),
    ]
    assert row.loss.tolist() == [[7, 1]]


def test_one_image_has_the_name_that_ingest_gives_it() -> None:
    assert row_of(input_ids=[START, PATCH, END], image=["0"]).media[0].name == "jpg"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input_ids": [1, 2], "loss_mask": [1]}, "ids and mask differ in length"),
        ({"input_ids": [1, 40000]}, "id out of range"),
        ({"input_ids": [-1]}, "id out of range"),
        ({"input_ids": [1], "loss_mask": [2]}, "id out of range"),
        ({"input_ids": ["a"]}, "not a packed sample"),
        ({"input_ids": [[1]]}, "not a packed sample"),
        ({"input_ids": 5}, "not a packed sample"),
        ({"input_ids": [1 << 70]}, "not a packed sample"),
        ({"input_ids": [START, PATCH], "image": ["0"]}, "images and placeholders do not match"),
        ({"input_ids": [START, 5, END], "image": ["0"]}, "images and placeholders do not match"),
        ({"input_ids": [END, START]}, "images and placeholders do not match"),
        ({"input_ids": [1], "image": ["0"]}, "images and placeholders do not match"),
        ({"input_ids": [1], "media": [{"kind": "image"}]}, "not a packed sample"),
        ({"input_ids": [1], "media": 3}, "not a packed sample"),
        (
            {
                "input_ids": [1],
                "media": [{"kind": "image", "position": 0, "num_tokens": 9, "grid": [1, 3, 3]}],
            },
            "not a packed sample",
        ),
    ],
)
def test_what_cannot_be_has_a_reason(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(SampleError) as found:
        row_of(**fields)
    assert found.value.reason == reason


@given(lists(lists(booleans(), min_size=1, max_size=5), max_size=5))
def test_documents_are_cut_where_their_lengths_say(masks: list[list[bool]]) -> None:
    flat = [int(value) for mask in masks for value in mask]
    fields = {
        "input_ids": list(range(len(flat))),
        "loss_mask": flat,
        "lengths": [len(mask) for mask in masks],
        "keys": [f"d{i}" for i in range(len(masks))],
    }
    documents = packed_documents(packed_row("k", fields, VIDEO_SPACE, ORIGIN), fields)
    assert [document.key for document in documents] == fields["keys"]
    assert [mask_of(d.loss, len(d.ids)).tolist() for d in documents] == masks
    joined = np.concatenate([np.empty(0), *(document.ids for document in documents)])
    assert joined.tolist() == fields["input_ids"]


@given(lists(integers(-2, 5), max_size=4))
def test_lengths_that_do_not_add_up_are_refused(lengths: list[int]) -> None:
    fields = {"input_ids": [1, 2, 3], "lengths": lengths, "keys": ["a"] * len(lengths)}
    row = packed_row("k", fields, VIDEO_SPACE, ORIGIN)
    if sum(lengths) == 3 and min(lengths) >= 0:
        assert len(packed_documents(row, fields)) == len(lengths)
    else:
        with pytest.raises(SampleError):
            packed_documents(row, fields)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"text": 1}'])
def test_other_json_is_no_packed_sample(raw: bytes) -> None:
    with pytest.raises(SampleError, match="not a packed sample"):
        parse_packed(raw, "k")


def samples_of(folder: Path) -> dict[str, Any]:
    """Return the fields of each packed sample by its key, as JSON has them."""
    source = open_input(folder)
    slices = tuple(part for unit in source.ranges(None) for part in unit)
    return {
        key: orjson.loads(orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY))
        for key, fields in packed_samples(source, Piece("00000", slices, {}))
    }


def test_rows_are_samples_of_one_document(mixed: Mixed) -> None:
    samples = samples_of(mixed.tokens)
    assert list(samples) == [row.key for row in mixed.rows]
    for row, fields in zip(mixed.rows, samples.values()):
        assert fields == {
            "input_ids": row.ids.tolist(),
            "loss_mask": mask_of(row.loss, len(row.ids)).astype(int).tolist(),
            "keys": [row.key],
            "lengths": [len(row.ids)],
            "media": [
                {
                    "name": span.name,
                    "kind": span.kind,
                    "document": 0,
                    "position": span.position,
                    "num_tokens": span.num_tokens,
                    "grid": list(span.grid),
                    "before": span.before,
                    "after": span.after,
                }
                for span in row.media
            ],
        }


def test_packs_are_numbered_and_count_from_their_own_start(mixed: Mixed) -> None:
    rows, samples = {row.key: row for row in mixed.rows}, samples_of(mixed.packs)
    assert list(samples) == [f"00000-{number:06d}" for number in range(len(samples))]
    assert sorted(key for f in samples.values() for key in f["keys"]) == sorted(rows)
    for fields in samples.values():
        ids, keys = fields["input_ids"], fields["keys"]
        assert ids == [number for key in keys for number in rows[key].ids.tolist()]
        assert sum(fields["lengths"]) == len(ids) == len(fields["loss_mask"])
        assert [m["document"] for m in fields["media"]] == [
            number for number, key in enumerate(keys) for _ in rows[key].media
        ]
        for medium in fields["media"]:
            marker = 5 if medium["kind"] == "image" else 6
            assert ids[medium["position"] - 1] == marker


def test_media_come_from_the_samples(mixed: Mixed) -> None:
    fields = samples_of(mixed.tokens)[mixed.rows[3].key]
    ((ext, content),) = read_media(fields, open_media(mixed.samples))
    assert (ext, bytes(content[4:8])) == ("mp4", b"ftyp")
    with pytest.raises(ConfigError, match="has no medium 'mp4'"):
        read_media(fields, open_media(mixed.pairs))
