"""The context model of a run: learned from all of its episodes, then refitted as they become more (Algorithm 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mbrl_hdp.experiments.fit_settings import fit_config, model_parts
from mbrl_hdp.experiments.novelty import calibrate_alarm, training_data
from mbrl_hdp.inference.fit import fit
from mbrl_hdp.seeding import sub_seed

if TYPE_CHECKING:
    from mbrl_hdp.experiments.loop import Run
    from mbrl_hdp.experiments.metrics import RunLog, SilentLog


def update_model(run: Run, epoch: int, log: RunLog | SilentLog, is_alarmed: bool = False) -> bool:
    """Update the generative model by the ELBO on all data and distil; later epochs go on from what is known.

    After a novelty alarm it is updated even if it is not due, and searches for new contexts.
    """
    if not (epoch == 0 or is_alarmed or epoch % run.budget.model_every == 0):
        return False
    data = training_data(run)
    log.says(work := f"epoch {epoch}: learning the contexts of {data.num_episodes} episodes")
    model = fit(
        data,
        **model_parts(run.config),
        max_contexts=run.config.max_contexts,
        seed=sub_seed(run.config.seed, "model", epoch),
        config=fit_config(run.config, run.budget, is_first=epoch == 0, is_alarmed=is_alarmed),
        warm_start=run.model,
        dt=run.task.dt,
        past=0,
        angles=run.task.angle_columns or None,
        progress=lambda part: log.says(f"{work}, {part}"),
        registry=run.registry,
        device=run.config.device,
    )
    run.use_model(model)
    calibrate_alarm(run)
    return True
