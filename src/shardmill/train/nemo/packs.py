"""One pack as NeMo builds it: samples are shifted on their own, joined, and numbered in a mask.

Samples are dicts of tensors or lists: `input_ids` and `labels` of length L, optional
`attention_mask` (without it, all of the sample is real), `mm_token_type_ids`, `position_ids`
(axes, L) and media. A sample loses a place by the shift, so it takes L - 1 places of a pack.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.packing.build import NO_LABEL, Layout, lay_out

MEDIA_KEYS = (
    "pixel_values",
    "image_grid_thw",
    "image_position_ids",
    "pixel_values_videos",
    "video_grid_thw",
    "second_per_grid_ts",
)
MROPE_AXES = 3

Tensors = Mapping[str, Any]
GetRopeIndex = Callable[..., Any]


def aligned_length(length: int, alignment: int) -> int:
    """Return the length rounded up to a multiple of the alignment."""
    if alignment < 1:
        raise ValueError(f"sequence_alignment must be at least 1, got {alignment}")
    return -(-length // alignment) * alignment


def shift_sample(sample: Tensors, has_mrope: bool = False) -> dict[str, Any]:
    """Return the sample with each label at the place that predicts it: one place fewer."""
    shifted = {"input_ids": sample["input_ids"][:-1], "labels": sample["labels"][1:]}
    if sample.get("attention_mask") is not None:
        shifted["attention_mask"] = sample["attention_mask"][:-1]
    if sample.get("mm_token_type_ids") is not None:
        shifted["mm_token_type_ids"] = torch.as_tensor(sample["mm_token_type_ids"]).reshape(-1)[:-1]
    if has_mrope and sample.get("position_ids") is not None:
        shifted["position_ids"] = torch.as_tensor(sample["position_ids"])[:, :-1]
    shifted.update({key: sample[key] for key in MEDIA_KEYS if sample.get(key) is not None})
    return shifted


def empty_sample(has_mrope: bool = False) -> dict[str, Any]:
    """Return a shifted sample without a token: what a pack holds of which nothing could be read."""
    none = torch.empty(0, dtype=torch.int64)
    # As many axes as the packs have that it is collated with.
    positions = {"position_ids": none.expand(MROPE_AXES, 0)} if has_mrope else {}
    return {"input_ids": none, "labels": none, **positions}


def build_packed_sample(
    samples: Sequence[Tensors],
    padding_idx: int,
    has_mrope: bool = False,
    sequence_alignment: int = 1,
) -> dict[str, Any]:
    """Return one pack of shifted samples, not padded at its end.

    The index mask numbers documents from 1 and is 0 where a sample's own mask is 0.
    """
    lengths = [len(sample["input_ids"]) for sample in samples]
    aligned_length(0, sequence_alignment)
    layout = lay_out(lengths, alignment=sequence_alignment)
    packed: dict[str, Any] = {
        "input_ids": _place(layout, [s["input_ids"] for s in samples], padding_idx),
        "labels": _place(layout, [s["labels"] for s in samples], NO_LABEL),
        "attention_mask": _index_mask(layout, samples),
        "mm_token_type_ids": _place(layout, _each(samples, "mm_token_type_ids", 0), 0),
        "seq_lens": layout.lengths.tolist(),
        "seq_lens_padded": layout.padded.tolist(),
        "n_images": _count(samples, "image_grid_thw"),
        "n_videos": _count(samples, "video_grid_thw"),
        "position_ids": _positions(layout, samples, has_mrope),
    }
    for key in MEDIA_KEYS:
        packed[key] = _join_media(key, [s[key] for s in samples if s.get(key) is not None])
    return packed


def mrope_position_ids(sample: Tensors, get_rope_index: GetRopeIndex) -> Any:
    """Return the (axes, L) positions that the model gives this sample, or None if it gives none.

    The function gets those of the sample's tensors that it has arguments for; token types are made
    from the model's own image and video tokens if the sample has none.
    """
    try:
        wanted = inspect.signature(get_rope_index).parameters
    except (TypeError, ValueError):
        return None
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in wanted.values())
    if "input_ids" not in wanted and not takes_all:
        return None
    ids = torch.as_tensor(sample["input_ids"]).reshape(1, -1)
    mask = sample.get("attention_mask")
    given = {
        "input_ids": ids,
        "attention_mask": None if mask is None else torch.as_tensor(mask).reshape(1, -1),
        "mm_token_type_ids": _token_types(sample, ids, get_rope_index),
        **{key: sample.get(key) for key in MEDIA_KEYS if key.endswith(("_thw", "_ts"))},
    }
    named = {k: v for k, v in given.items() if v is not None and (k in wanted or takes_all)}
    # Arguments without a default are given even if the sample has nothing for them.
    needed = (k for k, p in wanted.items() if k in given and p.default is inspect.Parameter.empty)
    with torch.no_grad():
        positions = get_rope_index(**{**dict.fromkeys(needed), **named})
    positions = positions[0] if isinstance(positions, tuple) else positions
    if positions is None:
        return None
    return positions[:, 0, :] if positions.ndim == 3 else positions


def _text_positions(length: int, axes: int) -> Any:
    # Plain text: all axes count together.
    return torch.arange(length).expand(axes, length)


def _token_types(sample: Tensors, ids: Any, get_rope_index: GetRopeIndex) -> Any:
    types = sample.get("mm_token_type_ids")
    if types is not None:
        return torch.as_tensor(types).reshape(1, -1)
    config = getattr(getattr(get_rope_index, "__self__", None), "config", None)
    found = torch.zeros_like(ids)
    for number, name in ((1, "image_token_id"), (2, "video_token_id")):
        token = getattr(config, name, None)
        if token is not None:
            found[ids == token] = number
    return found


def _each(samples: Sequence[Tensors], key: str, default: int) -> list[Any]:
    """Return what each sample has, or the default at each of its tokens."""
    return [
        torch.full((len(sample["input_ids"]),), default) if sample.get(key) is None else sample[key]
        for sample in samples
    ]


def _place(layout: Layout, parts: Sequence[Any], fill: int) -> Any:
    return torch.from_numpy(layout.place(_joined(parts), fill, np.int64))


def _index_mask(layout: Layout, samples: Sequence[Tensors]) -> Any:
    index = layout.index_mask()
    if all(sample.get("attention_mask") is None for sample in samples):
        return torch.from_numpy(index)
    # Padding inside a document keeps its number; a token that the sample masks out has none.
    masks = [part != 0 for part in _joined(_each(samples, "attention_mask", 1))]
    return torch.from_numpy(index * layout.place(masks, 1, np.bool_))


def _joined(parts: Sequence[Any]) -> list[NDArray[Any]]:
    # One array for all samples: joining tensors is cheaper than turning each into an array.
    if not parts:
        return []
    tensors = [torch.as_tensor(part) for part in parts]
    # An empty list has no type of its own.
    return [torch.cat([t if t.numel() else t.to(torch.int64) for t in tensors]).numpy()]


def _positions(layout: Layout, samples: Sequence[Tensors], has_mrope: bool) -> Any:
    given = [sample.get("position_ids") if has_mrope else None for sample in samples]
    axes = next((len(positions) for positions in given if positions is not None), None)
    if axes is None:
        return torch.from_numpy(layout.position_ids())
    parts = [
        _mrope_part(_text_positions(int(n), axes) if p is None else torch.as_tensor(p), int(padded))
        for p, n, padded in zip(given, layout.lengths, layout.padded)
    ]
    return torch.cat(parts, dim=1)


def _mrope_part(positions: Any, padded: int) -> Any:
    axes, length = positions.shape
    if length == padded:
        return positions.to(torch.int64)
    # Padding goes on behind the largest of the axes, as text after an image does.
    first = int(positions.max()) + 1 if positions.numel() else 0
    more = first + _text_positions(padded - length, axes)
    return torch.cat([positions.to(torch.int64), more], dim=1)


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
    if key == "pixel_values" and len({part.shape[1:] for part in parts}) > 1:
        # Images of different sizes stay apart, one tensor each.
        return list(chain.from_iterable(parts))
    return torch.cat(parts, dim=0)
