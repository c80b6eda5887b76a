"""The page over a folder of 10 million samples: python benchmarks/view_scale.py

A pipeline is made: samples in shards of 10,000 with indexes of their own (all tars are links to one
file of the same content, which no answer but the sample itself reads), tokens of the same rows, a
table of 10 million lengths and its plan. Then one context is asked what a person clicks on, one
request after the other, with nothing asked before. The goals: an answer in under a second, except
for the first plots of a plan, and memory far below the data. The folders are made up and the page
is asked through internal modules: no browser and no server come between.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import save_report, sized

PER_SHARD = sized(10_000, 100)
CAPACITY = 8192
Arrays = dict[str, Any]


def make_samples(folder: Path, num_shards: int) -> None:
    """Write shards of text samples: one tar, linked; an index each, with keys of its own."""
    from shardmill.model.sample import Document, Origin, Sample, Segment
    from shardmill.model.stage import Draft
    from shardmill.shards.arrays import hash_keys, open_arrays, pack_strings, write_arrays
    from shardmill.shards.samples import SampleWriter
    from shardmill.shards.tar.index import FORMAT

    shards = folder / "shards"
    shards.mkdir(parents=True)
    with SampleWriter(Draft(shards), lambda _: "template") as writer:
        for number in range(PER_SHARD):
            text = Segment(kind="text", text=f"Sample {number} speaks of nothing at all.")
            origin = Origin(source=f"web{number % 3}", path="web.jsonl", row=number)
            key = f"web-{number:08d}"
            writer.add(Sample(key=key, document=Document((text,)), origin=origin))
    template = open_arrays(shards / "template.idx", FORMAT)
    for shard in range(num_shards):
        numbers = range(shard * PER_SHARD, (shard + 1) * PER_SHARD)
        keys = [b"web-%08d" % number for number in numbers]
        hashes = hash_keys(keys)
        order = np.argsort(hashes, kind="stable")
        own: Arrays = {"hash": hashes[order], "hash_order": order.astype(np.uint32)}
        arrays = {**template.arrays, **pack_strings("key", keys), **own}
        with (shards / f"{shard:06d}.idx").open("wb") as file:
            write_arrays(file, FORMAT, arrays, template.meta)
        (shards / f"{shard:06d}.tar").hardlink_to(shards / "template.tar")
    finish(folder, ("idx", "tar"), num_shards, "stage/ingest", {})


def make_tokens(folder: Path, num_shards: int) -> None:
    """Write token shards, all links to one."""
    from shardmill.model.sample import Origin
    from shardmill.model.space import TokenSpace
    from shardmill.model.tokenrow import TokenRow
    from shardmill.shards.tokens.shard import ROLES
    from shardmill.shards.tokens.write import TokenWriter

    shards = folder / "shards"
    shards.mkdir(parents=True)
    files = {role: shards / f"template.{role}" for role in ROLES}
    with TokenWriter(files.__getitem__, TokenSpace(text_size=32768)) as writer:
        for number in range(PER_SHARD):
            origin = Origin(source=f"web{number % 3}", path="web.jsonl", row=number)
            ids = np.arange(8 + number % 120)
            writer.append(TokenRow(key=f"web-{number:08d}", ids=ids, origin=origin))
    for shard in range(num_shards):
        for role in ROLES:
            (shards / f"{shard:06d}.{role}").hardlink_to(files[role])
    finish(folder, ROLES, num_shards, "stage/tokenize", {"input_dir": "samples"})


def finish(
    folder: Path, roles: tuple[str, ...], num_shards: int, kind: str, spec: dict[str, Any]
) -> None:
    """Write units, receipts and the manifest of a folder whose shards are there."""
    from shardmill.model.manifest import (
        FileEntry,
        Receipt,
        ShardEntry,
        StageRecord,
        build_manifest,
        receipt_digest,
        receipt_to_plain,
    )
    from shardmill.model.stage import Unit
    from shardmill.shards.ledger import Ledger
    from shardmill.storage.text import dump_page

    ledger = Ledger(folder, "bench")
    ledger.make_folders()
    ledger.draft_dir.mkdir()
    record = StageRecord(
        stage={"kind": kind, **spec},
        version=1,
        digest="0",
        content="tokens" if "spans" in roles else "samples",
        reads={"samples": (spec["input_dir"],)} if "input_dir" in spec else {},
    )
    units = [
        Unit(name=f"{n:06d}", input={"n": n}, num_samples=PER_SHARD) for n in range(num_shards)
    ]
    ledger.write_plan(record, {}, units)
    receipts = []
    for unit in units:
        paths = {role: f"shards/{unit.name}.{role}" for role in roles}
        files = {r: FileEntry(p, (folder / p).stat().st_size, "0" * 16) for r, p in paths.items()}
        receipts.append(
            Receipt(
                unit=unit.name,
                digest=receipt_digest("0", unit),
                num_in=PER_SHARD,
                num_kept=PER_SHARD,
                skipped={},
                shards=(ShardEntry(unit.name, PER_SHARD, files),),
            )
        )
        path = ledger.receipt_path(unit.name)
        path.write_bytes(dump_page(receipt_to_plain(receipts[-1])))
    ledger.write_manifest(build_manifest(record, units, receipts))


def make_plan(folder: Path, num_rows: int) -> None:
    """Write a table of lengths as of a mixture with images, and its plan."""
    from shardmill.model.plan import PackSpec, length_table
    from shardmill.packing.plan import plan_packs
    from shardmill.shards.plans import write_lengths, write_plan

    rng = np.random.default_rng(0)
    text = np.clip(rng.lognormal(5, 1, num_rows), 8, 4000).astype(np.int32)
    visual = rng.choice(np.array([0, 256, 576, 1024], np.int32), num_rows)
    table = length_table(
        text + visual,
        num_visual=visual,
        source=rng.integers(0, 3, num_rows),
        source_names=["web0", "web1", "web2"],
    )
    write_lengths(folder / "lengths.bin", table)
    write_plan(folder / "packs.plan", plan_packs(table, PackSpec(capacity=CAPACITY)))


def questions(num_rows: int) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield what a person clicks on: (words, answer, parameters)."""
    last = str(num_rows - 48)
    yield "the map, first", "map", {}
    yield "the map, again", "map", {}
    yield "overview of the samples", "item", {"id": "samples"}
    yield "first page of samples", "samples", {"id": "samples"}
    yield "a page in the middle", "samples", {"id": "samples", "at": str(num_rows // 2)}
    yield "the last page", "samples", {"id": "samples", "at": last}
    yield "one sample", "sample", {"id": "samples", "n": str(num_rows * 3 // 4)}
    yield "units 500 to 549", "units", {"id": "samples", "at": "500", "count": "50"}
    yield "samples of one source", "samples", {"id": "samples", "source": "web2"}
    yield "first page of rows", "rows", {"id": "tokens"}
    yield "one row", "row", {"id": "tokens", "n": str(num_rows * 3 // 4)}
    yield "lengths of the tokens", "plots", {"id": "tokens"}
    yield "overview of the plan", "item", {"id": "packs.plan"}
    yield "plots of the plan, first", "plots", {"id": "packs.plan", "world": "64"}
    yield "plots of the plan, again", "plots", {"id": "packs.plan", "world": "64"}
    yield "plots for other ranks", "plots", {"id": "packs.plan", "world": "512"}
    yield "a page of packs", "packs", {"id": "packs.plan", "at": str(num_rows // 100)}
    yield "one pack", "pack", {"id": "packs.plan", "n": str(num_rows // 100)}


def search_all(ask: Callable[[str, dict[str, str]], Any], wanted: str) -> tuple[int, int]:
    """Search as the page does, until the end; return requests and hits."""
    cursor, num_requests, hits = {"item": "0", "shard": "0"}, 0, 0
    while True:
        answer = ask("search", {"q": wanted, **cursor})
        num_requests += 1
        hits += len(answer["hits"])
        if answer["cursor"] is None:
            return num_requests, hits
        cursor = dict(zip(("item", "shard"), map(str, answer["cursor"])))


def measure(folder: Path, num_rows: int) -> list[str]:
    """Ask everything once, and return the lines of the table."""
    from shardmill.view.answers import answer
    from shardmill.view.context import Context

    context = Context(folder)

    def ask(name: str, params: dict[str, str]) -> Any:
        return answer(context, name, params)

    lines = ["| asked | CPU ms | wall ms |", "|---|---|---|"]

    def timed(words: str, work: Callable[[], Any]) -> Any:
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        found = work()
        cpu_ms = (time.process_time() - cpu_s) * 1e3
        wall_ms = (time.perf_counter() - wall_s) * 1e3
        lines.append(f"| {words} | {cpu_ms:,.0f} | {wall_ms:,.0f} |")
        return found

    for words, name, params in questions(num_rows):
        timed(words, lambda name=name, params=params: ask(name, params))
    for words, wanted in (
        ("search: a key of the last shard, all requests", f"web-{num_rows - 7:08d}"),
        ("search: a key that nobody has, all requests", "nobody-00000001"),
    ):
        num_requests, _ = timed(words, lambda wanted=wanted: search_all(ask, wanted))
        lines[-1] = lines[-1].replace("all requests", f"{num_requests} requests")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*.*") if path.is_file())
    memory = (
        f"Peak memory of the process: {peak / 1e6:,.0f} MB, mapped files included; the folder "
        f"holds {num_bytes / 1e9:,.1f} GB by the sizes of its files."
    )
    return ["\n".join(lines), memory]


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        folder, num_rows = Path(sys.argv[2]), int(sys.argv[3])
        title = f"The page over {num_rows:,} samples"
        save_report(__file__, title, measure(folder, num_rows))
        return
    num_rows = sized(10_000_000, 1_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_samples(folder / "samples", num_rows // PER_SHARD)
        make_tokens(folder / "tokens", num_rows // PER_SHARD)
        make_plan(folder, num_rows)
        # Another process asks, so that its memory is its own.
        subprocess.run([sys.executable, __file__, "--measure", name, str(num_rows)], check=True)


if __name__ == "__main__":
    main()
