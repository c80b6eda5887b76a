"""The examples as a user runs them: killed in the middle and run again, to the same losses."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from click.testing import CliRunner
from hf_processors import make_tokenizer, transformers
from packed_folder import Made
from pixel_folder import make_processor, save_model, write_pixel_folder
from tiny_models import FAMILIES

import shardmill as sm
from shardmill.cli.main import cli

ROOT = Path(__file__).parents[2]
RUN = str(ROOT / "tests" / "support" / "run_example.py")
NUM_BEFORE_KILL = 5


class Job:
    """An example on one or several processes of this machine, as a launcher starts them."""

    def __init__(self, command: Sequence[str], cwd: Path, world: int = 0) -> None:
        port = _free_port()
        self.processes = [
            subprocess.Popen(
                [sys.executable, RUN, *command],
                cwd=cwd,
                env=environment(rank, world, port),
                stdout=subprocess.PIPE,
                stderr=(cwd / f"errors-{rank}").open("w"),
                text=True,
                start_new_session=True,
            )
            for rank in range(max(1, world))
        ]
        self.cwd = cwd

    def losses(self) -> Iterator[str]:
        """Yield the lines of the first process that tell a loss."""
        assert self.processes[0].stdout is not None
        return (line.rstrip() for line in self.processes[0].stdout if "loss" in line)

    def end(self) -> None:
        """Wait until all have ended well."""
        for rank, process in enumerate(self.processes):
            process.communicate(timeout=300)
            assert process.returncode == 0, (self.cwd / f"errors-{rank}").read_text()[-3000:]

    def kill(self) -> None:
        """Kill all, and what they started."""
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _free_port() -> int:
    """Return a port that no other program of this machine is given by chance."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)  # below those of the system
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    found = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if world == 0:  # without a launcher
        return found
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return found | {name: str(value) for name, value in (numbers | place).items()}


def run_to_the_end(command: Sequence[str], cwd: Path, world: int = 0) -> list[str]:
    job = Job(command, cwd, world)
    told = list(job.losses())
    job.end()
    return told


def run_killed(command: Sequence[str], cwd: Path, world: int = 0) -> list[str]:
    """Kill everything after some steps; returns the steps that were told."""
    job = Job(command, cwd, world)
    told = list(islice(job.losses(), NUM_BEFORE_KILL))
    job.kill()
    return told


def check_curve(command: Sequence[str], tmp_path: Path, world: int = 0) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = run_to_the_end(command, tmp_path / "whole", world)
    before = run_killed(command, tmp_path / "killed", world)
    after = run_to_the_end(command, tmp_path / "killed", world)
    assert before == whole[:NUM_BEFORE_KILL]
    assert after == whole[-len(after) :]
    # Steps since the last checkpoint are done again; and the kill may have come between a
    # checkpoint and the line that tells of it.
    assert len(whole) - len(before) - 1 <= len(after) < len(whole)
    losses = [float(line.split()[-1]) for line in whole]
    assert losses[-1] < losses[0]


def run_verb(*arguments: object) -> None:
    told = CliRunner().invoke(cli, list(map(str, arguments)))
    assert told.exit_code == 0, told.output


def test_torch_loop_on_images(tmp_path: Path) -> None:
    plan, samples, model, measured = write_packed_images(tmp_path)
    example = ROOT / "examples" / "torch_loop.py"
    files = map(str, (plan, measured / "lengths.bin", samples, model))
    check_curve([str(example), *files, "checkpoint.pt"], tmp_path)


def test_accelerate_on_two_processes(made: Made, tmp_path: Path) -> None:
    example = str(ROOT / "examples" / "accelerate_loop.py")
    check_curve([example, str(made.plan_path), str(made.tokens), "out"], tmp_path, world=2)


def test_lightning(made: Made, tmp_path: Path) -> None:
    pytest.importorskip("lightning_utilities")
    example = str(ROOT / "examples" / "lightning_loop.py")
    check_curve([example, str(made.plan_path), str(made.tokens), "out"], tmp_path)


def test_megatron_on_two_processes(made: Made, tmp_path: Path) -> None:
    pytest.importorskip("megatron.core.models", reason="needs megatron-core")
    example = str(ROOT / "examples" / "megatron_loop.py")
    check_curve([example, str(made.plan_path), str(made.tokens), "out.pt"], tmp_path, world=2)


def write_text_model(folder: Path, vocab_size: int) -> Path:
    """Save the tokenizer and the config of a tiny Llama."""
    make_tokenizer().save_pretrained(folder)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = transformers().LlamaConfig(vocab_size=vocab_size, num_attention_heads=4, **sizes)
    config.save_pretrained(folder)
    return folder


def write_packed_images(folder: Path) -> list[Path]:
    """Write plan, samples, model and lengths of packs with images."""
    samples = write_pixel_folder(folder / "samples")
    model = save_model(folder / "model", make_processor())
    plan, measured = folder / "packs.plan", folder / "lengths"
    run_verb("measure", samples, measured, "--model", model, "--workers", 0)
    run_verb("plan", measured, plan, "--capacity", 256)
    return [plan, samples, model, measured]


EXAMPLES = [("hf_trainer", False), ("hf_trainer", True), ("trl_sft", True), ("swift_sft", False)]


@pytest.mark.parametrize(("name", "images"), EXAMPLES)
def test_trainers_of_hugging_face(made: Made, tmp_path: Path, name: str, images: bool) -> None:
    pytest.importorskip({"trl_sft": "trl", "swift_sft": "swift"}.get(name, "transformers"))
    more: list[Path] = []
    if images:
        # Trainer must find its 12 steps in epochs that packs do not fill.
        plan, data, model, *more = write_packed_images(tmp_path)
        assert len(sm.open(plan)) % 4
    else:
        plan, data, model = made.plan_path, made.tokens, tmp_path / "model"
        write_text_model(model, sm.open(data).space.size)
    if name == "swift_sft":
        qwen = FAMILIES["qwen2"].model("eager", vocab_size=sm.open(data).space.size)
        qwen.save_pretrained(model)

    def command(out: str) -> list[str]:
        example = ROOT / "examples" / f"{name}.py"
        return list(map(str, (example, plan, data, model, out, *more)))

    def losses(out: str) -> list[tuple[int, float]]:
        history = json.loads((tmp_path / out / "checkpoint-12" / "trainer_state.json").read_text())
        return [(log["step"], log["loss"]) for log in history["log_history"] if "loss" in log]

    run_to_the_end(command("whole"), tmp_path)
    job = Job(command("killed"), tmp_path)
    fifth = tmp_path / "killed" / "checkpoint-5" / "loader.json"
    while job.processes[0].poll() is None and not fifth.exists():
        time.sleep(0.05)
    job.kill()
    run_to_the_end(command("killed"), tmp_path)
    assert [step for step, _ in losses("whole")] == list(range(1, 13))
    assert [step for step, _ in losses("killed")] == list(range(1, 13))
    # By the rounding of a sum, which depends on where weights that were loaded lie in memory.
    assert dict(losses("killed")) == pytest.approx(dict(losses("whole")), abs=1e-5)


def test_torchtitan(made: Made, tmp_path: Path) -> None:
    pytest.importorskip("torchtitan", reason="needs torchtitan")
    pytest.importorskip("triton", reason="torchtitan needs triton")
    model = write_text_model(tmp_path / "model", sm.open(made.tokens).space.size)
    example = str(ROOT / "examples" / "torchtitan_train.py")
    command = [example, str(made.plan_path), str(made.tokens), str(model), "out"]

    def losses(folder: str) -> list[tuple[str, str]]:
        told = "\n".join(run_to_the_end(command, tmp_path / folder, world=1))
        return re.findall(r"step: +(\d+) .*?loss: +([\d.]+)", told)

    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = losses("whole")
    job = Job(command, tmp_path / "killed", world=1)
    fifth = tmp_path / "killed" / "outputs" / "out" / "step-5" / ".metadata"
    while job.processes[0].poll() is None and not fifth.exists():
        time.sleep(0.05)
    job.kill()
    after = losses("killed")
    assert [int(step) for step, _ in whole] == list(range(1, 13))
    assert after == whole[-len(after) :]
    assert len(after) in (6, 7)
    assert float(whole[-1][1]) < float(whole[0][1])


def test_examples_are_short() -> None:
    examples = sorted((ROOT / "examples").glob("*.py"))
    assert len(examples) >= 3
    for path in examples:
        assert len(path.read_text().splitlines()) <= 40, path
