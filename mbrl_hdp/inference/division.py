"""New contexts beside known ones: the contexts of a model are divided by what their own heads leave over.

With `reset="chain"` a model goes on with data that may have contexts it does not know. The structure search begins with
one context and features of its own; where these explain the data worse than the known heads do, it may miss contexts
that the residuals of the known heads show clearly. So, as long as the best run would be better with a context divided
(`residual_split`) by as much as the search asks of a division, a further candidate starts from such a division. It is
refused where the rules of the search speak against its contexts; else held-out episodes decide.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.inference.model import ContextModel
from mbrl_hdp.inference.progress import FitProgress
from mbrl_hdp.inference.residual_split import Halves, divisions, look_at
from mbrl_hdp.inference.revisit import with_copied_heads
from mbrl_hdp.inference.runs import Runs
from mbrl_hdp.inference.schedule import SEARCHED
from mbrl_hdp.inference.search.search import LEAST_GAIN
from mbrl_hdp.inference.starts import DIVIDED, Contexts, Start
from mbrl_hdp.workers import OpenWorkers


def divide_on(runs: Runs, data: Trajectories, bar: FitProgress, workers: OpenWorkers) -> None:
    """Train candidates with divided contexts until the best run would gain nothing by a division.

    The known model is divided first: its heads are whole, while those of a run that missed a context are a mixture.
    """
    assert runs.warm_start is not None
    base = runs.warm_start
    for _ in range(base.task.max_contexts):
        best = runs.best_model
        if look_at(best, data).gain < LEAST_GAIN:
            return
        start = divided(base, data)
        runs.take_all([] if start is None else [start], bar, workers)
        if runs.best_model is not best:
            base = runs.best_model
        elif base is best:
            return
        else:
            base = best


def divided(model: ContextModel, data: Trajectories) -> Start | None:
    """Return the candidate in which every context that promises a gain is two; None where none does.

    The half that the context's head explains better keeps its slot; the other one takes a free slot, with a copy of the
    head. Where slots are short, the divisions that promise most are made.
    """
    found = model.analyse(data)
    promising = {context: halves for context, halves in divisions(model, found).items() if halves.gain >= LEAST_GAIN}
    kept = model.slots.cpu().numpy()
    free = [slot for slot in range(model.task.max_contexts) if slot not in kept]
    chosen = sorted(promising, key=lambda context: -promising[context].gain)[: len(free)]
    if not chosen:
        return None
    labels = np.where(data.is_observed, found.most_likely, -1)
    probability = _probability(labels, model.num_contexts, [(context, promising[context]) for context in chosen])
    places = np.concatenate([kept, free[: len(chosen)]]).astype(int)
    parents = np.concatenate([kept, kept[chosen]])
    contexts = Contexts(probability, _counted_chain(probability), places)
    begun = with_copied_heads(model, places, parents)
    return Start(DIVIDED, model.parts.dynamics, SEARCHED, contexts, model=begun)


def _probability(
    labels: Int[np.ndarray, "N T"], num_known: int, chosen: list[tuple[int, Halves]]
) -> Float[np.ndarray, "N T n"]:
    """Return the probability of the known contexts, then of the new halves; zero where nothing was observed."""
    flat = np.zeros((labels.size, num_known + len(chosen)))
    observed = np.flatnonzero(labels >= 0)
    flat[observed, labels.ravel()[observed]] = 1.0
    for new, (context, halves) in enumerate(chosen, num_known):
        flat[observed[halves.index][:, None], [context, new]] = halves.weight
    return flat.reshape(*labels.shape, -1)


def _counted_chain(probability: Float[np.ndarray, "N T n"]) -> Float[np.ndarray, "n n"]:
    """Return the chain by the steps between likely contexts; one more move of every kind is counted."""
    counts = 1.0 + np.einsum("nti,ntj->ij", probability[:, :-1], probability[:, 1:])
    return np.asarray(counts / counts.sum(1, keepdims=True))
