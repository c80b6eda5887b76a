"""Ctrl-C and kills leave no workers and no files behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("psutil")

import psutil
from packed_folder import Made

from shardmill.train.health import remove_orphans

SCRIPT = """
import sys, time
from torch.utils.data import get_worker_info
from shardmill.train.dataset import PackedDataset
from shardmill.train.loader import StepLoader

packs = PackedDataset(sys.argv[1], sys.argv[2])
loader = StepLoader(packs, packs.sampler(), collate_fn=len, num_workers=2)
for batch in loader:
    print(packs.health.folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_survives(made: Made, tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(made.plan_path), str(made.tokens)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    workers = psutil.Process(process.pid).children()
    assert len(workers) == 2
    assert folder.exists()
    process.send_signal(number)
    process.wait()
    # Workers hold the folder until they notice that their parent is gone.
    deadline = time.monotonic() + 120
    while folder.exists() or any(w.is_running() and w.status() != "zombie" for w in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
        if number == signal.SIGKILL:
            remove_orphans(tmp_path)
