"""Tables as people of this field publish them: each is read right, or refused with what to type.

Only the columns are theirs; images are small squares, and texts are short. `reads` is what a person
who knows the data set would say that a row means. Where a refusal is as good, it names a column
that the guess could not place, and a flag.
"""

from __future__ import annotations

import io
import json
import tarfile
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from mistaken import (
    IMAGES,
    Case,
    Content,
    case,
    either,
    film,
    holds,
    image,
    prints,
    refused,
    right,
    try_case,
)

RED, BLUE = image("red"), image("blue")
ASKED = "user: <red>\nWhich colour? | assistant: Red."
TURNS = [
    {"from": "human", "value": "<image>\nWhich colour?"},
    {"from": "gpt", "value": "Red."},
]
MEDIA: dict[str, Content] = {**IMAGES, "film.mp4": film}


def reads(name: str, file: str, content: Content, *said: str, flags: str = "") -> Any:
    """A table that must be read, and say this."""
    return case(
        f"wild: {name}",
        f"ingest {file} out {flags}",
        right(holds("out", *said)),
        has={**MEDIA, file: content},
    )


def reads_or_asks(name: str, file: str, content: Content, said: list[str], *words: str) -> Any:
    """A table that says this, or is refused with these words and a flag."""
    return case(
        f"wild: {name}",
        f"ingest {file} out",
        either(refused("--", *words), right(holds("out", *said))),
        has={**MEDIA, file: content},
    )


def asks(name: str, file: str, content: Content, *words: str) -> Any:
    """A table that cannot be guessed: it is refused with these words and a flag."""
    return case(
        f"wild: {name}",
        f"ingest {file} out",
        refused("--", *words),
        has={**MEDIA, file: content},
    )


def stored(content: bytes, path: str | None = None) -> dict[str, Any]:
    """An image as the `datasets` library stores it in parquet."""
    return {"bytes": content, "path": path}


def tar(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as out:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return file.getvalue()


CHATS = [
    reads(
        "LLaVA-Instruct",
        "llava.json",
        [{"id": "1", "image": "red.png", "conversations": TURNS}],
        ASKED,
    ),
    reads(
        "LLaVA, the image after the question",
        "llava.json",
        [
            {
                "id": "1",
                "image": "red.png",
                "conversations": [{"from": "human", "value": "Which colour?\n<image>"}, TURNS[1]],
            }
        ],
        "user: Which colour?\n<red> | assistant: Red.",
    ),
    reads(
        "LLaVA, rows with and without an image",
        "mix.json",
        [
            {"id": "1", "image": "red.png", "conversations": TURNS},
            {
                "id": "2",
                "conversations": [
                    {"from": "human", "value": "Hi."},
                    {"from": "gpt", "value": "Hello."},
                ],
            },
        ],
        ASKED,
        "user: Hi. | assistant: Hello.",
    ),
    reads(
        "LLaVA-OneVision",
        "onevision.parquet",
        [{"id": "1", "image": stored(RED), "conversations": TURNS, "data_source": "vg"}],
        ASKED,
    ),
    reads(
        "LLaVA-NeXT-Interleave",
        "m4.json",
        [
            {
                "sample_id": 1,
                "image": ["red.png", "blue.png"],
                "conversations": [
                    {"from": "human", "value": "<image>\n<image>\nWhich is warmer?"},
                    {"from": "gpt", "value": "The first."},
                ],
                "metadata": {"dataset": "x"},
            }
        ],
        "user: <red>\n<blue>\nWhich is warmer? | assistant: The first.",
    ),
    reads_or_asks(
        "LLaVA-Video, whose videos are asked for by <image>",
        "video.json",
        [
            {
                "id": "1",
                "video": "film.mp4",
                "data_source": "x",
                "conversations": [
                    {"from": "human", "value": "<image>\nWhat is seen?"},
                    {"from": "gpt", "value": "Stripes."},
                ],
            }
        ],
        ["user: <video>\nWhat is seen? | assistant: Stripes."],
        "<image>",
    ),
    reads(
        "ShareGPT4V, several turns",
        "sharegpt4v.json",
        [
            {
                "id": "1",
                "image": "red.png",
                "conversations": [
                    *TURNS,
                    {"from": "human", "value": "Sure?"},
                    {"from": "gpt", "value": "Yes."},
                ],
            }
        ],
        f"{ASKED} | user: Sure? | assistant: Yes.",
    ),
    reads(
        "SlimOrca",
        "slimorca.jsonl",
        [
            {
                "conversations": [
                    {"from": "system", "value": "Be brief.", "weight": None},
                    {"from": "human", "value": "Hi.", "weight": 0.0},
                    {"from": "gpt", "value": "Hello.", "weight": 1.0},
                ]
            }
        ],
        "system: Be brief. | user: Hi. | assistant: Hello.",
    ),
    reads(
        "ms-swift",
        "swift.jsonl",
        [
            {
                "messages": [
                    {"role": "user", "content": "<image><image>Which is warmer?"},
                    {"role": "assistant", "content": "The first."},
                ],
                "images": ["red.png", "blue.png"],
            }
        ],
        "user: <red><blue>Which is warmer? | assistant: The first.",
    ),
    reads(
        "ms-swift, query and response",
        "swift.jsonl",
        [{"query": "<image>Which?", "response": "Red.", "images": ["red.png"], "history": []}],
        "user: <red>Which? | assistant: Red.",
    ),
    asks(
        "ms-swift, a rejected response beside the messages",
        "swift.jsonl",
        [
            {
                "messages": [
                    {"role": "user", "content": "Hi."},
                    {"role": "assistant", "content": "Hello."},
                ],
                "rejected_response": "Go away.",
            }
        ],
        "rejected_response",
    ),
    reads(
        "LLaMA-Factory, sharegpt",
        "factory.json",
        [
            {
                "conversations": [
                    {"from": "human", "value": "Hi."},
                    {"from": "gpt", "value": "Hello."},
                ],
                "system": "Be brief.",
                "tools": "[]",
            }
        ],
        "system: Be brief. | user: Hi. | assistant: Hello.",
    ),
    reads(
        "LLaMA-Factory, mllm",
        "mllm_demo.json",
        [
            {
                "messages": [
                    {"content": "<image>Who?", "role": "user"},
                    {"content": "Red.", "role": "assistant"},
                ],
                "images": ["red.png"],
            }
        ],
        "user: <red>Who? | assistant: Red.",
    ),
    asks(
        "LLaMA-Factory, preferences",
        "dpo.json",
        [
            {
                "conversations": [{"from": "human", "value": "Hi."}],
                "chosen": {"from": "gpt", "value": "Hello."},
                "rejected": {"from": "gpt", "value": "Go away."},
            }
        ],
        "chosen",
        "rejected",
    ),
    case(
        "wild: LLaMA-Factory, wanted and unwanted answers",
        "ingest kto.json out",
        either(
            refused("label", "--"),
            right(holds("out", "user: Hi. | assistant: Go away."), prints("extra", "label")),
        ),
        has={
            "kto.json": [
                {
                    "messages": [
                        {"role": "user", "content": "Hi."},
                        {"role": "assistant", "content": "Go away."},
                    ],
                    "label": False,
                }
            ]
        },
    ),
    reads(
        "TRL, images as typed parts",
        "trl.jsonl",
        [
            {
                "images": ["red.png"],
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image"}, {"type": "text", "text": "Which?"}],
                    },
                    {"role": "assistant", "content": [{"type": "text", "text": "Red."}]},
                ],
            }
        ],
        "user: <red>Which? | assistant: Red.",
    ),
    reads_or_asks(
        "TRL, typed parts in parquet, where every key is in every part",
        "trl.parquet",
        [
            {
                "images": [stored(RED)],
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "text": None},
                            {"type": "text", "text": "Which?"},
                        ],
                    },
                    {"role": "assistant", "content": [{"type": "text", "text": "Red."}]},
                ],
            }
        ],
        ["user: <red>Which? | assistant: Red."],
        "messages",
    ),
    reads(
        "TRL, prompt and completion as turns",
        "trl.jsonl",
        [
            {
                "prompt": [{"role": "user", "content": "Hi."}],
                "completion": [{"role": "assistant", "content": "Hello."}],
            }
        ],
        "user: Hi. | assistant: Hello.",
    ),
    reads(
        "TRL, prompt and completion as text",
        "trl.jsonl",
        [{"prompt": "The sky is", "completion": " blue."}],
        "user: The sky is | assistant:  blue.",
    ),
    asks(
        "TRL, preferences as turns",
        "trl.jsonl",
        [
            {
                "chosen": [
                    {"role": "user", "content": "Hi."},
                    {"role": "assistant", "content": "Hello."},
                ],
                "rejected": [
                    {"role": "user", "content": "Hi."},
                    {"role": "assistant", "content": "No."},
                ],
            }
        ],
        "chosen",
        "rejected",
    ),
    reads(
        "OpenAI, images as urls of data",
        "openai.jsonl",
        [
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "Which?"},
                            {
                                "type": "image_url",
                                "image_url": {
                                    "url": "data:image/png;base64," + b64encode(RED).decode()
                                },
                            },
                        ],
                    },
                    {"role": "assistant", "content": "Red."},
                ]
            }
        ],
        "user: Which?<red> | assistant: Red.",
    ),
    reads(
        "WildChat",
        "wildchat.jsonl",
        [
            {
                "conversation_hash": "x",
                "model": "m",
                "conversation": [
                    {"content": "Hi.", "role": "user", "language": "English"},
                    {"content": "Hello.", "role": "assistant", "language": "English"},
                ],
                "turn": 1,
                "language": "English",
            }
        ],
        "user: Hi. | assistant: Hello.",
    ),
    reads(
        "Mantis",
        "mantis.parquet",
        [
            {
                "id": "1",
                "images": [stored(RED), stored(BLUE)],
                "conversation": [
                    {"role": "user", "content": "<image> <image> Which is warmer?"},
                    {"role": "assistant", "content": "The first."},
                ],
                "source": "x",
            }
        ],
        "user: <red> <blue> Which is warmer? | assistant: The first.",
    ),
    reads_or_asks(
        "FineVision",
        "finevision.parquet",
        [
            {
                "images": [stored(RED)],
                "texts": [
                    {"user": "Which?", "assistant": "Red."},
                    {"user": "Sure?", "assistant": "Yes."},
                ],
                "source": "x",
                "relevance_ratings": [5, 5],
                "relevance_min": 5,
            }
        ],
        ["user: <red>Which? | assistant: Red. | user: Sure? | assistant: Yes."],
        "texts",
    ),
    reads_or_asks(
        "The Cauldron",
        "cauldron.parquet",
        [
            {
                "images": [stored(RED), stored(BLUE)],
                "texts": [{"user": "Which is warmer?", "assistant": "The first.", "source": "x"}],
            }
        ],
        ["user: <red><blue>Which is warmer? | assistant: The first."],
        "texts",
    ),
    asks(
        "UltraFeedback, whose messages are the chosen ones",
        "ultra.jsonl",
        [
            {
                "prompt": "Hi.",
                "prompt_id": "1",
                "messages": [
                    {"role": "user", "content": "Hi."},
                    {"role": "assistant", "content": "Hello."},
                ],
                "chosen": [
                    {"role": "user", "content": "Hi."},
                    {"role": "assistant", "content": "Hello."},
                ],
                "rejected": [
                    {"role": "user", "content": "Hi."},
                    {"role": "assistant", "content": "No."},
                ],
                "score_chosen": 8.0,
                "score_rejected": 2.0,
            }
        ],
        "chosen",
        "rejected",
    ),
    asks(
        "Anthropic's preferences",
        "hh.jsonl",
        [{"chosen": "Human: Hi.", "rejected": "Human: No."}],
        "chosen",
        "rejected",
    ),
    asks(
        "RLAIF-V",
        "rlaif.parquet",
        [
            {
                "ds_name": "x",
                "image": stored(RED),
                "question": "Which?",
                "chosen": "Red.",
                "rejected": "Blue.",
                "origin_dataset": "y",
                "idx": 0,
                "image_path": "z/0.jpg",
            }
        ],
        "chosen",
        "rejected",
    ),
    reads(
        "alpaca",
        "alpaca.json",
        [{"instruction": "Say hello.", "input": "", "output": "Hello."}],
        "user: Say hello. | assistant: Hello.",
    ),
    reads(
        "dolly",
        "dolly.jsonl",
        [
            {
                "instruction": "Which?",
                "context": "A red square.",
                "response": "Red.",
                "category": "qa",
            }
        ],
        "user: Which?\nA red square. | assistant: Red.",
    ),
    reads(
        "OpenOrca",
        "orca.jsonl",
        [{"id": "1", "system_prompt": "Be brief.", "question": "Hi.", "response": "Hello."}],
        "system: Be brief. | user: Hi. | assistant: Hello.",
    ),
    reads(
        "GSM8K",
        "gsm8k.jsonl",
        [{"question": "1+1?", "answer": "2"}],
        "user: 1+1? | assistant: 2",
    ),
    case(
        "wild: OASST, a message a row",
        "ingest oasst.jsonl out",
        either(refused("role", "--"), right(holds("out", "Hi.", "Hello."), prints("role"))),
        has={
            "oasst.jsonl": [
                {
                    "message_id": "a",
                    "parent_id": None,
                    "text": "Hi.",
                    "role": "prompter",
                    "lang": "en",
                },
                {
                    "message_id": "b",
                    "parent_id": "a",
                    "text": "Hello.",
                    "role": "assistant",
                    "lang": "en",
                },
            ]
        },
    ),
]

PAIRS = [
    reads_or_asks(
        "LAION",
        "laion.parquet",
        [
            {
                "SAMPLE_ID": 1,
                "URL": "red.png",
                "TEXT": "Red.",
                "HEIGHT": 32,
                "WIDTH": 32,
                "LICENSE": "?",
                "NSFW": "UNLIKELY",
                "similarity": 0.3,
            }
        ],
        ["<red>Red."],
        "URL",
        "TEXT",
    ),
    reads_or_asks(
        "DataComp",
        "datacomp.parquet",
        [
            {
                "uid": "a",
                "url": "red.png",
                "text": "Red.",
                "original_width": 32,
                "original_height": 32,
                "clip_b32_similarity_score": 0.3,
                "face_bboxes": [],
                "sha256": "0",
            }
        ],
        ["<red>Red."],
        "url",
    ),
    asks(
        "CC3M, a caption and a url without names",
        "cc3m.tsv",
        [["A red square .", "red.png"], ["Blue .", "blue.png"]],
        "columns",
    ),
    asks(
        "CC12M, a url and a caption without names",
        "cc12m.tsv",
        [["red.png", "A red square ."], ["blue.png", "Blue ."]],
        "columns",
    ),
    reads(
        "img2dataset's tars",
        "00000.tar",
        tar(
            ("000000000.png", RED),
            ("000000000.txt", b"Red."),
            (
                "000000000.json",
                json.dumps(
                    {
                        "caption": "Red.",
                        "url": "https://x.org/r.png",
                        "key": "000000000",
                        "status": "success",
                        "error_message": None,
                        "width": 32,
                        "height": 32,
                        "exif": "{}",
                        "sha256": "0",
                    }
                ).encode(),
            ),
        ),
        "<red>Red.",
    ),
    reads_or_asks(
        "tars with prompts in json",
        "t2i.tar",
        tar(("a.png", RED), ("a.json", b'{"prompt": "A red square."}')),
        ["<red>A red square."],
        "prompt",
    ),
    asks(
        "COCO captions",
        "captions_train.json",
        {
            "info": {"year": 2017},
            "licenses": [],
            "images": [{"id": 9, "file_name": "red.png", "height": 32, "width": 32}],
            "annotations": [{"image_id": 9, "id": 1, "caption": "Red."}],
        },
        "annotations",
        "images",
    ),
    reads_or_asks(
        "COCO, Karpathy's split",
        "dataset_coco.json",
        {
            "images": [
                {
                    "filepath": ".",
                    "filename": "red.png",
                    "sentids": [1],
                    "sentences": [{"raw": "Red.", "tokens": ["red"], "sentid": 1}],
                    "split": "train",
                }
            ],
            "dataset": "coco",
        },
        ["<red>Red."],
        "images",
    ),
    reads_or_asks(
        "captions of Kaggle",
        "captions.csv",
        [{"image": "red.png", "caption": "Red."}],
        ["<red>Red."],
        "caption",
    ),
    asks(
        "Flickr30k of Kaggle, with bars",
        "results.csv",
        "image_name| comment_number| comment\nred.png| 0| Red .\nred.png| 1| Very red .\n",
        "|",
    ),
    asks(
        "Flickr30k annotations",
        "flickr_annotations_30k.csv",
        [
            {
                "raw": '["Red.", "Very red."]',
                "sentids": "[0, 1]",
                "split": "train",
                "filename": "red.png",
                "img_id": 0,
            }
        ],
        "raw",
        "filename",
    ),
    asks(
        "WIT",
        "wit.tsv",
        [
            {
                "language": "en",
                "page_url": "https://en.wikipedia.org/wiki/Red",
                "image_url": "red.png",
                "page_title": "Red",
                "section_title": "",
                "caption_reference_description": "A red square",
                "caption_attribution_description": "English: Red",
                "caption_alt_text_description": "",
                "context_page_description": "Red is a colour.",
            }
        ],
        "caption_reference_description",
    ),
    asks(
        "PixMo-Cap, with what was spoken",
        "pixmo.parquet",
        [{"image_url": "red.png", "caption": "Red.", "transcripts": ["It is red.", "Yes, red."]}],
        "transcripts",
    ),
    asks(
        "PixelProse, with two captions",
        "pixelprose.parquet",
        [
            {
                "uid": "a",
                "url": "red.png",
                "status": "success",
                "original_caption": "red",
                "vlm_caption": "A red square.",
                "toxicity": 0.0,
            }
        ],
        "vlm_caption",
        "original_caption",
    ),
    reads_or_asks(
        "DiffusionDB",
        "part.jsonl",
        [{"image_name": "red.png", "prompt": "A red square", "seed": 1}],
        ["<red>A red square"],
        "prompt",
    ),
    reads_or_asks(
        "JourneyDB",
        "journey.jsonl",
        [{"img_path": "red.png", "prompt": "A red square", "Task2": {"Caption": "Red."}}],
        ["<red>A red square"],
        "prompt",
    ),
    reads_or_asks(
        "GRIT",
        "grit.parquet",
        [
            {
                "key": "1",
                "url": "red.png",
                "caption": "A red square.",
                "ref_exps": [[0.0, 1.0]],
                "noun_chunks": [[0.0, 5.0]],
            }
        ],
        ["<red>A red square."],
        "caption",
    ),
    reads(
        "Liquid", "liquid.jsonl", [{"image_path": "red.png", "text_prompt": "Red."}], "<red>Red."
    ),
    reads(
        "InstructPix2Pix",
        "ip2p.parquet",
        [
            {
                "original_prompt": "A red square",
                "original_image": stored(RED),
                "edit_prompt": "make it blue",
                "edited_prompt": "A blue square",
                "edited_image": stored(BLUE),
            }
        ],
        "user: <red>make it blue | assistant: <blue>",
    ),
    reads(
        "MagicBrush",
        "magicbrush.parquet",
        [
            {
                "img_id": "1",
                "turn_index": 1,
                "source_img": stored(RED),
                "mask_img": stored(BLUE),
                "instruction": "make it blue",
                "target_img": stored(BLUE),
            }
        ],
        "user: <red>make it blue | assistant: <blue>",
    ),
    case(
        "wild: a folder of images with metadata.jsonl",
        "ingest train out",
        refused("metadata.jsonl", "Name the files"),
        has={
            "train/red.png": RED,
            "train/metadata.jsonl": [{"file_name": "red.png", "text": "Red."}],
        },
    ),
    case(
        "wild: a folder of images with metadata.csv",
        "ingest train out",
        refused("metadata.csv", "Name the files"),
        has={
            "train/red.png": RED,
            "train/metadata.csv": [{"file_name": "red.png", "text": "Red."}],
        },
    ),
    reads(
        "rows with file_name, as imagefolder has them",
        "metadata.jsonl",
        [{"file_name": "red.png", "text": "Red."}],
        "<red>Red.",
    ),
]

QUESTIONS = [
    asks(
        "VQAv2 questions",
        "questions.json",
        {
            "info": {},
            "data_type": "x",
            "questions": [{"image_id": 9, "question": "Which?", "question_id": 1}],
        },
        "questions",
    ),
    reads_or_asks(
        "VQAv2 of a hub",
        "vqa.parquet",
        [
            {
                "question_type": "what",
                "multiple_choice_answer": "red",
                "answers": [{"answer": "red", "answer_confidence": "yes", "answer_id": 1}],
                "image_id": 9,
                "question_id": 1,
                "question": "Which?",
                "image": stored(RED),
            }
        ],
        ["user: <red>Which? | assistant: red"],
        "question",
        "answer",
    ),
    asks(
        "GQA",
        "gqa.json",
        {"0293": {"imageId": "red", "question": "Which?", "answer": "red", "fullAnswer": "Red."}},
        "gqa.json",
    ),
    reads_or_asks(
        "DocVQA",
        "docvqa.parquet",
        [
            {
                "questionId": "1",
                "question": "Which?",
                "image": stored(RED),
                "docId": 1,
                "answers": ["red", "Red"],
                "data_split": "val",
            }
        ],
        ["user: <red>Which? | assistant: red"],
        "question",
        "answers",
    ),
    reads_or_asks(
        "TextVQA",
        "textvqa.parquet",
        [
            {
                "image_id": "a",
                "question_id": 1,
                "question": "Which?",
                "question_tokens": ["which"],
                "image": stored(RED),
                "answers": ["red", "red", "crimson"],
            }
        ],
        ["user: <red>Which? | assistant: red"],
        "question",
        "answers",
    ),
    asks(
        "ChartQA",
        "chartqa.json",
        [{"imgname": "red.png", "query": "Which?", "label": "Red"}],
        "query",
        "label",
    ),
    reads_or_asks(
        "ChartQA of a hub",
        "chartqa.parquet",
        [{"image": stored(RED), "query": "Which?", "label": ["Red"]}],
        ["user: <red>Which? | assistant: Red"],
        "query",
        "label",
    ),
    reads_or_asks(
        "ScienceQA",
        "scienceqa.parquet",
        [
            {
                "image": stored(RED),
                "question": "Which?",
                "choices": ["red", "blue"],
                "answer": 0,
                "hint": "Look.",
                "lecture": "Colours.",
                "solution": "It is red.",
            }
        ],
        [],
        "question",
    ),
    reads(
        "PixMo, ask a model anything",
        "pixmo.parquet",
        [{"image_url": "red.png", "image_sha256": "0", "question": "Which?", "answer": "Red."}],
        "user: <red>Which? | assistant: Red.",
    ),
    reads(
        "PixMo-Points",
        "points.parquet",
        [
            {
                "image_url": "red.png",
                "image_sha256": "0",
                "count": 1,
                "points": [{"x": 1.0, "y": 2.0}],
                "label": "square",
            }
        ],
        "user: <red>Point to square. | assistant: "
        '<point x="1.0" y="2.0" alt="square">square</point>',
    ),
    reads_or_asks(
        "RefCOCO",
        "refcoco.parquet",
        [
            {
                "question_id": "1",
                "image": stored(RED),
                "question": "Describe the box.",
                "answer": ["the red one", "left"],
                "bbox": [0.0, 0.0, 1.0, 1.0],
                "file_name": "x.jpg",
            }
        ],
        ["user: <red>Describe the box. | assistant: the red one"],
        "question",
        "answer",
    ),
    asks(
        "Visual Genome regions",
        "regions.json",
        [
            {
                "id": 1,
                "regions": [
                    {"region_id": 2, "image_id": 1, "phrase": "a red square", "x": 0, "y": 0}
                ],
            }
        ],
        "regions",
    ),
]

PAGES = [
    reads(
        "OBELICS",
        "obelics.parquet",
        [
            {
                "images": ["red.png", None, "blue.png"],
                "metadata": "[]",
                "general_metadata": "{}",
                "texts": [None, "Between.", None],
            }
        ],
        "<red> | Between. | <blue>",
    ),
    reads(
        "MMC4",
        "mmc4.jsonl",
        [
            {
                "url": "https://x.org",
                "text_list": ["One.", "Two."],
                "image_info": [
                    {
                        "image_name": "red.png",
                        "raw_url": "https://x.org/r.png",
                        "matched_text_index": 1,
                        "matched_sim": 0.3,
                    }
                ],
                "similarity_matrix": [[0.1, 0.3]],
                "could_have_url_duplicate": 0,
            }
        ],
        "One. | <red>Two.",
    ),
    reads(
        "MINT-1T",
        "mint.parquet",
        [
            {
                "pdf_name": "a",
                "texts": ["First.", None],
                "images": [None, "red.png"],
                "image_hashes": [None, "0"],
            }
        ],
        "First. | <red>",
    ),
    reads(
        "OmniCorpus",
        "omni.jsonl",
        [
            {
                "id": 1,
                "images": [None, "red.png", None],
                "texts": ["First.", None, "Last."],
                "url": "https://x.org",
            }
        ],
        "First. | <red> | Last.",
    ),
    reads(
        "BAGEL, edits",
        "edits.parquet",
        [{"image_list": [RED, BLUE], "instruction_list": [["make it blue"]]}],
        "user: <red>make it blue | assistant: <blue>",
    ),
    reads_or_asks(
        "BAGEL, captions as json",
        "t2i.parquet",
        [{"image": RED, "captions": '{"caption": "Red."}'}],
        ["<red>Red."],
        "captions",
    ),
    reads(
        "FineWeb",
        "fineweb.parquet",
        [
            {
                "text": "Once.",
                "id": "1",
                "dump": "x",
                "url": "https://x.org",
                "date": "2020",
                "language": "en",
                "token_count": 2,
            }
        ],
        "Once.",
    ),
    reads(
        "RedPajama",
        "rp.jsonl",
        [{"text": "Once.", "meta": {"url": "https://x.org"}, "red_pajama_subset": "c4"}],
        "Once.",
    ),
    reads(
        "The Stack",
        "stack.jsonl",
        [{"content": "int x;\n", "max_stars_repo_path": "a.c", "ext": "c", "lang": "c"}],
        "int x;\n",
    ),
    reads_or_asks(
        "Wikipedia",
        "wiki.parquet",
        [{"id": "1", "url": "https://x.org", "title": "Red", "text": "A colour."}],
        ["A colour."],
        "title",
    ),
]

FILMS = [
    asks(
        "WebVid",
        "webvid.csv",
        [
            {
                "videoid": 1,
                "contentUrl": "https://x.org/film.mp4",
                "duration": "PT1S",
                "page_dir": "0",
                "name": "Stripes.",
            }
        ],
        "contentUrl",
    ),
    asks(
        "MSR-VTT",
        "msrvtt.json",
        {
            "videos": [{"video_id": "video0", "url": "x", "split": "train"}],
            "sentences": [{"caption": "Stripes.", "video_id": "video0", "sen_id": 1}],
        },
        "sentences",
    ),
    case(
        "wild: MSR-VTT of a hub",
        "ingest msrvtt.jsonl out",
        either(refused("caption", "--"), right(holds("out", "<video>Stripes."), prints("caption"))),
        has={
            **MEDIA,
            "msrvtt.jsonl": [
                {
                    "video_id": "video0",
                    "video": "film.mp4",
                    "caption": ["Stripes.", "Moving stripes."],
                    "category": 1,
                    "url": "https://x.org",
                }
            ],
        },
    ),
    asks(
        "ActivityNet Captions",
        "activity.json",
        {"v_1": {"duration": 9.0, "timestamps": [[0.0, 3.0]], "sentences": ["Stripes."]}},
        "activity.json",
    ),
    asks(
        "Panda-70M",
        "panda.csv",
        [
            {
                "videoID": "x",
                "url": "https://x.org/watch?v=x",
                "timestamp": "[['0:00:00', '0:00:01']]",
                "caption": "['Stripes.']",
                "matching_score": "[0.4]",
            }
        ],
        "caption",
    ),
    reads_or_asks(
        "InternVid",
        "internvid.jsonl",
        [
            {
                "YoutubeID": "film",
                "Start_timestamp": "00:00:00.000",
                "End_timestamp": "00:00:00.400",
                "Caption": "Stripes.",
                "Aesthetic_Score": 4.0,
                "UMT_Score": 0.4,
            }
        ],
        ["<video>Stripes."],
        "film",
    ),
    asks(
        "Ego4D narrations",
        "narration.json",
        {
            "version": "v2",
            "videos": {
                "u1": {
                    "narration_pass_1": {
                        "narrations": [{"timestamp_sec": 0.1, "narration_text": "#C C looks."}]
                    }
                }
            },
        },
        "narration.json",
    ),
    reads(
        "VideoChat2",
        "videochat2.json",
        [{"video": "film.mp4", "QA": [{"i": "", "q": "What is seen?", "a": "Stripes."}]}],
        "user: <video>What is seen? | assistant: Stripes.",
    ),
    asks(
        "Video-ChatGPT",
        "vcg.json",
        [{"q": "What is seen?", "a": "Stripes.", "video_id": "film"}],
        "video_id",
    ),
    reads(
        "videos with captions",
        "films.csv",
        [{"video": "film.mp4", "caption": "Stripes."}],
        "<video>Stripes.",
    ),
    reads_or_asks(
        "ShareGPT4Video",
        "sg4v.jsonl",
        [
            {
                "video_id": "x",
                "video_path": "film.mp4",
                "timestamp": ["00:00:00.000"],
                "keyframe": [0],
                "captions": [{"idx": "-1", "content": "Stripes."}],
            }
        ],
        ["<video>Stripes."],
        "captions",
    ),
]


@pytest.mark.parametrize("row", [*CHATS, *PAIRS, *QUESTIONS, *PAGES, *FILMS])
def test_table(row: Case, tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try_case(row, tmp_path, world)
