"""The learned model: contexts, their chain and their dynamics, as an mbrl-lib `Model`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mbrl.models
import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from mbrl.types import TransitionBatch
from torch import Tensor

from mbrl_hdp.belief.phase_filter import PhaseUpdate
from mbrl_hdp.data.arrays import as_trajectories
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.past import PastWindow, past_width
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.distil.distiller import Distiller, apply_keep_mask, keep_at_least
from mbrl_hdp.errors import DataError
from mbrl_hdp.inference.alarm import DEFAULT_STEPS_PER_ALARM, NoveltyAlarm, NoveltyCalibration, check_calibration
from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.inference.elbo import ElboScale, EpisodeBatch, elbo
from mbrl_hdp.inference.imagined import first_state, next_state
from mbrl_hdp.inference.online import OnlineFilter, PhaseFilter
from mbrl_hdp.inference.parts import FitReport, ModelParts, Part
from mbrl_hdp.inference.prior import ContextPrior
from mbrl_hdp.inference.row_density import compiled_row
from mbrl_hdp.inference.views import model_views
from mbrl_hdp.probability.markov import stationary
from mbrl_hdp.probability.phases import context_chain
from mbrl_hdp.types import ContextChain, ContextPosterior, PhaseChain, TaskSpec

__all__ = ["ContextModel", "FitReport", "ModelParts", "Part"]

Obs = Float[Tensor, "B S"]
Act = Float[Tensor, "B A"]
State = dict[str, Tensor]
Rng = torch.Generator | None
# What mbrl-lib's `Model.sample` returns: next observations, no rewards, no terminations, next state.
Step = tuple[Obs, None, None, State]


class ContextModel(mbrl.models.Model):
    """A chain of contexts and one transition model for each (HDP-C-MDP after learning).

    The full posterior (max_contexts slots) is always kept: warm starts, novelty and saving use it. What users see
    (`transition`, `filter`, ...) is the distilled model of width `num_contexts`; `kept` marks which slots these are.

    Attributes:
        task: sizes of the problem.
        prior: the prior with its variational distribution.
        dynamics: the transition heads.
        distillation: the rule that decides which slots to keep.
        parts: which plugins these are.
        report: how the model was learned.
        level_heads: parameters of the heads of merged contexts, one for each merge of `report.levels`.
        is_settled: whether every active slot is a context, because the number was known (`fit.num_contexts`).
        phases: how long contexts last, where that was learned (docs/durations.md); it then replaces the prior's chain.
        names: what the columns are called in the data that it was learned from; None: they are numbered.
        novelty: what the novelty alarm was calibrated on; None before. A refit starts without.
    """

    _kept: Tensor

    def __init__(
        self, task: TaskSpec, prior: ContextPrior, dynamics: ContextDynamics, distillation: Distiller, parts: ModelParts
    ) -> None:
        super().__init__(torch.device("cpu"))
        self.task, self.parts, self.distillation = task, parts, distillation
        self.prior, self.dynamics = prior, dynamics
        self.report = FitReport()
        self.level_heads: dict[str, Tensor] = {}
        self.is_settled = False
        self.phases: PhaseChain | None = None
        self.names: Names | None = None
        self.num_data_episodes: int | None = None
        self.num_data_transitions: int | None = None
        self.register_buffer("is_active", torch.ones(task.max_contexts, dtype=torch.bool))
        self.register_buffer("_kept", torch.ones(task.max_contexts, dtype=torch.bool))
        self.prior.prepare()
        self.extract()

    # What the model says about the contexts ------------------------------------------------------------------

    def posterior(self, is_training: bool = False) -> ContextPosterior:
        """Return the expected chain over all slots, the shared weights and the slots that training left alive."""
        weights = self.prior.top_weights()
        return ContextPosterior(
            self.prior.mean_chain(), None if weights is None else weights.detach(), self.is_active, is_training
        )

    def extract(self) -> None:
        """Decide anew which slots to keep and reduce the chain to them (Theorem 1)."""
        self.novelty: NoveltyCalibration | None = None  # heads or chain may have changed
        with torch.no_grad():
            posterior = self.posterior()
            keep = self.is_active if self.is_settled else self.distillation.keep(posterior)
            kept = keep_at_least(posterior, keep).to(self.is_active.device)
            if not bool((kept == self._kept).all()):
                self.phases, self.report.duration = None, {}  # they belonged to other contexts
            self._kept = kept
            self._chain = apply_keep_mask(posterior, self._kept)
        self.use_phases(self.phases)

    def use_phases(self, phases: PhaseChain | None) -> None:
        """Let contexts last as these phases say; what is shown of the chain is then what they look like by step."""
        self.phases = phases
        if phases is not None:
            self._chain = ContextChain(*(part.float() for part in vars(context_chain(phases)).values()))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ContextModel:
        """Move everything, the distilled chain too (`to`, `cpu`, `cuda`, `double`)."""
        super()._apply(fn, recurse)
        self._chain = ContextChain(fn(self._chain.initial), fn(self._chain.transition))
        self.phases = None if self.phases is None else self.phases.map(fn)
        self.device = self._kept.device
        return self

    @property
    def chain(self) -> ContextChain:
        """The distilled chain as tensors, width `num_contexts`."""
        return self._chain

    @property
    def states(self) -> PhaseChain | None:
        """The chain over (context, phase); None where every context has a single phase: `chain` is the same then."""
        return None if self.phases is None or max(self.phases.sizes) == 1 else self.phases

    @property
    def slots(self) -> Int[Tensor, " k"]:
        """Slots of the kept contexts, in order."""
        return self._kept.nonzero().squeeze(-1)

    @property
    def kept(self) -> Bool[np.ndarray, " K"]:
        """Which slots of the full posterior survived distillation."""
        return self._kept.cpu().numpy().copy()

    @property
    def num_contexts(self) -> int:
        """Number of contexts after distillation."""
        return int(self._kept.sum())

    @property
    def transition(self) -> Float[np.ndarray, "k k"]:
        """p(next context | context), one row per current context."""
        return self._chain.transition.double().cpu().numpy().copy()

    @property
    def initial(self) -> Float[np.ndarray, " k"]:
        """Distribution of the first acting context."""
        return self._chain.initial.double().cpu().numpy().copy()

    @property
    def stationary(self) -> Float[np.ndarray, " k"]:
        """Long-run share of time in each context."""
        return stationary(self._chain.transition, self._chain.initial).double().cpu().numpy()

    def at_level(self, num_contexts: int, data: Trajectories | None = None) -> ContextModel:
        """Return a model with fewer contexts: those that `report.levels` merges with the smallest loss are one.

        Heads with a closed form were fitted to the steps of the merged contexts. Other heads are the better one of
        those merged; `data` trains them on for a short while.

        Args:
            num_contexts: how many contexts, from 1 to those of this model.
            data: episodes to compute the levels from anew; needed after a refit, which keeps none.

        Raises:
            ConfigError: if there is no such level, or the model has none.

        Example:
            >>> model.at_level(2).num_contexts
            2
        """
        from mbrl_hdp.inference.levels import at_level

        return at_level(self, num_contexts, data)

    # What it says about data ------------------------------------------------------------------------------------

    def analyse(self, data: Any) -> Analysis:
        """Return everything that the model says about data (all that `fit` takes); the heads run once for all of it.

        Example:
            >>> found = model.analyse(data)
            >>> found.filtered, found.smoothed, found.most_likely, found.log_likelihood, found.predicted

        Raises:
            DataError: if the data has other columns than the model was learned on; named ones may be in any order.
        """
        data = self.with_past(as_trajectories(data, self.names))
        if (data.obs_dim, data.act_dim) != (self.task.obs_dim, self.task.act_dim):
            raise DataError(
                f"the model was learned on {self.task.obs_dim} observations and {self.task.act_dim} actions a step; "
                f"this data has {data.obs_dim} and {data.act_dim}"
            )
        return Analysis.of(data, self.states or self._chain, self.dynamics, self.slots)

    def with_past(self, data: Trajectories) -> Trajectories:
        """Add the past to data that was recorded step by step, where the model looks at it."""
        steps = self.task.past
        is_plain = past_width(data.obs_dim, data.act_dim, steps) == self.task.act_dim
        return data.with_past(steps) if steps and is_plain else data

    def filter(self, data: Any) -> Float[np.ndarray, "N T k"]:
        """Return p(context[t] | obs up to t+1, acts up to t); NaN beyond an episode's end."""
        return self.analyse(data).filtered

    def smooth(self, data: Any) -> Float[np.ndarray, "N T k"]:
        """Return p(context[t] | the whole episode); NaN beyond an episode's end."""
        return self.analyse(data).smoothed

    def most_likely(self, data: Any) -> Int[np.ndarray, "N T"]:
        """Return the most likely path of contexts (Viterbi); -1 beyond an episode's end."""
        return self.analyse(data).most_likely

    def log_likelihood(self, data: Any) -> Float[np.ndarray, " N"]:
        """Return log p(episode) of every episode, contexts summed out, in the data's own units."""
        return self.analyse(data).log_likelihood

    def predict(
        self,
        obs: Float[np.ndarray, "B S"],
        acts: Float[np.ndarray, "B H A"],
        num_samples: int = 1,
        belief: Float[np.ndarray, "B k"] | None = None,
        seed: int = 0,
        history: tuple[Any, Any] | None = None,
    ) -> Float[np.ndarray, "samples B H S"]:
        """Draw futures under an action sequence, contexts included.

        Args:
            obs: where every future starts.
            acts: actions to take, as recorded; without actions, an array of width 0 whose second axis is the horizon.
            num_samples: futures per start.
            belief: distribution of the context that acts first; `initial` by default.
            seed: seed of the draws.
            history: for a model with a past, the n = `task.past` steps before `obs`: observations `B n S` and the
                actions `B n A` that were taken there.

        Example:
            >>> n = model.task.past
            >>> model.predict(obs[:, n], acts[:, n:], history=(obs[:, :n], acts[:, :n]))

        Raises:
            DataError: on other shapes, or if a model with a past gets no history.
        """
        from mbrl_hdp.inference.futures import draw_futures

        return draw_futures(self, obs, acts, num_samples, belief, seed, history)

    def online_filter(self) -> OnlineFilter:
        """Return a filter that is fed step by step, as recorded, while the system runs; it always runs on the CPU.

        It computes in double precision where the transition model offers a density table, as all built-in ones do.
        """
        if self.device.type != "cpu":
            return copy.deepcopy(self).to("cpu").online_filter()
        density = compiled_row(self.dynamics, self.slots) or self._row_log_lik
        past = PastWindow.of(self.task, self.names)
        if self.states is not None:
            return PhaseFilter(PhaseUpdate(self.states), density, past)
        return OnlineFilter(self.initial, self.transition, density, past)

    def novelty_alarm(
        self, data: Trajectories | None = None, false_alarms_per: int | float = DEFAULT_STEPS_PER_ALARM
    ) -> NoveltyAlarm:
        """Return an alarm that is raised when no known context explains the last steps (docs/novelty.md).

        Args:
            data: episodes with known contexts only that the model was not trained on: calibrates the alarm, kept in
                `novelty` and saved with the model. None: as calibrated before.
            false_alarms_per: steps between two false alarms, on average, at least.
        """
        if data is not None:
            self.novelty = NoveltyCalibration.of(self.analyse(data))
        return NoveltyAlarm(check_calibration(self.novelty), false_alarms_per, PastWindow.of(self.task, self.names))

    def _row_log_lik(self, obs: Any, act: Any, next_obs: Any) -> Float[np.ndarray, " k"]:
        rows = [self.as_tensor(np.atleast_2d(row)) for row in (obs, act, next_obs)]
        with torch.no_grad():
            return self.dynamics.log_prob_slots(rows[0], rows[1], rows[2], self.slots)[0].double().numpy()

    def as_tensor(self, values: Any) -> Tensor:
        """Return numbers as the model takes them: single precision, on its device."""
        return torch.as_tensor(np.asarray(values), dtype=torch.float32, device=self.device)

    # mbrl-lib's interface --------------------------------------------------------------------------------------

    def loss(self, model_in: TransitionBatch, target: Tensor | None = None) -> tuple[Tensor, dict[str, Any]]:  # noqa: ARG002
        """Return the negative ELBO per transition of a batch from mbrl-lib's replay buffer.

        Sequences `B T dim` are episodes (or pieces of them); single transitions `B dim` are episodes of one step.
        `set_data_size` sets how large the whole data set is; until then a batch stands for itself.
        """
        batch = self._episodes(model_in)
        num_episodes = self.num_data_episodes or len(batch.lengths)
        num_transitions = self.num_data_transitions or int(batch.lengths.sum())
        keep = None if bool(self.is_active.all()) else self.is_active
        bound = elbo(self.prior, self.dynamics, batch, ElboScale(num_episodes, num_transitions, keep=keep))
        meta = {"log_likelihood": float(bound.log_likelihood), "prior_kl": float(bound.prior_kl)}
        return bound.loss, meta

    def eval_score(self, model_in: TransitionBatch, target: Tensor | None = None) -> tuple[Tensor, dict[str, Any]]:  # noqa: ARG002
        """Return the squared error of the belief's mean prediction, not reduced: `B S` or `B T S`."""
        batch = self._episodes(model_in)
        data = Trajectories(batch.obs.cpu().numpy(), batch.act.cpu().numpy())
        self.extract()
        error = torch.as_tensor(self.analyse(data).predicted, device=self.device) - batch.obs[:, 1:]
        squared = error.float().square()
        return (squared if np.ndim(model_in.obs) == 3 else squared[:, 0]), {}

    def set_data_size(self, num_episodes: int, num_transitions: int) -> None:
        """Set the size of the whole data set, by which a minibatch is weighted against the prior."""
        self.num_data_episodes, self.num_data_transitions = num_episodes, num_transitions

    def _episodes(self, batch: TransitionBatch) -> EpisodeBatch:
        obs, act, next_obs, *_ = self._process_batch(batch)
        if obs.ndim == 2:
            obs, act, next_obs = obs[:, None], act[:, None], next_obs[:, None]
        if obs.ndim == 4:  # mbrl-lib's bootstrap iterators put the ensemble first; this model is no ensemble
            obs, act, next_obs = obs[0], act[0], next_obs[0]
        lengths = torch.full((len(obs),), act.shape[1], device=obs.device)
        return EpisodeBatch(torch.cat([obs, next_obs[:, -1:]], 1), act, lengths)

    def reset(self, obs: Obs | np.ndarray, rng: Rng = None, belief: Float[Tensor, "B k"] | None = None) -> State:
        """Begin imagined trajectories: the first context is drawn from `belief`, else from `initial`.

        A belief may be over `states` where contexts have phases.
        mbrl-lib's ModelEnv hands over an array, whatever its own annotation says.
        """
        obs = torch.as_tensor(obs, dtype=torch.float32, device=self.device)
        if self.states is not None:
            return {"obs": obs, **first_state(self.states, len(obs), belief, rng)}
        first = self._chain.initial.expand(len(obs), -1) if belief is None else belief
        return {"obs": obs, "context": torch.multinomial(first, 1, generator=rng).squeeze(-1)}

    def sample(self, act: Act, model_state: State, deterministic: bool = False, rng: Rng = None) -> Step:
        """Step every imagined trajectory in its own context, then draw the context that acts next."""
        obs, context = model_state["obs"], model_state["context"]
        slot = self.slots[context]
        with torch.no_grad():
            if deterministic:
                next_obs = self.dynamics.predict(obs, act, slot)
            else:
                next_obs = self.dynamics.sample(obs, act, slot, rng)
            if self.states is not None:
                return next_obs, None, None, {"obs": next_obs, **next_state(self.states, model_state["state"], rng)}
            next_context = torch.multinomial(self._chain.transition[context], 1, generator=rng).squeeze(-1)
        return next_obs, None, None, {"obs": next_obs, "context": next_context}

    # Texts and figures: drawn by a later room, see `mbrl_hdp.inference.views` -------------------------------------

    def summary(self, data: Any = None) -> str:
        """Return the report as text; with data, also what each context does and how clear the labels are."""
        return model_views().summary_text(self, data)

    def plot_contexts(
        self, data: Any, episodes: Sequence[int] | None = None, columns: Sequence[int | str] | None = None
    ) -> Any:
        """Return a matplotlib figure of contexts over time; episodes by number, columns by number or name.

        Example:
            >>> model.plot_contexts(df, episodes=[0], columns=["temp"]).savefig("contexts.png")
        """
        return model_views().plot_contexts(self, data, episodes, columns)

    def plot_transition(self, data: Any = None) -> Any:
        """Return a matplotlib figure of the transition matrices; with data, also the true one where it is known."""
        return model_views().plot_transition(self, data)

    def plot_stationary(self) -> Any:
        """Return a matplotlib figure of the share of every slot against the threshold of distillation."""
        return model_views().plot_stationary(self)

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return model_views().html(self)

    def save(self, save_dir: str | Path) -> None:
        """Write the model to a folder: safetensors and JSON, atomically; nothing that can run code."""
        from mbrl_hdp.inference.saving import save_model

        save_model(self, Path(save_dir))

    def load(self, load_dir: str | Path) -> None:
        """Read the parameters from a folder that `save` wrote; the parts must be the same."""
        from mbrl_hdp.inference.saving import load_parameters

        load_parameters(self, Path(load_dir))
