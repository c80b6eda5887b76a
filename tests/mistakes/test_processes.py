"""What only a real process shows: exit codes, streams, full disks, missing packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mistaken import judge, prepare, refused

import shardmill as sm

TEXTS = [{"text": f"Text number {number}."} for number in range(6)]
Typed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def typed(tmp_path: Path, world: Path) -> Typed:
    """Run `shardmill WORDS` in a folder that holds rows.jsonl and what is asked for."""

    def run(*words: str, uses: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        prepare({"rows.jsonl": TEXTS}, uses, tmp_path, world)
        return subprocess.run(
            [sys.executable, "-m", "shardmill", *words],
            cwd=tmp_path,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


def says(done: subprocess.CompletedProcess[str], place: Path, *words: str) -> None:
    """Judge it like every other mistake; what is wrong is said on stderr alone."""
    judge(refused(*words), done.returncode, done.stdout + done.stderr, place)
    assert "rror: " not in done.stdout


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 kB."""
    yield from _mounted(tmp_path / "disk", "size=64k")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A disk that nobody may write to."""
    yield from _mounted(tmp_path / "disk", "ro")


def _mounted(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a disk here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def without(*packages: str) -> Callable[[Path], dict[str, str]]:
    """Return what makes a process start without these packages."""

    def make(place: Path) -> dict[str, str]:
        lines = [f"sys.modules[{name!r}] = None" for name in packages]
        (place / "core").mkdir()
        (place / "core" / "sitecustomize.py").write_text("\n".join(["import sys", *lines]))
        return {"PYTHONPATH": str(place / "core")}

    return make


def test_an_error_is_one_message_on_stderr(typed: Typed, tmp_path: Path) -> None:
    done = typed("ingest", "nowhere.jsonl", "out")
    says(done, tmp_path, "nowhere.jsonl", "does not exist")
    assert (done.returncode, done.stdout) == (2, "")


def test_an_error_is_an_object_with_json(typed: Typed) -> None:
    done = typed("ingest", "nowhere.jsonl", "out", "--json")
    assert done.returncode == 2
    assert "nowhere.jsonl" in json.loads(done.stdout)["error"]["message"]


def test_nothing_kept_has_an_exit_code_of_its_own(typed: Typed, tmp_path: Path) -> None:
    kept = typed("ingest", "rows.jsonl", "all", "--workers", "0")
    none = typed("filter", "all", "out", "--filter", "text_length,min_chars=99", "--workers", "0")
    assert kept.returncode == 0
    assert none.returncode not in (0, 1, 2), none.stdout + none.stderr
    assert "nothing was kept" in none.stdout + none.stderr


def test_a_disk_that_is_full(typed: Typed, tmp_path: Path, small_disk: Path) -> None:
    (tmp_path / "large.jsonl").write_text(json.dumps({"text": "word " * 40_000}) + "\n")
    done = typed("ingest", "large.jsonl", "disk/out", "--workers", "0")
    judge(
        refused("No space left", out="disk/out"),
        done.returncode,
        done.stdout + done.stderr,
        tmp_path,
    )


def test_a_disk_that_is_read_only(typed: Typed, tmp_path: Path, read_only: Path) -> None:
    says(typed("ingest", "rows.jsonl", "disk/out"), tmp_path, "disk/out", "Read-only")


def test_an_output_below_a_file(typed: Typed, tmp_path: Path) -> None:
    says(typed("ingest", "rows.jsonl", "rows.jsonl/out"), tmp_path, "rows.jsonl")


def test_an_output_that_is_a_device(typed: Typed, tmp_path: Path) -> None:
    says(typed("ingest", "rows.jsonl", "/dev/null"), tmp_path, "/dev/null")


def test_standard_input_is_no_table(typed: Typed, tmp_path: Path) -> None:
    says(typed("ingest", "-", "out"), tmp_path, "-")


def test_a_url_at_which_nobody_answers_is_told_soon(typed: Typed, tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/rows.jsonl"
    says(typed("ingest", url, "out"), tmp_path, url)


def test_codes_without_torch(typed: Typed, tmp_path: Path) -> None:
    env = without("torch")(tmp_path)
    words = ("codes", "pairs", "out", "--tokenizer", "chameleon,weights=vq", "--resolution", "32")
    says(typed(*words, uses="pairs vq", **env), tmp_path, "torch", "pip install")


def test_frames_without_av(typed: Typed, tmp_path: Path) -> None:
    done = typed(
        "frames", "films", "out", "--workers", "0", uses="films", **without("av")(tmp_path)
    )
    says(done, tmp_path, "av", "pip install")


def test_parquet_without_pyarrow(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    done = typed("ingest", "rows.parquet", "out", **without("pyarrow")(tmp_path))
    says(done, tmp_path, "pyarrow", "pip install")


def test_a_tokenizer_without_its_package(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    done = typed(
        "tokenize",
        "texts",
        "out",
        "--tokenizer",
        "tokenizer.json",
        uses="texts",
        **without("tokenizers", "transformers")(tmp_path),
    )
    says(done, tmp_path, "tokenizers", "pip install")


def test_a_hook_that_lies_in_the_working_folder(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def change(row, sample):\n    return row\n")
    words = ("tokenize", "texts", "out", "--hook", "mine:change", "--workers", "0")
    done = typed(*words, uses="texts")
    if done.returncode:
        says(done, tmp_path, "mine", "PYTHONPATH")
    else:
        assert len(sm.open(tmp_path / "out")) == 6


def test_units_that_fail_for_one_cause_say_it_once(typed: Typed, tmp_path: Path) -> None:
    done = typed("tokenize", "texts", "out", "--template", "chat", "--workers", "2", uses="texts")
    says(done, tmp_path, "role")


def test_a_reader_that_goes_away_hears_nothing(typed: Typed, tmp_path: Path, world: Path) -> None:
    prepare({}, "texts", tmp_path, world)
    command = f"{sys.executable} -m shardmill show texts -n 6 --json | head -c 10"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""


def test_names_that_the_terminal_cannot_write(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "zeilen-ü.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    done = typed(
        "ingest",
        "zeilen-ü.jsonl",
        "out",
        "--workers",
        "0",
        PYTHONIOENCODING="ascii",
        LC_ALL="C.UTF-8",
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert [sample.text for sample in sm.open(tmp_path / "out")] == ["a"]
