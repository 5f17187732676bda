"""The runs of a fit: every candidate is trained and scored on held-out episodes, the best one is polished."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DivergenceError, FitError
from mbrl_hdp.inference.agreement import REGION, SAME_LABELS, agreement_with, own_share
from mbrl_hdp.inference.building import Builder, build_model
from mbrl_hdp.inference.choice import DIVERGED_ADVICE, HeldOutScore, choose, equally_good, held_out_score
from mbrl_hdp.inference.episodes import EpisodeTensors
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.progress import FitProgress
from mbrl_hdp.inference.recipes import Recipe
from mbrl_hdp.inference.residuals import explainable_share
from mbrl_hdp.inference.schedule import FitConfig
from mbrl_hdp.inference.search.search import FORBID
from mbrl_hdp.inference.starts import DIVIDED, FULL, STUDENT, Start, plan_starts
from mbrl_hdp.inference.trainer import RunLength
from mbrl_hdp.inference.training import Job, length_entry, train_run
from mbrl_hdp.runtime import configure
from mbrl_hdp.seeding import sub_seed, torch_generator
from mbrl_hdp.workers import OpenWorkers, ThisProcess, Workers, run_side_by_side

# Networks are not tried where they could explain less than this of what closed-form heads leave over.
_LEAST_EXPLAINABLE = 0.03
# Heads that leave more than this share to be explained underfit: what they take for contexts may be regions.
_MOST_EXPLAINABLE = 0.1
# Held-out nats per step by which other heads, from the same contexts, rule out more runs of one kind of heads.
_OUTDONE = 1.0
# Contexts found from random heads that stay with a smaller probability are outliers, as in the search.
LEAST_STAY = 0.6
# Number of the first run on other episodes, beyond those of the fit, so that its heads start elsewhere.
_FIRST_AGAIN = 1000


@dataclass(frozen=True, eq=False)
class Candidate:
    """A run that has not begun: all that another process needs to train it.

    Attributes:
        number: its place in the order in which runs are judged.
        start: what it starts from.
        model: its model before training.
        job: what it is trained and scored on.
        seed: its own seed.
        from_scratch: whether no earlier model stands behind it.
    """

    number: int
    start: Start
    model: ContextModel
    job: Job
    seed: int
    from_scratch: bool

    def train(self, bar: FitProgress) -> Result | DivergenceError:
        """Train and score it; an error that the other runs may not meet is returned."""
        began = time.perf_counter()
        try:
            length = train_run(self.model, self.job, self.start, self.seed, self.from_scratch, bar)
            score = held_out_score(self.model, self.job.held_out, self.job.most_error)
        except DivergenceError as error:
            return error
        return Result(self.start, self.model, score, length, time.perf_counter() - began)


def _train_apart(candidate: Candidate) -> Result | DivergenceError:
    """Train a candidate in another process."""
    configure()
    with FitProgress(1, candidate.job.config.num_steps, is_wanted=False) as bar:
        return candidate.train(bar)


@dataclass(frozen=True)
class Result:
    """A finished run."""

    start: Start
    model: ContextModel
    score: HeldOutScore
    length: RunLength
    time_s: float

    def entry(self, is_taken: bool) -> dict[str, Any]:
        """Return the run as the fit's report shows it."""
        return {
            "dynamics": self.start.dynamics.name,
            **self._noise(),
            "schedule": self.start.name,
            "num_contexts": self.model.num_contexts,
            "held_out_log_likelihood": self.score.log_likelihood,
            "held_out_rmse": self.score.rmse,
            "taken": is_taken,
            "time_s": self.time_s,
            **length_entry(self.length),
        }

    def _noise(self) -> dict[str, str]:
        """Return the kind of noise where it is not the usual one."""
        noise = getattr(self.start.dynamics.config, "noise", None)
        return {"noise": noise} if noise in (STUDENT, FULL) else {}


@dataclass
class Runs:
    """The runs of a fit: trains candidates one after the other and leaves out those that cannot win.

    Attributes:
        job: what they are trained and scored on.
        build: builds untrained models.
        warm_start: model that all go on from.
        reset: what of it is begun anew.
        seed: seed of the fit.
        place: device.
        first: number of the first run; heads and minibatches of a run depend on its number.
    """

    job: Job
    build: Builder
    warm_start: ContextModel | None
    reset: str | None
    seed: int
    place: torch.device
    first: int = 0

    def __post_init__(self) -> None:
        self.results: list[Result] = []
        self.skipped: list[str] = []
        self.refused: list[str] = []
        self._diverged: list[str] = []
        self._number = self.first

    def take_all(self, starts: Sequence[Start], bar: FitProgress, open_workers: OpenWorkers) -> None:
        """Train candidates, side by side where there are workers; the result is that of one after the other.

        Whether a candidate is needed depends on those before it, so all are judged in their order. A free worker begins
        the next one before that is known; what turns out to be needless is dropped.
        """
        if not starts:
            return
        with open_workers() as workers:
            if isinstance(workers, ThisProcess):
                for start in starts:
                    self.take(start, bar)
            else:
                self._take_apart(starts, bar, workers)

    def _take_apart(self, starts: Sequence[Start], bar: FitProgress, workers: Workers) -> None:
        waiting = [self._candidate(self._number + place, start) for place, start in enumerate(starts)]
        finished: dict[int, Result | DivergenceError] = {}
        is_needed: dict[int, bool] = {}

        def judge() -> None:
            while waiting:
                first = waiting[0]
                if first.number not in is_needed:  # all before it are judged now
                    is_needed[first.number] = not self._is_left_out(first.start)
                if is_needed[first.number]:
                    if first.number not in finished:
                        return
                    bar.start_run(first.start.name, first.job.config.num_steps)
                    self._judge(finished.pop(first.number), bar)
                waiting.pop(0)
                self._number += 1

        def may_start(candidate: Candidate) -> bool:
            judge()
            return any(each is candidate for each in waiting)

        for candidate, result in run_side_by_side(workers, _train_apart, list(waiting), may_start):
            finished[candidate.number] = result
            judge()
            if not waiting:
                return
        judge()

    def take(self, start: Start, bar: FitProgress) -> None:
        """Train a candidate, unless nothing is left for it to explain; one that diverges is left out."""
        number, self._number = self._number, self._number + 1
        if not self._is_left_out(start):
            self._judge(self._candidate(number, start).train(bar), bar)

    def _is_left_out(self, start: Start) -> bool:
        """Return whether a candidate need not be trained, and note why."""
        if self._cannot_be_judged(start):
            return True
        is_needless = self._is_needless(start)
        if is_needless:
            self.skipped.append(f"{start.dynamics.name} ({start.name})")
        return is_needless

    def _candidate(self, number: int, start: Start) -> Candidate:
        if start.model is not None:
            model = copy.deepcopy(start.model).to(self.place)
        elif self.warm_start is None:
            model = self.build(number, start.dynamics, start.distillation).to(self.place)
        else:
            model = _continued(self.warm_start, self.reset, self.build).to(self.place)
        seed = sub_seed(self.seed, "run", number)
        return Candidate(number, start, model, self.job, seed, self.warm_start is None)

    def _judge(self, result: Result | DivergenceError, bar: FitProgress) -> None:
        """Keep a finished run, unless it diverged or what it found is not believed."""
        if isinstance(result, DivergenceError):  # the other runs may do better
            self._diverged.append(str(result))
            return
        start, model = result.start, result.model
        bar.end_run(model.num_contexts, result.length.num_steps, result.length.is_stopped)
        doubt = self._doubt(start, model)
        if doubt:
            self.refused.append(f"{start.dynamics.name} ({start.name}): {_counted(model.num_contexts)}, but {doubt}")
            return
        self.results.append(result)

    def choose(self) -> int:
        """Return the number of the best run.

        Raises:
            DivergenceError: if every run diverged.
            FitError: if no run has the number of contexts that was asked for.
        """
        if not self.results:
            raise DivergenceError(f"every run diverged ({self._diverged[0]}); {DIVERGED_ADVICE}")
        wanted = self.job.config.num_contexts if self.warm_start is None else None
        allowed = [i for i, run in enumerate(self.results) if wanted in (None, run.model.num_contexts)]
        if not allowed:
            raise FitError(
                f"fit.num_contexts={wanted}, but distillation left {self.results[0].model.num_contexts}: lower "
                "distillation.train_threshold and distillation.test_threshold"
            )
        accepted = [run.start.num_searched for run in self.results]
        return allowed[choose([self.results[i].score for i in allowed], accepted=max(accepted, default=1))]

    @property
    def best_model(self) -> ContextModel:
        """Model of the best run so far."""
        return self.results[self.choose()].model

    def repeats(self, best: int) -> bool:
        """Return whether the way to a run can be gone again on other episodes at little cost: a closed form, no search.

        A run from the contexts of a search is repeated by another search.
        """
        start = self.results[best].start
        return start.contexts is None and self.build.has_closed_form(start.dynamics)

    def again(self, best: int, data: Trajectories, held_out: Trajectories) -> ContextModel:
        """Train anew as a run was trained, from other random heads and on other episodes; return the best model."""
        job = Job(self.job.config, EpisodeTensors.of(data, device=self.place), None, held_out, self.job.most_error)
        other = Runs(job, self.build, None, None, self.seed, self.place, first=_FIRST_AGAIN)
        with FitProgress(job.config.num_restarts, 1, is_wanted=False) as bar:
            for _ in range(job.config.num_restarts):
                other.take(self.results[best].start, bar)
        return other.results[other.choose()].model

    def entries(self, best: int) -> list[dict[str, Any]]:
        """Return the runs as the fit's report shows them."""
        equal = equally_good([run.score for run in self.results])
        models = [run.model for run in self.results]
        agreement = agreement_with(models[best], models, self.job.held_out)
        return [
            run.entry(number == best) | {"equally_good": number in equal, "agreement": agreement[number]}
            for number, run in enumerate(self.results)
        ]

    def _cannot_be_judged(self, start: Start) -> bool:
        """Return whether only training data would speak for a run from random heads: it prefers too many contexts.

        The search has compared numbers of contexts by cross-fitted evidence, so its contexts stand.
        """
        has_search = any(run.start.contexts is not None for run in self.results)
        return self.warm_start is None and self.job.aside is None and start.contexts is None and has_search

    def _doubt(self, start: Start, model: ContextModel) -> str | None:
        """Return why more contexts than the search accepted are not believed; None: they are.

        They were found from random heads in closed form, or by dividing those of a known model.

        Held-out episodes cannot decide: while heads underfit, regions of the state space predict better than contexts,
        and so do outliers. The rules are those of the search: capacity first, contexts that last, no regions. Divided
        contexts have passed the first: what one larger head could explain was no reason to divide them.
        """
        is_divided = start.name == DIVIDED
        if not is_divided and not self._exceeds_search(start, model):
            return None
        if model.transition.diagonal().min() < LEAST_STAY:
            return f"one stays for {1.0 / (1.0 - model.transition.diagonal().min()):.1f} steps only"
        share = 0.0 if is_divided else explainable_share(model, self.job.held_out)
        if share > _MOST_EXPLAINABLE:
            return f"state and action explain {share:.0%} of what its heads leave over"
        if self.job.config.regions == FORBID:
            region = max(own_share(model, self.job.held_out, context) for context in range(model.num_contexts))
            if region > REGION:
                return f"state and action explain {region:.0%} of when one is left"
        return None

    def _exceeds_search(self, start: Start, model: ContextModel) -> bool:
        """Return whether closed-form heads found more contexts from random starts than the search accepted."""
        accepted = [run.start.contexts.num_contexts for run in self.results if run.start.contexts is not None]
        if self.warm_start is not None or start.contexts is not None or not accepted:
            return False
        return model.num_contexts > max(accepted) and self.build.has_closed_form(start.dynamics)

    def _is_needless(self, start: Start) -> bool:
        """Return whether a candidate has nothing to add to the runs so far."""
        if self.warm_start is not None or self.job.config.start != "search":
            return False
        return self._is_confirmed(start) or self._is_outdone(start) or self._is_explained(start)

    def _is_confirmed(self, start: Start) -> bool:
        """Return whether random heads already labelled the steps as the run from the search does, and did no better."""
        same = [run for run in self.results if run.start.dynamics.name == start.dynamics.name]
        found = [run for run in same if run.start.contexts is not None]
        others = [run for run in same if run.start.contexts is None]
        if start.contexts is not None or not found or not others or self.build.has_closed_form(start.dynamics):
            return False
        if choose([run.score for run in (found[0], *others)]) != 0:
            return False
        agreement = agreement_with(found[0].model, [run.model for run in others], self.job.held_out)
        return all(index >= SAME_LABELS for index in agreement)

    def _is_outdone(self, start: Start) -> bool:
        """Return whether random heads of this kind would have to make up for much that other heads predict better."""
        searched = [run for run in self.results if run.start.contexts is not None]
        same = [run.score.log_likelihood for run in searched if run.start.dynamics.name == start.dynamics.name]
        if start.contexts is not None or not same:
            return False
        return max(run.score.log_likelihood for run in searched) > max(same) + _OUTDONE

    def _is_explained(self, start: Start) -> bool:
        """Return whether other heads explain all that state and action can, so that networks have nothing to add."""
        others = [run for run in self.results if run.start.dynamics.name != start.dynamics.name]
        if not others or self.build.has_closed_form(start.dynamics):
            return False
        best = others[choose([run.score for run in others])].model
        return explainable_share(best, self.job.held_out) < _LEAST_EXPLAINABLE


def _counted(number: int) -> str:
    return "1 context" if number == 1 else f"{number} contexts"


def refits(warm_start: ContextModel, config: FitConfig, recipe: Recipe, reset: str | None) -> list[Start]:
    """Return the runs that go on from a model."""
    part = warm_start.parts.dynamics
    if reset is None:
        return [Start(recipe.refit.name, part, recipe.refit, is_refit=True)]
    return plan_starts(part, False, None, config)


def _continued(model: ContextModel, reset: str | None, build: Builder) -> ContextModel:
    """Copy a model to go on from; `reset="chain"` opens every slot again and starts unused heads anew."""
    again = copy.deepcopy(model)
    if reset == "chain":
        if build.recipe.is_prior_reset:
            again.prior = build_model(again.parts, again.task, build.registry).prior
        unused = (~again.is_active).nonzero().squeeze(-1)
        again.dynamics.reset_slots(unused, torch_generator(build.seed, "reset"))
        again.is_active = torch.ones_like(again.is_active)
    return again
