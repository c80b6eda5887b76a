"""Samples of an earlier try: found by key with their sizes; what is damaged or gone is not."""

from __future__ import annotations

from pathlib import Path

from make_media import image
from sample_folder import write_sample_folder

from shardmill.model.sample import Document, MediaSize, Sample, Segment
from shardmill.stages.ingest import open_earlier

PHOTO = image("JPEG", 40, 30, 1)


def make(number: int) -> tuple[Sample, dict[str, MediaSize]]:
    shown = Segment(kind="image", media="jpg")
    said = Segment(kind="text", text=f"number {number}")
    sample = Sample(key=f"k{number}", document=Document((shown, said)), media={"jpg": PHOTO})
    return sample, {"jpg": MediaSize(width=40, height=30)}


def files_of(folder: Path) -> list[dict[str, Path]]:
    shards = sorted((folder / "shards").glob("*.tar"))
    return [{"tar": tar, "idx": tar.with_suffix(".idx")} for tar in shards]


def test_samples_of_all_shards_are_found(tmp_path: Path) -> None:
    folder = write_sample_folder(tmp_path / "out", [[make(0), make(1)], [make(2)]])
    with open_earlier(files_of(folder)) as earlier:
        for number in range(3):
            found = earlier.find(f"k{number}")
            assert found is not None
            sample, sizes = make(number)
            assert found.sample.document == sample.document
            assert bytes(found.sample.media["jpg"]) == PHOTO
            assert found.sizes["jpg"] == sizes["jpg"]
        assert earlier.find("k3") is None


def test_what_is_damaged_or_gone_is_not_found(tmp_path: Path) -> None:
    folder = write_sample_folder(tmp_path / "out", [[make(0), make(1)], [make(2)]])
    files = files_of(folder)
    content = bytearray(files[0]["tar"].read_bytes())
    content[content.index(PHOTO) + len(PHOTO) // 2] ^= 0xFF
    files[0]["tar"].write_bytes(content)
    files[1]["tar"].unlink()
    with open_earlier([*files, {"idx": files[0]["idx"]}]) as earlier:
        assert earlier.find("k0") is None and earlier.find("k2") is None
        assert earlier.find("k1") is not None
    with open_earlier(()) as nothing:
        assert nothing.find("k1") is None
