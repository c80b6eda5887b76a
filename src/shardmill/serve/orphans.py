"""Workers that end with the process that started them, however it ends.

torch's workers look whether the number of their parent has changed. One that is still starting when
its parent is killed takes the number of its new parent for the old one, and waits for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EndWithParent:
    """A `worker_init_fn`: watches the parent from a thread, then calls the user's own."""

    then: Callable[[int], None] | None = None

    def __call__(self, worker: int) -> None:
        threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
        if self.then is not None:
            self.then(worker)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # a pipe that breaks when the parent is gone, also if it is gone already
        os._exit(1)
