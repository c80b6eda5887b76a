"""The fields of packed samples as JSON text, for whole batches; `packed` states them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.formats.packedrows import PackedBatch
from shardmill.io.jsoncolumns import chosen, json_list, json_object, quoted_texts
from shardmill.io.numbertext import number_lists, numbers
from shardmill.io.room import Room
from shardmill.io.weave import Column
from shardmill.model.sample import SEGMENT_KINDS

GRID_AXES = 3


def lengths_json(batch: PackedBatch) -> list[Column]:
    """Return the lengths of the documents."""
    return [number_lists(batch.rows.part.lengths, batch.documents, around=b"[]")]


def keys_json(batch: PackedBatch) -> list[Column]:
    """Return the keys of the documents."""
    return json_list(quoted_texts(batch.document_names), batch.documents)


def ids_json(batch: PackedBatch, room: Room) -> list[Column]:
    """Return the ids of all tokens, in `room`."""
    return [number_lists(batch.rows.ids, batch.rows.bounds, around=b"[]", room=room)]


def mask_json(batch: PackedBatch, room: Room) -> list[Column]:
    """Return 1 for each token that is learned, 0 for the others, in `room`."""
    mask = batch.rows.part.loss_mask()
    return [number_lists(mask, batch.rows.bounds, around=b"[]", room=room)]


def media_json(batch: PackedBatch) -> list[Column]:
    """Return an object for each medium; `document` and `position` count inside of the sample."""
    counts = np.diff(batch.sample_media)
    first_token = np.repeat(batch.rows.bounds[:-1], counts)
    first_document = np.repeat(batch.documents[:-1], counts)
    fields: dict[str, list[Column]] = {
        "after": [numbers(batch.media("after"))],
        "before": [numbers(batch.media("before"))],
        "document": [numbers(batch.media_documents - first_document)],
        "grid": [_grids(batch.media("grid"))],
        "kind": [chosen(SEGMENT_KINDS, batch.media("kind"))],
        "name": [chosen(batch.media_names, batch.media("name"))],
        "num_tokens": [numbers(batch.media("length"))],
        "position": [numbers(batch.media_starts - first_token)],
    }
    return json_list(json_object(fields, len(batch.media_starts)), batch.sample_media)


def _grids(grids: NDArray[Any]) -> Column:
    return number_lists(grids.reshape(-1), GRID_AXES * np.arange(len(grids) + 1), around=b"[]")
