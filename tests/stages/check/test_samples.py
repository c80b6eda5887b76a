from __future__ import annotations

import json
from typing import Any

import pytest
from make_media import image

from shardmill.stages.check.findings import Findings
from shardmill.stages.check.samples import check_sample

JPEG = memoryview(image())


def check(plain: Any, *, pairs: bool = True, **members: Any) -> Findings:
    raw = {name.replace("_", "."): memoryview(content) for name, content in members.items()}
    if plain is not None:
        raw = {"json": memoryview(json.dumps(plain).encode()), **raw}
    findings = Findings()
    check_sample("k", plain, raw, pairs=pairs, findings=findings)
    return findings


PAIR = {"segments": [{"image": "jpg"}, {"text": "A cat."}]}


def test_a_pair_is_counted() -> None:
    assert check(PAIR, jpg=JPEG).counts == {"samples": 1, "images": 1, "pairs": 1}


@pytest.mark.parametrize(
    "plain",
    [
        {"caption": "A cat.", "video_id": "1"},
        {"conversations": [{"from": "human", "value": "<image>"}]},
        {"prompt": ["<image>"], "txt": ["A cat."]},
    ],
)
def test_samples_of_others_are_looked_at_by_their_fields(plain: dict[str, Any]) -> None:
    findings = check(plain, jpg=JPEG)
    assert findings.faults == [] and findings.counts["pairs"] == 1


def test_jpg_and_txt_are_a_pair() -> None:
    assert check(None, jpg=JPEG, txt=b"A cat.").counts["pairs"] == 1


@pytest.mark.parametrize(
    ("plain", "members", "says"),
    [
        (PAIR, {}, "missing media"),
        (PAIR, {"jpg": b""}, "empty file"),
        (PAIR, {"jpg": b"a text"}, "not an image"),
        ({"segments": [{"smell": "x"}]}, {}, "not a document"),
        ({"segments": [{"image": "jpg"}]}, {"jpg": JPEG}, "no text"),
        ({"segments": [{"image": "jpg"}, {"text": " "}]}, {"jpg": JPEG}, "no text"),
        ({"segments": [{"text": "x"}]}, {}, "no medium"),
        ({"image_name_list": ["0"]}, {"jpg": JPEG}, "no text"),
        (None, {"txt": b"x"}, "no medium"),
        ({"caption": "x"}, {"jpg": b"a text"}, "not an image"),
    ],
)
def test_what_is_no_pair_is_named(plain: Any, members: dict[str, Any], says: str) -> None:
    (fault,) = check(plain, **members).faults
    assert says in fault.what


def test_without_pairs_only_what_is_broken_is_a_fault() -> None:
    words = check({"segments": [{"text": "x"}]}, pairs=False)
    assert words.faults == [] and words.counts == {"samples": 1, "pairs": 0}
    assert check({"segments": [{"image": "jpg"}]}, pairs=False, jpg=JPEG).faults == []


def test_codes_that_stand_for_an_image_need_no_header() -> None:
    plain = {"segments": [{"image": "codes_npy"}, {"text": "x"}]}
    findings = Findings()
    raw = {"codes_npy": memoryview(b"\x93NUMPY")}
    check_sample("k", plain, raw, pairs=True, findings=findings)
    assert findings.faults == []
