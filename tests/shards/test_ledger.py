"""The ledger: what counts as done, what is kept of a store, and what readers are told."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest
from faulty_proxy import faulty_proxy

from shardmill.errors import FormatError, ShardmillError
from shardmill.model.manifest import StageRecord, build_manifest
from shardmill.model.stage import Draft, Reject, Tally, Unit
from shardmill.shards.commit import commit, seal
from shardmill.shards.ledger import (
    Ledger,
    earlier_files,
    open_manifest,
    read_receipt_files,
    read_rejects,
    set_aside,
)
from shardmill.storage import objects
from shardmill.storage.cache import scratch_root
from shardmill.storage.path import as_path

RECORD = StageRecord(
    stage={"kind": "some:Stage", "size": 3},
    version=1,
    digest="digest",
    content="samples",
    reads={"raw": ("/raw/a.jsonl",)},
)
UNITS = [Unit(name=f"{i}", input={"row": i}, num_samples=1) for i in range(3)]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "out", "run")
    ledger.make_folders()
    ledger.draft_dir.mkdir()
    ledger.write_plan(RECORD, {"input": [1, 2]}, UNITS)
    return ledger


def finish(ledger: Ledger, unit: Unit, content: bytes = b"content") -> None:
    draft, tally = Draft(ledger.draft_dir), Tally()
    draft.file(unit.name, "txt").write_bytes(content)
    draft.finish(unit.name, num_samples=1)
    with tally.sample("key"):
        pass
    commit(ledger, [seal(ledger, unit, RECORD.digest, draft, tally)], RECORD.digest)


def test_a_plan_reads_back(ledger: Ledger) -> None:
    assert ledger.read_stage() == RECORD
    assert ledger.read_units() == UNITS
    assert ledger.read_inputs() == {"input": [1, 2]}


def test_a_plan_without_stage_json_does_not_count(ledger: Ledger) -> None:
    (ledger.out_dir / "stage.json").unlink()
    assert ledger.read_stage() is None


def test_done_is_what_has_a_receipt(ledger: Ledger) -> None:
    assert ledger.pending(UNITS, RECORD.digest) == UNITS
    finish(ledger, UNITS[1])
    assert ledger.pending(UNITS, RECORD.digest) == [UNITS[0], UNITS[2]]
    assert ledger.pending(UNITS, "another stage") == UNITS


def test_a_receipt_for_another_input_does_not_count(ledger: Ledger) -> None:
    finish(ledger, UNITS[1])
    changed = Unit(name="1", input={"row": 99})
    assert ledger.pending([changed], RECORD.digest) == [changed]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\0" * 100, b'{"unit": "1"}'])
def test_a_broken_receipt_does_not_count(ledger: Ledger, content: bytes) -> None:
    finish(ledger, UNITS[1])
    ledger.receipt_path("1").write_bytes(content)
    assert ledger.pending(UNITS, RECORD.digest) == UNITS
    with pytest.raises(FormatError, match=r"receipts/1\.json"):
        ledger.read_receipt("1")
    finish(ledger, UNITS[1])
    assert ledger.pending(UNITS, RECORD.digest) == [UNITS[0], UNITS[2]]


@pytest.mark.parametrize("content", [b"", b"content and more", None])
def test_a_receipt_whose_files_are_not_there_does_not_count(
    ledger: Ledger, content: bytes | None
) -> None:
    finish(ledger, UNITS[1])
    path = ledger.out_dir / "shards" / "1.txt"
    path.unlink() if content is None else path.write_bytes(content)
    assert ledger.pending(UNITS, RECORD.digest) == UNITS


def test_a_receipt_under_another_name_does_not_count(ledger: Ledger) -> None:
    finish(ledger, UNITS[1])
    os.rename(ledger.receipt_path("1"), ledger.receipt_path("2"))
    assert ledger.pending(UNITS, RECORD.digest) == UNITS


def test_forgotten_units_are_pending_and_the_folder_is_not_complete(ledger: Ledger) -> None:
    for unit in UNITS:
        finish(ledger, unit)
    receipts = [ledger.valid_receipt(unit, RECORD.digest) for unit in UNITS]
    found = [receipt for receipt in receipts if receipt]
    ledger.write_manifest(build_manifest(RECORD, UNITS, found))
    assert open_manifest(ledger.out_dir).num_samples == 3
    ledger.forget(["1"])
    assert ledger.pending(UNITS, RECORD.digest) == [UNITS[1]]
    with pytest.raises(ShardmillError, match=r"1 of 3 units are missing.*again"):
        open_manifest(ledger.out_dir)


def test_a_folder_that_is_no_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShardmillError, match="has no manifest"):
        open_manifest(tmp_path)
    with pytest.raises(ShardmillError, match="does not exist"):
        open_manifest(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["manifest.json", "stage.json", "units.jsonl"])
@pytest.mark.parametrize("content", [b"{", b"[1]\n", b"\xff"])
def test_broken_files_are_named(ledger: Ledger, name: str, content: bytes) -> None:
    (ledger.out_dir / name).write_bytes(content)
    with pytest.raises(FormatError, match=name):
        open_manifest(ledger.out_dir)


def test_failures_stay_until_the_unit_is_done(ledger: Ledger) -> None:
    ledger.write_failure("1", {"unit": "1", "message": "why"})
    assert [failure["message"] for failure in ledger.read_failures()] == ["why"]
    finish(ledger, UNITS[1])
    assert list(ledger.read_failures()) == []


def test_what_is_written_is_json_with_sorted_keys(ledger: Ledger) -> None:
    finish(ledger, UNITS[1])
    for name in ("stage.json", "inputs.json", "receipts/1.json"):
        text = (ledger.out_dir / name).read_text()
        assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


def test_rejects_are_read_as_they_were_written(tmp_path: Path) -> None:
    rejects = [Reject("a", "not an image", "3 bytes", False), Reject("é", "too long", "", True)]
    path = tmp_path / "000000.jsonl"
    path.write_bytes(b"".join(orjson.dumps(asdict(reject)) + b"\n" for reject in rejects))
    assert list(read_rejects(path)) == rejects
    assert list(read_rejects(tmp_path / "none.jsonl")) == []


@pytest.mark.parametrize("line", ["root:x:0:0\n", "[]\n", '{"key": "a"}\n'])
def test_a_broken_list_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.jsonl").write_text(line)
    with pytest.raises(FormatError, match="not a list of rejects"):
        list(read_rejects(tmp_path / "x.jsonl"))


NAMES = [f"{n:03d}.json" for n in range(80)]


def test_only_what_is_new_is_fetched(
    store_env: str, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = as_path(store_url)
    for name in NAMES[:70]:
        objects.put(f"{store_url}/{name}", name.encode())
    with faulty_proxy(store_env, lambda method, path: None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)

        def fetched() -> list[str]:
            asked = [
                path.rpartition("/")[2] for _, path in proxy.requests if "list-type" not in path
            ]
            proxy.requests.clear()
            return sorted(asked)

        expected = [name.encode() for name in NAMES[:70]]
        assert list(read_receipt_files(folder, NAMES[:70])) == expected
        assert fetched() == NAMES[:70]
        assert list(read_receipt_files(folder, NAMES[:70])) == expected
        assert fetched() == []
        objects.put(f"{store_url}/{NAMES[3]}", b"another")
        objects.put(f"{store_url}/{NAMES[75]}", b"new")
        objects.delete([f"{store_url}/{NAMES[5]}"])
        proxy.requests.clear()
        found = dict(zip(NAMES, read_receipt_files(folder, NAMES)))
    assert found[NAMES[3]] == b"another" and found[NAMES[75]] == b"new"
    assert found[NAMES[5]] is None and found[NAMES[79]] is None
    assert found[NAMES[69]] == NAMES[69].encode()


def test_a_broken_cache_is_no_cache(store_url: str) -> None:
    for name in NAMES:
        objects.put(f"{store_url}/{name}", b"content")
    list(read_receipt_files(as_path(store_url), NAMES))
    (cache,) = (scratch_root() / "cache").iterdir()
    for rubbish in (b"\xff\xfe", b"[1]\n", b'["a", "b", 3]\n', b""):
        cache.write_bytes(rubbish)
        assert list(read_receipt_files(as_path(store_url), NAMES)) == [b"content"] * 80


def test_a_unit_set_aside_is_pending_and_its_files_are_known(ledger: Ledger) -> None:
    unit = UNITS[1]
    finish(ledger, unit, b"first")
    receipt = ledger.valid_receipt(unit, RECORD.digest)
    assert receipt is not None and earlier_files(ledger, unit, RECORD.digest) == ()
    set_aside(ledger, [receipt])
    assert ledger.pending([unit], RECORD.digest) == [unit]
    assert earlier_files(ledger, unit, RECORD.digest) == (
        {"txt": ledger.out_dir / "shards" / "1.txt"},
    )
    assert earlier_files(ledger, unit, "another stage") == ()
    assert earlier_files(ledger, Unit(name="1", input={"row": 7}), RECORD.digest) == ()
    finish(ledger, unit, b"second")
    assert (
        ledger.pending([unit], RECORD.digest) == []
        and earlier_files(ledger, unit, RECORD.digest) == ()
    )
    assert list((ledger.out_dir / "earlier").iterdir()) == []


def test_files_of_another_size_are_not_those_of_the_receipt(ledger: Ledger) -> None:
    unit = UNITS[1]
    finish(ledger, unit, b"first")
    receipt = ledger.valid_receipt(unit, RECORD.digest)
    assert receipt is not None
    set_aside(ledger, [receipt])
    (ledger.out_dir / "shards" / "1.txt").write_text("longer than it was")
    assert earlier_files(ledger, unit, RECORD.digest) == ()
