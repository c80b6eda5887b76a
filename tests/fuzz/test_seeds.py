"""What the fuzzer found once stays found: kept inputs are refused, or read, as they should be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fuzz import SEEDS, TARGETS, folder_with, make_seeds, read_input


@pytest.mark.parametrize("name", sorted(path.name for path in SEEDS.iterdir()))
def test_what_was_found_stays_fixed(name: str, tmp_path: Path) -> None:
    target, seeds = TARGETS[name], tmp_path / "seeds"
    make_seeds(target, seeds)
    for path in sorted((SEEDS / name).iterdir()):
        broken = path.name.partition("@")[2].replace("+", "/")
        with folder_with(seeds, broken, path.read_bytes()) as (folder, changed):
            assert read_input(target, folder, changed) == "", path
