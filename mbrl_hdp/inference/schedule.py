"""How a model is trained: budget, learning rates and the order in which its parts begin to move.

What else a recipe is made of stands in `recipes.py`. The robust one holds a sticky chain while the heads part, and only
then lets the chain and the distillation move. Where contexts differ little, the head that first learns what they share
takes all data and the others starve; so `pooled` lets one head learn that and starts all of them from there. Where they
differ strongly, tempering the likelihood is best. Which one suits cannot be seen from the data, so restarts take turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mbrl_hdp.settings import choice, setting


@dataclass
class Schedule:
    """When what happens, as fractions of a run's steps."""

    name: str = setting("plain", "name of the schedule, for logs")
    pool_until: float = setting(
        0.0, "let one head learn what all contexts share until here; all heads start from it", at_least=0.0, below=1.0
    )
    pool_rate: float = setting(3.0, "factor on that head's learning rate until then", above=0.0)
    spread: float = setting(
        1.0, "how far the heads then start from the shared one, in units of the spread of fresh heads", above=0.0
    )
    temper_from: float = setting(
        1.0, "power of the likelihood at the first step; 1 is no tempering", above=0.0, at_most=1.0
    )
    temper_until: float = setting(0.4, "fraction of the run at which the power reaches 1", at_least=0.0, at_most=1.0)
    freeze_until: float = setting(0.3, "hold the sticky chain until here", at_least=0.0, at_most=1.0)
    distil_from: float = setting(0.5, "mask spurious contexts from here on", at_least=0.0, at_most=1.0)
    keep_two_until: float = setting(0.9, "until here, never mask below two contexts", at_least=0.0, at_most=1.0)
    decay_from: float = setting(
        0.7, "let the learning rate fall linearly to a tenth from here on", at_least=0.0, at_most=1.0
    )

    rate_factor: float = setting(1.0, "factor on all learning rates", above=0.0, at_most=1.0)

    def temperature(self, progress: float) -> float:
        """Return the power of the likelihood at a fraction of the run."""
        if self.temper_from >= 1.0 or progress >= self.temper_until:
            return 1.0
        return self.temper_from + (1.0 - self.temper_from) * progress / self.temper_until

    def rate(self, progress: float) -> float:
        """Return the factor on the learning rates at a fraction of the run."""
        if progress <= self.decay_from or self.decay_from >= 1.0:
            return self.rate_factor
        return self.rate_factor * (1.0 - 0.9 * (progress - self.decay_from) / (1.0 - self.decay_from))

    def last_event(self) -> float:
        """Return the fraction of the run after which only the learning rates still change.

        Events at fraction 1 never happen in a run and do not count.
        """
        events = [0.0, self.pool_until, self.freeze_until]
        if self.temper_from < 1.0:
            events.append(self.temper_until)
        if self.distil_from < 1.0:
            events += [self.distil_from, self.keep_two_until]
        return max(event for event in events if event < 1.0)


POOLED = Schedule("pooled", pool_until=0.2, freeze_until=0.6, distil_from=0.7)
TEMPERED = Schedule("tempered", temper_from=0.1)
PLAIN = Schedule("plain", freeze_until=0.7, distil_from=0.8)
REFIT = Schedule("refit", freeze_until=0.0, distil_from=0.0, keep_two_until=0.0, decay_from=0.0, rate_factor=0.2)
SEARCHED = Schedule("search", freeze_until=0.0, distil_from=0.2, keep_two_until=0.0, decay_from=0.0)
POLISH = Schedule("polish", freeze_until=0.0, distil_from=1.0, decay_from=0.0)
LITERAL = Schedule("literal", freeze_until=0.0, distil_from=0.0, keep_two_until=0.0, decay_from=1.0)


@dataclass
class FitConfig:
    """Settings of `fit`."""

    recipe: str = choice(
        ("robust", "literal"),
        "robust: what finds the contexts on every seed; literal: the paper's text, one run (docs/recipes.md)",
    )
    start: str = choice(
        ("search", "random"),
        "search: from the contexts that a structure search finds, beside random heads, in closed form where the heads "
        "have one (sparse, linear); random: random heads, gradients throughout",
    )
    num_contexts: int | None = setting(
        None, "number of contexts, where it is known; null: found from the data", at_least=1
    )
    regions: str = choice(
        ("forbid", "allow"),
        "forbid: a context must explain more than state and action could in one larger head; allow: contexts may be "
        "regions of the state space (behaviours and their phases)",
    )
    search_again: str = choice(
        ("due", "always"),
        "when a refit searches its data for other contexts: due (a context would be better as two, and more is known "
        "than at the last search) or always",
    )
    halves_within_s: float = setting(
        60.0,
        "where the structure search took no more processor seconds than this, contexts are found anew in each half of "
        "the episodes, and the verdict may be `sure`; 0: never",
        at_least=0.0,
    )
    num_steps: int = setting(500, "gradient steps of one run", at_least=1)
    batch_size: int = setting(100, "episodes in a minibatch", at_least=1)
    learning_rate: float = setting(5e-3, "learning rate of the transition heads", above=0.0)
    row_learning_rate: float = setting(
        1e-2, "learning rate of the chain where it takes no natural steps (mle, own priors, recipe=literal)", above=0.0
    )
    top_learning_rate: float | None = setting(
        None, "learning rate of the shared weights; null means the recipe's: .05, literal .01", above=0.0
    )
    natural_step: float = setting(0.05, "step size of the natural gradient of the chain", above=0.0, at_most=1.0)
    stay: float = setting(0.8, "diagonal of the chain that training starts from", at_least=0.0, at_most=1.0)
    start_strength: float = setting(1000.0, "pseudo-counts a row behind that chain", above=0.0)
    num_restarts: int = setting(3, "runs by gradients of which the best on held-out data is taken", at_least=1)
    polish_steps: int = setting(
        1000,
        "further steps of the chosen run, with its contexts settled; networks take fewer where more make held-out "
        "episodes less likely (docs/recipes.md)",
        at_least=0,
    )
    holdout: float = setting(
        0.1, "share of the episodes kept aside for choosing among the runs", at_least=0.0, below=1.0
    )
    clip: float = setting(10.0, "gradients are cut elementwise at this size", above=0.0)
    patience: int = setting(
        0,
        "end a run after this many checks without improvement and take its best state; 0, the default, takes all steps",
        at_least=0,
    )
    check_every: int = setting(20, "steps between two such checks", at_least=1)
    tolerance: float = setting(
        1e-3,
        "what counts as an improvement: log-likelihood per transition of the episodes kept aside (polish, or none "
        "kept aside: the mean bound per transition since the last check)",
        at_least=0.0,
    )
    schedules: list[Schedule] = field(default_factory=lambda: [replace(POOLED), replace(TEMPERED), replace(PLAIN)])
