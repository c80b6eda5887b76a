"""A small pipeline over the demo's data, and samples that want to be run as code."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from click.testing import CliRunner
from finished_folder import finish_folder, shard_entry
from PIL import Image
from sample_folder import write_sample_folder

from shardmill.cli.main import cli
from shardmill.model.sample import Document, MediaSize, Origin, Sample, Segment
from shardmill.shards.codes import ImageCodes, write_codes

DATA = Path(__file__).parents[2] / "demo" / "data"
RECIPE = 'layout = "patches"\n\n[space]\nadded = ["im_patch", "im_start", "im_end"]\n'
COMMANDS = (
    "ingest data/pairs.jsonl pairs --per-shard 8 --workers 0",
    "ingest data/chats.json chats --workers 0",
    "filter pairs sharp --filter image_size,min_side=300 --workers 0",
    "tokenize chats tokens --recipe patches.toml --template chat --workers 0",
    "plan tokens packs.plan --capacity 2048",
    "pack tokens packs.plan packs --workers 0",
)
SCRIPT = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
HOSTILE_KEY = "<img src=x onerror=window[`hacked`]=1>"
NUM_CODES = 64
HOSTILE_NAME = "<b onclick=hacked=1>"


def run_in(folder: Path, *commands: str) -> None:
    """Run verbs in this process, in a folder; each must succeed."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        for command in commands:
            result = CliRunner().invoke(cli, command.split(), catch_exceptions=False)
            assert result.exit_code == 0, f"{command}\n{result.output}"
    finally:
        os.chdir(before)


def make_pipeline(folder: Path) -> Path:
    """Make the stages of a small pipeline; returns the folder."""
    (folder / "data").symlink_to(DATA)
    (folder / "patches.toml").write_text(RECIPE)
    run_in(folder, *COMMANDS)
    return folder


def make_hostile(folder: Path) -> Path:
    """Make samples whose captions, keys, names and media want to be run; returns the folder."""
    file = io.BytesIO()
    Image.new("RGB", (32, 24), (200, 30, 30)).save(file, "PNG")
    rows = []
    for number, content in enumerate((file.getvalue(), SCRIPT.encode(), b"<svg onload='x()'/>")):
        segments = (Segment(kind="image", media="png"), Segment(kind="text", text=SCRIPT))
        sample = Sample(
            key=f"{HOSTILE_KEY}-{number}",
            document=Document(segments),
            media={"png": content},
            origin=Origin(source=SCRIPT, path=f"../../{SCRIPT}.jsonl", row=SCRIPT),
            extra={SCRIPT: SCRIPT},
        )
        rows.append((sample, {"png": MediaSize(width=32, height=24)}))
    write_sample_folder(folder / HOSTILE_NAME, [rows])
    return folder


def make_codes(folder: Path) -> Path:
    """Make twenty grids of codes, number 7 flat and 13 of codes that nobody else has."""
    rng = np.random.default_rng(0)
    grids = [rng.integers(0, 48, (8, 8)) for _ in range(20)]
    grids[7] = np.full((8, 8), 3)
    grids[13] = rng.integers(50, 60, (8, 8))
    rows = [(f"k{n}", [ImageCodes("jpg", grid.astype(np.uint8))]) for n, grid in enumerate(grids)]
    (folder / "shards").mkdir(parents=True)
    write_codes(folder / "shards" / "0.codes", rows, num_codes=NUM_CODES, factor=16)
    stage = {"kind": "stage/codes"}
    return finish_folder(folder, [shard_entry(folder, "0", len(rows), ("codes",))], stage)
