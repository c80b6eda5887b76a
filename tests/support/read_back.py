"""`python read_back.py KIND FOLDER ...`: an export as the library that it is meant for reads it.

Prints one JSON list for each pair: the token ids of each record, or what else the kind holds; a
kind may stand for several folders as KIND:NAME.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from glob import glob
from itertools import pairwise
from typing import Any


def megatron(folder: str) -> list[Any]:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    data = IndexedDataset(f"{folder}/all")
    bounds = data.document_indices.tolist()
    return [
        [token for row in range(a, b) for token in data[row].tolist()] for a, b in pairwise(bounds)
    ]


def hf(folder: str) -> list[Any]:
    from datasets import load_from_disk

    return [row["input_ids"] for row in load_from_disk(folder)]


def parquet(folder: str) -> list[Any]:
    from datasets import load_dataset

    return [row["input_ids"] for row in load_dataset(folder, split="train", streaming=True)]


def liquid(folder: str) -> list[Any]:
    from datasets import load_from_disk

    return [[row["text"], row["vqcode_512"]] for row in load_from_disk(folder)]


def tensordict(folder: str) -> list[Any]:
    from tensordict import TensorDict

    data = TensorDict.load_memmap(folder)
    return [row["input_ids"][row["attention_mask"]].tolist() for row in data]


def pairs(folder: str) -> list[Any]:
    from tensordict import TensorDict

    return [
        [row["txt_input_ids"][row["txt_attention_mask"]].tolist(), row["img_input_ids"].tolist()]
        for row in TensorDict.load_memmap(folder)
    ]


def webdataset(folder: str) -> list[Any]:
    import webdataset as wds

    tars = sorted(glob(f"{folder}/shards/*.tar"))
    data = wds.WebDataset(tars, shardshuffle=False).decode()
    return [
        (s["input_ids.npy"].tolist() if "input_ids.npy" in s else s["json"]["input_ids"])
        for s in data
    ]


def wids(folder: str) -> list[Any]:
    import wids

    data = wids.ShardListDataset(f"{folder}/shardindex.json")
    return [data[number][".json"]["input_ids"] for number in range(len(data))]


def energon(folder: str) -> list[Any]:
    from megatron.energon import WorkerConfig, get_loader, get_val_dataset

    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    data = get_val_dataset(folder, split_part="train", worker_config=config, batch_size=1)
    found = {b.__key__[0]: b.sequence[0] for b in get_loader(data)}
    return [
        [found[key][0].tolist(), found[key][1].tolist(), len(found[key]) - 3]
        for key in sorted(found)
    ]


def lint(folder: str) -> list[Any]:
    from click.testing import CliRunner
    from megatron.energon.tools.lint import command

    done = CliRunner().invoke(command, [folder])
    return [done.exit_code, done.output[-2000:]]


def mds(folder: str) -> list[Any]:
    _let_torchvision_load()
    from streaming import LocalDataset

    data = LocalDataset(folder)
    return [[s["input_ids"].tolist(), s["loss_mask"].tolist(), s["keys"]] for s in data]


def litdata(folder: str) -> list[Any]:
    _let_torchvision_load()
    from litdata import StreamingDataset, TokensLoader

    data = StreamingDataset(folder, item_loader=TokensLoader(block_size=1), shuffle=False)
    return [block.tolist()[0] for block in data]


def _let_torchvision_load() -> None:
    # The wheel of torchvision has no operators for a torch without CUDA, and says so on import.
    import torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["LIBRARY"] = library


if __name__ == "__main__":
    for kind, folder in zip(sys.argv[1::2], sys.argv[2::2]):
        reader: Callable[[str], list[Any]] = globals()[kind.partition(":")[0]]
        sys.stdout.write("\n" + json.dumps(reader(folder)) + "\n")
