"""The finished folders of a small project, made once; a case gets copies of those it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from mistaken import IMAGES, film, image, prepare, write
from vq_checkpoints import write_llamagen, write_original

import shardmill as sm

COLOURS = ("red", "green", "blue")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of pairs, chats, texts and films, with their codes, tokens, plan and packs."""
    place = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        _make(place)
    return place


def _make(place: Path) -> None:
    pairs = [{"image": f"{name}.png", "caption": f"A {name} square."} for name in COLOURS]
    chats = [
        {
            "image": f"{name}.png",
            "conversations": [
                {"from": "human", "value": "<image>\nWhich colour?"},
                {"from": "gpt", "value": f"It is {name}."},
            ],
        }
        for name in COLOURS
    ]
    texts = [{"text": f"Text number {number}. " * (number + 1)} for number in range(6)]
    films = [{"video": "film.mp4", "caption": "Stripes."}]
    tables = {
        "pairs.jsonl": pairs,
        "chats.jsonl": chats,
        "texts.jsonl": texts,
        "films.jsonl": films,
    }
    prepare({**IMAGES, **tables, "film.mp4": film}, "", place, place)
    write(place / "big.png", image("grey", 256))
    for name in ("pairs", "chats", "films"):
        sm.ingest(f"{name}.jsonl", name, workers=0)
    sm.ingest("texts.jsonl", "texts", shape="text", per_shard=2, workers=0)
    write_original(place / "vq")
    write_llamagen(place / "llamagen.pt")
    sm.codes("pairs", "codes", tokenizer="chameleon,weights=vq", resolution=32, workers=0)
    sm.tokenize("texts", "tokens", workers=0)
    sm.plan("tokens", "packs.plan", capacity=128)
    sm.pack("tokens", "packs.plan", "packs", workers=0)
    sm.measure("chats", "lengths", model="qwen2.5-vl", estimate=True, workers=0)
    sm.plan("lengths", "pixels.plan", capacity=512)
    added = {"added": ["im_patch", "im_start", "im_end"]}
    chat = {"template": "chat", "layout": "patches", "space": added}
    sm.tokenize("chats", "chat-tokens", **chat, workers=0)
    ids = {"num_codes": 300, "added": ["boi", "eoi"]}
    sm.tokenize("pairs", "coded", template="t2i", codes="codes", space=ids, workers=0)
    sm.export("tokens", "megatron", format="megatron", workers=0)
