"""NeMo's packed sample from its tokenized samples, as torch tensors under the same keys.

Samples are dicts of tensors: `input_ids`, `labels` and `attention_mask` of length L, optional
`mm_token_type_ids`, `position_ids` (3, L) and media. A sample is shifted on its own, so it takes
L - 1 places.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.packing.build import Layout, lay_out

MEDIA_KEYS = (
    "pixel_values",
    "image_grid_thw",
    "image_position_ids",
    "pixel_values_videos",
    "video_grid_thw",
    "second_per_grid_ts",
)
NO_LABEL = -100

Tensors = Mapping[str, Any]


def shift_sample(sample: Tensors, has_mrope: bool = False) -> dict[str, Any]:
    """Return the sample with each label at the place that predicts it: one place fewer."""
    shifted = {
        "input_ids": sample["input_ids"][:-1],
        "labels": sample["labels"][1:],
        "attention_mask": sample["attention_mask"][:-1],
    }
    if sample.get("mm_token_type_ids") is not None:
        shifted["mm_token_type_ids"] = sample["mm_token_type_ids"].reshape(-1)[:-1]
    if has_mrope and sample.get("position_ids") is not None:
        shifted["position_ids"] = sample["position_ids"][:, :-1]
    shifted.update({key: sample[key] for key in MEDIA_KEYS if sample.get(key) is not None})
    return shifted


def build_packed_sample(
    samples: Sequence[Tensors],
    pack_size: int,
    padding_idx: int,
    has_mrope: bool = False,
    sequence_alignment: int = 1,
) -> dict[str, Any]:
    """Return one packed sample of shifted samples, not padded to `pack_size`.

    The index mask numbers documents from 1 and is 0 where a sample's own mask is 0. An empty pack
    has the shapes of any other, with no places.
    """
    lengths = [len(sample["input_ids"]) for sample in samples]
    layout = lay_out(lengths, alignment=sequence_alignment)
    packed: dict[str, Any] = {
        "input_ids": _place(layout, samples, "input_ids", padding_idx),
        "labels": _place(layout, samples, "labels", NO_LABEL),
        "attention_mask": _index_mask(layout, samples),
        "mm_token_type_ids": _place(layout, samples, "mm_token_type_ids", 0),
        "seq_lens": layout.lengths.tolist(),
        "seq_lens_padded": layout.padded.tolist(),
        "n_images": _count(samples, "image_grid_thw"),
        "n_videos": _count(samples, "video_grid_thw"),
        "position_ids": _positions(layout, samples, has_mrope),
    }
    for key in MEDIA_KEYS:
        packed[key] = _join_media(key, [s[key] for s in samples if s.get(key) is not None])
    return packed


def mrope_position_ids(sample: Tensors, get_rope_index: Callable[..., Any]) -> Any:
    """Return the (3, L) positions that the model gives this sample, or None if it gives none.

    The function gets those of the sample's tensors that it has arguments for; token types are made
    from the model's own image and video tokens if the sample has none.
    """
    wanted = inspect.signature(get_rope_index).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in wanted.values())
    ids = sample["input_ids"].reshape(1, -1)
    given = {
        "input_ids": ids,
        "attention_mask": sample["attention_mask"].reshape(1, -1),
        "mm_token_type_ids": _token_types(sample, get_rope_index),
        **{key: sample.get(key) for key in MEDIA_KEYS if key.endswith(("_thw", "_ts"))},
    }
    named = {k: v for k, v in given.items() if v is not None and (k in wanted or takes_all)}
    positions = get_rope_index(**named)
    positions = positions[0] if isinstance(positions, tuple) else positions
    return None if positions is None else positions.reshape(3, -1)


def text_positions(length: int) -> Any:
    """Return the (3, L) positions of plain text: all axes count together."""
    return torch.arange(length).expand(3, length)


def _token_types(sample: Tensors, get_rope_index: Callable[..., Any]) -> Any:
    types = sample.get("mm_token_type_ids")
    if types is not None:
        return types.reshape(1, -1)
    config = getattr(getattr(get_rope_index, "__self__", None), "config", None)
    ids = sample["input_ids"].reshape(1, -1)
    found = torch.zeros_like(ids)
    for number, name in ((1, "image_token_id"), (2, "video_token_id")):
        token = getattr(config, name, None)
        if token is not None:
            found[ids == token] = number
    return found


def _place(layout: Layout, samples: Sequence[Tensors], key: str, fill: int) -> Any:
    parts = [
        torch.zeros_like(sample["input_ids"]) if sample.get(key) is None else sample[key]
        for sample in samples
    ]
    return torch.from_numpy(layout.place(_joined(parts), fill, np.int64))


def _index_mask(layout: Layout, samples: Sequence[Tensors]) -> Any:
    # Padding inside a document keeps its number; a token that the sample masks out has none.
    masks = [part != 0 for part in _joined([sample["attention_mask"] for sample in samples])]
    return torch.from_numpy(layout.index_mask() * layout.place(masks, 1, np.bool_))


def _joined(parts: Sequence[Any]) -> list[NDArray[Any]]:
    # One array for all samples: joining tensors is cheaper than turning each into an array.
    return [torch.cat([torch.as_tensor(part) for part in parts]).numpy()] if parts else []


def _positions(layout: Layout, samples: Sequence[Tensors], has_mrope: bool) -> Any:
    if not has_mrope:
        return torch.from_numpy(layout.position_ids())
    parts = [_mrope_part(sample, int(n)) for sample, n in zip(samples, layout.padded)]
    if not parts:
        return torch.empty(3, 0, dtype=torch.int64)
    return torch.cat(parts, dim=1)


def _mrope_part(sample: Tensors, padded: int) -> Any:
    positions = sample.get("position_ids")
    if positions is None:
        positions = text_positions(len(sample["input_ids"]))
    missing = padded - positions.shape[1]
    if not missing:
        return positions.to(torch.int64)
    first = int(positions.max()) + 1 if positions.numel() else 0
    return torch.cat([positions.to(torch.int64), first + text_positions(missing)], dim=1)


def _count(samples: Sequence[Tensors], grid: str) -> int:
    return sum(len(sample[grid]) for sample in samples if sample.get(grid) is not None)


def _join_media(key: str, parts: list[Any]) -> Any:
    if not parts:
        return None
    lists = [isinstance(part, list | tuple) for part in parts]
    if all(lists):
        return list(chain.from_iterable(parts))
    if any(lists):
        raise TypeError(f"{key} must be tensors in all samples of a pack, or lists in all")
    return torch.cat(parts, dim=0)
