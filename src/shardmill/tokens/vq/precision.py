"""What each layer of the fused encoder multiplies and stores, for a precision by name.

fp32 is the reference and runs on plain layers. In fp16 all levels multiply and store fp16, except
that the last vectors, whose distances decide, are kept in fp32. Keeping the coarse levels in fp32
as well was measured (docs/recipes-codes.md): it changes less than 0.01 % of the codes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch

from shardmill.tokens.vq.fused import Format

Precision = Literal["fp32", "tf32", "fp16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)

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
