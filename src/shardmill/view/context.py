"""What the answers share: the library, statuses, decoders, and rankings that were dear to make."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shardmill.errors import ConfigError
from shardmill.model.codec import digest
from shardmill.model.plan import PackPlan
from shardmill.view.codes import Strangeness, rank_images
from shardmill.view.counts import StatusDesk
from shardmill.view.folder import Folder
from shardmill.view.library import Library
from shardmill.view.packs import PackSource, PlannedPacks, stored_packs
from shardmill.view.rows import Decoder, open_decoder

T = TypeVar("T")
MAX_KEPT = 32


@dataclass(eq=False)
class Desk:
    """One for a server or a report; `decodes` says that weights may be loaded to decode codes."""

    library: Library
    decodes: bool = False
    statuses: StatusDesk = field(default_factory=StatusDesk)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _kept: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def decoder(self, id: str) -> Decoder:
        """Return the decoder of a folder of tokens or packs."""
        folder = self.library.folder(id)
        tokens = self.library.tokens_of(id)
        name = "decoder", digest([folder.spec, tokens[1].spec if tokens else {}])
        return self.keep(name, lambda: open_decoder(folder, tokens[1] if tokens else None))

    def packs(self, id: str) -> PackSource:
        """Return the packs of a plan or of a folder of packs."""
        item = self.library.get(id)
        if item.kind == "plan":
            return self._planned(id)
        folder = self.library.folder(id, "packs")
        return stored_packs(folder, self.plan_of(id))

    def plan_of(self, id: str) -> PackPlan | None:
        """Return the plan that a folder of packs was made from, if it is here."""
        plans = [item for item in self.library.inputs(id) if item.kind == "plan"]
        return self.library.plan(plans[0].id) if plans else None

    def strange(self, id: str, folder: Folder) -> list[Strangeness]:
        """Return images of a folder of codes, the strangest first."""
        name = "strange", id, len(folder.entries())
        return self.keep(name, lambda: rank_images(folder))

    def keep(self, name: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return what was made under this name, or make it; nobody waits while it is made."""
        with self._lock:
            if name in self._kept:
                known: T = self._kept[name]
                return known
        made = make()
        with self._lock:
            while len(self._kept) >= MAX_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[name] = made
        return made

    def _planned(self, id: str) -> PlannedPacks:
        plan, data = self.library.plan(id), self.library.data_of_plan(id)
        if data is None:
            return PlannedPacks(plan, None, None)
        if data.kind == "stage" and self.library.folder(data.id).content == "tokens":
            return PlannedPacks(plan, self.library.folder(data.id), None)
        table = self.library.lengths(data.id)
        if len(table) != plan.num_rows:
            raise ConfigError(f"{data.id!r} has {len(table)} rows, the plan {plan.num_rows}")
        return PlannedPacks(plan, None, table)
