from __future__ import annotations

import json

import pytest

from shardmill.errors import SampleError
from shardmill.sources.tars import row_fields


def members(**given: bytes | dict) -> dict[str, memoryview]:
    return {
        name.replace("_", "."): memoryview(
            json.dumps(content).encode() if isinstance(content, dict) else content
        )
        for name, content in given.items()
    }


def test_a_caption_pair() -> None:
    fields, media = row_fields("x/1", members(jpg=b"J", txt=b"a cat\n", json={"url": "u", "w": 3}))
    assert fields == {"image": "jpg", "text": "a cat", "url": "u", "w": 3}
    assert media["jpg"] == media["1.jpg"] == media["x/1.jpg"] == b"J"


def test_several_media_are_a_list_in_the_order_of_their_numbers() -> None:
    given = {f"{n}.jpg": memoryview(bytes([n])) for n in (0, 1, 10, 11, 2)}
    fields, media = row_fields("k", given)
    assert fields == {"images": ["0.jpg", "1.jpg", "2.jpg", "10.jpg", "11.jpg"]}
    assert media["k-10.jpg"] == bytes([10])


def test_a_json_may_name_the_members() -> None:
    for name in ("000-0.mp4", "0.mp4", "a/000-0.mp4", "000-0"):
        fields, media = row_fields("a/000", members(**{"json": {"videos": [name]}, "0_mp4": b"V"}))
        assert fields == {"videos": [name]}
        assert media[name] == b"V"


def test_members_stand_in_for_files_that_a_json_names() -> None:
    row = {"image": "coco/1.jpg", "conversations": []}
    assert row_fields("k", members(json=row, jpg=b"J"))[0] == {"image": "jpg", "conversations": []}
    assert row_fields("k", members(json=row))[0] == row


def test_own_documents_are_left_alone() -> None:
    row = {"segments": [{"image": "0.jpg"}, {"image": "1.jpg"}]}
    fields, _ = row_fields("k", members(**{"json": row, "0_jpg": b"a", "1_jpg": b"b"}))
    assert fields == row


def test_other_members() -> None:
    given = members(cls=b"17\n", html=b"<p>", npy=b"\x93NUMPY", index=b"x", txt=b"")
    assert row_fields("k", given)[0] == {
        "cls": 17,
        "html": "<p>",
        "index": "x",
        "other_members": ["npy"],
        "text": "",
    }


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (members(txt=b"\xff"), "not UTF-8"),
        (members(json=b""), "not JSON"),
        (members(json=b"[]"), "row is not an object"),
    ],
)
def test_bad_members_are_rejects(given: dict[str, memoryview], reason: str) -> None:
    with pytest.raises(SampleError) as error:
        row_fields("k", given)
    assert error.value.reason == reason
