"""The loader that Energon runs by itself."""

from __future__ import annotations

import numpy as np

from shardmill.formats.energon_loader import part_filter, sample_loader


def test_documents_become_their_sequence() -> None:
    segments = [{"image": "0.jpg"}, {"text": "between"}, {"video": "1.mp4"}]
    raw = {"__key__": "k", "json": {"segments": segments}, "0.jpg": "pixels", "1.mp4": "film"}
    assert sample_loader(raw) == {"__key__": "k", "sequence": ["pixels", "between", "film"]}


def test_packed_samples_become_arrays_and_media_in_order() -> None:
    images = {f"{n}.jpg": n for n in (10, 2, 0)}
    fields = {"lengths": [2, 1], "input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}
    raw = {"__key__": "k", "json": fields, **images}
    ids, mask, lengths, *media = sample_loader(raw)["sequence"]
    assert (ids.tolist(), mask.tolist(), lengths.tolist()) == ([5, 6, 7], [0, 1, 1], [2, 1])
    assert media == [0, 2, 10]
    arrays = {"input_ids.npy": np.array([5], np.uint16), "loss_mask.npy": np.array([1], np.uint8)}
    raw = {"__key__": "k", "json": {"lengths": [1]}, **arrays}
    assert [values.tolist() for values in sample_loader(raw)["sequence"]] == [[5], [1], [1]]


def test_the_text_beside_a_pair_is_not_read() -> None:
    assert not part_filter("txt")
    assert part_filter("json")
