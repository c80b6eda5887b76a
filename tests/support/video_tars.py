"""Tars as the video pipeline writes them: packs at 8k as JSON, with their frames."""

from __future__ import annotations

import json
from pathlib import Path

from make_media import image
from tars import tar_bytes

PATCH, START, END = 32000, 32001, 32002


def packed_members(key: str, number: int, num_images: int) -> list[tuple[str, bytes]]:
    """Return a pack with so many images of 256 placeholders and an answer that is learned."""
    block = [START, *[PATCH] * 256, END]
    ids = [1, *block * num_images, 100 + number, 200 + number, 2]
    mask = [0] * (len(ids) - 3) + [0, 1, 1]
    content = {
        "input_ids": ids,
        "loss_mask": mask,
        "text": [f"question {number}\nanswer</s>"],
        "image": [str(n) for n in range(num_images)],
    }
    frames = [
        (f"{key}-{n}.jpg", image("JPEG", 64, 48, seed=10 * number + n)) for n in range(num_images)
    ]
    return [(f"{key}.json", json.dumps(content).encode()), *frames]


def write_video_tar(path: Path, counts: list[int]) -> Path:
    """Write a tar with a pack for each number of images."""
    members = [m for n, count in enumerate(counts) for m in packed_members(f"0-{n}", n, count)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members))
    return path
