"""Runs the whole pipeline on the embedded data, one command at a time, as a user would type it.

    python demo/run.py OUT

Everything it shows is real: the photos, the clip, the broken rows, the kill.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click

DATA = Path(__file__).parent / "data"


class Demo:
    """Runs commands in the demo's folder and tells what they do."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        (folder / "data").symlink_to(DATA.absolute())
        self.env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def title(self, text: str) -> None:
        click.echo()
        click.secho(f"── {text} ".ljust(78, "─"), fg="yellow", bold=True)

    def tell(self, text: str) -> None:
        click.echo(text)

    def run(self, command: str) -> None:
        click.secho(f"\n$ {command}", bold=True)
        sys.stdout.flush()
        subprocess.run(shlex.split(command), cwd=self.folder, env=self.env, check=True)

    def run_killed(self, command: str, receipts: int) -> None:
        """Start a command and kill it, with everything it started, after so many receipts."""
        click.secho(f"\n$ {command}", bold=True)
        process = subprocess.Popen(
            shlex.split(command), cwd=self.folder, env=self.env, start_new_session=True
        )
        folder = self.folder / shlex.split(command)[3] / "receipts"
        while process.poll() is None and len(list(folder.glob("*.json"))) < receipts:
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        done = len(list(folder.glob("*.json")))
        click.secho(f"killed with SIGKILL after {done} receipts", fg="red")

    def train(self, checkpoint: str, *, steps: int | None = None) -> list[str]:
        """Train until the end, or until killed after so many steps; return what it printed."""
        words = [str(Path(__file__).with_name("train.py")), "packs.plan", "tokens", checkpoint]
        click.secho(f"\n$ python demo/train.py {' '.join(words[1:])}", bold=True)
        process = subprocess.Popen(
            [sys.executable, *words], cwd=self.folder, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(line.rstrip())
            click.echo(told[-1])
            if len(told) == steps:
                process.kill()
        process.wait()
        return told

    def digest(self, name: str) -> str:
        """Return a digest of all shards, receipts and the manifest of a folder."""
        total = hashlib.sha256()
        for path in sorted((self.folder / name).rglob("*")):
            inside = path.relative_to(self.folder / name)
            if path.is_file() and inside.parts[0] in ("shards", "receipts", "manifest.json"):
                total.update(str(inside).encode() + path.read_bytes())
        return total.hexdigest()[:16]


def main() -> None:
    demo = Demo(Path(sys.argv[1] if len(sys.argv) > 1 else ".demo"))
    began = time.monotonic()
    pipeline(demo)
    look(demo)
    kill_and_resume(demo)
    others(demo)
    steps(demo)
    train(demo)
    demo.run("shardmill report . -o report.html")
    demo.title("where to look next")
    click.echo(f"  all of it took {time.monotonic() - began:.0f} s and lies in {demo.folder}/")
    click.echo(f"  {demo.folder}/report.html   its map, packs and images in one file")
    click.echo("  docs/tutorial.md   from raw rows to a training step, by hand")
    click.echo("  docs/concepts.md   the one idea, on one page")
    click.echo("  shardmill --help   every verb explains itself\n")
    view(demo)


def view(demo: Demo) -> None:
    """Show the page if a person is there to see it, else say how to open it."""
    program = str(Path(sys.executable).with_name("shardmill"))
    click.secho("see it:", bold=True)
    if sys.stdin.isatty() and sys.stdout.isatty():
        os.execv(program, ["shardmill", "view", str(demo.folder), "--no-open"])
    click.echo(f"  {program} view {demo.folder}    then open http://127.0.0.1:8642")


def pipeline(demo: Demo) -> None:
    demo.title("a pipeline in one file")
    demo.tell(
        "34 image-text pairs, 19 chats (one of them about a film), 3 illustrated pages, 10 texts.\n"
        "Three rows are broken on purpose: watch where they go.\n"
    )
    here = Path(__file__).parent
    for name in ("recipe.toml", "patches.toml"):
        shutil.copy(here / name, demo.folder)
    click.secho((demo.folder / "recipe.toml").read_text(), dim=True)
    words = [sys.executable, str(here / "make_weights.py"), "vqgan"]
    subprocess.run(words, cwd=demo.folder, check=True)
    demo.tell("What would it take, if there were more of it?")
    demo.run("shardmill run recipe.toml --quote --units 1")
    demo.run("shardmill run recipe.toml")


def look(demo: Demo) -> None:
    demo.title("look at it")
    demo.run("shardmill status pairs")
    demo.run("shardmill show frames --sample chats-00000016 --sample chats-00000018")
    demo.tell("\nThe same as tokens; what is learned is marked:")
    demo.run("shardmill show tokens --sample 2 --sample 16")


def kill_and_resume(demo: Demo) -> None:
    demo.title("kill it, run it again")
    command = "shardmill ingest data/pairs.jsonl killed --per-shard 1 --max-skip-rate 1"
    demo.run_killed(command, receipts=10)
    demo.run(command)
    demo.run(command.replace("killed", "undisturbed") + " --workers 1")
    same = demo.digest("killed") == demo.digest("undisturbed")
    click.secho(
        f"killed and resumed: {demo.digest('killed')}, undisturbed: {demo.digest('undisturbed')}: "
        + ("the same bytes" if same else "DIFFERENT"),
        fg="green" if same else "red",
    )
    if not same:
        sys.exit(1)
    for name in ("killed", "undisturbed"):
        shutil.rmtree(demo.folder / name)


def others(demo: Demo) -> None:
    demo.title("check it, and let other tools read it")
    demo.run("shardmill check sharp")
    demo.run("tar tf sharp/shards/000001.tar")
    demo.tell("\nThe export for Hugging Face holds the same tokens and masks:")
    demo.run("shardmill check arrow --same tokens")


def steps(demo: Demo) -> None:
    demo.title("what is in a training step?")
    demo.run("shardmill why packs.plan --data tokens --step 0 --rank 1 --world 2")


def train(demo: Demo) -> None:
    demo.title("training, killed and resumed")
    demo.tell("A small language model on these packs; attention stays inside of documents.")
    before = demo.train("killed.pt", steps=7)
    click.secho("killed with SIGKILL", fg="red")
    after = demo.train("killed.pt")
    demo.tell("\nThe same without the kill, for comparison:")
    whole = demo.train("undisturbed.pt")
    same = before == whole[: len(before)] and after == whole[-len(after) :]
    click.secho(
        "the same losses, step by step" if same else "DIFFERENT losses",
        fg="green" if same else "red",
    )
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    main()
