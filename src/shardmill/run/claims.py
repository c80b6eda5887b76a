"""Which task works on which unit, without a server: the files claims/UNIT.N.

N counts the tries of a unit from 1. Whoever creates UNIT.1 works on it; creating is exclusive, so
it is one. The file holds the token of its maker, who writes FREE into it to give the unit back.
UNIT.2 may be created when UNIT.1 is free, or when its maker is dead. No claim goes away before the
folder is complete, so that two tasks never believe to have the same try.

A claim only saves double work. What is done is said by receipts.

Units for one task of many: those without a receipt that nobody else works on, by claims.

Tasks begin at random places of the list, so that they seldom want the same unit, and each goes on
through neighbours, as compressed inputs like it. Units that tasks died at come last.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shardmill.model.stage import Unit
from shardmill.run.events import Event, OnEvent
from shardmill.run.job import failure_record
from shardmill.run.lock import LifeWatch
from shardmill.shards.ledger import Ledger
from shardmill.storage.folder import backend_of

FREE = "free"
# What is read from a claim becomes a part of paths.
TOKEN = re.compile(r"[0-9a-z]{1,64}")


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a folder, as the task `token` sees and makes them."""

    claims_dir: Path
    token: str

    def latest(self) -> dict[str, int]:
        """Return the number of the last try of every unit that was ever claimed."""
        tries: dict[str, int] = {}
        # Without the folder, another task has just completed everything.
        with suppress(FileNotFoundError):
            for path in self.claims_dir.iterdir():
                unit_name, _, number = path.name.rpartition(".")
                if unit_name and number.isdigit():
                    tries[unit_name] = max(tries.get(unit_name, 0), int(number))
        return tries

    def take(self, unit_name: str, number: int) -> bool:
        """Make the claim and return True, unless somebody else was faster."""
        path = self._path(unit_name, number)
        try:
            return backend_of(self.claims_dir).create(path, self.token.encode())
        except FileNotFoundError:
            return False

    def free(self, unit_name: str, number: int) -> None:
        """Give back a unit; the claim must be our own."""
        mine = self.token.encode()
        with suppress(OSError):
            backend_of(self.claims_dir).renew(
                self._path(unit_name, number),
                lambda content: content == mine,
                FREE.encode().ljust(len(mine)),
            )

    def owner(self, unit_name: str, number: int) -> str:
        """Return the token of a claim's maker, FREE, or '' if it died before it could say so."""
        try:
            text = self._path(unit_name, number).read_bytes().decode().strip()
        except (OSError, UnicodeDecodeError):
            return ""
        return text if TOKEN.fullmatch(text) else ""

    def num_deaths(self, unit_name: str, number: int) -> int:
        """Return how many of the tries up to `number` were not given back."""
        return sum(self.owner(unit_name, n) != FREE for n in range(1, number + 1))

    def _path(self, unit_name: str, number: int) -> Path:
        return self.claims_dir / f"{unit_name}.{number}"


LOOK_PAUSE_S = 1.0
MAX_MISSES = 8
MAX_DEATHS = 10


@dataclass(frozen=True, slots=True)
class _Offer:
    """A unit that may be claimed as its try `number`."""

    unit: Unit
    number: int


class Supply:
    """Claims units for a task, and gives back what it has not done."""

    def __init__(
        self,
        ledger: Ledger,
        units: Sequence[Unit],
        claims: Claims,
        watch: LifeWatch,
        on_event: OnEvent,
    ) -> None:
        self._ledger, self._claims, self._watch, self._on_event = ledger, claims, watch, on_event
        self._units = units
        self._share = random.Random(claims.token).random()
        self._offers: deque[_Offer] = deque()
        self._held: dict[str, int] = {}
        self._is_undecided = self._is_closed = False
        self.is_closed_early = False
        self._next_look_s = 0.0

    def take(self, count: int) -> list[Unit]:
        """Return up to `count` units that are now ours; none if there are none right now."""
        taken: list[Unit] = []
        num_misses = 0
        while len(taken) < count and not self._is_closed:
            if not self._offers or num_misses == MAX_MISSES:
                num_misses = 0
                if taken or not self._look():
                    break
            offer = self._offers.popleft()
            if self._claim(offer):
                taken.append(offer.unit)
            else:
                num_misses += 1
        return taken

    def is_waiting(self) -> bool:
        """Say whether units may still come: their claims belong to tasks that may be dead."""
        return not self._is_closed and (bool(self._offers) or self._is_undecided)

    def note(self, event: Event) -> None:
        """Learn from the events of the task which units need not be given back."""
        if event.kind in ("done", "failed"):
            self._held.pop(event.unit, None)

    def close(self) -> None:
        """Take no more units, because the time is nearly over."""
        self._is_closed = self.is_closed_early = True

    def give_back(self) -> None:
        """Take no more, and free the claims of units that were not done."""
        self._is_closed = True
        for name, number in self._held.items():
            self._claims.free(name, number)

    def num_left(self) -> int:
        """Return how many units have neither a receipt nor failed."""
        over = self._over()
        return sum(unit.name not in over for unit in self._units)

    def _claim(self, offer: _Offer) -> bool:
        name = offer.unit.name
        if not self._claims.take(name, offer.number):
            return False
        # Between our look and our claim another may have done the unit and ended.
        if self._ledger.receipt_path(name).exists():
            return False
        self._held[name] = offer.number
        return True

    def _look(self) -> bool:
        """Look what may be claimed, now and then; return whether there is something."""
        self._offers.clear()
        if time.monotonic() < self._next_look_s:
            return False
        free, contested = self._candidates()
        # After the claims: whoever has one made a lock before it.
        self._watch.look(owner for _, owner in contested)
        dead = [offer for offer, owner in contested if self._is_free(owner)]
        self._is_undecided = any(
            not self._watch.is_dead(owner) and not self._watch.is_alive(owner)
            for _, owner in contested
        )
        offers = free + [offer for offer in dead if self._is_worth(offer)]
        self._offers.extend(sorted(offers, key=lambda offer: offer.number))
        if not self._offers:
            self._next_look_s = time.monotonic() + LOOK_PAUSE_S
        return bool(self._offers)

    def _candidates(self) -> tuple[list[_Offer], list[tuple[_Offer, str]]]:
        """Return what is free, and what others claimed with their tokens; from our own place on."""
        over, tries = self._over(), self._claims.latest()
        first = int(self._share * len(self._units))
        free, contested = [], []
        for unit in (*self._units[first:], *self._units[:first]):
            if unit.name in over or unit.name in self._held:
                continue
            number = tries.get(unit.name, 0)
            owner = self._claims.owner(unit.name, number) if number else FREE
            offer = _Offer(unit, number + 1)
            if owner == FREE:
                free.append(offer)
            else:
                contested.append((offer, owner))
        return free, contested

    def _over(self) -> set[str]:
        return self._ledger.receipt_names() | self._ledger.failure_names()

    def _is_free(self, owner: str) -> bool:
        if not self._watch.is_dead(owner):
            return False
        # The fence: if it was only suspended, it finds its drafts gone and can commit nothing.
        if owner:
            shutil.rmtree(self._ledger.drafts_dir / owner, ignore_errors=True)
        return True

    def _is_worth(self, offer: _Offer) -> bool:
        if offer.number <= MAX_DEATHS:
            return True
        name = offer.unit.name
        num_deaths = self._claims.num_deaths(name, offer.number - 1)
        if num_deaths < MAX_DEATHS:
            return True
        message = (
            f"{num_deaths} tasks ended without a word while they worked on it: it may need more "
            "memory or time than a task has"
        )
        with suppress(OSError):
            self._ledger.write_failure(name, failure_record(name, message, ""))
        self._on_event(Event(kind="failed", unit=name, message=message))
        return False
