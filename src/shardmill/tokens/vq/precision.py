"""What each layer of the fused encoder multiplies and stores, for a precision by name.

fp32 is the reference and runs on plain layers. In fp16 the fine levels, which are nearly all of the
arithmetic, multiply and store fp16; the last vectors, whose distances decide, are never rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, get_args

import torch

from shardmill.tokens.vq.fused import Format

Precision = Literal["fp32", "tf32", "fp16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
LAST = ("encoder.conv_out", "quant_conv")

HALF = Format(torch.float16, torch.float16)
SINGLE = Format(torch.float32, torch.float32)
HALF_TO_SINGLE = Format(torch.float16, torch.float32)


def formats(precision: Precision) -> Callable[[str], Format]:
    """Return the function that gives a layer's format by the layer's name."""
    if precision == "tf32":
        return lambda name: SINGLE
    return _half


def _half(name: str) -> Format:
    if name == "encoder.conv_out":
        return HALF_TO_SINGLE
    return SINGLE if name == "quant_conv" else HALF


def level_of(name: str) -> int | None:
    """Return the level of a layer of the encoder, None for those after the last level."""
    match = re.match(r"encoder\.down\.(\d+)\.", name)
    return int(match[1]) if match else None
