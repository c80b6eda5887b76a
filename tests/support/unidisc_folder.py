"""Parts as UniDisc's workers leave them, written by the real TensorDict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

LENGTH, NUM_CODES, PAD = 32, 16, 0


def sample_tokens(id_: int) -> tuple[list[int], list[int]]:
    """Return ids and modalities of a sample: bos, its id, marker, codes, eos; odd ones are text."""
    codes = [(id_ * 7 + k) % 16384 for k in range(NUM_CODES)]
    if id_ % 2:
        return [1, 1000 + id_, 2], [0, 0, 0]
    return [1, 1000 + id_, 811, *codes, 2], [0, 0, 0, *[1] * NUM_CODES, 0]


def write_interleaved(
    folder: Path,
    ids: Sequence[int],
    *,
    unwritten: int = 0,
    length: int = LENGTH,
    pad: int = PAD,
    dtype: torch.dtype = torch.int16,
) -> Path:
    """Write a part with rows for these ids and some that nobody wrote."""
    count = len(ids) + unwritten
    tokens = torch.full((count, length), pad, dtype=dtype)
    mask = torch.zeros((count, length), dtype=torch.bool)
    modality = torch.zeros((count, length), dtype=torch.int8)
    idx = torch.full((count, 1), -1, dtype=torch.int32)
    flag = torch.zeros((count, 1), dtype=torch.bool)
    for row, id_ in enumerate(ids):
        found, kinds = sample_tokens(id_)
        tokens[row, : len(found)] = torch.tensor(found, dtype=dtype)
        modality[row, : len(found)] = torch.tensor(kinds, dtype=torch.int8)
        mask[row, : len(found)] = True
        idx[row], flag[row] = id_, True
    columns = {
        "input_ids": tokens,
        "attention_mask": mask,
        "modality": modality,
        "idx": idx,
        "write_flag": flag,
    }
    TensorDict(columns, batch_size=[count]).memmap(folder)
    return folder


def write_paired(folder: Path, texts: Sequence[Sequence[int]], num_codes: int = 16) -> np.ndarray:
    """Write caption pairs; returns their codes, among which is 0."""
    count, width = len(texts), max(map(len, texts))
    codes = np.arange(count * num_codes).reshape(count, num_codes) % 16384
    words = torch.zeros((count, width), dtype=torch.int32)
    mask = torch.zeros((count, width), dtype=torch.bool)
    for row, text in enumerate(texts):
        words[row, : len(text)] = torch.tensor(text, dtype=torch.int32)
        mask[row, : len(text)] = True
    columns = {
        "img_input_ids": torch.tensor(codes, dtype=torch.int16),
        "txt_input_ids": words,
        "txt_attention_mask": mask,
        "idx": torch.arange(count, dtype=torch.int32)[:, None],
        "write_flag": torch.ones((count, 1), dtype=torch.bool),
    }
    TensorDict(columns, batch_size=[count]).memmap(folder)
    return codes


def write_full(folder: Path, ids: Sequence[int], *, modality: int = 0, mask: bool = True) -> Path:
    """Write a part without padding, whose rows are all text or all codes."""
    count = len(ids)
    columns = {
        "input_ids": (torch.arange(count * LENGTH).reshape(count, LENGTH) + 7 * ids[0]).short(),
        "modality": torch.full((count, 1), modality, dtype=torch.int16),
        "idx": torch.tensor(ids, dtype=torch.int32)[:, None],
    }
    if mask:
        columns["attention_mask"] = torch.ones((count, LENGTH), dtype=torch.bool)
    TensorDict(columns, batch_size=[count]).memmap(folder)
    return folder
