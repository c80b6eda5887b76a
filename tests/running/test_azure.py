"""A run into Azure, against Microsoft's emulator: the same bytes, resumed by the same command."""

from __future__ import annotations

from pathlib import Path

import pytest
from drivers import snapshot
from servers import AZURE_ACCOUNT, AZURE_KEY, azure_server, find_azurite
from stages_for_tests import Lines

from shardmill.running.runner import run_stage
from shardmill.storage import objects

STAGE = Lines(num_units=8)


@pytest.mark.cluster
def test_a_run_into_azure_has_the_bytes_of_a_local_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_azurite() is None:
        pytest.skip("Azurite is not installed")
    monkeypatch.setenv("SHARDMILL_SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", AZURE_ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
    (tmp_path / "azurite").mkdir()
    with azure_server(tmp_path / "azurite", "box") as endpoint:
        monkeypatch.setenv("AZURE_ENDPOINT", endpoint)
        out = "az://box/out"
        assert not run_stage(STAGE, out, workers=0, part=(1, 2)).complete
        assert run_stage(STAGE, out, workers=2).complete
        objects.delete([f"{out}/manifest.json", f"{out}/receipts/00003.json"])
        assert run_stage(STAGE, out, workers=0).num_done == 1
        paths = [info.path for info in objects.list_all(out)]
        found = {path: objects.get(f"{out}/{path}") for path in paths}
    run_stage(STAGE, tmp_path / "local", workers=0)
    kept = {path: text for path, text in found.items() if not path.startswith("events/")}
    assert kept == snapshot(tmp_path / "local")
