"""What a user may get wrong between the verbs: folders of another kind, options, weights, plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mistaken import (
    Case,
    Check,
    case,
    either,
    is_true,
    prints,
    refused,
    right,
    try_case,
)

import shardmill as sm

# command -> (what it asks for, folders of another kind)
OTHER_KINDS = {
    "filter {} out --drop-duplicates": ("samples", "tokens codes packs lengths packs.plan vq"),
    "frames {} out": ("samples", "tokens codes packs lengths packs.plan"),
    "codes {} out --tokenizer chameleon,weights=vq": ("samples", "tokens codes packs lengths"),
    "tokenize {} out": ("samples", "codes lengths packs.plan vq"),
    "measure {} out --model qwen2.5-vl --estimate": ("samples", "tokens codes packs lengths"),
    "plan {} out.plan --capacity 128": ("tokens", "pairs codes packs.plan texts.jsonl vq"),
    "pack {} packs.plan out": ("tokens", "pairs codes lengths"),
    "pack tokens {} out": ("plan", "tokens lengths texts.jsonl nowhere"),
    "export {} out --format megatron": ("tokens", "pairs codes lengths packs.plan"),
    "export {} out --format energon": ("ingest", "codes lengths packs.plan"),
    "export pairs out --format liquid --codes {}": ("codes", "tokens pairs lengths"),
    "tokenize pairs out --template t2i --codes {}": ("codes", "tokens pairs lengths"),
    "remove {} out --keys keys.txt": ("samples", "lengths packs.plan"),
    "diff pairs {}": ("samples", "codes tokens lengths packs.plan"),
    "why {} --step 0": ("plan", "tokens lengths texts.jsonl"),
    "index {} out": ("tar", "tokens codes texts.jsonl"),
}


def _other_kinds() -> list[Any]:
    found = []
    for command, (wanted, folders) in OTHER_KINDS.items():
        typed = command.partition(" ")[0]
        needed = [w for w in ("pairs", "tokens", "packs.plan", "vq") if f" {w}" in command]
        for folder in folders.split():
            # A single file is no folder of anything, and a folder without a manifest none of ours.
            words = [folder] if folder in ("packs.plan", "vq", "nowhere") else [folder, wanted]
            uses = sorted({*needed, *([] if folder == "nowhere" else [folder])} | _weights(command))
            found.append(
                case(
                    f"{typed} of {folder} where {wanted} are needed: {command}",
                    command.format(folder),
                    refused(*words),
                    has={"keys.txt": "pairs-00000000\n"},
                    uses=" ".join(uses),
                )
            )
    return found


def _weights(command: str) -> set[str]:
    return {"vq"} if "weights=vq" in command else set()


PAGE = "<!DOCTYPE html><html><body>Sign in</body></html>"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
CODES = "codes pairs out --resolution 32 --tokenizer"


def cut(name: str, to: int) -> Any:
    """Return a step that cuts a file of the project."""

    def make(path: Path) -> None:
        path.unlink(missing_ok=True)
        found = path.parent / name
        found.write_bytes(found.read_bytes()[:to])

    return make


def coded_by(tokenizer: str) -> Check:
    """Check that `out` holds the codes that this tokenizer gives."""

    def check(place: Path, printed: str) -> None:
        sm.codes("pairs", "again", tokenizer=tokenizer, resolution=32, workers=0)
        for found, wanted in zip(sm.open("out"), sm.open("again"), strict=True):
            assert [image.codes.tolist() for image in found] == [
                image.codes.tolist() for image in wanted
            ]

    return check


CODE_CASES = [
    case(
        "weights of llamagen named chameleon",
        f"{CODES} chameleon,weights=llamagen.pt",
        either(
            refused("llamagen.pt", "--tokenizer llamagen"),
            right(coded_by("llamagen,weights=llamagen.pt")),
        ),
        uses="pairs llamagen.pt",
    ),
    case(
        "weights of chameleon named llamagen",
        f"{CODES} llamagen,weights=vq/vqgan.ckpt",
        either(
            refused("vqgan.ckpt", "--tokenizer chameleon"),
            right(coded_by("chameleon,weights=vq")),
        ),
        uses="pairs vq",
    ),
    case(
        "weights that are not there",
        f"{CODES} chameleon,weights=vqgan",
        refused("vqgan"),
        uses="pairs",
    ),
    case(
        "weights by their name on a hub",
        f"{CODES} chameleon,weights=facebook/chameleon-7b",
        refused("facebook/chameleon-7b", "download"),
        uses="pairs",
    ),
    case(
        "weights that are a web page",
        f"{CODES} chameleon,weights=w/vqgan.ckpt",
        refused("vqgan.ckpt", "html or web page"),
        has={"w/vqgan.ckpt": PAGE},
        uses="pairs",
    ),
    case(
        "weights that are a pointer of git lfs",
        f"{CODES} chameleon,weights=w/vqgan.ckpt",
        refused("vqgan.ckpt", "git lfs pull"),
        has={"w/vqgan.ckpt": POINTER},
        uses="pairs",
    ),
    case(
        "weights that are cut",
        f"{CODES} chameleon,weights=vq",
        refused("vqgan.ckpt", "cut"),
        has={"vq/cut": cut("vqgan.ckpt", 5000)},
        uses="pairs vq",
    ),
    case(
        "weights of nothing",
        f"{CODES} chameleon,weights=w/vqgan.ckpt",
        refused("vqgan.ckpt"),
        has={"w/vqgan.ckpt": b""},
        uses="pairs",
    ),
    case("no tokenizer for codes", "codes pairs out", refused("--weights", "--from"), uses="pairs"),
    case(
        "a tokenizer without weights",
        "codes pairs out --tokenizer chameleon",
        refused("--weights"),
        uses="pairs",
    ),
    case(
        "a tokenizer of images that nobody knows",
        "codes pairs out --tokenizer vqgan,weights=vq",
        refused("vqgan", "chameleon"),
        uses="pairs vq",
    ),
    case(
        "a resolution that the network cannot halve",
        "codes pairs out --tokenizer chameleon,weights=vq --resolution 33",
        refused("33 x 33", "4 x 4"),
        uses="pairs vq",
    ),
    case(
        "a resolution of nothing",
        "codes pairs out --tokenizer chameleon,weights=vq --resolution 0",
        refused("resolution must"),
        uses="pairs vq",
    ),
    case(
        "codes of samples without images",
        "codes texts out --tokenizer chameleon,weights=vq --resolution 32",
        refused("none has images", out="nowhere"),
        uses="texts vq",
    ),
    case(
        "codes of videos before frames",
        "codes films out --tokenizer chameleon,weights=vq --resolution 32",
        refused("none has images", "frames", out="nowhere"),
        uses="films vq",
    ),
    case(
        "codes from a field that no sample has",
        "codes pairs out --from vqcode_512",
        refused("vqcode_512"),
        uses="pairs",
    ),
    case(
        "codes from a field and from a tokenizer",
        "codes pairs out --from vqcode_512 --tokenizer chameleon,weights=vq",
        refused("--from", "--tokenizer"),
        uses="pairs vq",
    ),
    case(
        "a device that is not there",
        f"{CODES} chameleon,weights=vq --device cuda:7",
        refused("cuda:7", "--device"),
        uses="pairs vq",
    ),
    case(
        "a device that nobody knows",
        f"{CODES} chameleon,weights=vq --device gpu",
        refused("gpu", "--device"),
        uses="pairs vq",
    ),
    case(
        "other weights into the same folder",
        f"{CODES} chameleon,weights=vq && {CODES} llamagen,weights=llamagen.pt",
        refused("out", "tokenizer", out="nowhere"),
        uses="pairs vq llamagen.pt",
    ),
    case(
        "frames of samples without videos",
        "frames pairs out",
        refused("none has videos", out="nowhere"),
        uses="pairs",
    ),
    case(
        "a sampler that nobody knows",
        "frames films out --sampler every,n=3",
        refused("every", "uniform"),
        uses="films",
    ),
    case(
        "a sampler of no frames",
        "frames films out --sampler uniform,count=0",
        refused("count"),
        uses="films",
    ),
    case(
        "a clip that ends before it starts",
        "frames films out --clip 5,2",
        refused("clip", "5"),
        uses="films",
    ),
    case(
        "a mark with a field that is not there",
        "frames films out --mark '{second}'",
        refused("second", "time_s"),
        uses="films",
    ),
    case(
        "a filter of nothing",
        "filter pairs out",
        refused("--filter", "--drop-duplicates"),
        uses="pairs",
    ),
    case(
        "a filter after which nothing is left",
        "filter pairs out --filter image_size,min_side=4000",
        refused("pairs", out="nowhere"),
        uses="pairs",
    ),
    case(
        "the output over the input of a filter",
        "filter pairs pairs --drop-duplicates",
        refused("pairs", out="nowhere"),
        uses="pairs",
    ),
]

TOKEN_CASES = [
    case(
        "images left out by the template for text",
        "tokenize pairs out",
        refused("image", "--template"),
        uses="pairs",
    ),
    case(
        "a tokenizer by its name on a hub",
        "tokenize texts out --tokenizer Qwen/Qwen2.5-7B-Instruct",
        refused("Qwen/Qwen2.5-7B-Instruct", "download"),
        uses="texts",
    ),
    case(
        "a tokenizer that is not there",
        "tokenize texts out --tokenizer models/qwen/tokenizer.json",
        refused("models/qwen/tokenizer.json"),
        uses="texts",
    ),
    case(
        "a folder of a model without a tokenizer",
        "tokenize texts out --tokenizer model",
        refused("model", "tokenizer.json"),
        has={"model/config.json": {"model_type": "qwen2"}},
        uses="texts",
    ),
    case(
        "a tokenizer that is a web page",
        "tokenize texts out --tokenizer tokenizer.json",
        refused("tokenizer.json", "html or web page"),
        has={"tokenizer.json": PAGE},
        uses="texts",
    ),
    case(
        "a tokenizer that is a pointer of git lfs",
        "tokenize texts out --tokenizer tokenizer.json",
        refused("tokenizer.json", "git lfs pull"),
        has={"tokenizer.json": POINTER},
        uses="texts",
    ),
    case(
        "a sentencepiece model that is a web page",
        "tokenize texts out --tokenizer spm.model",
        refused("spm.model", "html or web page"),
        has={"spm.model": PAGE},
        uses="texts",
    ),
    case(
        "a template that nobody knows",
        "tokenize texts out --template chatml",
        refused("chatml", "chat"),
        uses="texts",
    ),
    case(
        "the template of chats for texts without turns",
        "tokenize texts out --template chat",
        refused("role", "--template"),
        uses="texts",
    ),
    case(
        "the template of image generation for texts",
        "tokenize texts out --template t2i --space num_codes=300",
        refused("image", "--template"),
        uses="texts",
    ),
    case(
        "image generation without codes",
        "tokenize pairs out --template t2i",
        refused("--codes"),
        uses="pairs",
    ),
    case(
        "codes of other samples",
        "tokenize chats out --template chat --codes codes "
        '--space \'num_codes=300,added=["boi","eoi"]\'',
        refused("codes", "chats-00000000"),
        uses="chats codes",
    ),
    case(
        "a space with fewer codes than the codebook",
        "tokenize pairs out --template t2i --codes codes --space num_codes=10",
        refused("num_codes", "300"),
        uses="pairs codes",
    ),
    case(
        "a space with a field that is not there",
        "tokenize texts out --space size=100",
        refused("space has no field 'size'", "text_size"),
        uses="texts",
    ),
    case(
        "a space that is smaller than the tokenizer",
        "tokenize texts out --space text_size=100",
        refused("text_size", "100"),
        uses="texts",
    ),
    case(
        "a layout that nobody knows",
        "tokenize chats out --template chat --layout patch",
        refused("patch", "patches"),
        uses="chats",
    ),
    case(
        "patches without their control tokens",
        "tokenize chats out --template chat --layout patches",
        refused("im_patch", "--space"),
        uses="chats",
    ),
    case(
        "images counted by no rule",
        "tokenize chats out --template chat --layout vision",
        refused("vision", "--"),
        uses="chats",
    ),
    case(
        "rows longer than allowed, all of them",
        "tokenize texts out --max-length 2",
        refused("--max-length", out="nowhere"),
        uses="texts",
    ),
    case(
        "what becomes of overlong rows, without a length",
        "tokenize texts out --overlong cut",
        refused("--overlong", "--max-length"),
        uses="texts",
    ),
    case(
        "a hook that is not there",
        "tokenize texts out --hook nowhere:change",
        refused("nowhere:change"),
        uses="texts",
    ),
    case(
        "a field of text that rows do not have",
        "tokenize texts.jsonl out --text-field body",
        refused("body", "text"),
        uses="texts.jsonl",
    ),
    case(
        "a field of text for samples, which have none",
        "tokenize texts out --text-field text",
        refused("--text-field", "texts"),
        uses="texts",
    ),
    case(
        "a recipe that is not there",
        "tokenize texts out --recipe tokens.toml",
        refused("tokens.toml"),
        uses="texts",
    ),
    case(
        "a recipe with a key that nobody knows",
        "tokenize texts out --recipe tokens.toml",
        refused("tokens.toml", "blocksize", "block_size"),
        has={"tokens.toml": "blocksize = 8\n"},
        uses="texts",
    ),
    case(
        "a recipe that is no toml",
        "tokenize texts out --recipe tokens.toml",
        refused("tokens.toml", "line 1"),
        has={"tokens.toml": "block_size: 8\n"},
        uses="texts",
    ),
    case(
        "a recipe with a word for a number",
        "tokenize texts out --recipe tokens.toml",
        refused("block_size"),
        has={"tokens.toml": 'block_size = "eight"\n'},
        uses="texts",
    ),
    case(
        "a limit of no tokens",
        "tokenize texts out --limit 0",
        refused("limit", out="nowhere"),
        uses="texts",
    ),
    case(
        "an empty table of plain text",
        "tokenize rows.jsonl out",
        refused("rows.jsonl", out="nowhere"),
        has={"rows.jsonl": ""},
    ),
    case(
        "a table of chats as plain text",
        "tokenize rows.jsonl out",
        refused("messages", "ingest"),
        has={"rows.jsonl": [{"messages": [{"role": "user", "content": "Hi"}]}]},
    ),
    case(
        "measuring without a tokenizer",
        "measure chats out --model qwen2.5-vl",
        refused("--tokenizer", "--estimate"),
        uses="chats",
    ),
    case(
        "measuring for a model that nobody knows",
        "measure chats out --model qwen4-vl --estimate",
        refused("qwen4-vl", "qwen3-vl"),
        uses="chats",
    ),
    case(
        "measuring for a model by its name on a hub",
        "measure chats out --model Qwen/Qwen2.5-VL-7B-Instruct",
        refused("Qwen/Qwen2.5-VL-7B-Instruct", "download"),
        uses="chats",
    ),
    case(
        "measuring for a folder of a model that has no rule",
        "measure chats out --model model --estimate",
        refused("model", "processor_config.json"),
        has={"model/config.json": {"model_type": "bert"}},
        uses="chats",
    ),
    case(
        "measuring with a template that is not there",
        "measure chats out --model qwen2.5-vl --estimate --template chat.jinja",
        refused("chat.jinja"),
        uses="chats",
    ),
    case(
        "a day that is none",
        "measure chats out --model qwen2.5-vl --estimate --today tomorrow",
        refused("tomorrow", "today must"),
        uses="chats",
    ),
]

PLAN_CASES = [
    case(
        "a pack smaller than a sample",
        "plan tokens out.plan --capacity 8",
        refused("--capacity", "--overlong", out="out.plan"),
        uses="tokens",
    ),
    case(
        "all samples dropped as too long",
        "plan tokens out.plan --capacity 2 --overlong drop",
        refused("--capacity"),
        uses="tokens",
    ),
    case(
        "a pack of nothing",
        "plan tokens out.plan --capacity 0",
        refused("--capacity"),
        uses="tokens",
    ),
    case(
        "another plan over the first",
        "plan tokens packs.plan --capacity 64",
        refused("packs.plan", "capacity"),
        uses="tokens packs.plan",
    ),
    case(
        "the same plan again",
        "plan tokens packs.plan --capacity 128",
        right(is_true(lambda place: len(sm.open(place / "packs.plan")) > 0)),
        uses="tokens packs.plan",
    ),
    case(
        "a plan over a folder",
        "plan tokens tokens --capacity 128",
        refused("tokens"),
        uses="tokens",
    ),
    case(
        "an alignment larger than the pack",
        "plan tokens out.plan --capacity 64 --alignment 128",
        refused("alignment", "capacity"),
        uses="tokens",
    ),
    case(
        "a method that nobody knows",
        "plan tokens out.plan --capacity 128 --method greedy",
        refused("greedy", "histogram"),
        uses="tokens",
    ),
    case(
        "a balance that nobody knows",
        "plan tokens out.plan --capacity 128 --balance even",
        refused("even", "halving"),
        uses="tokens",
    ),
    case(
        "a shape of a model with a field that is not there",
        "plan tokens out.plan --capacity 128 --model depth=3",
        refused("depth", "layers"),
        uses="tokens",
    ),
    case(
        "no room left by the headroom",
        "plan lengths out.plan --capacity 512 --headroom 2",
        refused("headroom"),
        uses="lengths",
    ),
    case(
        "a plan of other tokens",
        "tokenize texts other --block-size 10 && pack other packs.plan out",
        refused("this plan", "plan other"),
        uses="texts packs.plan",
    ),
    case(
        "a plan of pixels for tokens",
        "pack tokens pixels.plan out",
        refused("this plan", "shardmill plan tokens"),
        uses="tokens pixels.plan",
    ),
    case(
        "a plan that is cut",
        "pack tokens packs.plan out",
        refused("packs.plan"),
        has={"cut": cut("packs.plan", 300)},
        uses="tokens packs.plan",
    ),
    case(
        "tars of packs without their samples",
        "tokenize chats chat-tokens --template chat --layout patches "
        '--space \'added=["im_patch","im_start","im_end"]\' && '
        "plan chat-tokens chat.plan --capacity 1024 && "
        "pack chat-tokens chat.plan out --format tar",
        refused("--samples"),
        uses="chats",
    ),
    case(
        "tars of packs with other samples",
        "tokenize chats chat-tokens --template chat --layout patches "
        '--space \'added=["im_patch","im_start","im_end"]\' && '
        "plan chat-tokens chat.plan --capacity 1024 && "
        "pack chat-tokens chat.plan out --format tar --samples pairs",
        refused("pairs", "chats-00000000"),
        uses="chats pairs",
    ),
    case(
        "packs with another seed into the same folder",
        "pack tokens packs.plan packs --seed 3",
        refused("seed", out="nowhere"),
        uses="tokens packs.plan packs",
    ),
    case(
        "a step that the plan does not have",
        "why packs.plan --step 5 --rank 4 --world 2",
        refused("rank 4", "2 ranks"),
        uses="packs.plan",
    ),
    case(
        "keys of nobody",
        "remove texts out --keys keys.txt",
        either(refused("nobody", "keys.txt", out="nowhere"), right(prints("1 key: nobody"))),
        has={"keys.txt": "nobody\n"},
        uses="texts",
    ),
    case(
        "an empty list of keys",
        "remove texts out --keys keys.txt",
        refused("keys.txt", out="nowhere"),
        has={"keys.txt": "\n"},
        uses="texts",
    ),
    case(
        "a list of keys that is not there",
        "remove texts out --keys keys.txt",
        refused("keys.txt"),
        uses="texts",
    ),
    case(
        "all keys",
        "remove pairs out --keys keys.txt",
        either(refused("nothing was kept", out="nowhere"), right(prints("nothing was kept"))),
        has={"keys.txt": "pairs-00000000\npairs-00000001\npairs-00000002\n"},
        uses="pairs",
    ),
    case(
        "removed without reading the key's spelling",
        "remove texts out --keys keys.txt",
        either(
            refused("keys.txt"),
            right(
                is_true(lambda place: "texts-00000001" not in list(sm.open(place / "out").keys()))
            ),
        ),
        has={"keys.txt": "\ufefftexts-00000001\r\n"},
        uses="texts",
    ),
]

READ_CASES = [
    case("the status of nothing", "status nowhere", refused("nowhere")),
    case("the status of a raw folder", "status raw", refused("raw"), has={"raw/a.txt": "a"}),
    case("showing nothing", "show nowhere", refused("nowhere")),
    case("checking nothing", "check nowhere", refused("nowhere")),
    case("showing a raw folder", "show raw", refused("raw"), has={"raw/a.txt": "a"}),
    case("checking a raw folder", "check raw", refused("raw"), has={"raw/a.txt": "a"}),
    case(
        "a sample that is not there",
        "show texts --sample nobody",
        refused("nobody", "texts-00000000"),
        uses="texts",
    ),
    case(
        "a number past the end",
        "show texts --sample 99",
        refused("99", "6"),
        uses="texts",
    ),
    case(
        "showing a plan",
        "show packs.plan",
        right(prints("128")),
        uses="packs.plan tokens",
    ),
    case(
        "checking a plan",
        "check packs.plan",
        right(prints("packs.plan")),
        uses="packs.plan tokens",
    ),
    case(
        "the status of a plan",
        "status packs.plan",
        right(prints("packs.plan")),
        uses="packs.plan tokens",
    ),
    case(
        "showing lengths",
        "show lengths",
        either(refused("shardmill status"), right(prints("chats"))),
        uses="lengths",
    ),
    case("checking lengths", "check lengths", right(), uses="lengths chats"),
    case(
        "showing an export",
        "show megatron",
        right(prints("Text number")),
        uses="megatron tokens",
    ),
    case("checking an export", "check megatron", right(), uses="megatron"),
    case("the status of an export", "status megatron", right(prints("complete")), uses="megatron"),
    case(
        "the status of a folder of several stages",
        "status .",
        right(prints("pairs", "texts")),
        uses="pairs texts",
    ),
    case(
        "checking a folder of several stages",
        "check .",
        right(prints("pairs", "texts")),
        uses="pairs texts",
    ),
    case(
        "showing a folder of several stages",
        "show .",
        either(refused("pairs", "texts"), right(prints("pairs", "texts"))),
        uses="pairs texts",
    ),
    case(
        "checking a folder that is not finished",
        "check texts",
        refused("texts", out="nowhere"),
        has={"texts/gone": lambda path: (path.parent / "manifest.json").unlink()},
        uses="texts",
    ),
    case(
        "tokenizing a folder that is not finished",
        "tokenize texts out",
        refused("texts", "not finished"),
        has={"texts/gone": lambda path: (path.parent / "manifest.json").unlink()},
        uses="texts",
    ),
]


OTHER_CASES = [
    case(
        "more frames than the video has",
        "frames films out --sampler uniform,count=500",
        either(
            refused("too few frames"),
            right(is_true(lambda place: len(sm.open(place / "out")[0].images) == 12)),
        ),
        uses="films",
    ),
    case(
        "no frames a second",
        "frames films out --sampler fps,fps=0",
        refused("fps"),
        uses="films",
    ),
    case(
        "a clip after the end of the video",
        "frames films out --clip 100,200",
        refused("clip outside the video", out="nowhere"),
        uses="films",
    ),
    case(
        "fewer than no packs",
        "plan tokens out.plan --capacity 128 --max-packs 0",
        refused("--max-packs"),
        uses="tokens",
    ),
    case("a count of no samples", "show texts --count 0", refused("--count"), uses="texts"),
    case(
        "images of codes, of samples",
        "show pairs --reconstruct images",
        refused("pairs", "codes"),
        uses="pairs",
    ),
    case(
        "codes decoded without their weights",
        "show codes --reconstruct images",
        either(refused("vq"), right(is_true(lambda place: any((place / "images").iterdir())))),
        uses="codes",
    ),
    case(
        "why of other data",
        "why packs.plan --step 0 --data chat-tokens",
        refused("this plan", "chat-tokens"),
        uses="packs.plan chat-tokens",
    ),
    case(
        "why of a step past the end",
        "why packs.plan --step 0 --world 64",
        refused("packs"),
        uses="packs.plan",
    ),
    case("a difference to itself", "diff texts texts", right(prints("texts")), uses="texts"),
    case("a report of nothing", "report nowhere report.html", refused("nowhere")),
    case("a view of nothing", "view nowhere --no-open", refused("nowhere")),
    case("work of nobody", "work job.json", refused("job.json")),
    case("work that is no job", "work job.json", refused("job.json"), has={"job.json": {"a": 1}}),
    case(
        "a repair whose input is gone",
        "ingest texts.jsonl made && rm made/shards/000000.tar && mv texts.jsonl away && "
        "check made --repair",
        refused("texts.jsonl", out="nowhere"),
        uses="texts.jsonl",
    ),
    case(
        "columns that an export does not have",
        "export tokens out --format 'hf,columns=[\"ids\"]'",
        refused("ids", "input_ids"),
        uses="tokens",
    ),
    case(
        "something dropped that is not there",
        "export tokens out --format megatron --drop pictures",
        refused("pictures", "loss"),
        uses="tokens",
    ),
    case(
        "a class of one's own that is not there",
        "export tokens out --format nowhere:Format",
        refused("nowhere"),
        uses="tokens",
    ),
    case(
        "a class that is trusted and is not there",
        "--trust nowhere show tokens",
        refused("nowhere", "module:Class"),
        uses="tokens",
    ),
    case(
        "a chat template that is broken",
        "tokenize chats out --template 'chat,template=broken.jinja' --layout patches "
        '--space \'added=["im_patch","im_start","im_end"]\'',
        refused("broken.jinja"),
        has={"broken.jinja": "{% for m in messages %}{{ m.content }"},
        uses="chats",
    ),
    case(
        "a space with a token twice",
        'tokenize texts out --space \'added=["boi","boi"]\'',
        refused("boi"),
        uses="texts",
    ),
    case(
        "blocks of text for samples with images",
        "tokenize chats out --template chat --block-size 8 --layout patches "
        '--space \'added=["im_patch","im_start","im_end"]\'',
        refused("block"),
        uses="chats",
    ),
    case(
        "a rule of a model for tokens of codes",
        "tokenize pairs out --template t2i --codes codes --rule qwen2-vl "
        '--space \'num_codes=300,added=["boi","eoi"]\'',
        refused("rule"),
        uses="pairs codes",
    ),
    case(
        "tokens of a program that nobody knows",
        "tokenize texts out --from gpt2",
        refused("gpt2", "megatron"),
        uses="texts",
    ),
    case(
        "tokens of another program that are none",
        "tokenize texts out --from megatron --space text_size=32000",
        refused("texts", "megatron or idx"),
        uses="texts",
    ),
]


@pytest.mark.parametrize(
    "row", [*_other_kinds(), *CODE_CASES, *TOKEN_CASES, *PLAN_CASES, *READ_CASES, *OTHER_CASES]
)
def test_mistake(row: Case, tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try_case(row, tmp_path, world)
