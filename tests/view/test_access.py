from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.view.access import Fence, Refused


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("root/stage/shards", "root/stage/receipts", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outside" / "secret.tar").write_text("secret")
    return tmp_path / "root", tmp_path / "outside"


def test_what_lies_inside_is_held_and_what_climbs_out_is_not(places: tuple[Path, Path]) -> None:
    root, outside = places
    fence = Fence.around(root)
    assert fence.holds(root / "stage")
    assert not fence.holds(root / ".." / "outside")
    assert not fence.holds(root.parent / "root-beside")
    assert not fence.holds(outside)


@pytest.mark.parametrize("place", ["stage/shards/0.tar", "stage/stage.json", "stage/rejects"])
def test_a_link_out_of_the_folder_is_refused(places: tuple[Path, Path], place: str) -> None:
    root, outside = places
    fence = Fence.around(root)
    fence.check_links(root / "stage")
    (root / place).symlink_to(outside / "secret.tar")
    with pytest.raises(Refused, match="--allow"):
        fence.check_links(root / "stage")
    Fence.around(root, (str(outside),)).check_links(root / "stage")


def test_a_link_that_stays_inside_is_followed(places: tuple[Path, Path]) -> None:
    root, _ = places
    (root / "stage" / "shards" / "1.tar").symlink_to(root / "stage" / "receipts")
    Fence.around(root).check_links(root / "stage")


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("s3://bucket/data/x.tar", True),
        ("s3://bucket/data-two/x.tar", False),
        ("s3://bucket/data/../keys/x.tar", False),
        ("s3://other/data/x.tar", False),
        ("/etc/passwd", False),
        ("file:///etc/passwd", False),
    ],
)
def test_tars_of_an_index_are_read_only_where_allowed(
    places: tuple[Path, Path], url: str, good: bool
) -> None:
    fence = Fence.around(places[0], ("s3://bucket/data",))
    if good:
        fence.check_url(url)
        return
    with pytest.raises(Refused):
        fence.check_url(url)
