from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from make_media import image
from video_tars import PATCH, packed_members

from shardmill.errors import SampleError
from shardmill.model.space import TokenSpace
from shardmill.stages.check.content import check_pack, check_sample, fields_of
from shardmill.stages.check.tokens import Findings, Limits


def pack(num_images: int = 2) -> tuple[dict[str, Any], dict[str, memoryview]]:
    members = packed_members("0-0", 0, num_images)
    raw = {name.partition("-0-")[2] or name: content for name, content in members}
    exts = {name.rpartition("0-0-")[2]: memoryview(raw[name]) for name in raw if ".jpg" in name}
    return json.loads(members[0][1]), exts


def check(plain: dict[str, Any], members: dict[str, memoryview], **limits: Any) -> Findings:
    findings = Findings()
    check_pack("0-0", plain, members, Limits(**limits), findings)
    return findings


def test_packs_of_other_pipelines_are_understood() -> None:
    plain, members = pack()
    findings = check(plain, members, num_patches=256, max_tokens=8000)
    assert findings.faults == []
    assert findings.counts == {
        "packs": 1,
        "tokens": len(plain["input_ids"]),
        "loss tokens": 2,
        "visual tokens": 512,
        "media": 2,
        "images": 2,
    }


def test_a_pack_without_images_beside_it_is_fine() -> None:
    plain, _ = pack(0)
    assert check(plain, {}).faults == []


DAMAGE: dict[str, tuple[Callable[[dict[str, Any], dict[str, memoryview]], Any], str]] = {
    "short mask": (lambda plain, _: plain["loss_mask"].pop(), "differ in length"),
    "bad mask": (lambda plain, _: plain["loss_mask"].__setitem__(0, 5), "out of range"),
    "no ids": (lambda plain, _: plain.update(input_ids="x"), "not a packed sample"),
    "strange id": (lambda plain, _: plain["input_ids"].append(99999), "out of range"),
    "lost opening": (lambda plain, _: plain["input_ids"].__setitem__(1, 7), "do not match"),
    "image too many": (lambda plain, _: plain["image"].append("7"), "do not match"),
    "lost image": (lambda _, members: members.pop("1.jpg"), "images do not match"),
    "not an image": (
        lambda _, members: members.update({"1.jpg": memoryview(b"text")}),
        "not an image",
    ),
    "bad lengths": (lambda plain, _: plain.update(lengths=[3], keys=["a"]), "do not match"),
    "bad media": (lambda plain, _: plain.update(media=[{}]), "its media"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(name: str) -> None:
    damage, says = DAMAGE[name]
    plain, members = pack()
    damage(plain, members)
    faults = check(plain, members).faults
    assert len(faults) == 1 and faults[0].key == "0-0" and says in faults[0].what


def test_a_cut_image_is_found_by_its_number_of_tokens() -> None:
    plain, members = pack()
    at = plain["input_ids"].index(PATCH)
    del plain["input_ids"][at], plain["loss_mask"][at]
    assert check(plain, members).faults == []  # 255 placeholders may be meant
    faults = check(plain, members, num_patches=256).faults
    assert "255 tokens at 2, not 256" in faults[0].what


def test_limits() -> None:
    plain, members = pack()
    assert "too long" in check(plain, members, max_tokens=100).faults[0].what
    other = TokenSpace(text_size=50000)
    assert "2 images" in check(plain, members, space=other).faults[0].what


def test_arrays_beside_the_json_are_its_fields() -> None:
    ids = io.BytesIO()
    np.save(ids, np.arange(3, dtype="<u2"))
    members = {"json": memoryview(b'{"lengths": [3]}'), "input_ids.npy": memoryview(ids.getvalue())}
    found = fields_of(members)
    assert found is not None and found["input_ids"].tolist() == [0, 1, 2]
    assert fields_of({"txt": memoryview(b"x")}) is None
    assert fields_of({"json": memoryview(b"[1]")}) is None


def test_objects_are_never_unpickled() -> None:
    evil = io.BytesIO()
    np.save(evil, np.array([object()]), allow_pickle=True)
    members = {"json": memoryview(b"{}"), "input_ids.npy": memoryview(evil.getvalue())}
    with pytest.raises(SampleError, match="not an array"):
        fields_of(members)
    with pytest.raises(SampleError, match="not JSON"):
        fields_of({"json": memoryview(b"{")})


JPEG = memoryview(image())


def check_samples(plain: Any, *, pairs: bool = True, **members: Any) -> Findings:
    raw = {name.replace("_", "."): memoryview(content) for name, content in members.items()}
    if plain is not None:
        raw = {"json": memoryview(json.dumps(plain).encode()), **raw}
    findings = Findings()
    check_sample("k", plain, raw, pairs=pairs, findings=findings)
    return findings


PAIR = {"segments": [{"image": "jpg"}, {"text": "A cat."}]}


def test_a_pair_is_counted() -> None:
    assert check_samples(PAIR, jpg=JPEG).counts == {"samples": 1, "images": 1, "pairs": 1}


@pytest.mark.parametrize(
    "plain",
    [
        {"caption": "A cat.", "video_id": "1"},
        {"conversations": [{"from": "human", "value": "<image>"}]},
        {"prompt": ["<image>"], "txt": ["A cat."]},
    ],
)
def test_samples_of_others_are_looked_at_by_their_fields(plain: dict[str, Any]) -> None:
    findings = check_samples(plain, jpg=JPEG)
    assert findings.faults == [] and findings.counts["pairs"] == 1


def test_jpg_and_txt_are_a_pair() -> None:
    assert check_samples(None, jpg=JPEG, txt=b"A cat.").counts["pairs"] == 1


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
    (fault,) = check_samples(plain, **members).faults
    assert says in fault.what


def test_without_pairs_only_what_is_broken_is_a_fault() -> None:
    words = check_samples({"segments": [{"text": "x"}]}, pairs=False)
    assert words.faults == [] and words.counts == {"samples": 1, "pairs": 0}
    assert check_samples({"segments": [{"image": "jpg"}]}, pairs=False, jpg=JPEG).faults == []


def test_codes_that_stand_for_an_image_need_no_header() -> None:
    plain = {"segments": [{"image": "codes_npy"}, {"text": "x"}]}
    findings = Findings()
    raw = {"codes_npy": memoryview(b"\x93NUMPY")}
    check_sample("k", plain, raw, pairs=True, findings=findings)
    assert findings.faults == []
