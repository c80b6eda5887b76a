"""Tars of packed samples: members, arrays, media; samples as they are; what is refused."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis.strategies import integers, sampled_from
from lossy_export import lossy_export
from make_media import image
from mixed_folder import Mixed
from tars import tar_bytes
from token_folder import write_token_folder
from video_tars import packed_members, write_video_tar

from shardmill.errors import ConfigError, FormatError
from shardmill.formats.format import Record
from shardmill.formats.webdataset import TarReader, WebDatasetFormat, is_packed_tar, npy_bytes
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import TokenRow
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.stages.index import IndexTars


def export(source: Path, out: Path, num_shards: int | None = None, **fields: Any) -> Path:
    stage = lossy_export(input_dir=source, format=WebDatasetFormat(**fields), num_shards=num_shards)
    report = run_stage(stage, out, workers=0)
    assert report.complete, report.failures
    return out


def members_of(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted((folder / "shards").glob("*.tar")):
        with tarfile.open(path) as tar:
            found |= {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    return found


@given(integers(0, 70_000), sampled_from(["<u2", "<i4", "|u1"]))
def test_arrays_are_what_numpy_writes(length: int, dtype: str) -> None:
    values, buffer = np.arange(length).astype(dtype), io.BytesIO()
    np.save(buffer, values)
    assert npy_bytes(values) == buffer.getvalue()


def test_rows_are_named_by_their_keys_and_carry_their_media(mixed: Mixed, tmp_path: Path) -> None:
    members = members_of(export(mixed.tokens, tmp_path / "out", samples=mixed.samples))
    page = mixed.rows[2]
    fields = json.loads(members[f"{page.key}.json"])
    assert fields["input_ids"] == page.ids.tolist()
    assert fields["keys"] == [page.key]
    assert fields["image"] == ["0", "1"]
    assert [medium["name"] for medium in fields["media"]] == ["0.jpg", "1.jpg"]
    assert members[f"{page.key}.0.jpg"][:2] == b"\xff\xd8"
    assert f"{mixed.rows[3].key}.0.mp4" in members
    listed = json.loads((tmp_path / "out" / "shardindex.json").read_text())
    assert sum(shard["nsamples"] for shard in listed["shardlist"]) == len(mixed.rows)


def test_arrays_leave_the_json_small(mixed: Mixed, tmp_path: Path) -> None:
    members = members_of(export(mixed.packs, tmp_path / "out", arrays=True, layout="dashed"))
    name = next(name for name in members if name.endswith(".json"))
    assert "input_ids" not in json.loads(members[name])
    ids = np.load(io.BytesIO(members[name.replace(".json", "-input_ids.npy")]))
    assert len(ids) == sum(json.loads(members[name])["lengths"])


def test_the_number_of_shards_can_be_chosen(mixed: Mixed, tmp_path: Path) -> None:
    out = export(mixed.tokens, tmp_path / "out", num_shards=3)
    assert len(open_manifest(out).shards) == 3
    assert open_manifest(out).num_samples == len(mixed.rows)


def test_tars_of_samples_are_linked(mixed: Mixed, tmp_path: Path) -> None:
    out = export(mixed.samples, tmp_path / "out")
    old, new = ([*(folder / "shards").glob("*.tar")] for folder in (mixed.samples, out))
    assert {path.stat().st_ino for path in old} == {path.stat().st_ino for path in new}


def test_what_cannot_be_is_refused(mixed: Mixed, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave out --shards"):
        export(mixed.samples, tmp_path / "a", num_shards=2)
    run_stage(IndexTars(tars=(str(mixed.samples / "shards"),)), tmp_path / "index", workers=0)
    with pytest.raises(ConfigError, match="has no tar of its own"):
        export(tmp_path / "index", tmp_path / "b")
    stage = lossy_export(input_dir=mixed.tokens, format=WebDatasetFormat(samples=mixed.pairs))
    report = run_stage(stage, tmp_path / "c", workers=0)
    assert "has no medium '0.jpg' of sample 'mixed-00000002'" in str(report.failures)


def test_keys_that_readers_would_not_see_are_rejects(tmp_path: Path) -> None:
    rows = [
        TokenRow(key=key, ids=np.arange(5), loss=np.array([[0, 5]]))
        for key in ("fine", "__note__", 'a "quoted" \\u0000')
    ]
    tokens = write_token_folder(tmp_path / "tokens", [rows], TokenSpace(text_size=9))
    stage = lossy_export(input_dir=tokens, format=WebDatasetFormat())
    assert run_stage(stage, tmp_path / "out", workers=0, max_skip_rate=1).complete
    assert open_manifest(tmp_path / "out").skipped == {"bad key": 1}
    fields = [json.loads(content) for content in members_of(tmp_path / "out").values()]
    assert [field["keys"] for field in fields] == [["fine"], ['a "quoted" \\u0000']]


def test_keys_that_are_no_text_are_refused_by_name_of_the_file(tmp_path: Path) -> None:
    row = TokenRow(key="a\udc80", ids=np.arange(5), loss=np.array([[0, 5]]))
    tokens = write_token_folder(tmp_path / "tokens", [[row]], TokenSpace(text_size=9))
    stage = lossy_export(input_dir=tokens, format=WebDatasetFormat())
    report = run_stage(stage, tmp_path / "out", workers=0)
    assert "00000.spans: a key is not UTF-8" in str(report.failures)


def records(reader: TarReader) -> list[Record]:
    return [record for part in reader.parts() for record in reader.read(part.input)]


def test_packs_come_back_with_mask_and_images(tmp_path: Path) -> None:
    tar = write_video_tar(tmp_path / "shard_0-0-50.tar", [2, 0, 1])
    found = records(TarReader(files=(str(tar),)))
    assert [record.key for record in found] == [f"shard_0-0-50/0-{n}" for n in range(3)]
    assert [len(record.rows[0].media) for record in found] == [2, 0, 1]
    assert found[0].num_tokens == 1 + 2 * 258 + 3
    assert found[0].loss_mask()[-2:].all()
    assert found[0].loss_mask().sum() == 2
    wanted = [xxhash.xxh3_64_hexdigest(image("JPEG", 64, 48, seed=n)) for n in (0, 1)]
    assert list(found[0].media) == wanted


def test_more_than_nine_images_keep_their_order(tmp_path: Path) -> None:
    members = packed_members("k", 0, 12)
    tar = tmp_path / "x.tar"
    tar.write_bytes(tar_bytes([members[0], *sorted(members[1:])]))
    (record,) = records(TarReader(files=(str(tar),)))
    wanted = [xxhash.xxh3_64_hexdigest(content) for _, content in members[1:]]
    assert list(record.media) == wanted


def test_a_broken_sample_has_a_reason_and_the_others_are_read(tmp_path: Path) -> None:
    tar = tmp_path / "x.tar"
    good = packed_members("a", 0, 0)
    tar.write_bytes(tar_bytes([*good, ("b.json", b"{"), ("c.json", b'{"input_ids": [99999]}')]))
    found = records(TarReader(files=(str(tar),)))
    assert [record.problem and record.problem.reason for record in found] == [
        None,
        "not a packed sample",
        "id out of range",
    ]


def test_only_tars_of_packs_are_taken_for_such(tmp_path: Path) -> None:
    assert is_packed_tar(write_video_tar(tmp_path / "a.tar", [0]))
    (tmp_path / "b.tar").write_bytes(tar_bytes([("k.json", b'{"caption": "x"}')]))
    (tmp_path / "c.tar").write_bytes(tar_bytes([]))
    assert not is_packed_tar(tmp_path / "b.tar")
    assert not is_packed_tar(tmp_path / "c.tar")


def test_a_tar_that_changes_or_is_not_there_is_refused(tmp_path: Path) -> None:
    tar = write_video_tar(tmp_path / "a.tar", [0])
    reader = TarReader(files=(str(tmp_path),))
    (part,) = reader.parts()
    write_video_tar(tar, [0] * 40)
    with pytest.raises(FormatError, match="changed after it was listed"):
        list(reader.read(part.input))
    tar.unlink()
    with pytest.raises(ConfigError, match=r"no \.tar files"):
        reader.tars()
