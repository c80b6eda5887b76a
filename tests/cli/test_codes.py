"""`shardmill codes`: from sample shards to codes in one command."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sample_folder import write_sample_folder
from vq_checkpoints import write_original

from shardmill.api.values import to_geometry
from shardmill.cli.main import cli
from shardmill.cli.verbs import codes
from shardmill.errors import ConfigError
from shardmill.media.geometry import Buckets, Native, Square
from shardmill.model.sample import Document, Sample, Segment
from shardmill.shards.codes import open_codes

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDMILL_DEVICE", "cpu")
    monkeypatch.setenv("SHARDMILL_THREADS", "1")
    write_original(tmp_path / "weights")
    rows = []
    for number in range(3):
        file = io.BytesIO()
        Image.new("RGB", (40, 40), (80 * number, 0, 0)).save(file, "PNG")
        document = Document((Segment(kind="image", media="png"),))
        rows.append(
            (Sample(key=f"k{number}", document=document, media={"png": file.getvalue()}), {})
        )
    return write_sample_folder(tmp_path / "in", [rows])


def run(folder: Path, *words: str) -> Result:
    tokenizer = f"chameleon,weights={folder.parent / 'weights'}"
    arguments = [str(folder), str(folder.parent / "out"), "--tokenizer", tokenizer, *words]
    return CliRunner().invoke(codes, [*arguments, "--workers", "0"])


def test_codes_are_written_and_reported(folder: Path) -> None:
    result = run(folder, "--resolution", "32", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["complete"]
    assert report["num_kept"] == 3
    shard = open_codes(folder.parent / "out" / "shards" / "000000.codes")
    assert shard.images(0)[0].codes.shape == (8, 8)


def test_the_sizes_of_buckets_are_printed(folder: Path) -> None:
    result = run(folder, "--geometry", "buckets,pixels=4096,step=32", "--print-sizes")
    assert result.output.split("\n")[0] == "32 x 64"
    assert not (folder.parent / "out").exists()


def test_a_size_of_broken_codes_fails_with_its_reason(folder: Path) -> None:
    result = run(folder, "--resolution", "30")
    assert isinstance(result.exception, ConfigError)
    assert "one code is 4 x 4" in str(result.exception)


def test_flags_describe_a_geometry() -> None:
    assert to_geometry(None, None) == Square()
    assert to_geometry(None, 256) == Square(resolution=256)
    assert to_geometry("native,factor=8", None) == Native(factor=8)
    assert to_geometry("buckets,table=[[64,32]]", None) == Buckets(table=((64, 32),))
    with pytest.raises(ConfigError, match="resolution"):
        to_geometry("native", 256)


def test_the_preset_is_told_by_codes_show_and_check(folder: Path) -> None:
    done = run(folder, "--preset", "llamagen", "--resolution", "32")
    assert "llamagen at 32 x 32" in done.output
    out, other = folder.parent / "out", folder.parent / "other"
    assert "llamagen at 32 x 32" in CliRunner().invoke(cli, ["show", str(out)]).output
    words = [str(folder), str(other), "--weights", str(folder.parent / "weights")]
    words += ["--geometry", "square,resolution=32,resample=box,max_aspect=null", "--workers", "0"]
    assert CliRunner().invoke(codes, words).exit_code == 0
    words = ["check", str(out), "--same", str(other)]
    told = CliRunner().invoke(cli, words).output
    assert f"{out}: llamagen at 32 x 32" in told
    assert f"{other}: square,resample=box,max_aspect=null,resolution=32" in told
    assert len(json.loads(CliRunner().invoke(cli, [*words, "--json"]).output)["pixels"]) == 2


def test_a_preset_that_is_none_is_answered_with_those_that_are(folder: Path) -> None:
    done = run(folder, "--preset", "lamagen")
    assert done.exit_code == 2
    assert "llamagen" in done.output


def test_decoding_is_a_setting(folder: Path) -> None:
    done = run(folder, "--decoding", "alpha=drop,orientation=ignore", "--resolution", "32")
    assert done.exit_code == 0
    assert "square,resolution=32,alpha=drop,orientation=ignore" in done.output
    for wrong, told in (("alpha=black", "white"), ("alfa=drop", "alpha")):
        done = run(folder, "--decoding", wrong)
        assert isinstance(done.exception, ConfigError)
        assert told in str(done.exception)
