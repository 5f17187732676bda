"""A cell of `newcontexts`: learn two contexts, open the chain again, go on with data that has two more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mbrl_hdp.experiments.studies.cartpole_fit import episodes, fitted, held_out_episodes, score
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.inference.schedule import FitConfig

if TYPE_CHECKING:
    from mbrl_hdp.experiments.studies.study import Results, Settings


def run(settings: Settings) -> Results:
    """Fit the first data, then the second from there with `reset="chain"`; score both."""
    second = settings | {"actuation": settings["then"]}
    first_data, second_data = episodes(settings), episodes(second)
    before = fitted(settings, first_data)
    config = FitConfig(**settings["fit"])
    after = fit(second_data, warm_start=before, reset="chain", seed=settings["seed"], config=config, progress=False)
    first_held_out, second_held_out = held_out_episodes(settings), held_out_episodes(second)
    return {
        "before": score(before, first_data, first_held_out),
        "old": score(after, first_data, first_held_out),
        "after": score(after, second_data, second_held_out),
        "slots_kept": bool(np.all(after.kept[before.kept])),
        "fit_time_s": before.report.fit_time_s + after.report.fit_time_s,
    }
