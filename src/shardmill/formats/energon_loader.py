"""Makes an InterleavedSample of the members of a sample: copied into `.nv-meta` by an export.

Of a document the sequence is its texts and media; of a packed sample it is [input_ids, loss_mask,
lengths, medium, ...]. Energon loads this file by itself: it needs nothing but torch.
"""

from __future__ import annotations

from typing import Any

import torch

KEPT = ("__key__", "__restore_key__", "__sources__")


def part_filter(part: str) -> bool:
    """Return whether a member is needed: the text beside a pair is in its json too."""
    return part != "txt"


def sample_loader(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the sample."""
    fields = raw["json"]
    kept = {name: raw[name] for name in KEPT if name in raw}
    if "segments" in fields:
        return {**kept, "sequence": [_segment(raw, segment) for segment in fields["segments"]]}
    tokens = [raw.get(f"{name}.npy", fields.get(name)) for name in ("input_ids", "loss_mask")]
    arrays = [torch.as_tensor(values).long() for values in (*tokens, fields["lengths"])]
    media = sorted((int(name.partition(".")[0]), name) for name in raw if name[:1].isdecimal())
    return {**kept, "sequence": [*arrays, *(raw[name] for _, name in media)]}


def _segment(raw: dict[str, Any], segment: dict[str, Any]) -> Any:
    if "text" in segment:
        return segment["text"]
    return next(raw[segment[kind]] for kind in ("image", "video", "audio") if kind in segment)
