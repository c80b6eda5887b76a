"""NeMo Automodel's own VLM recipe trains on our packs, in our order, by its YAML."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hf_processors import chat_template, make_tokenizer, transformers

import shardmill as sm
from shardmill.errors import ConfigError
from shardmill.nemo_recipe import PlannedPacks, RecipePacks
from shardmill.train.dataset import PackedDataset

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from packers import nemo_module
from peers import peer_environment

ROOT = Path(__file__).parents[3]
MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
WORDS = ("a", "cat", "sits.", "two!", "12.5")


def make_model(folder: Path) -> None:
    """Save a Qwen2.5-VL with its processor, small and random."""
    library = transformers()
    torch.manual_seed(0)
    start, end, image, video = MARKS
    tokenizer = make_tokenizer(*MARKS)
    library.Qwen2_5_VLProcessor(
        library.Qwen2VLImageProcessor(patch_size=4, min_pixels=64, max_pixels=1024),
        tokenizer,
        library.Qwen2VLVideoProcessor(patch_size=4),
        chat_template(image=start + image + end, video=start + video + end),
    ).save_pretrained(folder)
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    text = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(tokenizer)}
    vision = {"depth": 1, "num_heads": 2, "patch_size": 4, "hidden_size": 16, "window_size": 16}
    vision |= {"intermediate_size": 24, "out_hidden_size": 32, "fullatt_block_indexes": [0]}
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    config = library.Qwen2_5_VLConfig(
        text_config={**text, "rope_parameters": rope, "rope_scaling": rope},
        vision_config=vision,
        **dict(zip(names, tokenizer.convert_tokens_to_ids(list(MARKS)))),
    )
    library.Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)


def make_chats(folder: Path) -> None:
    """Write a meta file with chats, two in three about an image."""
    image = pytest.importorskip("PIL.Image")
    rng = random.Random(0)
    (folder / "photos").mkdir()
    rows = []
    for number in range(40):
        shown = "<image>" if number % 3 else ""
        asked, told = (" ".join(rng.choices(WORDS, k=rng.randint(2, 20))) for _ in range(2))
        turns = [{"role": "user", "content": shown + asked}, {"role": "assistant", "content": told}]
        rows.append({"messages": turns, "images": [f"{number}.png"] if shown else []})
        size = rng.randint(16, 64), rng.randint(16, 64)
        image.new("RGB", size, (5 * number, 9, 7)).save(folder / "photos" / f"{number}.png")
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    meta = {"chats": {"file_name": "chats.jsonl", "media_dir": "photos"}}
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a meta file, and the plan that the commands of the example make."""
    folder = tmp_path_factory.mktemp("recipe")
    make_model(folder / "MODEL")
    make_chats(folder)
    shards = sm.ingest(folder / "meta.json", folder / "shards")
    sm.measure(shards, folder / "lengths", model=folder / "MODEL")
    sm.plan(folder / "lengths", folder / "packs.plan", capacity=128)
    return folder


def config_of(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return the YAML of the example with what a CPU and a test need changed."""
    yaml = pytest.importorskip("yaml")
    config = yaml.safe_load((ROOT / "examples" / "nemo_automodel.yaml").read_text())
    config["step_scheduler"] |= {"global_batch_size": 4}
    config["dist_env"] = {"backend": "gloo", "timeout_minutes": 2}
    config["model"]["torch_dtype"] = "torch.float32"
    config["optimizer"]["lr"] = 0.01
    config["distributed"]["strategy"] = "ddp"
    config["checkpoint"]["enabled"] = False
    config["dataloader"]["num_workers"] = 1
    return config | changes


def train(folder: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Run NeMo's recipe and return its steps."""
    yaml = pytest.importorskip("yaml")
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    support = str(ROOT / "tests" / "support")
    environment = peer_environment("nemo")
    environment["PYTHONPATH"] = os.pathsep.join(
        [support, str(ROOT / "src"), environment["PYTHONPATH"]]
    )
    done = subprocess.run(
        [sys.executable, f"{support}/nemo_on_cpu.py", "config.yaml"],
        cwd=folder,
        env={**environment, **where, "MASTER_PORT": port, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    return [json.loads(line[5:]) for line in lines if line.startswith("STEP ")]


def test_the_recipe_trains_on_the_planned_order(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = train(place, config_of(place))
    monkeypatch.chdir(place)
    packs = PackedDataset("packs.plan", "shards", processor="MODEL", lengths="lengths")
    make = PlannedPacks(plan="packs.plan", data="shards", processor="MODEL", lengths="lengths")
    collate = make.build(rank=0, world_size=1).collate
    for epoch in (0, 1):
        seen = [one for step in steps if step["epoch"] == epoch for one in step["sums"]]
        order = packs.order(42, epoch).tolist()
        assert seen == [int(collate([packs[n]])["input_ids"].sum()) for n in order]
    assert packs.order(42, 0).tolist() != packs.order(42, 1).tolist()
    losses = [step["loss"] for step in steps]
    assert losses[-1] < 0.8 * losses[0]


def test_the_recipe_trains_on_its_own_data_set_packed_by_us(place: Path) -> None:
    dataset = {
        "_target_": "shardmill.nemo_recipe.NeatPacks",
        "model": "MODEL",
        "pack_size": 128,
        "packing_ratio": 0.9,
        "max_faults": 5,
        "dataset": {
            "_target_": "nemo_automodel.components.datasets.vlm.datasets.make_meta_dataset",
            "path_or_dataset": "meta.json",
        },
    }
    steps = train(place, config_of(place, dataset=dataset))
    assert {step["epoch"] for step in steps} == {0, 1}
    assert steps[-1]["loss"] < steps[0]["loss"]


@pytest.fixture
def resolve(place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return NeMo's loader of the example's YAML for a rank of several."""
    nemo_module()
    from nemo_automodel.components.config.loader import ConfigNode
    from nemo_automodel.recipes._typed_config import RecipeConfig

    monkeypatch.chdir(place)

    def build(rank: int, world: int, **loader: Any) -> Any:
        config = config_of(place)
        config["dataloader"] |= loader
        found = RecipeConfig(ConfigNode(config)).vlm_dataloader
        return found.build(
            pretrained_model_name_or_path="MODEL", dp_rank=rank, dp_world_size=world, batch_size=1
        ).dataloader

    return build


def test_ranks_share_the_order_and_a_shuffle_is_refused(resolve: Any) -> None:
    loaders = [resolve(rank, 3, num_workers=0) for rank in range(3)]
    packs = loaders[0].dataset.packs
    make = loaders[0].dataset.collate
    for epoch in (0, 5):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
            loader.collate_fn.set_epoch(epoch)
        seen = [[int(batch["input_ids"].sum()) for batch in loader] for loader in loaders]
        order = np.resize(packs.order(42, epoch), 3 * len(loaders[0])).reshape(-1, 3).T
        assert seen == [[int(make([packs[n]])["input_ids"].sum()) for n in row] for row in order]
    with pytest.raises(ConfigError, match=r"set dataloader\.shuffle: false"):
        for loader in (resolve(rank, 3, num_workers=0, shuffle=True) for rank in range(3)):
            list(loader)


def test_workers_that_persist_learn_of_a_new_epoch(resolve: Any) -> None:
    loader = resolve(0, 1, num_workers=1, persistent_workers=True)
    seen = []
    for epoch in (0, 1):
        loader.collate_fn.set_epoch(epoch)
        seen.append([int(batch["input_ids"].sum()) for batch in loader])
    assert seen[0] != seen[1]
    assert sorted(seen[0]) == sorted(seen[1])


def test_the_loader_resumes(resolve: Any) -> None:
    loader, again = (resolve(0, 2, num_workers=1) for _ in range(2))
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    again.load_state_dict(loader.state_dict())
    rest = [int(batch["input_ids"].sum()) for batch in batches]
    assert [int(batch["input_ids"].sum()) for batch in again] == rest
    assert rest


def test_an_empty_plan_is_refused() -> None:
    with pytest.raises(ConfigError, match="no packs"):
        RecipePacks([], list)  # type: ignore[arg-type]


def test_the_page_shows_the_example() -> None:
    page = (ROOT / "docs" / "from-nemo.md").read_text()
    example = (ROOT / "examples" / "nemo_automodel.yaml").read_text()
    shown = page.split("```yaml\n")[1].split("```")[0]
    assert example.endswith(shown)
    assert shown.startswith("recipe:")
