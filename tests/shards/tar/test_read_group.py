"""Grouping: the samples that stock webdataset sees, and the interleave rule."""

from __future__ import annotations

import io

import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st
from tars import samples, tar_bytes, words

from shardmill.shards.tar.index import IndexRows
from shardmill.shards.tar.read import Grouped, TarWalk, group_members


def group(names: list[str], *, interleaved: bool = True) -> Grouped:
    """Group members of one byte that lie a kilobyte apart."""
    places = [1024 * n for n in range(len(names))]
    walk = TarWalk(names, places, [at + 512 for at in places], [1] * len(names))
    return group_members(walk, interleaved=interleaved)


def as_dict(grouped: Grouped) -> dict[str, list[str]]:
    """Return the extensions of each sample by key."""
    return {key: exts for key, _, exts, _, _ in grouped}


@given(samples)
def test_samples_are_grouped_again(named: dict) -> None:
    names = [f"{key}.{ext}" for key, members in named.items() for ext in members]
    assert as_dict(group(names, interleaved=False)) == {k: list(m) for k, m in named.items()}


# A key with an extension that begins with a digit after json would also be an interleaved one.
@given(st.lists(st.tuples(words, st.sampled_from(["jpg", "JPG", "txt", "0.png"])), max_size=8))
def test_stock_webdataset_sees_the_same_samples(pairs: list[tuple[str, str]]) -> None:
    named = [(f"{key}.{ext}", b"x") for key, ext in dict(pairs).items()]
    stream = [{"stream": io.BytesIO(tar_bytes(named)), "url": "x.tar"}]
    files = webdataset.tariterators.tar_file_expander(stream)
    theirs = {
        sample["__key__"]: [ext for ext in sample if not ext.startswith("__")]
        for sample in webdataset.tariterators.group_by_keys(files)
    }
    assert as_dict(group([name for name, _ in named], interleaved=False)) == theirs


def test_the_interleave_rule() -> None:
    names = ["a.json", "a-0.jpg", "a-1.jpg", "a-1-2.png", "b.json", "b.txt", "b-0.mp4", "c-0.jpg"]
    assert as_dict(group(names)) == {
        "a": ["json", "0.jpg", "1.jpg", "1-2.png"],
        "b": ["json", "txt", "0.mp4"],
        "c-0": ["jpg"],
    }
    assert len(as_dict(group(names, interleaved=False))) == 7


def test_a_json_begins_a_sample_of_its_own() -> None:
    names = ["a.json", "a-0.json", "a-0.jpg", "a-0-1.jpg"]
    assert as_dict(group(names)) == {"a": ["json"], "a-0": ["json", "jpg", "1.jpg"]}


def test_a_sample_that_does_not_begin_with_json_takes_no_dashes() -> None:
    assert as_dict(group(["a.jpg", "a.json", "a-0.jpg"])) == {"a": ["jpg", "json"], "a-0": ["jpg"]}


def test_folders_dots_and_capitals() -> None:
    names = ["./d.1/a.b.JPG", "./d.1/a.json", "e/a.jpg"]
    assert as_dict(group(names)) == {"d.1/a": ["b.jpg", "json"], "e/a": ["jpg"]}


def test_what_has_no_key_or_extension_is_passed_over_and_counted() -> None:
    names = [
        "README",
        ".DS_Store",
        "a/._b.jpg",
        "__meta__/x.json",
        "a.jpg",
        "a",
        "a-b",
        "a.txt",
        "",
    ]
    grouped = group(names)
    assert as_dict(grouped) == {"a": ["jpg", "txt"]}
    assert grouped.passed == {"not a sample": 7}
    assert IndexRows.of(grouped).offset == [4 * 1024 + 512, 7 * 1024 + 512]


@pytest.mark.parametrize(
    ("names", "reason", "detail"),
    [
        (["a.jpg", "b.jpg", "a.txt"], "duplicate key", "'a' at byte 2048 was at byte 0 already"),
        (["a.jpg", "a.JPG"], "duplicate member", "a.jpg is at bytes 0 and 1024"),
        (["a.json", "a.0.jpg", "a-0.jpg"], "duplicate member", "bytes 1024 and 2048"),
        (["../a.jpg"], "climbs out of its folder", "'../a' at byte 0"),
        (["b/../../a.jpg"], "climbs out of its folder", "byte 0"),
        (["/etc/a.jpg"], "climbs out of its folder", "byte 0"),
        (["./../a.jpg"], "climbs out of its folder", "byte 0"),
    ],
)
def test_a_sample_that_cannot_be_addressed_is_handed_back(
    names: list[str], reason: str, detail: str
) -> None:
    grouped = group(names)
    (bad,) = grouped.bad
    assert bad[1].reason == reason
    assert detail in bad[1].detail
    assert grouped.num_samples == len(list(grouped)) + 1


def test_a_sample_with_a_link_is_handed_back_and_its_neighbours_are_kept() -> None:
    names = ["README", "a.jpg", "a.txt", "b.jpg", "b.txt", "c.jpg", "LATEST"]
    places = [1024 * n for n in range(len(names))]
    links = {3: "b.jpg is a link", 4: "b.txt is a link", 6: "LATEST is a link"}
    walk = TarWalk(names, places, [at + 512 for at in places], [0] * len(names), links)
    grouped = group_members(walk)
    assert as_dict(grouped) == {"a": ["jpg", "txt"], "c": ["jpg"]}
    ((key, problem),) = grouped.bad
    assert (key, problem.reason, problem.detail) == ("b", "link", "b.jpg is a link")
    assert grouped.passed == {"not a sample": 2}


@given(st.lists(st.text("ab./-_\0json", max_size=12), max_size=12), st.booleans())
def test_every_member_is_accounted_for(names: list[str], interleaved: bool) -> None:
    names = [name.partition("\0")[0] for name in names]
    grouped = group(names, interleaved=interleaved)
    in_bad = len(names) - sum(len(exts) for _, _, exts, _, _ in grouped) - grouped.passed.total()
    assert in_bad >= len(grouped.bad)
    assert in_bad == 0 or grouped.bad
    assert len(as_dict(grouped)) == len(list(grouped))
