"""`shardmill doctor`: what this machine has, what it lacks, and how to get it.

Each thing that a machine can have is one finding. Nothing here changes anything, and what cannot be
looked at is a finding too, not an error.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

import click

from shardmill import __version__, humanize
from shardmill.cli import output
from shardmill.cli.options import json_option
from shardmill.errors import installed, numbers_of, requirements
from shardmill.machine import count_cpus

State = Literal["good", "missing", "bad"]
FOR_WHAT = {
    "tables": "parquet, Arrow and .zst tables",
    "lmdb": "media in LMDB files",
    "remote": "s3://, gs://, az:// and http(s)://",
    "image": "decoding and resizing images",
    "video": "frames of videos",
    "text": "tokenizers and chat templates",
    "fast": "fast tokenizers",
    "view": "the page and the report",
    "codes": "image codes",
    "train": "loaders, Hugging Face processors",
    "ray": "Ray clusters",
}
COMPILED = {
    "shards.tar._tarscan": "walks tar headers",
    "shards.tar._members": "cuts samples out of tars",
    "packing._loops": "plans packs",
    "media._resample": "resizes images ten times as fast",
    "train.nemo._rows": "reads rows of conversations",
}
VIDEO_CODECS = ("h264", "hevc", "vp9", "av1")
PROGRAMS = {"ffmpeg": "apt install ffmpeg", "sbatch": "for --on slurm.toml, on a SLURM login node"}
# Readers keep shards open; many systems begin with 1024 files a process.
MIN_OPEN_FILES = 4096
MIN_FREE_BYTES = 10e9


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing: whether it is as it should be, what was found, and what to do if it is not."""

    section: str
    name: str
    state: State
    found: str
    todo: str = ""


def examine(folder: Path) -> Iterator[Finding]:
    """Yield what this machine has, section by section; `folder` is where data shall go."""
    yield Finding("versions", "shardmill", "good", __version__)
    yield Finding("versions", "Python", "good", f"{platform.python_version()}, {sys.executable}")
    yield Finding("versions", "system", "good", f"{platform.system()} {platform.release()}")
    yield from _compiled()
    yield from _extras()
    yield from _processors()
    yield from _gpus()
    yield from _codecs()
    yield from _programs()
    yield from _disks(folder)
    yield from _limits()


def _compiled() -> Iterator[Finding]:
    for name, what in COMPILED.items():
        try:
            import_module(f"shardmill.{name}")
            yield Finding("versions", _last(name), "good", f"compiled; {what}")
        except ImportError:
            todo = "install a C compiler and install shardmill again"
            yield Finding("versions", _last(name), "missing", f"not compiled; Python {what}", todo)


def _extras() -> Iterator[Finding]:
    wanted: dict[str, dict[str, str]] = {}
    for package, requirement in requirements().items():
        for extra in requirement.extras:
            wanted.setdefault(extra, {})[package] = requirement.floor
    for extra, floors in wanted.items():
        versions = {package: installed(package) for package in floors}
        told = []
        for package, has in versions.items():
            old = has is not None and numbers_of(has) < numbers_of(floors[package])
            need = f", older than {floors[package]}" if old else ""
            told.append(f"{package} {has}{need}" if has else f"no {package}")
        listed = ", ".join(told)
        use = f" ({FOR_WHAT[extra]})" if extra in FOR_WHAT else ""
        todo = f"pip install 'shardmill[{extra}]'"
        if "older than" in listed:
            # What is there is used, and the commands that need it refuse it.
            yield Finding("extras", extra, "bad", listed + use, todo)
        elif None in versions.values():
            yield Finding("extras", extra, "missing", listed + use, todo)
        else:
            yield Finding("extras", extra, "good", listed)


def _processors() -> Iterator[Finding]:
    """Yield whether torchvision loads; processors of transformers cannot be imported otherwise."""
    found = installed("torchvision")
    if installed("transformers") is None or installed("torch") is None:
        return
    use = "for transformers' processors of images and videos"
    if found is None:
        todo = "install the torchvision that was built with this torch"
        yield Finding("extras", "torchvision", "missing", f"not installed; {use}", todo)
        return
    try:
        import_module("torchvision")
    except (ImportError, RuntimeError, OSError) as error:  # built for another torch, or for CUDA
        todo = f"install the torchvision that was built with torch {installed('torch')}"
        yield Finding("extras", "torchvision", "missing", f"{found} does not load: {error}", todo)
    else:
        yield Finding("extras", "torchvision", "good", f"{found}, {use}")


def _gpus() -> Iterator[Finding]:
    if installed("torch") is None:
        yield Finding("GPU", "torch", "missing", "not installed", "pip install 'shardmill[train]'")
        return
    import torch

    if not torch.cuda.is_available():
        seen = _output("nvidia-smi", "-L")
        todo = "install a torch that was built for this driver's CUDA" if seen else ""
        yield Finding("GPU", "CUDA", "bad" if seen else "missing", seen or "no GPU found", todo)
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(number)
        text = f"{about.name}, {humanize.size(about.total_memory)}"
        yield Finding("GPU", f"GPU {number}", "good", text)


def _codecs() -> Iterator[Finding]:
    if installed("pillow") is not None:
        from PIL import features

        names = {"jpg": "jpg", "png": "zlib", "webp": "webp", "avif": "avif"}
        for name, feature in names.items():
            has = bool(features.check(feature))
            todo = "" if has else "install a Pillow wheel from PyPI: it has all of these"
            text = "decodes" if has else "cannot be decoded"
            yield Finding("codecs", name, "good" if has else "missing", text, todo)
    if installed("av") is not None:
        import av

        known = set(av.codecs_available)
        lacking = [name for name in VIDEO_CODECS if name not in known]
        text = f"decodes {', '.join(name for name in VIDEO_CODECS if name in known)}"
        state: State = "missing" if lacking else "good"
        yield Finding("codecs", "video", state, text, f"no {', '.join(lacking)}" if lacking else "")


def _programs() -> Iterator[Finding]:
    for name, todo in PROGRAMS.items():
        path = shutil.which(name)
        if path:
            yield Finding("programs", name, "good", path)
        else:
            yield Finding("programs", name, "missing", "not installed", todo)


def _disks(folder: Path) -> Iterator[Finding]:
    places = {"data": folder.absolute(), "temporary": Path(tempfile.gettempdir())}
    for name, path in {**places, "shared memory": Path("/dev/shm")}.items():
        if not path.is_dir():
            continue
        usage = shutil.disk_usage(path)
        text = f"{humanize.size(usage.free)} free of {humanize.size(usage.total)}, {path}"
        if not os.access(path, os.W_OK):
            yield Finding("disks", name, "bad", text, "it cannot be written: choose another")
        elif usage.free < MIN_FREE_BYTES and name == "data":
            yield Finding("disks", name, "bad", text, "make room: shards are large")
        else:
            yield Finding("disks", name, "good", text)


def _limits() -> Iterator[Finding]:
    yield Finding("limits", "CPUs", "good", f"{count_cpus()} usable of {os.cpu_count()}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Finding("limits", "memory", "good", humanize.size(memory))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft:,} (at most {hard:,})" if soft != resource.RLIM_INFINITY else "no limit"
    enough = soft == resource.RLIM_INFINITY or soft >= MIN_OPEN_FILES
    todo = "" if enough else f"ulimit -n {min(65536, hard)}: more shards stay open"
    yield Finding("limits", "open files", "good" if enough else "missing", text, todo)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _output(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().replace("\n", "; ") if done.returncode == 0 else ""


MARKS = {"good": ("✓", output.GOOD), "missing": ("·", output.HINT), "bad": ("✗", output.BAD)}


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
@json_option
def doctor(folder: Path, as_json: bool) -> None:
    """Tell what this machine has and lacks, and how to get it.

    FOLDER is where data shall go; by default this one. What is only missing does no harm until it
    is used; the exit code is 1 if something is wrong.
    """
    findings = list(examine(folder))
    wrong = [finding for finding in findings if finding.state == "bad"]
    if as_json:
        output.print_json({"good": not wrong, "findings": [asdict(f) for f in findings]})
    else:
        _print(findings, wrong)
    if wrong:
        click.get_current_context().exit(1)


def _print(findings: list[Finding], wrong: list[Finding]) -> None:
    section = ""
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        if finding.section != section:
            section = finding.section
            output.heading(section)
        mark, colour = MARKS[finding.state]
        output.say(mark, f"{finding.name.ljust(width)}  {finding.found}", colour=colour)
        if finding.todo:
            output.hint(f"{' ' * width}  {finding.todo}")
    output.echo()
    missing = sum(finding.state == "missing" for finding in findings)
    if wrong:
        output.say("✗", f"{humanize.plural(len(wrong), 'thing')} to fix", colour=output.BAD)
    else:
        text = f"; {missing} optional missing" if missing else ""
        output.say("✓", f"ready{text}")
