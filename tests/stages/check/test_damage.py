"""One wrong byte in any file of any export is found, or the file is named as not covered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lossy_export import lossy_export
from mixed_folder import SIDE, Mixed, make_mixed

import shardmill as sm
from shardmill.model.codec import build
from shardmill.plugins import FORMATS
from shardmill.running.runner import run_stage
from shardmill.stages.check.folder import check_folder

# source, format
EXPORTS: dict[str, tuple[str, dict[str, Any]]] = {
    "megatron": ("tokens", {"kind": "megatron"}),
    "one prefix": ("tokens", {"kind": "megatron", "prefix": "all"}),
    "hf": ("tokens", {"kind": "hf"}),
    "parquet": ("tokens", {"kind": "hf", "files": "parquet"}),
    "tensordict": ("tokens", {"kind": "tensordict", "length": 3100, "pad_id": 0}),
    "tensordict-pairs": (
        "with_images",
        {"kind": "tensordict-pairs", "img_length": SIDE**2, "txt_length": 16, "pad_id": 0},
    ),
    "webdataset": ("tokens", {"kind": "webdataset"}),
    "energon": ("samples", {"kind": "energon"}),
    "mds": ("tokens", {"kind": "mds"}),
    "litdata": ("tokens", {"kind": "litdata"}),
    "liquid": ("pairs", {"kind": "liquid"}),
    "liquid-pairs": ("pairs", {"kind": "liquid-pairs"}),
}
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda raw: (
        raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1]) + raw[len(raw) // 2 + 1 :]
    ),
    "first byte": lambda raw: bytes([raw[0] ^ 1]) + raw[1:],
    "appended": lambda raw: raw + b"\n",
    "cut": lambda raw: raw[:-1],
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Mixed:
    return make_mixed(tmp_path_factory.mktemp("mixed"), 8)


def found(out: Path, name: str) -> bool:
    """Say whether `check` speaks of a file: as a problem, or as one that it does not cover."""
    try:
        verdict = check_folder(out)
    except sm.ShardmillError as error:
        return name in str(error) or name == "stage.json"
    return name.startswith(verdict.uncovered) or not verdict.sound


@pytest.mark.parametrize("name", EXPORTS)
def test_damage_of_every_file_is_found(mixed: Mixed, tmp_path: Path, name: str) -> None:
    source, plain = EXPORTS[name]
    codes_dir = mixed.codes if "liquid" in name else None
    stage = lossy_export(
        input_dir=getattr(mixed, source), format=build(FORMATS, plain), codes_dir=codes_dir
    )
    out = tmp_path / "out"
    assert run_stage(stage, out, workers=0).complete
    verdict = check_folder(out)
    assert verdict.sound and verdict.uncovered == ("inputs.json", "events/"), verdict
    for path in [path for path in sorted(out.rglob("*")) if path.is_file()]:
        raw, relative = path.read_bytes(), str(path.relative_to(out))
        if relative.startswith(verdict.uncovered):
            continue
        for what, damage in DAMAGE.items():
            if raw and damage(raw) != raw:
                path.write_bytes(damage(raw))
                assert found(out, relative), (relative, what)
        path.unlink()
        assert found(out, relative), (relative, "removed")
        path.write_bytes(raw)
    for folder in [out, *(path for path in out.iterdir() if path.is_dir())]:
        if folder.name not in ("events", "locks", "failures", "earlier", ".draft"):
            stranger = folder / "stranger"
            stranger.write_bytes(b"x")
            assert found(out, str(stranger.relative_to(out))), stranger
            stranger.unlink()
    assert check_folder(out).sound
