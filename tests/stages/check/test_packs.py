from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from video_tars import PATCH, packed_members

from shardmill.errors import SampleError
from shardmill.model.space import TokenSpace
from shardmill.stages.check.findings import Findings, Limits
from shardmill.stages.check.packs import check_pack, fields_of


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
