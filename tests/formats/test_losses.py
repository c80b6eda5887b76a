"""What a row, a pack or a sample carries is in an export, or is refused by name until dropped.

Every format of the table meets data that carries one thing each. Nothing may end in an export that
has lost it without a word.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lossy_export import lossy_export
from mixed_folder import SPACE, Mixed
from samples_for_tests import store_samples
from token_folder import write_token_folder

from shardmill.errors import ConfigError
from shardmill.formats.finder import open_reader
from shardmill.formats.format import OF_ROWS, OF_SAMPLES, Aspect
from shardmill.model.codec import build
from shardmill.model.sample import Document, Sample, Segment
from shardmill.model.tokenrow import MediaSpan, TokenRow
from shardmill.plugins import FORMATS
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import open_manifest
from shardmill.stages.export import ExportShards
from shardmill.stages.same import compare

FIELDS: dict[str, dict[str, Any]] = {
    "tensordict": {"length": 4000, "pad_id": 0},
    "tensordict-pairs": {"img_length": 4, "txt_length": 64, "pad_id": 0, "others": "drop"},
}
LIKE_PAIRS = ["tensordict-labels"]  # whose text is one id
ONLY_SAMPLES = ["liquid", "liquid-pairs", "vdp"]
OF_TOKENS = [n for n in FORMATS if n not in (*ONLY_SAMPLES, *LIKE_PAIRS)]
TAKE_SAMPLES = [*ONLY_SAMPLES, "webdataset", "energon"]
CODES = SPACE.code_offset + np.arange(4)
IMAGE = MediaSpan(name="jpg", kind="image", position=1, num_tokens=4, grid=(1, 2, 2), before=1)


def token_row(number: int = 0, **changes: Any) -> TokenRow:
    """Return a text that is learned."""
    ids = np.array([7, 8, 9, 10 + number])
    made = TokenRow(key=f"k{number}", ids=ids, loss=np.array([[0, 4]]))
    return replace(made, **changes)


def with_image(**changes: Any) -> TokenRow:
    """Return an image of codes and two words, all of it learned."""
    ids = np.array([5, *CODES, 7, 8])
    return token_row(ids=ids, loss=np.array([[0, 7]]), media=(replace(IMAGE, **changes),))


ROWS: dict[str, TokenRow] = {
    "keys": token_row(),
    "tokens": with_image(),
    "loss": token_row(loss=np.array([[1, 2]])),
    "modality": with_image(kind="video"),
    "spans": with_image(),
}


def read_back_or_refused(
    aspect: Aspect, source: Path, name: str, out: Path, codes_dir: Path | None = None
) -> str:
    """Return how the aspect fared: "kept", "refused" or "said"."""
    format = build(FORMATS, {"kind": name, **FIELDS.get(name, {})})
    stage = ExportShards(input_dir=source, format=format, codes_dir=codes_dir)
    fate = "said" if aspect in stage.left_out else "kept"
    try:
        list(stage.units())
    except ConfigError as error:
        (named,) = re.findall(r"\n--drop (\S+) writes it without$", str(error))
        assert all(f"\n  {one}: " in str(error) for one in named.split(","))
        stage = replace(stage, drop=tuple(named.split(",")))
        fate = "refused" if aspect in stage.drop else fate
        assert set(stage.drop) <= set(stage.left_out)
    assert run_stage(stage, out, workers=0).complete
    readers = (open_reader(str(p), codes_dir=str(codes_dir or "") or None) for p in (source, out))
    found = compare(*readers)
    assert found.same, found.difference
    if fate == "kept":
        assert aspect in found.compared, found
    else:
        assert "only the first" in found.not_compared[aspect]
    return fate


def rejects_of(source: Path, name: str, out: Path) -> list[Any]:
    """Return the counts of what was left out by reason, which no drop names."""
    format = build(FORMATS, {"kind": name, **FIELDS[name]})
    assert run_stage(lossy_export(input_dir=source, format=format), out, workers=0).complete
    return [open_manifest(out).skipped]


@pytest.mark.parametrize("aspect", ROWS)
@pytest.mark.parametrize("name", OF_TOKENS)
def test_of_a_row_nothing_is_lost_in_silence(name: str, aspect: Aspect, tmp_path: Path) -> None:
    tokens = write_token_folder(tmp_path / "tokens", [[ROWS[aspect]]], SPACE)
    if name == "tensordict-pairs" and [m.kind for m in ROWS[aspect].media] != ["image"]:
        assert [*map(len, rejects_of(tokens, name, tmp_path / "out"))] == [1]
        return
    fate = read_back_or_refused(aspect, tokens, name, tmp_path / "out")
    whole = {"hf", "webdataset", "energon", "mds"}
    if aspect == "tokens":
        assert (fate == "refused") == (name == "tensordict-pairs")
    elif name in whole:
        assert fate == "kept"
    elif aspect in ("loss", "spans"):
        assert fate == "refused"


@pytest.mark.parametrize("aspect", ["documents", "packs"])
@pytest.mark.parametrize("name", OF_TOKENS)
def test_of_a_pack_nothing_is_lost_in_silence(
    mixed: Mixed, name: str, aspect: Aspect, tmp_path: Path
) -> None:
    if name == "tensordict-pairs":
        stage = ExportShards(
            input_dir=mixed.packs, format=build(FORMATS, {"kind": name, **FIELDS[name]})
        )
        with pytest.raises(ConfigError, match=r"\n--drop tokens,packs,loss,modality,spans writes"):
            list(stage.units())
        return
    fate = read_back_or_refused(aspect, mixed.packs, name, tmp_path / "out")
    assert fate == ("refused" if (name, aspect) == ("litdata", "packs") else "kept")


def sample(**changes: Any) -> Sample:
    return replace(Sample(key="k", document=Document((Segment(kind="text", text="a"),))), **changes)


SAMPLES: dict[str, Sample] = {
    "keys": sample(),
    "text": sample(),
    "extra": sample(extra={"score": 0.5}),
    "segments": sample(
        document=Document((Segment(kind="text", text="a", role="user"),)),
    ),
}


@pytest.mark.parametrize("aspect", SAMPLES)
@pytest.mark.parametrize("name", TAKE_SAMPLES)
def test_of_a_sample_nothing_is_lost_in_silence(name: str, aspect: Aspect, tmp_path: Path) -> None:
    source = store_samples(tmp_path / "samples", [SAMPLES[aspect]], 1)
    fate = read_back_or_refused(aspect, source, name, tmp_path / "out")
    if name in ("webdataset", "energon"):
        assert fate == "kept"
    elif aspect in ("extra", "segments"):
        assert fate == ("kept" if name == "vdp" else "refused")


def test_a_sample_far_behind_is_refused_by_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.stages.export.NUM_LOOKED_AT", 1)
    late = replace(SAMPLES["extra"], key="late")
    source = store_samples(tmp_path / "samples", [sample(), late], 2)
    stage = ExportShards(input_dir=source, format=build(FORMATS, {"kind": "liquid"}))
    report = run_stage(stage, tmp_path / "out", workers=0)
    assert "extra: other fields of a sample (first in sample 'late': score)" in str(report.failures)


def test_every_format_of_the_table_is_met() -> None:
    assert {*OF_TOKENS, *LIKE_PAIRS, *TAKE_SAMPLES} == {*FORMATS}
    assert {*ROWS, "documents"} == OF_ROWS
    assert {*SAMPLES, "media"} == OF_SAMPLES  # media without codes are copied, or rejected by name
