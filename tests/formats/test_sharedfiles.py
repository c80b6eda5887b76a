"""Ranges in shared files: killed at every write, the bytes are those of a run without kills."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import xxhash
from drivers import snapshot
from lossy_export import lossy_export
from token_folder import write_token_folder

from shardmill.errors import FormatError
from shardmill.formats.adapters.tensordict import TensorDictFormat
from shardmill.formats.megatron import MegatronFormat
from shardmill.formats.sharedfiles import RangeWriter, read_ranges, read_rest
from shardmill.model.codec import to_plain
from shardmill.model.stage import Draft, Tally, Unit
from shardmill.model.tokenrow import TokenRow
from shardmill.running.runner import run_stage
from shardmill.shards.commit import commit, seal
from shardmill.shards.ledger import Ledger
from shardmill.storage.files import Disk

FORMATS = [MegatronFormat(prefix="train"), TensorDictFormat(length=16, pad_id=0, overlong="drop")]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    rows = [TokenRow(key=f"k{n}", ids=np.arange(1 + n % 19)) for n in range(40)]
    return write_token_folder(tmp_path / "tokens", [rows[i : i + 8] for i in range(0, 40, 8)])


@pytest.mark.parametrize("form", FORMATS, ids=["megatron", "tensordict"])
def test_kills_at_any_write_change_no_byte(
    tokens: Path, tmp_path: Path, form: MegatronFormat
) -> None:
    stage = lossy_export(input_dir=tokens, format=form)
    assert run_stage(stage, tmp_path / "whole", workers=0).complete
    script = Path(__file__).parents[1] / "support" / "die_writing.py"
    words = json.dumps({"stage": to_plain(stage), "out": str(tmp_path / "killed")})
    run = subprocess.run(
        [sys.executable, str(script), words],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert int(run.stdout) >= 3
    assert snapshot(tmp_path / "killed") == snapshot(tmp_path / "whole")


def test_a_lost_shared_file_is_made_again_by_all_units(tokens: Path, tmp_path: Path) -> None:
    stage = lossy_export(input_dir=tokens, format=FORMATS[0])
    assert run_stage(stage, tmp_path / "whole", workers=0).complete
    assert not run_stage(stage, tmp_path / "out", workers=0, part=(1, 2)).complete
    (tmp_path / "out" / "train.bin").unlink()
    report = run_stage(stage, tmp_path / "out", workers=0)
    assert report.complete and report.num_done == 5
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "whole")


class WritingDown(Disk):
    """Remembers what was synced and renamed, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def sync_files(self, paths: Sequence[Path]) -> None:
        self.calls += [("sync", path.name) for path in paths]

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.calls.append(("rename", f"{target.parent.name}/{target.name}"))


def test_the_shared_file_is_synced_before_the_receipt(tmp_path: Path) -> None:
    disk = WritingDown()
    ledger = Ledger(tmp_path, "run", disk)
    ledger.make_folders()
    ledger.draft_dir.mkdir()
    (tmp_path / "all.bin").write_bytes(bytes(8))
    draft, tally = Draft(ledger.draft_dir, shared_dir=tmp_path), Tally(num_in=1, num_kept=1)
    with RangeWriter(draft, "u") as ranges:
        ranges.write("all.bin", 4, np.array([7], "<i4"))
        ranges.finish(tally, num_samples=1)
    unit = Unit(name="u", input={})
    commit(ledger, [seal(ledger, unit, "digest", draft, tally)], "digest")
    synced = disk.calls.index(("sync", "all.bin"))
    assert synced < disk.calls.index(("rename", "receipts/u.json"))
    assert (tmp_path / "all.bin").read_bytes() == bytes(4) + b"\x07\0\0\0"


def test_neighbouring_writes_are_one_range(tmp_path: Path) -> None:
    (tmp_path / "all.bin").write_bytes(bytes(12))
    draft, tally = Draft(tmp_path, shared_dir=tmp_path), Tally()
    with RangeWriter(draft, "u") as ranges:
        ranges.write("all.bin", 0, np.array([1, 2], np.uint8))
        ranges.write("all.bin", 8, np.array([9], np.uint8))
        ranges.write("all.bin", 2, np.array([[3, 4]], np.uint8))
        ranges.write("all.bin", 4, np.empty(0, np.uint8))
        ranges.finish(tally, num_samples=2)
    first, second = read_ranges(tmp_path / "u.ranges")
    assert (first.offset, first.num_bytes) == (0, 4)
    assert first.checksum == xxhash.xxh3_64_hexdigest(bytes([1, 2, 3, 4]))
    assert (second.offset, second.num_bytes) == (8, 1)
    assert tally.stats == {"bytes in place": 5}


def test_a_file_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    writer = RangeWriter(Draft(tmp_path, shared_dir=tmp_path), "u")
    with writer as ranges, pytest.raises(FileNotFoundError):
        ranges.write("all.bin", 0, np.zeros(1))


@pytest.mark.parametrize("content", [{}, [{"file": "x"}], [1], "x"])
def test_a_broken_list_of_ranges_is_an_error(tmp_path: Path, content: object) -> None:
    (tmp_path / "u.ranges").write_text(json.dumps(content))
    if content == {}:
        assert read_ranges(tmp_path / "u.ranges") == []
        return
    with pytest.raises(FormatError, match="not a list of ranges"):
        read_ranges(tmp_path / "u.ranges")


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "../other/secret"},
        {"path": "/dev/zero"},
        {"path": "a\0b"},
        {"path": 7},
        {"num_bytes": -1},
        {"num_bytes": 10**30},
        {"num_bytes": "many"},
    ],
)
def test_lists_name_files_and_places_of_their_folder(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    good = {"path": "a/b.bin", "num_bytes": 3, "checksum": "aa"}
    for name, read, extra in (("files.json", read_rest, {}), ("x", read_ranges, {"offset": 1})):
        entry = {**good, **extra, **changed}
        entry["file"] = entry["path"]
        (tmp_path / name).write_text(json.dumps([entry]))
        with pytest.raises(FormatError, match="is not a list of"):
            read(tmp_path if name == "files.json" else tmp_path / name)
