"""The novelty alarm of a model: it is raised when no known context explains the last steps.

A step's score is how badly the best context predicts it: the smallest -log p(next_obs | obs, act, context), each
context's relative to its own usual value. Not the belief's density: a switch between known contexts is nothing new.
Steps from states or with actions outside the range of the held-out data are not judged: there the heads extrapolate,
and that they predict badly says nothing about contexts. `mbrl_hdp.belief.novelty` turns scores into a test with a
stated rate of false alarms.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from mbrl_hdp.belief.novelty import Course, Detector, NullTable, calibrate, run
from mbrl_hdp.data.past import PastWindow
from mbrl_hdp.errors import ConfigError, DataError
from mbrl_hdp.inference.analysis import Analysis
from mbrl_hdp.inference.row_density import fill_row

DEFAULT_STEPS_PER_ALARM = 100_000
# Of a context with fewer held-out steps the usual density is not known; it takes that of all steps.
_FEWEST_OF_CONTEXT = 20
# Share of the held-out steps below and above the range of every column.
_OUTSIDE = 0.005


@dataclass(frozen=True)
class NoveltyCalibration:
    """What held-out episodes say about the scores of a model; saved with it.

    Attributes:
        usual: median of -log p of the steps of every context.
        low: lower end of the range of every observation, then every action, that is judged.
        high: its upper end.
        table: how scores behave while nothing is new.
    """

    usual: list[float]
    low: list[float]
    high: list[float]
    table: NullTable

    @staticmethod
    def of(found: Analysis, confidence: float = 0.95) -> NoveltyCalibration:
        """Calibrate on what a model says about episodes that it was not trained on.

        Raises:
            DataError: if there are too few steps.
        """
        is_observed = found.data.is_observed
        usual = _usual(found.log_lik.double().cpu().numpy()[is_observed], found.most_likely[is_observed])
        low, high = _range(_inputs(found)[is_observed])
        rest = NullTable([], [], 0.0, 0.0, 0.0, 0, confidence)
        scaled = NoveltyCalibration(usual.tolist(), low.tolist(), high.tolist(), rest)
        return replace(scaled, table=calibrate(scaled.scores(found), confidence))

    def scores(self, found: Analysis) -> Float[np.ndarray, "N T"]:
        """Return the scores of recorded steps; NaN where a step is not judged."""
        inputs = _inputs(found)
        is_inside = ((inputs >= np.asarray(self.low)) & (inputs <= np.asarray(self.high))).all(-1)
        scores = score(found.log_lik.double().cpu().numpy(), np.asarray(self.usual))
        return np.where(found.data.is_observed & is_inside, scores, np.nan)

    def words(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @staticmethod
    def from_words(words: dict[str, Any]) -> NoveltyCalibration:
        """Build it from JSON."""
        return NoveltyCalibration(**{**words, "table": NullTable(**words["table"])})


def check_calibration(found: NoveltyCalibration | None) -> NoveltyCalibration:
    """Return a calibration.

    Raises:
        DataError: if there is none.
    """
    if found is None:
        raise DataError(
            "the novelty alarm of this model is not calibrated; call model.novelty_alarm(held_out_data), or learn it "
            "with `mbrl-hdp fit ... alarm_holdout=0.2`"
        )
    return found


def _usual(log_lik: Float[np.ndarray, "n k"], labels: Int[np.ndarray, " n"]) -> Float[np.ndarray, " k"]:
    """Return the median of -log p of the steps labelled with every context."""
    own = -np.take_along_axis(log_lik, labels[:, None], 1)[:, 0]
    groups = [own[labels == context] for context in range(log_lik.shape[1])]
    return np.array([np.median(group if len(group) >= _FEWEST_OF_CONTEXT else own) for group in groups])


def score(log_lik: Float[np.ndarray, "*n k"], usual: Float[np.ndarray, " k"]) -> Float[np.ndarray, "*n"]:
    """Return how badly the best context predicts a step: min_k(-log p_k - usual_k); NaN where nothing is known.

    Example:
        >>> score(np.array([[-1.0, -9.0], [-7.0, -8.0]]), np.array([0.5, 4.0]))
        array([0.5, 4. ])
    """
    return np.asarray((-log_lik - usual).min(-1))


def _inputs(found: Analysis) -> Float[np.ndarray, "N T inputs"]:
    return np.concatenate([found.data.obs[:, :-1], found.data.act], -1)


def _range(inputs: Float[np.ndarray, "n inputs"]) -> tuple[Float[np.ndarray, " inputs"], Float[np.ndarray, " inputs"]]:
    low, high = np.quantile(inputs, [_OUTSIDE, 1.0 - _OUTSIDE], axis=0)
    return low, high


class NoveltyAlarm:
    """Raises an alarm when no known context explains the last steps; `model.novelty_alarm()` makes one.

        online, alarm = model.online_filter(), model.novelty_alarm(held_out)
        online.reset(obs)
        alarm.begin_episode()
        belief = online.update(act, next_obs)          # after every step
        if alarm.update(obs, act, online.log_lik): ...

    Args:
        past: the window of a model that looks at earlier steps, whose range counts, too; None for other models.

    Attributes:
        calibration: what it was calibrated on.
        false_alarms_per: steps between false alarms, on average, at least.
    """

    def __init__(
        self,
        calibration: NoveltyCalibration,
        false_alarms_per: int | float = DEFAULT_STEPS_PER_ALARM,
        past: PastWindow | None = None,
    ) -> None:
        if not false_alarms_per > 1:
            raise ConfigError(f"false_alarms_per is a number of steps above 1, got {false_alarms_per}")
        self.calibration, self.false_alarms_per = calibration, float(false_alarms_per)
        self._usual, self._low, self._high = map(np.asarray, (calibration.usual, calibration.low, calibration.high))
        self._detector = Detector(calibration.table, self.false_alarms_per)
        self._past, self._obs = past, np.zeros(0)

    @property
    def share(self) -> float:
        """How far the evidence for something new has come, from 0 to 1 (alarm), in logarithms."""
        return float(np.clip(self._detector.log_evidence / self._detector.log_limit, 0.0, 1.0))

    def begin_episode(self) -> None:
        """Begin an episode; the evidence stays, since what is new may span several."""
        self._detector.begin_episode()
        self._obs = np.zeros(0)

    def clear(self) -> None:
        """Forget all evidence."""
        self._detector.clear()

    def update(
        self, obs: Float[np.ndarray, " S"], act: Float[np.ndarray, " A"], log_lik: Float[np.ndarray, " k"]
    ) -> bool:
        """Take a step; return whether it raises an alarm, after which the evidence starts again at 0.

        Args:
            obs: observation before the step.
            act: action of the step, as it was recorded.
            log_lik: log-likelihood of the step in every context, `online.log_lik`; NaN for an incomplete observation.
        """
        inputs = np.concatenate([obs, act if self._past is None else self._with_past(self._past, obs, act)])
        is_inside = bool(((inputs >= self._low) & (inputs <= self._high)).all())
        return self._detector.update(float(score(log_lik, self._usual)) if is_inside else np.nan)

    def _with_past(self, window: PastWindow, obs: Any, act: Any) -> Float[np.ndarray, " W"]:
        """Return an action with its past; the change of the step before is known only now."""
        now = np.zeros(window.act_dim)
        fill_row(now, act, window.label)
        if self._obs.size:
            window.move(self._obs, obs)
        else:
            window.clear()
        window.present[:] = now
        self._obs = np.array(obs, dtype=np.float64)
        return window.row

    def scan(self, found: Analysis) -> Course:
        """Return the evidence after every step of recorded episodes, and the alarms; starts without evidence."""
        return run(self.calibration.table, self.calibration.scores(found), self.false_alarms_per)
