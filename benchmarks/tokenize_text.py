"""Plain text to token shards: read jsonl.zst, tokenize, write; one core, then two.

The text is what this machine has: manual pages, documentation and Python sources, cut at line ends
into documents of about 1.5 KB. Every round takes another part of it, so that nobody is helped by
having seen a text before; tokenizers are loaded before the clock starts. All write the same ids,
which is checked at the end: an end-of-text id after each document, no document with the text of a
control token in it (the others would make control tokens of it). On one core it is the internal
stage that works, so that loading a tokenizer is not timed; on two it is `sm.tokenize`.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fetch_tokenizers
import numpy as np
import orjson
from side_by_side import Contest, save_report, sized, unit_times

ROUNDS, PART_BYTES, DOCUMENT_CHARS = sized(4, 2), sized(3_000_000, 60_000), 1500
NUM_FILES = sized(60, 12)
EOS = {"qwen2.5": "<|endoftext|>", "llama-2": "</s>"}
TEXT_SIZE = {"qwen2.5": 151_665, "llama-2": 32_000}
os.environ["TOKENIZERS_PARALLELISM"] = "false"


def shardmill(tokenizer: str, parts: list[str], out: str) -> Callable[[], int]:
    """What a worker of shardmill does for one unit."""
    from shardmill.api.tokenize import tokenize_stage
    from shardmill.model.stage import Draft, Tally

    stage = tokenize_stage(settings_of(tokenizer), parts)
    units = iter(list(stage.units()))
    work = stage.open().__enter__()

    def one_part() -> int:
        unit, tally = next(units), Tally()
        draft = Draft(fresh(out, int(unit.name)))
        work(unit, draft, tally)
        return tally.stats["tokens"]

    return one_part


def settings_of(tokenizer: str) -> dict[str, Any]:
    """Return the settings of `sm.tokenize`."""
    return {
        "tokenizer": {"kind": "huggingface", "path": str(fetch_tokenizers.fetch(tokenizer))},
        "space": {"text_size": TEXT_SIZE[tokenizer], "specials": {"eos": eos_id(tokenizer)}},
    }


def hugging_face(tokenizer: str, parts: list[str], out: str) -> Callable[[], int]:
    """`encode_batch_fast` of tokenizers between the same reader and the same writer."""
    import tokenizers

    from shardmill.model.sample import Origin
    from shardmill.model.space import TokenSpace
    from shardmill.shards.tokens.write import TokenWriter
    from shardmill.stages.tokenize import surround
    from shardmill.tokens.text.tokenizer import ragged

    library = tokenizers.Tokenizer.from_file(str(json_path(tokenizer)))
    space, eos = TokenSpace(text_size=TEXT_SIZE[tokenizer]), eos_id(tokenizer)
    rounds = iter(enumerate(parts))

    def one_part() -> int:
        number, part = next(rounds)
        folder = fresh(out, number)
        with TokenWriter(lambda role: folder / f"{number:06d}.{role}", space) as writer:
            for texts in batches(part):
                encodings = library.encode_batch_fast(texts, add_special_tokens=False)
                found = surround(ragged(e.ids for e in encodings), [], [eos])
                keys = [str(n) for n in range(len(texts))]
                origin = Origin(source="text", path=part, row=0)
                writer.append_texts(found.ids, found.lengths, keys, origin, range(len(texts)))
        return writer.num_tokens

    return one_part


def megatron(tokenizer: str, parts: list[str], out: str) -> Callable[[], int]:
    """Megatron's way: a document at a time through transformers into its own dataset builder."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    from transformers import PreTrainedTokenizerFast

    library = PreTrainedTokenizerFast(tokenizer_file=str(json_path(tokenizer)))
    eos = eos_id(tokenizer)
    dtype = np.uint16 if TEXT_SIZE[tokenizer] < 65_500 else np.int32
    rounds = iter(enumerate(parts))

    def one_part() -> int:
        number, part = next(rounds)
        prefix = fresh(out, number) / f"{number:06d}"
        builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
        num_tokens = 0
        for texts in batches(part):
            for text in texts:
                ids = [*library(text, add_special_tokens=False).input_ids, eos]
                builder.add_document(ids, [len(ids)])
                num_tokens += len(ids)
        builder.finalize(f"{prefix}.idx")
        return num_tokens

    return one_part


def datatrove(tokenizer: str, parts: list[str], out: str) -> Callable[[], int]:
    """datatrove's reader and DocumentTokenizer, unshuffled."""
    from datatrove.io import get_datafolder
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer
    from loguru import logger

    logger.remove()
    block = DocumentTokenizer(
        out, str(json_path(tokenizer)), eos_token=EOS[tokenizer], shuffle_documents=False
    )
    assert block.tokenizer is not None
    rounds = iter(enumerate(parts))

    def one_part() -> int:
        number, part = next(rounds)
        folder = fresh(out, number)
        block.output_folder = get_datafolder(str(folder))
        reader = JsonlReader(str(Path(part).parent), glob_pattern=Path(part).name)
        block.run(reader.run(rank=0, world_size=1), rank=0, world_size=1)
        itemsize = 2 if TEXT_SIZE[tokenizer] < 2**16 else 4
        return sum(path.stat().st_size for path in folder.glob("*.ds")) // itemsize

    return one_part


def batches(part: str, size: int = 1000) -> Iterator[list[str]]:
    """Yield the texts of a jsonl.zst file."""
    import zstandard

    texts: list[str] = []
    with zstandard.open(part, "rb") as file:
        for line in file.read().splitlines():
            texts.append(orjson.loads(line)["text"])
            if len(texts) == size:
                yield texts
                texts = []
    yield texts


def fresh(out: str, number: int) -> Path:
    """Return an empty folder for the output of a round."""
    folder = Path(out) / f"{number:06d}"
    folder.mkdir(parents=True)
    return folder


def json_path(tokenizer: str) -> Path:
    """Return the tokenizer.json of a tokenizer by its name here."""
    return fetch_tokenizers.fetch(tokenizer) / "tokenizer.json"


def eos_id(tokenizer: str) -> int:
    """Return the id that ends a document."""
    added = json.loads(json_path(tokenizer).read_text())["added_tokens"]
    return next(int(t["id"]) for t in added if t["content"] == EOS[tokenizer])


def documents() -> Iterator[str]:
    """Yield documents of about 1.5 KB from manual pages, documentation and Python sources."""
    roots = ["/usr/share/man/man*/*.gz", "/usr/share/doc/**/*.txt", "/usr/lib/python3*/**/*.py"]
    found = [sorted(Path("/").glob(root.lstrip("/"))) for root in roots]
    for group in zip(*(files * (1 + 20_000 // max(1, len(files))) for files in found if files)):
        for path in group:
            yield from cut(path)


def cut(path: Path) -> Iterator[str]:
    """Yield the text of a file in documents that end with a line."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = raw.decode().splitlines(keepends=True)
    except (OSError, UnicodeDecodeError):
        return
    text = ""
    for line in lines:
        text += line
        if len(text) >= DOCUMENT_CHARS:
            yield text
            text = ""
    if text:
        yield text


def make_parts(folder: Path, specials: list[str], count: int, num_bytes: int) -> list[str]:
    """Write `count` jsonl.zst files, each with this much text that no other has."""
    import zstandard

    seen: set[int] = set()
    source = (
        text
        for text in documents()
        if not any(s in text for s in specials) and not (hash(text) in seen or seen.add(hash(text)))
    )
    parts = []
    for number in range(count):
        rows, size = [], 0
        while size < num_bytes:
            text = next(source)
            rows.append(orjson.dumps({"text": text}))
            size += len(text)
        part = folder / f"part-{number:03d}.jsonl.zst"
        part.write_bytes(zstandard.compress(b"\n".join(rows) + b"\n"))
        parts.append(str(part))
    return parts


def all_ids(folder: Path, tokenizer: str) -> str:
    """Return a digest of all ids that a contestant wrote, in order."""
    import xxhash

    state = xxhash.xxh3_64()
    wide = TEXT_SIZE[tokenizer] >= 2**16
    for path in sorted([*folder.glob("*/*.bin"), *folder.glob("*/*.ds")]):
        ids = np.fromfile(path, np.uint32 if wide else np.uint16)
        state.update(ids.astype(np.int64).tobytes())
    return state.hexdigest()


def contest(tokenizer: str, parts: list[str], folder: Path) -> str:
    """Let all tokenize the same parts in turn; return the section of the report."""
    found = Contest(f"text with {tokenizer}", unit="token")
    entries = [
        ("shardmill", "shardmill", None, ""),
        ("tokenizers encode_batch_fast", "hugging_face", None, "same reader and writer"),
        ("megatron-core builder", "megatron", "megatron", "transformers, a document at a time"),
        ("datatrove", "datatrove", "datatrove", "JsonlReader, DocumentTokenizer"),
    ]
    for name, function, peer, note in entries:
        out = str(folder / tokenizer / function)
        found.add(
            name,
            __file__,
            function,
            peer=peer,
            note=note,
            tokenizer=tokenizer,
            parts=parts,
            out=out,
        )
    found.run(rounds=len(parts))
    digests = {f: all_ids(folder / tokenizer / f, tokenizer) for _, f, _, _ in entries}
    if len(set(digests.values())) != 1:
        raise SystemExit(f"the ids differ: {digests}")
    return f"## {tokenizer}, one core\n\n{found.table(than='shardmill')}\n\nAll ids are equal."


def two_cores(tokenizer: str, parts: list[str], folder: Path) -> str:
    """Run the whole command with one and with two workers; return the section of the report."""
    files = linked(parts, folder / f"{tokenizer}-files")
    best = {1: 0.0, 2: 0.0}
    for attempt in range(2):
        for workers in best:
            out = folder / f"{tokenizer}-{workers}-{attempt}"
            best[workers] = max(best[workers], units_a_second(tokenizer, files, out, workers))
            shutil.rmtree(out)
    size = PART_BYTES / 1e6
    return "\n".join(
        [
            f"## {tokenizer}, the whole command on one and two workers",
            "",
            "| workers | MB/s of text, wall |",
            "|---:|---:|",
            *(f"| {workers} | {rate * size:.1f} |" for workers, rate in best.items()),
            "",
            f"Two workers are {best[2] / best[1]:.2f} x as fast. The clock starts when all workers "
            "have finished some files and stops with the last; receipts and fsync are included.",
        ]
    )


def units_a_second(tokenizer: str, files: list[str], out: Path, workers: int) -> float:
    """Return how many files are finished in a second, once all workers are warm."""
    import shardmill as sm

    sm.tokenize(files, out, **settings_of(tokenizer), workers=workers)
    _, ends = unit_times(out)
    warm = 4 * workers
    return (len(ends) - warm) / max(1e-3, ends[-1] - ends[warm - 1])


def linked(parts: list[str], folder: Path) -> list[str]:
    """Return many names of the parts, enough to keep two workers busy for some seconds."""
    folder.mkdir()
    links = []
    for number in range(NUM_FILES):
        link = folder / f"{number:04d}.jsonl.zst"
        link.hardlink_to(parts[number % len(parts)])
        links.append(str(link))
    return links


def main() -> None:
    """Compare, check and write the report."""
    sections = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        specials = [token for t in EOS for token in special_texts(t)]
        (folder / "parts").mkdir()
        parts = make_parts(folder / "parts", specials, ROUNDS, PART_BYTES)
        for tokenizer in EOS:
            sections.append(contest(tokenizer, parts, folder))
            sections.append(two_cores(tokenizer, parts, folder))
    save_report(__file__, "Text to token shards", [__doc__.partition("\n\n")[2], *sections])


def special_texts(tokenizer: str) -> list[str]:
    """Return the texts of all added tokens of a tokenizer."""
    added = json.loads(json_path(tokenizer).read_text())["added_tokens"]
    return [t["content"] for t in added]


if __name__ == "__main__":
    sys.exit(main())
