"""Writes the demo's tables (data/*.jsonl, data/*.json) from one page of captions and questions.

Run it after an edit of this page; its output is committed, so that the demo shows plain files.
"""

from __future__ import annotations

import json
from pathlib import Path

DATA = Path(__file__).parent / "data"

PHOTOS: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "astronaut.jpg": (
        "An astronaut in an orange launch suit smiles beside a model of the space shuttle.",
        "Portrait of Eileen Collins with a flag of the United States behind her and a helmet "
        "at her side.",
        [
            (
                "What is the person wearing?",
                "An orange pressure suit, as worn at a shuttle launch.",
            ),
            ("What stands in the background?", "A flag and a model of the space shuttle."),
        ],
    ),
    "bricks.jpg": (
        "A pavement of long grey bricks.",
        "Grey bricks laid in parallel rows, seen from above in black and white.",
        [("Is this photograph in colour?", "No, it is black and white.")],
    ),
    "camera.jpg": (
        "A man in a dark coat looks through a camera on a tripod.",
        "A photographer bends over his tripod on a lawn; buildings stand at the horizon.",
        [
            ("What is the man doing?", "He looks through the finder of a camera on a tripod."),
            ("Where is he?", "Outdoors, on a wide lawn with buildings far behind him."),
            ("Is he wearing gloves?", "Yes, dark ones."),
        ],
    ),
    "cat.jpg": (
        "A ginger tabby cat looks past the camera with green eyes.",
        "Close-up of a cat's face: striped fur, long white whiskers, a pink nose.",
        [
            ("What colour are the cat's eyes?", "Green."),
            ("Describe its fur.", "Short and ginger, with darker tabby stripes on the forehead."),
        ],
    ),
    "cell.png": (
        "A single bright cell on a grey background under the microscope.",
        "Microscope picture of one round cell with a dark halo.",
        [("How many cells can be seen?", "One.")],
    ),
    "clock.jpg": (
        "A wall clock blurred by the movement of the camera.",
        "A pale disc smeared sideways on a grey wall: a clock, photographed in motion.",
        [("Can the time be read?", "No, the camera moved and everything is blurred.")],
    ),
    "coffee.webp": (
        "An espresso in a red cup on a wooden table.",
        "A cup of coffee with a spoon on its saucer, the wood glowing in warm light.",
        [
            ("What is in the cup?", "An espresso, about half full."),
            ("What lies on the saucer?", "A small metal spoon."),
        ],
    ),
    "coins.png": (
        "Twenty-four ancient coins in four rows on a dark ground.",
        "Old coins with portraits and figures, arranged in a museum photograph.",
        [("How are the coins arranged?", "In four rows of six.")],
    ),
    "flower.jpg": (
        "An orange dahlia in front of dark leaves.",
        "A dahlia in full bloom, its petals in regular rings, a second flower below it.",
        [
            ("What kind of flower is this?", "A dahlia."),
            ("What colour is it?", "Orange to salmon."),
        ],
    ),
    "galaxies.jpg": (
        "Thousands of galaxies in a small patch of dark sky.",
        "The Hubble deep field: red, blue and white specks, almost each of them a galaxy.",
        [("What are the bright specks?", "Galaxies, some of them spirals seen from the side.")],
    ),
    "grass.jpg": (
        "Short grass with some fallen leaves, from above.",
        "A lawn in black and white: blades, stalks and small leaves.",
        [("What covers the ground?", "Grass and a few leaves.")],
    ),
    "gravel.webp": (
        "Grey gravel, evenly spread.",
        "Small sharp-edged stones fill the whole picture.",
        [("Are the stones round?", "No, most have sharp edges.")],
    ),
    "palace.jpg": (
        "A pagoda of the Summer Palace above trees and a lake.",
        "A red and green tower with four roofs overlooks a lake in haze.",
        [
            ("How many roofs does the tower have?", "Four, one above the other."),
            ("What lies behind it?", "A wide lake, with hills in the haze."),
        ],
    ),
    "retina.jpg": (
        "The retina of a human eye with its vessels.",
        "Fundus photograph: the bright optic disc on the left, the dark macula in the middle.",
        [("What is the bright spot on the left?", "The optic disc, where the nerve enters.")],
    ),
    "rocket.jpg": (
        "A rocket on its launch pad at dusk.",
        "A white rocket between lightning towers, lit by floodlights before sunrise.",
        [
            ("What time of day might it be?", "Dusk or dawn: the sky is deep blue."),
            ("What are the lattice towers for?", "They protect the rocket against lightning."),
        ],
    ),
    "tissue.jpg": (
        "Stained tissue under the microscope.",
        "Brown glands among blue nuclei in a stained section of tissue.",
        [("What do the blue dots show?", "The nuclei of cells.")],
    ),
}

PAGES: list[tuple[list[str], list[tuple[str, int]]]] = [
    (
        [
            "We came to the palace early, before the boats were out on the lake.",
            "In the garden below, the dahlias had just opened.",
            "Afterwards we had coffee and waited for the rain to end.",
        ],
        [("palace.jpg", 0), ("flower.jpg", 1), ("coffee.webp", 2)],
    ),
    (
        [
            "The rocket stood ready all night.",
            "Everyone who flies one began by looking up at a sky like this.",
            "Some of them later wore the orange suit.",
        ],
        [("rocket.jpg", 0), ("galaxies.jpg", 1), ("astronaut.jpg", 2)],
    ),
    (
        ["Four surfaces for a renderer: brick, grass, gravel.", "The last one is missing."],
        [("bricks.jpg", 0), ("grass.jpg", 0), ("gravel.webp", 0)],
    ),
]

TEXTS = [
    "A shard is a tar file that other tools can read. It holds some hundred samples, and an index "
    "beside it says where each of them begins, so that a reader can fetch number 4711 without "
    "looking at the 4710 before it.",
    "A receipt is a small file that is written last. Whoever reads a data set believes receipts "
    "only: a shard without one does not exist, however complete it looks. This is why a run can be "
    "killed at any moment and started again with the same command.",
    "Packing puts several documents into one training sequence, so that no token is spent on "
    "padding. The plan is made from lengths alone; pictures are opened later, in the loader.",
    "Attention must not cross the border between two documents of a pack. Positions start again at "
    "nought, and the mask is a block of triangles along the diagonal.",
    "When one rank of a step has more pictures than the others, all the others wait for it. Packs "
    "of like cost therefore travel together, and only their groups are shuffled.",
    "Ein Datensatz ist eine Liste von Stücken, die sich nicht mehr ändern.",
    "Un échantillon est gardé, ou écarté avec sa raison ; il n'y a pas de troisième cas.",
    "数据不会悄悄丢失：每个样本要么保留，要么带着原因被拒绝。",
    "データは黙って失われない。すべてのサンプルは、残るか、理由とともに除かれる。",
    "Ни один пример не пропадает молча.",
]


def pairs() -> list[dict[str, object]]:
    """Image-text pairs in Liquid's shape, and two rows that cannot be right."""
    rows: list[dict[str, object]] = []
    for name, (short, long, _) in PHOTOS.items():
        rows.append({"image_path": f"photos/{name}", "text_prompt": short})
        rows.append({"image_path": f"photos/{name}", "text_prompt": long})
    rows.insert(7, {"image_path": "photos/unicorn.jpg", "text_prompt": "A unicorn in the mist."})
    rows.insert(19, {"image_path": "pairs.jsonl", "text_prompt": "Not a picture at all."})
    return rows


def chats() -> list[dict[str, object]]:
    """Conversations in LLaVA's shape; one names more pictures than it has."""
    rows: list[dict[str, object]] = []
    for name, (short, _, questions) in PHOTOS.items():
        turns = []
        for number, (question, answer) in enumerate(questions):
            value = f"<image>\n{question}" if number == 0 else question
            turns += [{"from": "human", "value": value}, {"from": "gpt", "value": answer}]
        turns += [
            {"from": "human", "value": "Describe the picture in one sentence."},
            {"from": "gpt", "value": short},
        ]
        rows.append({"id": Path(name).stem, "image": f"photos/{name}", "conversations": turns})
    rows.append(
        {
            "id": "compare",
            "image": ["photos/grass.jpg", "photos/gravel.webp"],
            "conversations": [
                {"from": "human", "value": "First <image>, then <image>. Which is softer?"},
                {"from": "gpt", "value": "The first: it shows grass, the second gravel."},
            ],
        }
    )
    rows.append(
        {
            "id": "one-too-many",
            "image": ["photos/cat.jpg"],
            "conversations": [
                {"from": "human", "value": "<image> and <image>: which one is older?"},
                {"from": "gpt", "value": "I see only one."},
            ],
        }
    )
    rows.append(
        {
            "id": "tour",
            "video": "tour.mp4",
            "conversations": [
                {"from": "human", "value": "<video>\nWhat does the film show?"},
                {"from": "gpt", "value": "A palace above a lake, then a cat, then a rocket."},
                {"from": "human", "value": "How many cuts are there?"},
                {"from": "gpt", "value": "Two."},
            ],
        }
    )
    return rows


def pages() -> list[dict[str, object]]:
    """Interleaved pages in MMC4's shape."""
    return [
        {
            "text_list": sentences,
            "image_info": [
                {"image_name": f"photos/{name}", "matched_text_index": sentence}
                for name, sentence in pictures
            ],
        }
        for sentences, pictures in PAGES
    ]


def main() -> None:
    for name, rows in {
        "pairs.jsonl": pairs(),
        "pages.jsonl": pages(),
        "texts.jsonl": [{"text": text} for text in TEXTS],
    }.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (DATA / name).write_text(lines, encoding="utf-8")
    (DATA / "chats.json").write_text(
        json.dumps(chats(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
