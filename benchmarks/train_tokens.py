"""Packs of 8,192 tokens by number, as tensors of their own: python benchmarks/train_tokens.py

8,000 packs of int32, read at random, page cache warm. Goals: within 20 % of a bare memmap, and
ahead of every peer. Then packs of 32k of 40 documents: built when asked for and collated, only
collated, and the images of such a pack decoded. Goal: building costs under 10 % of decoding.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import Contest, Work, save_report

LENGTH = 8192
VOCABULARY = 150_000
CAPACITY, NUM_PACKS, IMAGES = 32_768, 40, 24


def _reading(num: int, read: Callable[[int], Any]) -> Work:
    order = np.random.default_rng(7).permutation(num).tolist()

    def work() -> int:
        if not all(len(read(number)) == LENGTH for number in order):
            raise SystemExit("a pack of another length")
        return num

    return work


def _packs(num: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, VOCABULARY, (num, LENGTH), np.int32)


def _shard_entry(folder: Path, name: str, num: int):
    from shardmill.model.manifest import FileEntry, ShardEntry
    from shardmill.shards.tokens.shard import ROLES

    return ShardEntry(name, num, {role: FileEntry(f"{name}.{role}", 0, "") for role in ROLES})


def _write_rows(folder: Path, rows: Any) -> int:
    from shardmill.model.space import TokenSpace
    from shardmill.shards.tokens.shard import ROLES
    from shardmill.shards.tokens.write import TokenWriter

    files = {role: folder / f"a.{role}" for role in ROLES}
    with TokenWriter(files.__getitem__, TokenSpace(text_size=VOCABULARY)) as writer:
        for row in rows:
            writer.append(row)
    return writer.num_rows


def _token_set(folder: Path, num: int):
    from shardmill.shards.tokens.shard import TokenDataset

    return TokenDataset(folder, (_shard_entry(folder, "a", num),))


def shardmill(folder: str, num: int) -> Work:
    """RowDataset, each row a pack."""
    from shardmill.model.tokenrow import TokenRow
    from shardmill.train.dataset import RowDataset

    rows = (TokenRow(key=f"{n:08d}", ids=ids) for n, ids in enumerate(_packs(num)))
    _write_rows(Path(folder), rows)
    return _reading(num, RowDataset(_token_set(Path(folder), num)).__getitem__)


def memmap(folder: str, num: int) -> Work:
    """A bare matrix in a file, row copied to a tensor."""
    import torch

    path = Path(folder) / "matrix.bin"
    _packs(num).tofile(path)
    matrix = np.memmap(path, np.int32, "r", shape=(num, LENGTH))
    return _reading(num, lambda number: torch.from_numpy(np.array(matrix[number])))


def hf_arrow(folder: str, num: int) -> Work:
    """Hugging Face datasets with torch format."""
    from datasets import Dataset

    data = Dataset.from_dict({"ids": list(_packs(num))})
    data.save_to_disk(folder)
    data = Dataset.load_from_disk(folder).with_format("torch")
    return _reading(num, lambda number: data[number]["ids"])


def tensordict(folder: str, num: int) -> Work:
    """A memory-mapped TensorDict, rows cloned."""
    import torch
    from tensordict import TensorDict

    TensorDict({"ids": torch.from_numpy(_packs(num))}, [num]).memmap(folder)
    data = TensorDict.load_memmap(folder)
    return _reading(num, lambda number: data[number]["ids"].clone())


def streaming(folder: str, num: int) -> Work:
    """MDS with an ndarray column."""
    import torch

    _let_torchvision_load()
    from streaming import LocalDataset, MDSWriter

    with MDSWriter(out=folder, columns={"ids": f"ndarray:int32:{LENGTH}"}, exist_ok=True) as out:
        for ids in _packs(num):
            out.write({"ids": ids})
    data = LocalDataset(folder)
    return _reading(num, lambda number: torch.from_numpy(data[number]["ids"].copy()))


def litdata(folder: str, num: int) -> Work:
    """litdata's TokensLoader."""
    import torch

    _let_torchvision_load()
    from litdata import StreamingDataset, TokensLoader
    from litdata.streaming.writer import BinaryWriter

    loader = TokensLoader(block_size=LENGTH)
    writer = BinaryWriter(folder, chunk_size=1000 * LENGTH, item_loader=loader)
    for number, ids in enumerate(_packs(num)):
        writer[number] = torch.from_numpy(ids)
    writer.done()
    writer.merge(1)
    data = StreamingDataset(folder, item_loader=TokensLoader(block_size=LENGTH))
    return _reading(num, lambda number: data[number].clone())


def _let_torchvision_load() -> None:
    # The wheel of torchvision has no operators for a torch without CUDA, and says so on import.
    import torch

    global library
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def lazy_packs(folder: str) -> Work:
    """Packs that are read, laid out and collated."""
    from shardmill.train.collate import Collate

    packs, collate = _open_packs(folder), Collate(length=CAPACITY)

    def work() -> int:
        for number in range(len(packs)):
            collate([packs[number]])
        return len(packs)

    return work


def built_packs(folder: str) -> Work:
    """Packs that wait in memory and are only collated."""
    from shardmill.train.collate import Collate

    packs, collate = _open_packs(folder), Collate(length=CAPACITY)
    built = [packs[number] for number in range(len(packs))]

    def work() -> int:
        for pack in built:
            collate([pack])
        return len(built)

    return work


def _open_packs(folder: str) -> Any:
    from shardmill.model.plan import PackSpec, length_table
    from shardmill.model.tokenrow import MediaSpan, TokenRow
    from shardmill.packing.plan import plan_packs
    from shardmill.train.dataset import PackedDataset
    from shardmill.train.documents import TokenReader

    rng = np.random.default_rng(3)
    lengths = rng.integers(600, 1040, NUM_PACKS * CAPACITY // 820)
    media = (MediaSpan(name="jpg", kind="image", position=8, num_tokens=576, grid=(1, 48, 48)),)
    rows = (
        TokenRow(
            key=f"{n:08d}",
            ids=rng.integers(0, VOCABULARY, length),
            loss=np.array([[590, length - 590]]),
            media=media if n % 5 < 3 else (),
        )
        for n, length in enumerate(lengths.tolist())
    )
    num = _write_rows(Path(folder), rows)
    plan = plan_packs(length_table(lengths), PackSpec(capacity=CAPACITY))
    return PackedDataset(plan, TokenReader(_token_set(Path(folder), num)))


def decoding(folder: str) -> Work:
    """The images of such a pack, decoded: 24 JPEGs of 640 x 480."""
    from PIL import Image

    from shardmill.media.image import decode_image

    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    image = Image.fromarray(noise).resize((640, 480))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)

    def work() -> int:
        for _ in range(10 * IMAGES):
            decode_image(file.getvalue())
        return 10

    return work


CONTESTANTS = (
    ("shardmill", "shardmill", None, "token shard, a row is a pack"),
    ("bare memmap", "memmap", None, "the limit"),
    ("HF Arrow, torch format", "hf_arrow", None, ""),
    ("TensorDict memmap", "tensordict", None, ""),
    ("streaming", "streaming", "streaming", "MDS ndarray"),
    ("litdata", "litdata", "litdata", "TokensLoader"),
)


def access(folder: Path, num: int, rounds: int) -> str:
    """Run the contest of random access and return its table."""
    contest = Contest(f"{num:,} packs of {LENGTH:,} tokens at random", unit="pack")
    for name, function, peer, note in CONTESTANTS:
        place = folder / function
        place.mkdir()
        contest.add(name, __file__, function, peer=peer, note=note, folder=str(place), num=num)
    contest.run(rounds)
    return f"## {contest.title}\n\n{contest.table(than='bare memmap')}"


def building(folder: Path, rounds: int) -> str:
    """Compare building packs with decoding their images."""
    contest = Contest("Packs of 32,768 tokens", unit="pack")
    for name in ("lazy", "built"):
        (folder / name).mkdir()
        contest.add(f"{name}, collated", __file__, f"{name}_packs", folder=str(folder / name))
    decode = f"decode {IMAGES} images of 640 x 480"
    contest.add(decode, __file__, "decoding", folder="")
    contest.run(rounds)
    lazy, built = (contest.best(f"{name}, collated").cpu_us for name in ("lazy", "built"))
    share = (lazy - built) / contest.best(decode).cpu_us
    text = f"Building packs when asked for costs {100 * share:.1f} % of decoding their images."
    return f"## {contest.title}\n\n{contest.table(than=decode)}\n\n{text}"


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        sections = [
            access(Path(name), 1_000 if quick else 8_000, 2 if quick else 7),
            building(Path(name), 2 if quick else 7),
        ]
    save_report(__file__, "Serving tokens", sections)
