"""Shards of any kind are checked by what they hold; broken ones are named, the others checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lossy_export import lossy_export
from make_media import image
from sample_folder import write_sample_folder
from token_folder import write_token_folder
from video_tars import write_video_tar
from web_server import serving

from shardmill.formats.megatron import MegatronFormat
from shardmill.formats.webdataset import WebDatasetFormat
from shardmill.model.plan import PackSpec
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.packing.plan import plan_packs
from shardmill.running.runner import run_stage
from shardmill.shards.plans import write_plan
from shardmill.shards.tokens.shard import token_lengths
from shardmill.stages.check import content as checkcontent
from shardmill.stages.check.content import check_content
from shardmill.stages.check.tokens import Limits
from shardmill.stages.index import IndexTars
from shardmill.stages.pack import Materialize

# Larger than the space that packs of others have, so that it matters whose is used.
SPACE = TokenSpace(text_size=40_000, added=("im_patch", "im_start", "im_end"))
PATCH, START, END = 40_000, 40_001, 40_002
IMAGE = MediaSpan(
    name="jpg", kind="image", position=2, num_tokens=4, grid=(1, 2, 2), before=1, after=1
)


def row(number: int) -> TokenRow:
    ids = np.array([1, START, PATCH, PATCH, PATCH, PATCH, END, 7, 2])
    return TokenRow(key=f"k{number}", ids=ids, loss=np.array([[7, 2]]), media=(IMAGE,))


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    rows = [row(number) for number in range(12)]
    return write_token_folder(tmp_path / "tokens", [rows[:5], rows[5:]], SPACE)


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    document = Document((Segment(kind="image", media="jpg"), Segment(kind="text", text="hi")))
    made = [
        (Sample(key=f"k{n}", document=document, media={"jpg": image(seed=n)}), {})
        for n in range(12)
    ]
    return write_sample_folder(tmp_path / "samples", [made[:6], made[6:]])


@pytest.fixture
def packs(tokens: Path, samples: Path, tmp_path: Path) -> Path:
    plan = plan_packs(token_lengths(tokens), PackSpec(capacity=30))
    write_plan(tmp_path / "packs.plan", plan)
    stage = Materialize(
        tokens_dir=tokens,
        plan_path=tmp_path / "packs.plan",
        format="tar",
        samples_dir=samples,
        packs_per_shard=2,
    )
    run_stage(stage, tmp_path / "packs", workers=0)
    return tmp_path / "packs"


def test_tokens_are_counted_shard_by_shard(tokens: Path) -> None:
    report = check_content(tokens)
    assert [(shard.name, shard.counts["rows"]) for shard in report.shards] == [
        ("00000", 5),
        ("00001", 7),
    ]
    assert report.counts["visual tokens"] == 48 and report.num_faults == 0


def test_samples_are_counted(samples: Path) -> None:
    assert check_content(samples, Limits(pairs=True)).counts == {
        "samples": 12,
        "images": 12,
        "pairs": 12,
    }


def test_packs_are_measured_by_their_own_plan_and_space(packs: Path) -> None:
    report = check_content(packs)
    assert report.num_faults == 0
    assert report.counts["images"] == report.counts["media"] == 12
    assert check_content(packs, Limits(max_tokens=20)).num_faults == report.counts["packs"]


@pytest.mark.parametrize("arrays", [False, True])
def test_exports_are_checked_by_the_space_of_their_tokens(
    tokens: Path, samples: Path, tmp_path: Path, arrays: bool
) -> None:
    format = WebDatasetFormat(samples=samples, arrays=arrays)
    run_stage(lossy_export(input_dir=tokens, format=format), tmp_path / "export", workers=0)
    report = check_content(tmp_path / "export")
    assert report.num_faults == 0
    assert (report.counts["packs"], report.counts["images"]) == (12, 12)
    assert check_content(tmp_path / "export", Limits(num_patches=5)).num_faults == 12


def test_the_index_of_megatron_is_no_index_of_a_tar(tokens: Path, tmp_path: Path) -> None:
    stage = lossy_export(input_dir=tokens, format=MegatronFormat())
    assert run_stage(stage, tmp_path / "export", workers=0).complete
    assert check_content(tmp_path / "export").num_faults == 0


def test_foreign_tars_are_checked_where_they_lie(tmp_path: Path) -> None:
    for number in range(3):
        write_video_tar(tmp_path / "tars" / f"{number}.tar", [1, 2, 0])
    run_stage(IndexTars(tars=(str(tmp_path / "tars"),)), tmp_path / "index", workers=0)
    report = check_content(tmp_path / "index", Limits(num_patches=256, max_tokens=8000))
    assert (report.num_faults, report.counts["packs"], report.counts["images"]) == (0, 9, 9)


def test_remote_tars_are_read_only_if_wanted(tmp_path: Path) -> None:
    tar = write_video_tar(tmp_path / "0.tar", [1, 2]).read_bytes()
    with serving({"0.tar": tar}) as url:
        run_stage(IndexTars(tars=(f"{url}/0.tar",)), tmp_path / "index", workers=0)
        assert check_content(tmp_path / "index").counts["packs"] == 2
        found = check_content(tmp_path / "index", Limits(remote=False))
    assert found.counts == {"samples elsewhere": 2}


def test_a_broken_shard_does_not_hide_the_others(samples: Path) -> None:
    tar = samples / "shards" / "000000.tar"
    tar.write_bytes(tar.read_bytes()[:-512])
    other = samples / "shards" / "000001.tar"
    damaged = bytearray(other.read_bytes())
    at = damaged.index(b'{"segments"')
    damaged[at : at + 1] = b"["
    other.write_bytes(damaged)
    report = check_content(samples)
    first, second = report.shards
    assert "cannot be read" in first.faults[0].what and first.faults[0].key == ""
    assert [fault.key for fault in second.faults] == ["k6"]
    assert "cannot be read" in second.faults[0].what
    assert report.counts["samples"] == 5


def test_processes_find_what_one_finds(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = check_content(tokens)
    monkeypatch.setattr(checkcontent, "BYTES_WORTH_A_PROCESS", 1)
    assert check_content(tokens, workers=2) == alone


@given(st.data())
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_is_a_report_and_never_a_crash(
    tokens: Path, samples: Path, data: st.DataObject
) -> None:
    folder = data.draw(st.sampled_from([tokens, samples]))
    path = data.draw(st.sampled_from(sorted((folder / "shards").iterdir())))
    whole = path.read_bytes()
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        end = data.draw(st.sampled_from([64, 512, len(whole)]))
        at = data.draw(st.integers(0, min(end, len(whole)) - 1))
        damaged[at] = data.draw(st.sampled_from([0, 1, 127, 255]))
    path.write_bytes(damaged)
    try:
        assert len(check_content(folder).shards) == 2
    finally:
        path.write_bytes(whole)
