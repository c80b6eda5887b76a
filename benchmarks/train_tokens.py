"""Packs of 8,192 tokens by number, as tensors of their own: python benchmarks/train_tokens.py

8,000 packs of int32, read at random, page cache warm. Goals: within 20 % of a bare memmap, and
ahead of every peer. Then packs of 32k of 40 documents: built when asked for and collated, only
collated, and the images of such a pack decoded. Goal: building costs under 10 % of decoding. Last,
how many bytes a token takes on disk, for pairs of a caption and an image of codes.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from made_data import write_tokens
from peers import let_torchvision_load
from side_by_side import Contest, Work, save_report, sized

LENGTH = 8192
VOCABULARY = 150_000
CAPACITY, NUM_PACKS, IMAGES = 32_768, sized(40, 4), 24


def _reading(num: int, read: Callable[[int], Any]) -> Work:
    order = np.random.default_rng(7).permutation(num).tolist()

    def work() -> int:
        if not all(len(read(number)) == LENGTH for number in order):
            raise SystemExit("a pack of another length")
        return num

    return work


def _packs(num: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, VOCABULARY, (num, LENGTH), np.int32)


def shardmill(folder: str, num: int) -> Work:
    """RowDataset, each row a pack."""
    import shardmill as sm

    rows = ({"key": f"{n:08d}", "ids": ids} for n, ids in enumerate(_packs(num)))
    write_tokens(Path(folder) / "tokens", [rows], text_size=VOCABULARY)
    return _reading(num, sm.RowDataset(f"{folder}/tokens").__getitem__)


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

    let_torchvision_load()
    from streaming import LocalDataset, MDSWriter

    with MDSWriter(out=folder, columns={"ids": f"ndarray:int32:{LENGTH}"}, exist_ok=True) as out:
        for ids in _packs(num):
            out.write({"ids": ids})
    data = LocalDataset(folder)
    return _reading(num, lambda number: torch.from_numpy(data[number]["ids"].copy()))


def litdata(folder: str, num: int) -> Work:
    """litdata's TokensLoader."""
    import torch

    let_torchvision_load()
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


def lazy_packs(folder: str) -> Work:
    """Packs that are read, laid out and collated."""
    import shardmill as sm

    packs, collate = _open_packs(folder), sm.Collate("nemo", length=CAPACITY)

    def work() -> int:
        for number in range(len(packs)):
            collate([packs[number]])
        return len(packs)

    return work


def built_packs(folder: str) -> Work:
    """Packs that wait in memory and are only collated."""
    import shardmill as sm

    packs, collate = _open_packs(folder), sm.Collate("nemo", length=CAPACITY)
    built = [packs[number] for number in range(len(packs))]

    def work() -> int:
        for pack in built:
            collate([pack])
        return len(built)

    return work


def _open_packs(folder: str) -> Any:
    import shardmill as sm

    rng = np.random.default_rng(3)
    lengths = rng.integers(600, 1040, NUM_PACKS * CAPACITY // 820)
    image = {"name": "jpg", "kind": "image", "position": 8, "num_tokens": 576, "grid": (1, 48, 48)}
    rows = (
        {
            "key": f"{n:08d}",
            "ids": rng.integers(0, VOCABULARY, length),
            "loss": np.array([[590, length - 590]]),
            "media": (image,) if n % 5 < 3 else (),
        }
        for n, length in enumerate(lengths.tolist())
    )
    tokens = write_tokens(Path(folder) / "tokens", [rows], text_size=VOCABULARY)
    return sm.PackedDataset(sm.plan(tokens, f"{folder}/packs.plan", capacity=CAPACITY), tokens)


def decoding(folder: str) -> Work:
    """The images of such a pack, decoded: 24 JPEGs of 640 x 480."""
    import simplejpeg
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    image = Image.fromarray(noise).resize((640, 480))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)

    def work() -> int:
        for _ in range(10 * IMAGES):
            simplejpeg.decode_jpeg(file.getvalue())
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


def on_disk(folder: Path) -> str:
    """Return the table of bytes a token."""
    import shardmill as sm

    lines = ["| codes an image | bytes a token, all files |", "|---:|---:|"]
    for num_codes in (256, 1024, 4096):
        place = folder / f"codes-{num_codes}"
        write_tokens(place, [_pairs(num_codes)], text_size=32_768, num_codes=16_384)
        tokens = sm.open(place)
        num_tokens = sum(len(row.ids) for row in tokens)
        lines.append(f"| {num_codes} | {tokens.manifest.num_bytes / num_tokens:.3f} |")
    return "## On disk\n\n" + "\n".join(lines)


def _pairs(num_codes: int) -> Iterator[dict[str, Any]]:
    side, rng = int(num_codes**0.5), np.random.default_rng(2)
    for number in range(sized(2000, 200)):
        num_text = int(rng.integers(8, 80))
        image = {"name": "jpg", "kind": "image", "position": num_text + 1, "num_tokens": num_codes}
        image |= {"grid": (1, side, side), "before": 1, "after": 1}
        yield {
            "key": f"cc12m-{number:08d}",
            "ids": np.zeros(num_text + num_codes + 3, np.uint16),
            "loss": np.array([[num_text + 1, num_codes + 2]]),
            "media": (image,),
        }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        sections = [
            access(Path(name), sized(8_000, 100), sized(7, 1)),
            building(Path(name), sized(7, 1)),
            on_disk(Path(name)),
        ]
    save_report(__file__, "Serving tokens", sections)
