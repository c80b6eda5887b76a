"""A key in two shards is found; keys that only share nothing are not."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.stage import Draft
from shardmill.shards.samples import SampleWriter
from shardmill.stages.check.folder import find_repeated_keys


def write_index(folder: Path, name: str, keys: list[str]) -> Path:
    draft = Draft(folder)
    with SampleWriter(draft, lambda _: name) as writer:
        for key in keys:
            writer.add(Sample(key=key, document=Document((Segment(kind="text", text=key),))))
    return draft.file(name, "idx")


@given(shards=st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), max_size=4))
def test_exactly_the_keys_in_more_than_one_shard_are_found(
    tmp_path_factory: object, shards: list[set[str]]
) -> None:
    folder = tmp_path_factory.mktemp("keys")  # type: ignore[attr-defined]
    paths = [write_index(folder, str(i), sorted(keys)) for i, keys in enumerate(shards)]
    everything = [key for keys in shards for key in keys]
    repeated = {key for key in everything if everything.count(key) > 1}
    found = list(find_repeated_keys(paths))
    assert {repeat.key for repeat in found} == repeated
    assert all(repeat.first_path != repeat.second_path for repeat in found)
