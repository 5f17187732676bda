"""Records that nobody changes behind another's back, and what a plugin's classes must have."""

import dataclasses
import importlib
import pkgutil

import pytest

import mbrl_hdp.belief
import mbrl_hdp.distil
import mbrl_hdp.inference
import mbrl_hdp.probability
from mbrl_hdp.distil.distiller import Distiller
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp.inference.prior import ContextPrior

ROOMS = mbrl_hdp.belief, mbrl_hdp.distil, mbrl_hdp.inference, mbrl_hdp.probability
# Settings are read from YAML by OmegaConf, a report is filled in at the end of a fit, runs and early stopping count.
CHANGEABLE = {"EarlyStop", "FitConfig", "FitReport", "Runs", "Schedule"}


def records(room):
    for found in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        if not found.ispkg:
            module = importlib.import_module(found.name)
            for value in vars(module).values():
                if dataclasses.is_dataclass(value) and isinstance(value, type) and value.__module__ == found.name:
                    yield value


@pytest.mark.parametrize("record", [record for room in ROOMS for record in records(room)], ids=lambda r: r.__name__)
def test_a_record_is_frozen_unless_it_has_to_change(record):
    assert record.__dataclass_params__.frozen is (record.__name__ not in CHANGEABLE)


@pytest.mark.parametrize(
    ("base", "needed"),
    [
        (ContextDynamics, {"log_prob", "log_prior", "predict", "reset_slots", "sample"}),
        (ContextPrior, {"model"}),
        (Distiller, {"keep"}),
    ],
)
def test_a_part_without_its_methods_cannot_be_built(base, needed):
    for name in needed:
        others = {other: lambda *_: None for other in needed if other != name}
        with pytest.raises(TypeError, match=f"abstract method '?{name}'?"):
            type("Mine", (base,), others)()
    assert base.__abstractmethods__ == needed
