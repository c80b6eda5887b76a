"""`python die_after.py '{"stage": ..., "out": ..., "last": ...}'`: kills after the last receipt.

Each run has a folder of its own, `out/N`, and is killed at the Nth look at or change of a file
after the rename that gives the unit `last` its receipt, until one lives to the end. The folder
holds, before that, what killed runs may have left. After a kill the same run is begun once more.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from shardmill.model.codec import from_plain
from shardmill.running.runner import run_stage
from shardmill.shards.ledger import FOLDERS

STEPS = ("open", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir")
LEFT = ("claims/00000.1", "failures/00000.json", "earlier/00001.json", ".index.0123456789abcdef")


def run(stage: Any, out: Path, last: str, steps_to_live: int | None) -> None:
    """Run the stage in this process; with a number of steps it is killed after so many."""
    left = None

    def maybe_die(event: str, args: tuple[Any, ...]) -> None:
        nonlocal left
        if left is not None and event in STEPS:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        if event == "os.rename" and str(args[1]).endswith(f"receipts/{last}.json"):
            left = steps_to_live

    sys.addaudithook(maybe_die)
    assert run_stage(stage, out, workers=0).complete


def survives(stage: Any, out: Path, last: str, steps_to_live: int | None) -> bool:
    """Run the stage in a process of its own, and say whether it lived to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(stage, out, last, steps_to_live)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        sys.exit(1)
    return not os.WIFSIGNALED(status)


def main() -> None:
    options = json.loads(sys.argv[1])
    stage, steps, is_over = from_plain(options["stage"], trusted=True), 0, False
    while not is_over:
        out = Path(options["out"]) / f"{steps}"
        for folder in (*FOLDERS, "claims"):
            (out / folder).mkdir(parents=True)
        (out / "stage.json").write_bytes(Path(options["planned"], "stage.json").read_bytes())
        for name in ("units.jsonl", "inputs.json"):
            (out / name).write_bytes(Path(options["planned"], name).read_bytes())
        for name in LEFT:
            (out / name).write_text("{}")
        is_over = survives(stage, out, options["last"], steps)
        assert is_over or survives(stage, out, options["last"], None)
        steps += 1


if __name__ == "__main__":
    main()
