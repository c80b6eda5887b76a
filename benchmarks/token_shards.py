"""Reading 8k sequences at random from token shards, and from a bare numpy memmap of the same ids.

4,000 rows of 8,192 ids below 65,536; each read is copied, so that all bytes are touched. The last
table says how many bytes a token takes for pairs of a caption and an image of codes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from side_by_side import Contest, save_report

from shardmill.model.sample import Origin
from shardmill.model.space import TokenSpace
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.shards.tokens.shard import ROLES, open_token_shard
from shardmill.shards.tokens.write import TokenWriter

NUM_ROWS, LENGTH, NUM_READS = 4000, 8192, 4000
SPACE = TokenSpace(text_size=32_768, added=("boi", "eoi"), num_codes=16_384)


def shardmill(folder: str) -> Callable[[], int]:
    """Rows of a token shard."""
    shard = open_token_shard(files_in(folder))
    order = np.random.default_rng(0).integers(0, NUM_ROWS, NUM_READS).tolist()
    return lambda: sum(1 for row in order if shard.ids(row).copy().size)


def numpy_memmap(folder: str) -> Callable[[], int]:
    """Rows of a matrix in a file."""
    matrix = np.memmap(files_in(folder)["bin"], np.uint16, "r", shape=(NUM_ROWS, LENGTH))
    order = np.random.default_rng(0).integers(0, NUM_ROWS, NUM_READS).tolist()
    return lambda: sum(1 for row in order if np.array(matrix[row]).size)


def files_in(folder: str) -> dict[str, Path]:
    """Return the files of the shard in a folder."""
    return {role: Path(folder) / f"000000.{role}" for role in ROLES}


def write_rows(folder: Path) -> None:
    """Write the shard that is read."""
    ids = np.random.default_rng(1).integers(0, SPACE.size, (NUM_ROWS, LENGTH))
    with TokenWriter(files_in(str(folder)).__getitem__, SPACE) as writer:
        for number, row in enumerate(ids):
            writer.append(TokenRow(key=f"row-{number:08d}", ids=row))


def bytes_a_token(folder: Path, num_codes: int) -> float:
    """Return the bytes that a token takes in pairs with images of this many codes."""
    side = int(num_codes**0.5)
    files = {role: folder / f"{num_codes}.{role}" for role in ROLES}
    rng = np.random.default_rng(2)
    with TokenWriter(files.__getitem__, SPACE) as writer:
        for number in range(2000):
            num_text = int(rng.integers(8, 80))
            image = MediaSpan(
                name="jpg",
                kind="image",
                position=num_text + 1,
                num_tokens=num_codes,
                grid=(1, side, side),
                before=1,
                after=1,
            )
            writer.append(
                TokenRow(
                    key=f"cc12m-{number:08d}",
                    ids=np.zeros(num_text + num_codes + 3, np.uint16),
                    loss=np.array([[num_text + 1, num_codes + 2]]),
                    media=(image,),
                    origin=Origin(source="cc12m", path="cc12m/00042.jsonl", row=number),
                )
            )
    return sum(path.stat().st_size for path in files.values()) / writer.num_tokens


def main() -> None:
    """Compare and write the report."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder)
        contest = Contest("Token shards", unit="row")
        contest.add("shardmill", __file__, "shardmill", folder=name)
        contest.add("numpy memmap", __file__, "numpy_memmap", folder=name)
        contest.run(rounds=9)
        sizes = [(n, bytes_a_token(folder, n)) for n in (256, 1024, 4096)]
    table = [f"| {n} | {size:.3f} |" for n, size in sizes]
    lines = ["| codes an image | bytes a token, all files |", "|---:|---:|", *table]
    sections = [__doc__.partition("\n\n")[2], contest.table(than="numpy memmap"), "\n".join(lines)]
    save_report(__file__, "Token shards", sections)


if __name__ == "__main__":
    main()
