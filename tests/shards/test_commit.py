"""No crash leaves a receipt that vouches for a file which is missing, short or different."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import xxhash
from crash_states import CrashMoment, TracingDisk
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.errors import SampleError, UnitFailed
from shardmill.model.manifest import FileEntry, Receipt, receipt_from_plain
from shardmill.model.stage import Draft, Tally, Unit
from shardmill.shards.commit import Sealed, commit, seal
from shardmill.shards.ledger import Ledger
from shardmill.storage.text import parse_json

Files = Mapping[str, bytes]


def make_ledger(folder: Path, disk: TracingDisk) -> Ledger:
    ledger = Ledger(folder, "run", disk)
    ledger.make_folders()
    ledger.draft_dir.mkdir()
    return ledger


def draft_unit(
    ledger: Ledger, name: str, files: Files, *, num_rejects: int = 0, mark: str = "a"
) -> Sealed:
    draft, tally = Draft(ledger.draft_dir / f"{name}-{mark}"), Tally()
    draft.dir.mkdir()
    for role, content in files.items():
        draft.file(name, role).write_bytes(content)
    if files:
        draft.finish(name, num_samples=1)
        with tally.sample("kept"):
            pass
    for i in range(num_rejects):
        with tally.sample(f"bad-{i}"):
            raise SampleError("bad")
    unit = Unit(name=name, input={"mark": mark})
    return seal(ledger, unit, "stage", draft, tally)


def possible_receipts(moment: CrashMoment, ledger: Ledger, name: str) -> list[Receipt]:
    contents = (c for c in moment.possible(ledger.receipt_path(name)) if c is not None)
    return [receipt_from_plain(parse_json(content), "receipt") for content in contents]


def broken_promises(moment: CrashMoment, ledger: Ledger, names: Sequence[str]) -> list[str]:
    """Return every file that some receipt may vouch for although it may not be so."""
    broken = []
    for name in names:
        for receipt in possible_receipts(moment, ledger, name):
            entries = [e for shard in receipt.shards for e in shard.files.values()]
            entries += [receipt.rejects] if receipt.rejects else []
            broken += [e.path for e in entries if not keeps(moment, ledger, e)]
    return broken


def keeps(moment: CrashMoment, ledger: Ledger, entry: FileEntry) -> bool:
    return all(
        content is not None and xxhash.xxh3_64_hexdigest(content) == entry.checksum
        for content in moment.possible(ledger.out_dir / entry.path)
    )


FILES = st.dictionaries(st.sampled_from(["tar", "idx", "bin"]), st.binary(max_size=9), max_size=3)
GROUPS = st.lists(st.dictionaries(st.sampled_from("abc"), FILES, max_size=3), max_size=3)


@given(GROUPS, st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_receipts_are_true_in_every_crash_state(
    tmp_path_factory: pytest.TempPathFactory, groups: list[dict[str, Files]], num_rejects: int
) -> None:
    """Groups of units are committed one after the other, later ones redo units of earlier ones."""
    disk = TracingDisk()
    ledger = make_ledger(tmp_path_factory.mktemp("out"), disk)
    for number, group in enumerate(groups):
        mark = f"version {number}"
        sealed = [
            draft_unit(ledger, name, files, num_rejects=num_rejects, mark=mark)
            for name, files in group.items()
        ]
        commit(ledger, sealed, "stage")
        for name in group:
            assert len(possible_receipts(disk.moments[-1], ledger, name)) == 1
    for moment in disk.moments:
        assert broken_promises(moment, ledger, "abc") == []


@pytest.mark.parametrize("lost", ["sync_file", "sync_dir shards", "sync_dir receipts"])
def test_without_one_of_the_fsyncs_a_receipt_can_lie(tmp_path: Path, lost: str) -> None:
    disk = TracingDisk()
    ledger = make_ledger(tmp_path, disk)
    commit(ledger, [draft_unit(ledger, "a", {"tar": b"old"}, mark="1")], "stage")
    disk.skip = frozenset({lost})
    commit(ledger, [draft_unit(ledger, "a", {"tar": b"other"}, mark="2")], "stage")
    lies = []
    for moment in disk.moments:
        try:
            lies += broken_promises(moment, ledger, "a")
        except ValueError:
            lies.append("receipt")
    assert lies


def test_a_committed_unit_is_not_written_again(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, TracingDisk())
    commit(ledger, [draft_unit(ledger, "a", {"tar": b"first"})], "stage")
    (ledger.draft_dir / "a-a").rename(ledger.draft_dir / "done")
    commit(ledger, [draft_unit(ledger, "a", {"tar": b"second"})], "stage")
    assert (tmp_path / "shards" / "a.tar").read_bytes() == b"first"


def test_a_run_that_was_taken_over_leaves_the_receipts_of_the_other_alone(tmp_path: Path) -> None:
    other = Ledger(tmp_path, "other")

    class SuspendedHere(TracingDisk):
        """Wakes up after somebody else has done the unit and removed the drafts of this run."""

        def sync_files(self, paths: Sequence[Path]) -> None:
            other.draft_dir.mkdir()
            commit(other, [draft_unit(other, "a", {"tar": b"theirs"})], "stage")
            shutil.rmtree(ledger.draft_dir)
            super().sync_files(paths)

    ledger = make_ledger(tmp_path, SuspendedHere())
    mine = draft_unit(ledger, "a", {"tar": b"mine"}, num_rejects=1)
    with pytest.raises(FileNotFoundError):
        commit(ledger, [mine], "stage")
    assert other.valid_receipt(mine.unit, "stage") is not None
    assert (tmp_path / "shards" / "a.tar").read_bytes() == b"theirs"


def test_rejects_of_an_older_try_do_not_stay(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, TracingDisk())
    commit(ledger, [draft_unit(ledger, "a", {}, num_rejects=2, mark="1")], "stage")
    assert ledger.rejects_path("a").exists()
    commit(ledger, [draft_unit(ledger, "a", {}, num_rejects=0, mark="2")], "stage")
    assert not ledger.rejects_path("a").exists()


def test_a_file_that_was_announced_but_not_written_fails_the_unit(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, TracingDisk())
    draft = Draft(ledger.draft_dir)
    draft.file("a", "tar")
    draft.finish("a", num_samples=0)
    with pytest.raises(UnitFailed, match=r"a\.tar"):
        seal(ledger, Unit(name="a", input={}), "stage", draft, Tally())


def test_the_failure_of_an_earlier_try_goes_when_the_unit_is_done(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path, TracingDisk())
    ledger.write_failure("a", {"message": "it was raining"})
    commit(ledger, [draft_unit(ledger, "a", {"tar": b"x"})], "stage")
    assert list(ledger.read_failures()) == []


def test_a_unit_is_done_although_what_earlier_tries_left_cannot_be_removed(tmp_path: Path) -> None:
    class Sticky(TracingDisk):
        def unlink(self, path: Path) -> None:
            if path.parent.name == "failures":
                raise OSError(errno.EIO, "Input/output error", str(path))
            super().unlink(path)

    ledger = make_ledger(tmp_path, Sticky())
    ledger.write_failure("a", {"message": "it was raining"})
    commit(ledger, [draft_unit(ledger, "a", {"tar": b"x"})], "stage")
    assert ledger.receipt_names() == {"a"}
