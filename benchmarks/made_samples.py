"""Samples as large as photographs of a web crawl, made up and the same every time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

NUM_DISTINCT = 2000  # 120 MB, more than any cache


def make_samples(num: int, mean_bytes: int, seed: int = 0) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield (key, image, json); images are incompressible and shared after the first 2000."""
    random_ = random.Random(seed)
    num_distinct = min(NUM_DISTINCT, num, max(1, 400_000_000 // mean_bytes))
    images = [
        random_.randbytes(random_.randint(mean_bytes * 2 // 3, mean_bytes * 4 // 3))
        for _ in range(num_distinct)
    ]
    for number in range(num):
        image = images[number % num_distinct]
        words = " ".join(random_.choices(WORDS, k=random_.randint(5, 40)))
        row = {"caption": words, "width": 512, "height": 384, "row": number}
        yield f"{number:08d}", image, json.dumps(row).encode()


SENTENCE = "a photo of two small birds on the old bridge near green water with people in red"
WORDS = SENTENCE.split()
