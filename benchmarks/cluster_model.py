"""A small simulation of a cluster: cores that take cells from a queue, one store for checkpoints, workers that die.

A cell is a number of epochs, each of a length. After every epoch its checkpoint goes to the store, which writes one at
a time. A worker that dies loses the epoch that it was in; its cell goes back to the queue and goes on from its last
checkpoint, after starting anew, on the next free core. A machine that dies takes all of its cores with it for a while.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Cell:
    """Work of one core: so many epochs of so many seconds."""

    num_epochs: int
    epoch_s: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.num_epochs * self.epoch_s


@dataclass(frozen=True)
class ClusterModel:
    """What the simulation assumes.

    Attributes:
        num_machines: machines.
        cores_each: cores of each.
        start_s: seconds until a worker that takes a cell has imported everything.
        checkpoint_s: seconds that the store needs for one checkpoint.
        worker_deaths: deaths of a worker per core and hour.
        machine_deaths: deaths of a machine per machine and hour.
        absent_s: seconds until a machine is back.
    """

    num_machines: int
    cores_each: int
    start_s: float = 0.0
    checkpoint_s: float = 0.0
    worker_deaths: float = 0.0
    machine_deaths: float = 0.0
    absent_s: float = 600.0

    @property
    def num_cores(self) -> int:
        """Cores of all machines."""
        return self.num_machines * self.cores_each


@dataclass
class Outcome:
    """What happened in a simulation.

    Attributes:
        makespan_s: when the last cell was finished.
        busy_s: core seconds spent on cells, those that were lost included.
        lost_s: core seconds of epochs that were begun and lost, and of starting anew.
        num_deaths: deaths of workers that were busy.
        store_s: seconds that the store was busy.
        longest_wait_s: the longest time that a checkpoint waited for the store.
    """

    makespan_s: float = 0.0
    busy_s: float = 0.0
    lost_s: float = 0.0
    num_deaths: int = 0
    store_s: float = 0.0
    longest_wait_s: float = 0.0


@dataclass
class _Core:
    machine: int
    cell: Cell | None = None
    done: int = 0  # epochs in the store
    since: float = 0.0  # when the present piece of work was begun
    turn: int = 0  # events of earlier turns are void


class Simulation:
    """One run of the model."""

    def __init__(self, model: ClusterModel, cells: Sequence[Cell], rng: np.random.Generator) -> None:
        self.model, self.rng, self.outcome = model, rng, Outcome()
        # Longest first, as a list scheduler would: the end is not spent waiting for one long cell.
        ordered = sorted(cells, key=lambda cell: -cell.seconds)
        self.queue: deque[tuple[Cell, int]] = deque((cell, 0) for cell in ordered)
        self.left = len(cells)
        self.cores = [_Core(number // model.cores_each) for number in range(model.num_cores)]
        self.idle = set(range(model.num_cores))
        self.is_away = [False] * model.num_machines
        self.store_free = 0.0
        self.events: list[tuple[float, int, str, int, int]] = []
        self.count = itertools.count()

    def run(self) -> Outcome:
        """Simulate until every cell is finished."""
        for machine in range(self.model.num_machines):
            self._plan_machine_death(machine, 0.0)
        self._fill(0.0)
        while self.left:
            now, _, kind, number, turn = heapq.heappop(self.events)
            getattr(self, f"_{kind}")(now, number, turn)
            self._fill(now)
            self.outcome.makespan_s = now
        return self.outcome

    def _at(self, time: float, kind: str, number: int, turn: int = 0) -> None:
        heapq.heappush(self.events, (time, next(self.count), kind, number, turn))

    def _plan_machine_death(self, machine: int, now: float) -> None:
        if self.model.machine_deaths:
            self._at(now + 3600.0 * self.rng.exponential(1.0 / self.model.machine_deaths), "machine_dies", machine)

    def _fill(self, now: float) -> None:
        """Assign waiting cells to free cores."""
        for number in sorted(self.idle) if self.queue else ():
            core = self.cores[number]
            if self.queue and not self.is_away[core.machine]:
                self.idle.remove(number)
                core.cell, core.done = self.queue.popleft()
                core.turn += 1
                core.since = now
                if self.model.worker_deaths:
                    wait = 3600.0 * self.rng.exponential(1.0 / self.model.worker_deaths)
                    self._at(now + wait, "worker_dies", number, core.turn)
                self._at(now + self.model.start_s + core.cell.epoch_s, "epoch_ends", number, core.turn)

    def _epoch_ends(self, now: float, number: int, turn: int) -> None:
        """Queue at the store; the core waits until its checkpoint is written."""
        if self.cores[number].turn != turn:
            return
        begins = max(now, self.store_free)
        self.store_free = begins + self.model.checkpoint_s
        self.outcome.store_s += self.model.checkpoint_s
        self.outcome.longest_wait_s = max(self.outcome.longest_wait_s, begins - now)
        self._at(self.store_free, "checkpoint_written", number, turn)

    def _checkpoint_written(self, now: float, number: int, turn: int) -> None:
        core = self.cores[number]
        if core.turn != turn or core.cell is None:
            return
        self.outcome.busy_s += now - core.since
        core.done, core.since = core.done + 1, now
        if core.done < core.cell.num_epochs:
            self._at(now + core.cell.epoch_s, "epoch_ends", number, turn)
            return
        self._free(number)
        self.left -= 1

    def _worker_dies(self, now: float, number: int, turn: int) -> None:
        core = self.cores[number]
        if core.turn != turn or core.cell is None:
            return
        self.outcome.num_deaths += 1
        self.outcome.busy_s += now - core.since
        self.outcome.lost_s += now - core.since
        self.queue.appendleft((core.cell, core.done))
        self._free(number)

    def _free(self, number: int) -> None:
        self.cores[number].cell = None
        self.cores[number].turn += 1
        self.idle.add(number)

    def _machine_dies(self, now: float, machine: int, _: int) -> None:
        self.is_away[machine] = True
        for number, core in enumerate(self.cores):
            if core.machine == machine:
                self._worker_dies(now, number, core.turn)
        self._at(now + self.model.absent_s, "machine_is_back", machine)

    def _machine_is_back(self, now: float, machine: int, _: int) -> None:
        self.is_away[machine] = False
        self._plan_machine_death(machine, now)


def simulate(model: ClusterModel, cells: Sequence[Cell], seed: int) -> Outcome:
    """Simulate a cluster with these cells."""
    return Simulation(model, cells, np.random.default_rng(seed)).run()


def expected_seconds(cell: Cell, deaths_per_hour: float) -> float:
    """Return the mean time of a cell on its own core with free starts and checkpoints: n (exp(r t) - 1) / r."""
    rate = deaths_per_hour / 3600.0
    return cell.num_epochs * (float(np.expm1(rate * cell.epoch_s)) / rate if rate else cell.epoch_s)
