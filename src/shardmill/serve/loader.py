"""A DataLoader whose state counts what the training loop got, however many workers prefetch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from shardmill.errors import ShardmillError
from shardmill.serve.sampler import StepSampler
from shardmill.serve.state import LoaderState


class WorkerDied(ShardmillError):
    """A worker process ended without an answer: killed, out of memory, or crashed in a library."""


class StepLoader(DataLoader[Any]):  # type: ignore[misc]
    """A DataLoader of one epoch after another that can be saved and resumed between batches.

    Iterating goes on at the state: from the head of the epoch, or from the middle after
    `load_state_dict` or a break. A batch that was handed out counts as trained on.
    """

    def __init__(self, dataset: Any, sampler: StepSampler, **options: Any) -> None:
        super().__init__(dataset, batch_sampler=sampler, **options)
        self.steps = sampler
        self.state = sampler.schedule.settle(sampler.start)

    @property
    def epoch(self) -> int:
        """The epoch from which the next batch comes."""
        return self.state.epoch

    def __len__(self) -> int:
        return self.steps.schedule.steps_left(self.state)

    def __iter__(self) -> Iterator[Any]:
        self.steps.start = self.state
        batches = super().__iter__()
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                raise self._named(error) from error
            self.state = self.steps.schedule.advance(self.state)
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Begin at the head of an epoch; nothing happens if this is the epoch already."""
        if epoch != self.state.epoch:
            self.state = LoaderState(seed=self.state.seed, epoch=epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the next batch comes from: a few integers and a digest."""
        return self.steps.to_plain(self.state)

    def load_state_dict(self, plain: dict[str, Any]) -> None:
        """Go on where `state_dict` was saved, on any number of ranks, workers, packs a batch."""
        self.state = self.steps.schedule.settle(self.steps.from_plain(plain))

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
