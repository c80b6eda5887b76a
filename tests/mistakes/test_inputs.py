"""What a user may get wrong about their own data: tables, media, names, columns."""

from __future__ import annotations

import gzip
import io
import tarfile
from base64 import b64encode
from pathlib import Path

import pytest
from make_media import encode, pixels
from mistaken import (
    IMAGES,
    Case,
    case,
    either,
    film,
    holds,
    image,
    is_true,
    lines,
    prints,
    refused,
    right,
    try_case,
)

import shardmill as sm

PAIRS = [{"image": "red.png", "caption": "Red."}, {"image": "blue.png", "caption": "Blue."}]
SAID = ("<red>Red.", "<blue>Blue.")
QUESTION = {"from": "human", "value": "<image>\nWhich?"}
ANSWER = {"from": "gpt", "value": "Red."}
POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
PAGE = "<!DOCTYPE html><html><head><title>Sign in</title></head><body>Sign in</body></html>"


def tar_of(*members: tuple[str, bytes], cut: int = 0) -> bytes:
    """Return a tar of these members, without its last bytes if it was cut."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    content = file.getvalue()
    return content[: len(content) - cut]


COLUMNS = [
    case(
        "pairs as they should be",
        "ingest rows.jsonl out",
        right(holds("out", *SAID)),
        has={**IMAGES, "rows.jsonl": PAIRS},
    ),
    case(
        "questions and answers under texts, beside images",
        "ingest rows.jsonl out",
        either(
            refused("texts", "--shape"), right(holds("out", "user: <red>Which? | assistant: Red."))
        ),
        has={
            **IMAGES,
            "rows.jsonl": [
                {"images": ["red.png"], "texts": [{"user": "Which?", "assistant": "Red."}]}
            ],
        },
    ),
    case(
        "columns that nobody knows",
        "ingest rows.csv out",
        refused("rows.csv", "img", "desc", "--shape"),
        has={**IMAGES, "rows.csv": [{"img": "red.png", "desc": "Red."}]},
    ),
    case(
        "a question and an answer beside an image",
        "ingest rows.jsonl out",
        either(
            refused("question", "answer", "--shape"),
            right(holds("out", "user: <red>Which? | assistant: Red.")),
        ),
        has={
            **IMAGES,
            "rows.jsonl": [{"image": "red.png", "question": "Which?", "answer": "Red."}],
        },
    ),
    case(
        "an answer beside the caption is used by nothing",
        "ingest rows.jsonl out",
        refused("answer", "--"),
        has={**IMAGES, "rows.jsonl": [{**PAIRS[0], "answer": "It is red, of course."}]},
    ),
    case(
        "a second caption is used by nothing",
        "ingest rows.jsonl out",
        refused("long_caption", "--"),
        has={**IMAGES, "rows.jsonl": [{**PAIRS[0], "long_caption": "A square, all of it red."}]},
    ),
    case(
        "a second image is used by nothing",
        "ingest rows.jsonl out",
        refused("target_image", "--"),
        has={**IMAGES, "rows.jsonl": [{**PAIRS[0], "target_image": "blue.png"}]},
    ),
    case(
        "numbers and ids beside the caption are no text",
        "ingest rows.jsonl out",
        right(holds("out", "<red>Red.")),
        has={
            **IMAGES,
            "rows.jsonl": [
                {**PAIRS[0], "id": "a-1", "width": 32, "clip_score": 0.3, "nsfw": False}
            ],
        },
    ),
    case(
        "preference pairs of text",
        "ingest rows.jsonl out",
        refused("chosen", "rejected", "--"),
        has={"rows.jsonl": [{"prompt": "Say a.", "chosen": "a", "rejected": "b"}]},
    ),
    case(
        "preference pairs with an image",
        "ingest rows.jsonl out",
        refused("chosen", "rejected", "--"),
        has={
            **IMAGES,
            "rows.jsonl": [
                {"image": "red.png", "question": "Which?", "chosen": "Red.", "rejected": "Blue."}
            ],
        },
    ),
    case(
        "a table of instructions",
        "ingest rows.json out",
        either(
            refused("instruction", "output", "--shape"),
            right(holds("out", "user: Add.\n1 and 2 | assistant: 3")),
        ),
        has={"rows.json": [{"instruction": "Add.", "input": "1 and 2", "output": "3"}]},
    ),
    case(
        "a column of prompts alone",
        "ingest rows.jsonl out",
        refused("prompt", "--shape"),
        has={"rows.jsonl": [{"prompt": "Say a."}, {"prompt": "Say b."}]},
    ),
    case(
        "captions in a list",
        "ingest rows.jsonl out",
        either(refused("captions", "--"), right(holds("out", "<red>Red."), prints("captions"))),
        has={**IMAGES, "rows.jsonl": [{"image": "red.png", "captions": ["Red.", "Very red."]}]},
    ),
    case(
        "no text column at all",
        "ingest rows.jsonl out",
        either(refused("caption"), right(holds("out", "<red>"), prints("no text"))),
        has={**IMAGES, "rows.jsonl": [{"image": "red.png"}]},
    ),
    case(
        "a caption that is a number",
        "ingest rows.jsonl out",
        refused("caption", "rows"),
        has={**IMAGES, "rows.jsonl": [{"image": "red.png", "caption": 5}]},
    ),
    case(
        "messages written as a text of json",
        "ingest rows.jsonl out",
        either(refused("messages", "--"), right(holds("out", "user: Which? | assistant: Red."))),
        has={
            "rows.jsonl": [
                {
                    "messages": '[{"role": "user", "content": "Which?"},'
                    ' {"role": "assistant", "content": "Red."}]'
                }
            ]
        },
    ),
    case(
        "a speaker that nobody knows",
        "ingest rows.jsonl out",
        refused("bot", "rows", "roles"),
        has={
            **IMAGES,
            "rows.jsonl": [
                {"image": "red.png", "conversations": [QUESTION, {"from": "bot", "value": "Red."}]}
            ],
        },
    ),
    case(
        "more placeholders than images",
        "ingest rows.jsonl out",
        refused("placeholders", "rows"),
        has={
            **IMAGES,
            "rows.jsonl": [
                {
                    "image": "red.png",
                    "conversations": [{"from": "human", "value": "<image><image>"}, ANSWER],
                }
            ],
        },
    ),
    case(
        "an image without a placeholder",
        "ingest rows.jsonl out",
        refused("placeholders", "rows"),
        has={
            **IMAGES,
            "rows.jsonl": [
                {"image": "red.png", "conversations": [{"from": "human", "value": "Hi"}, ANSWER]}
            ],
        },
    ),
    case(
        "the line break beside an image is text",
        "ingest rows.jsonl out",
        right(holds("out", "user: <red>\nWhich? | assistant: Red.")),
        has={
            **IMAGES,
            "rows.jsonl": [{"image": "red.png", "conversations": [QUESTION, ANSWER]}],
        },
    ),
    case(
        "white space around texts is text",
        "ingest rows.jsonl out",
        right(holds("out", "<red> Red. \n")),
        has={**IMAGES, "rows.jsonl": [{"image": "red.png", "caption": " Red. \n"}]},
    ),
    case(
        "chats read as messages of another kind",
        "ingest rows.jsonl out --shape messages",
        refused("messages", "conversations"),
        has={
            **IMAGES,
            "rows.jsonl": [{"image": "red.png", "conversations": [QUESTION, ANSWER]}],
        },
    ),
    case(
        "pairs read as text",
        "ingest rows.jsonl out --shape text",
        refused("text", "rows"),
        has={**IMAGES, "rows.jsonl": PAIRS},
    ),
    case(
        "texts read as pairs",
        "ingest rows.jsonl out --shape pair",
        refused("no medium", "rows"),
        has={"rows.jsonl": [{"text": "a"}, {"text": "b"}]},
    ),
    case(
        "a shape that nobody knows",
        "ingest rows.jsonl out --shape lava",
        refused("lava", "llava"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "chats and pairs in one table",
        "ingest rows.jsonl out",
        refused("rows"),
        has={
            **IMAGES,
            "rows.jsonl": [
                *PAIRS,
                PAIRS[0],
                {"image": "red.png", "conversations": [QUESTION, ANSWER]},
                {"image": "red.png", "conversations": [QUESTION, ANSWER]},
            ],
        },
    ),
    case(
        "a table of chats behind a table of pairs",
        "ingest a.jsonl b.jsonl out",
        refused("b"),
        has={
            **IMAGES,
            "a.jsonl": PAIRS,
            "b.jsonl": [{"image": "red.png", "conversations": [QUESTION, ANSWER]}],
        },
    ),
]

FILES = [
    case(
        "an empty table",
        "ingest rows.jsonl out",
        refused("rows.jsonl", "no row"),
        has={"rows.jsonl": ""},
    ),
    case(
        "a table of blank lines",
        "ingest rows.jsonl out",
        refused("rows.jsonl", "no row"),
        has={"rows.jsonl": "\n\n\n"},
    ),
    case(
        "an empty table with the shape named",
        "ingest rows.jsonl out --shape text",
        refused("rows.jsonl", "no row"),
        has={"rows.jsonl": ""},
    ),
    case(
        "a csv of nothing but its header",
        "ingest rows.csv out",
        refused("rows.csv", "no row"),
        has={"rows.csv": "image,caption\n"},
    ),
    case(
        "an empty list of rows",
        "ingest rows.json out",
        refused("rows.json", "no row"),
        has={"rows.json": "[]"},
    ),
    case(
        "a list of rows in a file named jsonl",
        "ingest rows.jsonl out",
        either(refused("rows.jsonl", ".json"), right(holds("out", *SAID))),
        has={**IMAGES, "rows.jsonl": "[" + lines(PAIRS).strip().replace("\n", ",\n") + "]"},
    ),
    case(
        "lines of rows in a file named json",
        "ingest rows.json out",
        either(refused("rows.json", ".jsonl"), right(holds("out", *SAID))),
        has={**IMAGES, "rows.json": lines(PAIRS)},
    ),
    case(
        "a table whose last line is cut",
        "ingest rows.jsonl out",
        either(refused("rows", "json"), right(holds("out", SAID[0]), prints("1 x not JSON"))),
        has={**IMAGES, "rows.jsonl": lines(PAIRS)[:-20]},
    ),
    case(
        "a gzip that is cut",
        "ingest rows.jsonl.gz out",
        refused("rows.jsonl.gz"),
        has={**IMAGES, "rows.jsonl.gz": gzip.compress(lines(PAIRS).encode())[:-12]},
    ),
    case(
        "a gzip that is none",
        "ingest rows.jsonl.gz out",
        refused("rows.jsonl.gz", "gzip"),
        has={**IMAGES, "rows.jsonl.gz": lines(PAIRS)},
    ),
    case(
        "a gzip without its suffix",
        "ingest rows.jsonl out",
        refused("rows.jsonl"),
        has={**IMAGES, "rows.jsonl": gzip.compress(lines(PAIRS).encode())},
    ),
    case(
        "a parquet that is cut",
        "ingest rows.parquet out",
        refused("rows.parquet"),
        has={**IMAGES, "rows.parquet": b"PAR1" + bytes(100)},
    ),
    case(
        "a parquet that is a web page",
        "ingest rows.parquet out",
        refused("rows.parquet", "html or web page"),
        has={"rows.parquet": PAGE},
    ),
    case(
        "a parquet that is a pointer of git lfs",
        "ingest rows.parquet out",
        refused("rows.parquet", "git lfs pull"),
        has={"rows.parquet": POINTER},
    ),
    case(
        "a table that is a pointer of git lfs",
        "ingest rows.jsonl out",
        refused("rows.jsonl", "git lfs pull"),
        has={"rows.jsonl": POINTER},
    ),
    case(
        "a table that is a web page",
        "ingest rows.jsonl out",
        refused("rows.jsonl", "html or web page"),
        has={"rows.jsonl": PAGE},
    ),
    case(
        "images that are pointers of git lfs",
        "ingest rows.jsonl out",
        refused("git lfs pull"),
        has={"red.png": POINTER, "blue.png": POINTER, "rows.jsonl": PAIRS},
    ),
    case(
        "images that are web pages",
        "ingest rows.jsonl out",
        refused("not an image", "rows"),
        has={"red.png": PAGE, "blue.png": PAGE, "rows.jsonl": PAIRS},
    ),
    case(
        "images of no bytes",
        "ingest rows.jsonl out",
        refused("empty", "rows"),
        has={"red.png": b"", "blue.png": b"", "rows.jsonl": PAIRS},
    ),
    case(
        "images that are not where the table is",
        "ingest tables/rows.jsonl out",
        refused("red.png", "--media-root"),
        has={**IMAGES, "tables/rows.jsonl": PAIRS},
    ),
    case(
        "images elsewhere, and their folder named",
        "ingest tables/rows.jsonl out --media-root .",
        right(holds("out", *SAID)),
        has={**IMAGES, "tables/rows.jsonl": PAIRS},
    ),
    case(
        "a folder of images that is not there",
        "ingest rows.jsonl out --media-root phtos",
        refused("phtos", "--media-root"),
        has={**IMAGES, "rows.jsonl": PAIRS},
    ),
    case(
        "images that climb out of the folder",
        "ingest tables/rows.jsonl out",
        refused("--allow"),
        has={**IMAGES, "tables/rows.jsonl": [{"image": "../red.png", "caption": "Red."}]},
    ),
    case(
        "a table that is not there",
        "ingest rows.jsonl out",
        refused("rows.jsonl", "does not exist"),
    ),
    case(
        "a table whose name is misspelt",
        "ingest rows.json out",
        refused("rows.json", "does not exist", "rows.jsonl"),
        has={**IMAGES, "rows.jsonl": PAIRS},
    ),
    case(
        "a glob that matches nothing",
        "ingest 'tables/*.parquet' out",
        refused("tables/*.parquet"),
        has={"tables/rows.jsonl": PAIRS},
    ),
    case(
        "braces of which one is missing",
        "ingest 'part-{0..2}.jsonl' out",
        refused("part-1.jsonl"),
        has={"part-0.jsonl": [{"text": "a"}], "part-2.jsonl": [{"text": "b"}]},
    ),
    case(
        "a table named twice",
        "ingest rows.jsonl rows.jsonl out",
        refused("rows.jsonl", "twice"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "a table named and matched by a glob",
        "ingest rows.jsonl './*.jsonl' out",
        refused("rows.jsonl", "twice"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case("a folder of nothing", "ingest photos out", refused("photos"), has={"photos/.keep": ""}),
    case(
        "a folder of papers",
        "ingest papers out",
        refused("papers"),
        has={"papers/a.docx": "x", "papers/b.pdf": "y"},
    ),
    case(
        "captions that are not named like their images",
        "ingest photos out",
        refused("red_caption.txt"),
        has={"photos/red.png": image("red"), "photos/red_caption.txt": "Red."},
    ),
    case(
        "photos with captions beside them",
        "ingest photos out",
        right(holds("out", "<blue>Blue.", "<red>Red.")),
        has={
            "photos/red.png": image("red"),
            "photos/red.txt": "Red.",
            "photos/blue.png": image("blue"),
            "photos/blue.txt": "Blue.",
        },
    ),
    case(
        "one image alone",
        "ingest red.png out",
        either(refused("red.png", "folder"), right(holds("out", "<red>"))),
        has=IMAGES,
    ),
    case(
        "one video alone",
        "ingest film.mp4 out",
        right(holds("out", "<video>")),
        has={"film.mp4": film},
    ),
    case(
        "a table of a spreadsheet",
        "ingest rows.xlsx out",
        refused("rows.xlsx", "csv"),
        has={"rows.xlsx": b"PK\3\4"},
    ),
    case(
        "a list of urls",
        "ingest urls.txt out",
        either(
            refused("urls.txt"),
            right(holds("out", "https://example.org/red.png"), prints("text")),
        ),
        has={"urls.txt": "https://example.org/red.png\n"},
    ),
    case(
        "the name of a data set of a hub",
        "ingest HuggingFaceM4/the_cauldron out",
        refused("HuggingFaceM4/the_cauldron", "download"),
    ),
    case(
        "tables in a folder with names of all kinds",
        "ingest 'my data/zeilen ü\n.jsonl' out",
        right(holds("out", "<red>Red.")),
        has={
            "my data/rot é.png": image("red"),
            "my data/zeilen ü\n.jsonl": [{"image": "rot é.png", "caption": "Red."}],
        },
    ),
    case(
        "line ends of windows and a mark of byte order",
        "ingest rows.csv out",
        right(holds("out", *SAID)),
        has={**IMAGES, "rows.csv": "\ufeffimage,caption\r\nred.png,Red.\r\nblue.png,Blue.\r\n"},
    ),
    case(
        "a mark of byte order before json",
        "ingest rows.jsonl out",
        right(holds("out", *SAID)),
        has={**IMAGES, "rows.jsonl": "\ufeff" + lines(PAIRS)},
    ),
    case(
        "a csv in utf-16",
        "ingest rows.csv out",
        refused("rows.csv", "utf-8"),
        has={**IMAGES, "rows.csv": "image,caption\nred.png,Red.\n".encode("utf-16")},
    ),
    case(
        "a csv in latin-1",
        "ingest rows.csv out",
        refused("rows.csv", "utf-8"),
        has={**IMAGES, "rows.csv": "image,caption\nred.png,Röd.\n".encode("latin-1")},
    ),
    case(
        "a csv with semicolons",
        "ingest rows.csv out",
        refused("rows.csv", ";"),
        has={**IMAGES, "rows.csv": "image;caption\nred.png;Red.\n"},
    ),
    case(
        "a table of tabs without a header",
        "ingest rows.tsv out",
        refused("rows.tsv", "columns"),
        has={
            "rows.tsv": "A red square.\thttp://example.org/red.png\nBlue.\thttp://example.org/b\n"
        },
    ),
    case(
        "a tar that is cut between two members",
        "ingest a.tar out",
        refused("a.tar"),
        has={"a.tar": tar_of(("0.png", image("red")), ("0.txt", b"Red."), cut=10240 - 1024)},
    ),
    case(
        "a tar that is a web page",
        "ingest a.tar out",
        refused("a.tar"),
        has={"a.tar": PAGE},
    ),
    case(
        "a tar of nothing",
        "ingest a.tar out",
        refused("a.tar"),
        has={"a.tar": tar_of()},
    ),
    case(
        "a tar with captions in json that are named otherwise",
        "ingest a.tar out",
        either(refused("legend", "--"), right(holds("out", "<red>Red."))),
        has={"a.tar": tar_of(("0.png", image("red")), ("0.json", b'{"legend": "Red."}'))},
    ),
    case(
        "tables and tars together",
        "ingest rows.jsonl a.tar out",
        refused("different kinds", "rows.jsonl", "a.tar"),
        has={"a.tar": tar_of(("0.txt", b"Red.")), "rows.jsonl": [{"text": "a"}]},
    ),
]

OPTIONS = [
    case(
        "a key column that is not there",
        "ingest rows.jsonl out --key name",
        refused("name", "--key"),
        has={"rows.jsonl": [{"text": "a", "id": "1"}]},
    ),
    case(
        "a key that two rows share",
        "ingest rows.jsonl out --key id",
        refused("'1'", "--key"),
        has={"rows.jsonl": [{"text": "a", "id": "1"}, {"text": "b", "id": "1"}]},
    ),
    case(
        "a key that rows of two shards share",
        "ingest rows.jsonl out --key id --per-shard 1",
        refused("'1'", "--key"),
        has={"rows.jsonl": [{"text": "a", "id": "1"}, {"text": "b", "id": "1"}]},
    ),
    case(
        "keys with dots, blanks and slashes",
        "ingest rows.jsonl out --key id",
        either(refused("key", "rows"), right(holds("out", "a", "b", "c"))),
        has={
            "rows.jsonl": [
                {"text": "a", "id": "x.1"},
                {"text": "b", "id": "y 2"},
                {"text": "c", "id": "z/3"},
            ]
        },
    ),
    case(
        "a limit of nothing",
        "ingest rows.jsonl out --limit 0",
        refused("nothing was kept", out="nowhere"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "a filter that keeps nothing",
        "ingest rows.jsonl out --filter text_length,min_chars=100",
        refused("text", out="nowhere"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "a filter that nobody knows",
        "ingest rows.jsonl out --filter length,min=3",
        refused("length", "text_length"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "a field that the filter does not have",
        "ingest rows.jsonl out --filter text_length,minimum=3",
        refused("minimum", "text_length"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "a filter with a word for a number",
        "ingest rows.jsonl out --filter text_length,min_chars=many",
        refused("min_chars", "many"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "shards of no rows",
        "ingest rows.jsonl out --per-shard 0",
        refused("--per-shard"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "a size without a unit that is known",
        "ingest rows.jsonl out --max-shard-bytes 5apples",
        refused("5apples"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "one name for all shards",
        "ingest rows.jsonl out --name shard --per-shard 1",
        refused("--name", "{unit"),
        has={"rows.jsonl": [{"text": "a"}, {"text": "b"}]},
    ),
    case(
        "a name with a field that is not there",
        "ingest rows.jsonl out --name '{rank}'",
        refused("rank", "unit"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "a name that climbs out",
        "ingest rows.jsonl out --name '../{unit}'",
        refused("name"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case("no output", "ingest rows.jsonl", refused("OUT"), has={"rows.jsonl": [{"text": "a"}]}),
    case(
        "the output over the input",
        "ingest rows.jsonl rows.jsonl",
        refused("rows.jsonl"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "the output inside the input",
        "ingest photos photos/out",
        refused("inside"),
        has={"photos/red.png": image("red")},
    ),
    case(
        "input and output swapped",
        "ingest out rows.jsonl",
        refused("out"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "the same folder with other settings",
        "ingest rows.jsonl out && ingest rows.jsonl out --per-shard 1",
        refused("per_shard", "out", out="nowhere"),
        has={"rows.jsonl": [{"text": "a"}, {"text": "b"}]},
    ),
    case(
        "another table into the same folder",
        "ingest a.jsonl out && ingest b.jsonl out",
        refused('b.jsonl or "b"', "out", out="nowhere"),
        has={"a.jsonl": [{"text": "a"}], "b.jsonl": [{"text": "b"}]},
    ),
    case(
        "into a folder of somebody else",
        "ingest rows.jsonl photos",
        either(refused("photos", out="photos"), right(holds("photos", "a"))),
        has={"rows.jsonl": [{"text": "a"}], "photos/red.png": image("red")},
    ),
    case(
        "a source kind that the input is not",
        "ingest rows.jsonl out --source tars",
        refused("rows.jsonl", "tar"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "a source kind that nobody knows",
        "ingest rows.jsonl out --source parquet",
        refused("parquet", "table"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "a rate of skips in percent",
        "ingest rows.jsonl out --max-skip-rate 10",
        refused("--max-skip-rate"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "a verb that is misspelt",
        "injest rows.jsonl out",
        refused("ingest"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
    case(
        "a flag that is misspelt",
        "ingest rows.jsonl out --pershard 3",
        refused("--pershard", "--per-shard"),
        has={"rows.jsonl": [{"text": "a"}]},
    ),
]


CHAT = {"image": "red.png", "conversations": [QUESTION, ANSWER]}
LATER = [
    case(
        "an answer that only later rows have",
        "ingest rows.jsonl out",
        either(refused("answer", "--"), right(prints("1 x content used by nothing"))),
        has={
            **IMAGES,
            "rows.jsonl": [*PAIRS * 100, {**PAIRS[0], "answer": "It is red, of course."}],
        },
    ),
    case(
        "a second image that only later rows have",
        "ingest rows.jsonl out",
        either(refused("target_image"), right(prints("1 x content used by nothing"))),
        has={**IMAGES, "rows.jsonl": [*PAIRS * 100, {**PAIRS[0], "target_image": "blue.png"}]},
    ),
    case(
        "chats that come after many pairs",
        "ingest rows.jsonl out",
        either(refused("conversations"), right(prints("2 x content used by nothing"))),
        has={**IMAGES, "rows.jsonl": [*PAIRS * 100, CHAT, CHAT]},
    ),
    case(
        "captions that are all missing",
        "ingest rows.jsonl out",
        either(refused("caption"), right(holds("out", "<red>", "<blue>"), prints("no text"))),
        has={**IMAGES, "rows.jsonl": [{**row, "caption": None} for row in PAIRS]},
    ),
    case(
        "captions that are all empty",
        "ingest rows.csv out",
        either(refused("caption"), right(holds("out", "<red>", "<blue>"), prints("no text"))),
        has={**IMAGES, "rows.csv": [{**row, "caption": ""} for row in PAIRS]},
    ),
    case(
        "numbers that are none, as pandas writes them",
        "ingest rows.jsonl out",
        either(
            refused("rows", "json"),
            right(holds("out", "<red>Red.", "<blue>"), prints("1 sample without text")),
        ),
        has={
            **IMAGES,
            "rows.jsonl": lines(PAIRS[:1]) + '{"image": "blue.png", "caption": NaN}\n',
        },
    ),
    case(
        "an answer that is missing",
        "ingest rows.jsonl out",
        refused("rows", "'value' has no text"),
        has={
            **IMAGES,
            "rows.jsonl": [{**CHAT, "conversations": [QUESTION, {"from": "gpt", "value": None}]}]
            * 3,
        },
    ),
    case(
        "an empty image where there is no placeholder",
        "ingest rows.jsonl out",
        right(holds("out", "user: Hi. | assistant: Red.")),
        has={
            "rows.jsonl": [
                {"image": "", "conversations": [{"from": "human", "value": "Hi."}, ANSWER]}
            ]
        },
    ),
    case(
        "an image as base64",
        "ingest rows.jsonl out",
        either(refused("image", "rows"), right(holds("out", "<red>Red."))),
        has={"rows.jsonl": [{"image": b64encode(image("red")).decode(), "caption": "Red."}] * 3},
    ),
    case(
        "paths of windows",
        "ingest rows.jsonl out",
        either(refused("images", "red.png"), right(holds("out", *["<red>Red."] * 3))),
        has={
            "images/red.png": image("red"),
            "rows.jsonl": [{"image": "images\\red.png", "caption": "Red."}] * 3,
        },
    ),
    case(
        "a jpeg that is named png",
        "ingest rows.jsonl out",
        right(is_true(lambda place: {*sm.open(place / "out")[0].media} == {"jpg"})),
        has={"red.png": encode("JPEG", pixels(32, 32)), "rows.jsonl": PAIRS[:1]},
    ),
    case(
        "columns in capitals",
        "ingest rows.csv out",
        either(refused("Image", "Caption", "--"), right(holds("out", *SAID))),
        has={**IMAGES, "rows.csv": "Image,Caption\nred.png,Red.\nblue.png,Blue.\n"},
    ),
    case(
        "columns with blanks around their names",
        "ingest rows.csv out",
        either(refused("caption", "--"), right(holds("out", *SAID))),
        has={**IMAGES, "rows.csv": "image, caption\nred.png,Red.\nblue.png,Blue.\n"},
    ),
    case(
        "a caption with a comma that nobody quoted",
        "ingest rows.csv out",
        either(refused("rows", "3"), right(holds("out", "<blue>Blue."), prints("skipped", "1 x"))),
        has={**IMAGES, "rows.csv": "image,caption\nred.png,Red, very.\nblue.png,Blue.\n"},
    ),
    case(
        "two columns of one name",
        "ingest rows.csv out",
        refused("rows.csv", "each once"),
        has={**IMAGES, "rows.csv": "image,caption,caption\nred.png,Red.,Rouge.\n"},
    ),
    case(
        "a tar with two texts a sample",
        "ingest a.tar out",
        either(
            refused("blip.txt or blip", "--"),
            right(holds("out", "<red>Red."), prints("other_members")),
        ),
        has={
            "a.tar": tar_of(
                ("0.png", image("red")), ("0.txt", b"Red."), ("0.blip.txt", b"A red square.")
            )
        },
    ),
    case(
        "a folder of media for tars, which carry theirs",
        "ingest a.tar out --media-root .",
        either(refused("media"), right(holds("out", "<red>Red."))),
        has={"a.tar": tar_of(("0.png", image("red")), ("0.txt", b"Red."))},
    ),
    case(
        "a ratio that no image can have",
        "ingest rows.jsonl out --filter aspect_ratio,max_ratio=0.5",
        refused("max_ratio"),
        has={**IMAGES, "rows.jsonl": PAIRS},
    ),
    case(
        "rejects that nobody has are to be tried again",
        "ingest rows.jsonl out && ingest rows.jsonl out --retry-rejects time-out",
        right(holds("out", *SAID), prints("nothing to do")),
        has={**IMAGES, "rows.jsonl": PAIRS},
    ),
    case(
        "a part past the last",
        "ingest rows.jsonl out --part 4/3",
        refused("part", "4/3"),
        has={**IMAGES, "rows.jsonl": PAIRS},
    ),
    case(
        "a cluster that is not described",
        "ingest rows.jsonl out --on cluster.toml",
        refused("cluster.toml"),
        has={**IMAGES, "rows.jsonl": PAIRS},
    ),
    case(
        "a cluster described with a word that nobody knows",
        "ingest rows.jsonl out --on cluster.toml",
        refused("nodez", "tasks"),
        has={**IMAGES, "rows.jsonl": PAIRS, "cluster.toml": 'kind = "slurm"\nnodez = 3\n'},
    ),
    case(
        "workers in words",
        "ingest rows.jsonl out --workers two",
        refused("--workers", "two"),
        has={**IMAGES, "rows.jsonl": PAIRS},
    ),
    case(
        "the same tar indexed twice",
        "index a.tar a.tar out",
        either(
            refused("a.tar", "twice"),
            right(is_true(lambda place: len(sm.open(place / "out")) == 1)),
        ),
        has={"a.tar": tar_of(("0.png", image("red")), ("0.txt", b"Red."))},
    ),
    case(
        "an index of a tar that is cut",
        "index a.tar out",
        refused("a.tar"),
        has={"a.tar": tar_of(("0.png", image("red")), ("0.txt", b"Red."), cut=9216)},
    ),
    case("an index of no tar", "index 'tars/*.tar' out", refused("tars/*.tar")),
]


@pytest.mark.parametrize("row", [*COLUMNS, *FILES, *OPTIONS, *LATER])
def test_mistake(row: Case, tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try_case(row, tmp_path, world)
