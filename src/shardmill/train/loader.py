"""A DataLoader whose state counts what the training loop got, however many workers prefetch.

Workers that end with the process that started them, however it ends.

torch's workers look whether the number of their parent has changed. One that is still starting when
its parent is killed takes the number of its new parent for the old one, and waits for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset

from shardmill.errors import ConfigError, ShardmillError
from shardmill.storage.client import is_in_use


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


class WorkerDied(ShardmillError):
    """A worker process ended without an answer: killed, out of memory, or crashed in a library."""


class Steps(Protocol):
    """What a loader must know of its order; `StepSampler` and `MixSampler` are such."""

    start: Any

    def __len__(self) -> int:
        """The steps of a whole epoch."""

    def advance(self, state: Any) -> Any:
        """Return the state after the step that begins here."""

    def steps_left(self, state: Any) -> int:
        """Return the steps until the epoch ends."""

    def epoch_start(self, epoch: int) -> Any:
        """Return the head of an epoch."""

    def to_plain(self, state: Any) -> dict[str, Any]:
        """Return a state as checkpoints keep it."""

    def from_plain(self, plain: dict[str, Any]) -> Any:
        """Return a state that belongs to this very order, or say why it does not."""


class StepLoader(DataLoader[Any]):  # type: ignore[misc]
    """A DataLoader of one epoch after another that can be saved and resumed between batches.

    Iterating goes on at the state: from the head of the epoch, or from the middle after
    `load_state_dict` or a break. A batch that was handed out counts as trained on. The data set is
    a `PackedDataset` or a `Mix` with its sampler, or a `PackedStream` with the sampler it was made
    with; options are those of DataLoader.
    """

    def __init__(self, dataset: Any, steps: Steps, **options: Any) -> None:
        streamed = isinstance(dataset, IterableDataset)
        if streamed and options.get("persistent_workers"):
            raise ConfigError("workers of a stream cannot persist: each epoch needs a new start")
        kind = {"batch_size": None} if streamed else {"batch_sampler": steps}
        # The client of a store does not survive a fork; workers that read local files do.
        if options.get("num_workers") and is_in_use() and getattr(dataset, "is_remote", True):
            options.setdefault("multiprocessing_context", "spawn")
        options["worker_init_fn"] = EndWithParent(options.get("worker_init_fn"))
        super().__init__(dataset, **kind, **options)
        self.steps, self.state, self._streamed = steps, steps.start, streamed

    @property
    def epoch(self) -> int:
        """The epoch from which the next batch comes."""
        return int(self.state.epoch)

    @property
    def steps_left(self) -> int:
        """The batches until the epoch ends."""
        return self.steps.steps_left(self.state)

    def __len__(self) -> int:
        # Trainers count epochs by this, so it stays the same in the middle of one.
        return len(self.steps)

    def __iter__(self) -> Iterator[Any]:
        if self._streamed:
            self.dataset.state = self.state
        else:
            self.steps.start = self.state
        batches = super().__iter__()
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                raise self._named(error) from error
            self.state = self.steps.advance(self.state)
            yield batch

    def begin_epoch(self, epoch: int) -> None:
        """Leave this epoch and begin at the head of another.

        Not named set_epoch: trainers call that with their own count of epochs, which after a
        resume may not be ours; here one epoch follows the other by itself.
        """
        self.state = self.steps.epoch_start(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the next batch comes from: a few integers and a digest."""
        return self.steps.to_plain(self.state)

    def load_state_dict(self, plain: dict[str, Any]) -> None:
        """Go on where `state_dict` was saved, on any number of ranks, workers, packs a batch."""
        self.state = self.steps.from_plain(plain)

    def _named(self, error: RuntimeError) -> Exception:
        # torch tells only process numbers; the watch knows what these processes were reading.
        pids = {int(number) for number in re.findall(r"\d+", str(error))}
        watch = getattr(self.dataset, "watch", None)
        if watch is None or "DataLoader worker" not in str(error):
            return error
        places = [place for place in watch.places() if place.pid in pids]
        if not places:
            return error
        reading = "; ".join(
            f"process {place.pid} was at pack {place.pack}, {self.dataset.describe(place.row)}"
            for place in places
        )
        return WorkerDied(f"{error}; when it died, {reading}")
