"""`python die_writing.py '{"stage": ..., "out": ...}'`: runs a stage that dies at its nth write.

Each try is a process of its own and lives one write in place longer than the one before, until one
lives to the end; prints how many died. They are forked from here, where no thread was started yet.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from shardmill.model.codec import from_plain
from shardmill.running.runner import run_stage


def run_and_die(stage: Any, out: str, writes_to_live: int) -> None:
    """Run the stage in this process; in the middle of a write it ends as if the power went."""
    left = writes_to_live

    def dying(write: Callable[..., Any]) -> Callable[..., Any]:
        def maybe_die(descriptor: int, content: Any, offset: int) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                write(descriptor, content[: len(content) // 2], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            return write(descriptor, content, offset)

        return maybe_die

    os.pwrite = dying(os.pwrite)
    assert run_stage(stage, out, workers=0).complete


def main() -> None:
    options = json.loads(sys.argv[1])
    stage = from_plain(options["stage"], trusted=True)
    tries = 0
    while True:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run_and_die(stage, options["out"], tries)
                code = 0
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            sys.stdout.write(f"{tries}")
            sys.exit(os.WEXITSTATUS(status))
        tries += 1


if __name__ == "__main__":
    main()
