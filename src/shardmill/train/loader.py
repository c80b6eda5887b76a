"""`loader(plan, data)`: the batches of a training run, resumable on any number of GPUs.

`StepLoader` is the DataLoader behind it: its state counts what the training loop got, however many
workers prefetch.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from shardmill.errors import ConfigError, ShardmillError
from shardmill.machine import spawn_context
from shardmill.model.plan import LengthTable, PackPlan
from shardmill.shards.tokens.shard import TokenDataset
from shardmill.storage.objects import is_in_use
from shardmill.storage.path import AnyPath
from shardmill.train.collate import SIDE, TRAINERS, Collate
from shardmill.train.dataset import PackedDataset
from shardmill.train.documents import RowReader, TokenReader, TrainPack
from shardmill.train.mix import Mix
from shardmill.train.order import Remainder
from shardmill.train.pixels.levels import OnDevice
from shardmill.train.stream import PackedStream

# Enough to wait for one batch of a store while another is built; requests overlap by themselves.
REMOTE_THREADS = 2

# What DataLoader takes under these names is decided here, and by what.
NAMED_OTHERWISE = {
    "num_workers": "say workers",
    "prefetch_factor": "say prefetch",
    "collate_fn": "say collate",
    "shuffle": "the seed orders packs, another for each epoch",
    "sampler": "the plan and the seed order packs",
    "batch_sampler": "the plan and the seed order packs",
    "drop_last": "say remainder='drop'",
}

CollateFn = Callable[[Sequence[TrainPack]], Any]


def loader(
    plan: PackPlan | PackedDataset | Mix | AnyPath,
    data: RowReader | TokenDataset | AnyPath | None = None,
    *,
    batch_size: int = 1,
    seed: int = 0,
    collate: str | CollateFn | None = None,
    workers: int = 0,
    threads: int | None = None,
    prefetch: int = 2,
    rank: int | None = None,
    world: int | None = None,
    remainder: Remainder = "borrow",
    processor: Any = None,
    images: AnyPath | None = None,
    resolution: int = 224,
    lengths: LengthTable | AnyPath | None = None,
    epoch_plans: AnyPath | None = None,
    staged_dir: AnyPath | None = None,
    staged_bytes: int | None = None,
    max_faults: int = 100,
    verify: float = 0.0,
    device: Any = None,
    **options: Any,
) -> StepLoader:
    """Return a DataLoader over the packs of a plan that can be saved and resumed between batches.

    `plan` is the file of a plan and `data` the folder of tokens that it packs; or `data` is a
    folder of samples, for which `processor` (a Hugging Face processor, or the folder of a model)
    makes tokens and pixels, and `lengths` is what the plan was made from. A `PackedDataset` or a
    `Mix` can be given instead of both. What `PackedDataset` takes can be given here as well:
    `processor`, `images`, `lengths`, `epoch_plans`, `staged_dir`, `max_faults`, `verify`.

    A step takes `batch_size` packs on each of `world` data-parallel ranks; without `rank` and
    `world`, every process of the launcher is one. `remainder` says what happens to packs that
    do not fill a step: "borrow", "pad" or "drop". `collate` says for which trainer batches are, as
    trainers differ in names, in the shift of labels and in how documents are told apart:
    "transformers", "torch", "torchtitan", "megatron", "nemo" or "nemo-thd". It may also be a
    `Collate` with more settings, or any function of a list of `TrainPack`.

    `workers` processes build batches, `prefetch` batches ahead each. `threads` read ahead inside
    each worker, by default where data lie in a store. Batches lie on the `device` if there is one:
    then images travel as uint8 and become floats there. Other options are those of DataLoader, such
    as `pin_memory`.

        loader = sm.loader("packs.plan", "tokens", collate="transformers", batch_size=4, seed=7)
        for batch in loader:                     # until the epoch ends; again for the next one
            model(**batch).loss.backward()
        torch.save(loader.state_dict(), "loader.pt")
    """
    split: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "rank": rank, "world": world}
    given = {
        "processor": processor,
        "images": images,
        "lengths": lengths,
        "epoch_plans": epoch_plans,
        "staged_dir": staged_dir,
        "staged_bytes": staged_bytes,
        "verify": verify,
    }
    for name, instead in NAMED_OTHERWISE.items():
        if name in options:
            raise ConfigError(f"{name} cannot be given to the loader: {instead}")
    if workers:
        options = {"num_workers": workers, "prefetch_factor": prefetch, **options}
    if device is not None and torch.device(device).type == "cuda":
        options = {"pin_memory": True, **options}
    if isinstance(plan, str | os.PathLike) and Path(plan).suffix == ".toml":
        plan = Mix.open(plan)
    if getattr(collate, "context", None) is not None and (rank is None or world is None):
        raise ConfigError(
            "ranks that share a row read the same packs: give the loader rank and world of the "
            "data-parallel group, which are not those of the context split"
        )
    if isinstance(plan, Mix):
        _refuse("a mix never ends", remainder=remainder != "borrow")
        _refuse("a mix is read by workers", threads=threads)
        _refuse("a mix is made of data sets", data=data, **given)
        steps: Steps = plan.sampler(**split)
        make, on = _finish(collate, device, *plan.sources.values())
        return StepLoader(plan, steps, collate_fn=make, on=on, **options)
    if isinstance(plan, PackedDataset):
        _refuse("the data set is made already", data=data, **given)
        packs = plan
    elif data is None:
        raise ConfigError("a plan needs the data that it packs: loader(plan, data)")
    else:
        packs = PackedDataset(plan, data, resolution=resolution, max_faults=max_faults, **given)
    steps = packs.sampler(remainder=remainder, **split)
    make, on = _finish(collate, device, packs)
    if threads is None:
        threads = REMOTE_THREADS if packs.is_remote else 0
    if threads:
        stream = PackedStream(packs, steps, make, threads=threads, ahead=max(prefetch, threads))
        return StepLoader(stream, steps, on=on, **options)
    return StepLoader(packs, steps, collate_fn=make, on=on, **options)


def _refuse(why: str, **given: Any) -> None:
    for name, value in given.items():
        if value:
            raise ConfigError(f"{why}: {name} cannot be given to the loader")


def _finish(
    collate: str | CollateFn | None, device: Any, *sources: PackedDataset
) -> tuple[CollateFn, OnDevice]:
    """Return what makes batches of packs, and what brings them to the device."""
    if collate is None:
        known = ", ".join(map(repr, TRAINERS))
        raise ConfigError(f"say for which trainer batches are made: collate= one of {known}")
    make = Collate(collate) if isinstance(collate, str) else collate
    readers = [one.reader for one in sources if not isinstance(one.reader, TokenReader)]
    found: list[Any] = [getattr(reader, "levels", None) for reader in readers]
    # Levels of processors that scale them in different ways are made floats by the workers.
    same = all(one is not None and one.normals == found[0].normals for one in found)
    levels = found[0] if device is not None and found and same else None
    for packs in sources:
        packs.in_levels = levels is not None
    if not isinstance(make, Collate):
        return make, OnDevice(device, levels)
    # A rank whose batch has no image must run its vision tower all the same.
    processors = (getattr(reader, "processor", None) for reader in readers)
    whole = make.for_processor(next((one for one in processors if one is not None), None))
    if levels is not None and make.dummy is None and whole.dummy is not None:
        white = levels.make([np.full((SIDE, SIDE, 3), 255, np.uint8)])
        dummy = whole.dummy if white is None else replace(whole.dummy, tensors=white)
        whole = replace(whole, dummy=dummy)
    return whole, OnDevice(device, levels, whole.media_dtype)


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
    with; options are those of DataLoader. `on` brings batches to a device.
    """

    def __init__(
        self, dataset: Any, steps: Steps, on: OnDevice | None = None, **options: Any
    ) -> None:
        streamed = isinstance(dataset, IterableDataset)
        if streamed and options.get("persistent_workers"):
            raise ConfigError("workers of a stream cannot persist: each epoch needs a new start")
        # A stream makes whole batches itself; `batch_size=None` keeps torch from batching again.
        kind = {"batch_size": None} if streamed else {"batch_sampler": steps}
        # The client of a store does not survive a fork; workers that read local files do.
        if options.get("num_workers") and is_in_use() and getattr(dataset, "is_remote", True):
            options.setdefault("multiprocessing_context", "spawn")
        if options.get("multiprocessing_context") == "spawn":
            options["multiprocessing_context"] = spawn_context()
        options["worker_init_fn"] = EndWithParent(options.get("worker_init_fn"))
        super().__init__(dataset, **kind, **options)
        self.steps, self.state, self._streamed = steps, steps.start, streamed
        self.on = OnDevice() if on is None else on

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
        batches: Iterator[Any] | None = None
        while True:
            try:
                # Also asks workers that persist whether they are still there.
                batches = super().__iter__() if batches is None else batches
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                raise self._named(error) from error
            # Before the batch is handed out: a checkpoint that is saved in the loop's body counts
            # the batch that the body has trained on.
            self.state = self.steps.advance(self.state)
            yield self.on(batch)

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
        """Go on where `state_dict` was saved, on any number of ranks, workers, packs a batch.

        Raises `StaleError` if it was saved with other data, another plan or another seed.
        """
        self.state = self.steps.from_plain(plain)

    def _named(self, error: RuntimeError) -> Exception:
        # torch tells only process numbers; `health` knows what these processes were reading.
        pids = {int(number) for number in re.findall(r"\d+", str(error))}
        health = getattr(self.dataset, "health", None)
        if "DataLoader worker" not in str(error):
            return error
        reading = "; ".join(
            f"process {at.pid} was at pack {at.pack}, {self.dataset.describe(at.row)}"
            for at in (() if health is None else health.positions())
            if at.pid in pids
        )
        idle = "it was reading nothing: look for who ended it (out of memory, a signal)"
        return WorkerDied(f"{error}; when it died, {reading or idle}")


@dataclass(frozen=True, slots=True)
class EndWithParent:
    """A `worker_init_fn` that ends the worker with its parent, then calls the user's own.

    torch's workers check whether the number of their parent has changed. One that is still starting
    when its parent is killed takes the number of its new parent for the old one, and waits for
    ever.
    """

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
