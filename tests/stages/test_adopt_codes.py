"""Codes that rows carry become code shards, and tokens of either are the same."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import shardmill as sm
from shardmill.api.tokenize import tokenize_stage
from shardmill.errors import ConfigError
from shardmill.running.runner import run_stage
from shardmill.shards.codes import open_codes
from shardmill.shards.ledger import open_manifest
from shardmill.shards.tokens.shard import open_tokens
from shardmill.sources.guess import source_from_input
from shardmill.sources.shapes.datasets import LiquidShape
from shardmill.stages.adopt import AdoptCodes
from shardmill.stages.ingest import Ingest
from shardmill.tokens.codes import FieldCodes


def liquid_row(number: int, codes: object) -> dict[str, object]:
    kind = "text_pretrain" if codes == "no" else "image_text"
    row = {"data_type": kind, "text": f"Text {number}.", "length": 7, "vqcode_512": codes}
    return {**row, "vqcode_multi768": "no", "width": "no", "height": "no"}


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    rng = random.Random(0)
    codes = [json.dumps([rng.randrange(8192) for _ in range(1024)]) for _ in range(3)]
    rows = [liquid_row(n, c) for n, c in enumerate([codes[0], "no", codes[1], codes[2]])]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = source_from_input([str(tmp_path / "rows.jsonl")])
    stage = Ingest(source=source, shape=LiquidShape(), per_shard=2)
    assert run_stage(stage, tmp_path / "samples", workers=0).complete
    return tmp_path / "samples"


def adopt(samples: Path, out: Path, **fields: object) -> None:
    stage = AdoptCodes(input_dir=samples, codes=FieldCodes(field="vqcode_512"), **fields)  # type: ignore[arg-type]
    assert run_stage(stage, out, workers=0, max_skip_rate=1).complete


def test_rows_without_codes_have_none(samples: Path, tmp_path: Path) -> None:
    adopt(samples, tmp_path / "codes")
    manifest = open_manifest(tmp_path / "codes")
    assert manifest.num_samples == 4
    assert manifest.stats["codes"] == 3 * 1024
    shard = open_codes(tmp_path / "codes" / manifest.shards[0].files["codes"].path)
    assert [len(shard.images(n)) for n in range(2)] == [1, 0]
    row = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])
    (image,) = shard.images(0)
    assert (image.medium, image.codes.shape) == ("vqcode_512", (32, 32))
    assert image.codes.reshape(-1).tolist() == json.loads(row["vqcode_512"])


@pytest.mark.parametrize(
    ("width", "height", "num_codes", "shape"),
    [
        ("640", "384", 960, (24, 40)),
        (256, 1024, 1024, (64, 16)),
        ("640", "480", 1024, (32, 32)),  # the size of the image before it was cut
        ("no", "no", 1024, (32, 32)),
        ("-640", "-384", 960, None),
        ("0", "9" * 5000, 960, None),
        ("no", [3], 960, None),
        (1e300, 1e999, 960, None),
    ],
)
def test_width_and_height_say_the_shape(
    tmp_path: Path, width: object, height: object, num_codes: int, shape: tuple[int, int] | None
) -> None:
    row = {**liquid_row(0, "no"), "data_type": "image_text", "width": width, "height": height}
    row["vqcode_multi768"] = json.dumps([7] * num_codes)
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    sm.ingest(tmp_path / "rows.jsonl", tmp_path / "samples", shape="liquid", workers=0)
    options = {"from_": "vqcode_multi768", "max_skip_rate": 1.0, "allow_empty": True, "workers": 0}
    codes = sm.codes(tmp_path / "samples", tmp_path / "codes", **options)  # type: ignore[arg-type]
    assert [image.codes.shape for images in codes for image in images] == ([shape] if shape else [])


def test_tokens_do_not_depend_on_where_codes_come_from(samples: Path, tmp_path: Path) -> None:
    adopt(samples, tmp_path / "codes")
    space = {"added": ["boi", "eoi", "unconditional"], "num_codes": 8192}
    sources = ({"kind": "field", "field": "vqcode_512"}, {"kind": "shards", "folder": "codes"})
    rows = []
    for number, codes in enumerate(sources):
        if "folder" in codes:
            codes = {**codes, "folder": str(tmp_path / "codes")}
        recipe = {"template": "mixed", "space": space, "codes": codes}
        out = tmp_path / f"tokens-{number}"
        assert run_stage(tokenize_stage(recipe, [str(samples)]), out, workers=0).complete
        tokens = open_tokens(out)
        rows.append([(row.key, row.ids.tolist(), row.loss.tolist(), row.media) for row in tokens])
    assert rows[0] == rows[1]
    assert [len(media) for *_, media in rows[0]] == [1, 0, 1, 1]


def test_codes_outside_of_the_codebook_are_rejects(samples: Path, tmp_path: Path) -> None:
    adopt(samples, tmp_path / "codes", num_codes=10)
    assert open_manifest(tmp_path / "codes").skipped == {"image code out of range": 3}
    with pytest.raises(ConfigError, match="num_codes must be"):
        AdoptCodes(input_dir=samples, codes=FieldCodes(field="x"), num_codes=0)
