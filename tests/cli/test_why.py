"""`shardmill why` names what a step was made of, quickly and without torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner
from coded_folder import make_text
from packed_folder import Made, make_packed, token_row, write_rows
from sample_folder import write_sample_folder

import shardmill as sm
from shardmill.cli.main import cli
from shardmill.packing.plan import plan_packs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_packed(tmp_path_factory.mktemp("why"))


def test_it_names_documents_and_files(made: Made) -> None:
    args = ["why", str(made.plan_path), "--step", "7", "--rank", "1", "--world", "2"]
    told = CliRunner().invoke(cli, [*args, "--data", str(made.tokens)])
    assert told.exit_code == 0, told.output
    plain = CliRunner().invoke(cli, [*args, "--data", str(made.tokens), "--json"])
    (pack,) = orjson.loads(plain.output)["packs"]
    for source in pack["documents"]:
        assert source["key"] in told.output
        assert source["origin"]["path"] in told.output
        assert f"{source['offset']}" in told.output
    bare = CliRunner().invoke(cli, args)
    assert f"pack {pack['pack']}" in bare.output
    assert ", ".join(map(str, pack["rows"])) in bare.output
    assert "--data" in bare.output


def test_other_data_is_refused(made: Made, tmp_path: Path) -> None:
    rows = [token_row(number, 61 - len(row.ids)) for number, row in enumerate(made.rows)]
    other = write_rows(tmp_path / "other", rows)
    told = CliRunner().invoke(
        cli, ["why", str(made.plan_path), "--step", "7", "--data", str(other)]
    )
    assert "was made from other lengths" in str(told.exception)


def test_samples_need_the_lengths_that_were_measured(tmp_path: Path) -> None:
    rows = [(make_text(str(number), "word " * number), {}) for number in range(1, 9)]
    write_sample_folder(tmp_path / "samples", [rows])
    write_sample_folder(tmp_path / "others", [rows[:4], rows[4:]])
    sm.measure(tmp_path / "samples", tmp_path / "lengths", model="llava", estimate=True, workers=0)
    sm.plan(tmp_path / "lengths", tmp_path / "packs.plan", capacity=64)

    def why(data: str, *args: str) -> str:
        words = ["why", str(tmp_path / "packs.plan"), "--step", "0", "--data", str(tmp_path / data)]
        told = CliRunner().invoke(cli, [*words, *args])
        return str(told.exception or told.output)

    lengths = ("--lengths", str(tmp_path / "lengths"))
    assert "--lengths FOLDER" in why("samples")
    assert "were not measured of" in why("others", *lengths)
    assert "lies in" in why("samples", *lengths)


def test_steps_count_from_a_state(made: Made) -> None:
    def packs(*args: str) -> list:
        base = ["why", str(made.plan_path), "--json", "--world", "4", "--batch-size", "2"]
        return orjson.loads(CliRunner().invoke(cli, [*base, *args]).output)["packs"]

    assert packs("--step", "5") == packs("--step", "3", "--consumed", "16")
    assert packs("--step", "0", "--epoch", "1") != packs("--step", "0")


def test_plans_made_for_each_epoch(made: Made) -> None:
    def packs(*args: str) -> list:
        base = ["why", str(made.plan_path), "--json", "--world", "4"]
        told = CliRunner().invoke(cli, [*base, *args])
        assert told.exit_code == 0, told.output
        return orjson.loads(told.output)["packs"]

    lengths = str(made.lengths_path)
    assert packs("--step", "5", "--epoch-plans", lengths) == packs("--step", "5")
    later = packs("--step", "0", "--epoch", "2", "--epoch-plans", lengths)
    spec = replace(made.plan.spec, epoch=2)
    plan = plan_packs(made.table, spec)
    assert [pack["rows"] for pack in later] == [plan[pack["pack"]].tolist() for pack in later]


def test_torch_is_not_needed(made: Made) -> None:
    code = (
        "import sys\n"
        "from shardmill.cli.main import cli\n"
        f"cli.main(['why', {str(made.plan_path)!r}, '--step', '3'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no plan")
    told = CliRunner().invoke(cli, ["why", str(tmp_path / "x"), "--step", "0"])
    assert "is not an array file" in str(told.exception)
