"""`peers`: other libraries' models on the data of `systems_fit`, given the true number of contexts, beside `fit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mbrl_hdp.envs.systems import SYSTEMS, linear
from mbrl_hdp.experiments.studies import peer_ar_hmm, peer_earlier, peer_residual_hmm, system_fit_cell, systems_fit
from mbrl_hdp.experiments.studies.study import CellRecord, Gate, Page, Results, Settings, Study, table

OURS, EARLIER = "fit", "earlier"
PEERS: dict[str, Callable[[Settings], Results]] = {
    "ar_hmm": peer_ar_hmm.run_cell,
    "residual_hmm": peer_residual_hmm.run_cell,
}
RUNS = {OURS: system_fit_cell.run_cell, EARLIER: peer_earlier.run_cell, **PEERS}
# These find the number of contexts themselves, and none of `fit`'s present settings counts for the others.
_FINDERS = (OURS, EARLIER)
_OWN_SETTINGS = (EARLIER, "ar_hmm")
LINEAR = frozenset(build().name for build in linear.SYSTEMS)
# Accuracies that differ by less are alike.
TIE = 0.005


def cells(seeds: Sequence[int] | None, is_quick: bool) -> list[Settings]:
    """Return the plain cells of `systems_fit`, by `fit` and by every peer."""
    plain = [cell for cell in systems_fit.cells(seeds, is_quick) if cell["variant"] == "plain"]
    return [cell | {"method": method} for method in RUNS for cell in plain]


def runner(settings: Settings) -> Callable[[Settings], Results]:
    """Return the function that runs a cell."""
    return RUNS[settings["method"]]


def run_cell(settings: Settings) -> Results:
    """Run one cell."""
    return runner(settings)(settings)


def resolve(settings: Settings) -> Settings:
    """Return a cell's settings, with the defaults of `fit` where it is called."""
    return dict(settings) if settings["method"] in _OWN_SETTINGS else systems_fit.resolve(settings)


def page(records: list[CellRecord]) -> Page:
    """Show the accuracy of every method on every system."""
    found = {(record.settings["system"], record.settings["method"]): record for record in records}
    names = [name for name in SYSTEMS if any((name, method) in found for method in RUNS)]
    rows = [[name, _kind(name), *(_shown(found.get((name, method))) for method in RUNS)] for name in names]
    body = (
        "The plain data of [systems_fit](systems_fit.md) (100 episodes of 100 random actions, one seed). The peers are "
        "given the true number of contexts, `fit` is not. `earlier`: `fit` of commit "
        f"{peer_earlier.COMMIT}, with its own defaults, before there was a structure search. "
        "`ar_hmm`: dynamax's autoregressive hidden Markov model with "
        "sticky transitions and the action as an input, best of five starts, 1 % of noise on the changes (exact data "
        "makes its covariances singular). `residual_hmm`: hmmlearn's Gaussian model of the residuals of one pooled "
        "head with features chosen from the data, best of five starts. Accuracy after the best matching of contexts, "
        "CPU s. ssm and pyhsmm are left out: pip could not build them. For the peers: `pip install dynamax hmmlearn` "
        "in an environment of its own beside this package, then `mbrl-hdp reproduce peers` there.\n\n"
    )
    columns = ["system", "kind", *(f"`{method}`" for method in RUNS)]
    return Page(body + table(columns, rows), [_gate(found, names, is_linear) for is_linear in (False, True)])


def _kind(name: str) -> str:
    return "linear" if name in LINEAR else "nonlinear"


def _shown(record: CellRecord | None) -> str:
    if record is None:
        return "-"
    found, true = record.results["found"], record.results["true"]
    number = f" ({found}/{true})" if record.settings["method"] in _FINDERS else ""
    return f"{record.results['accuracy']:.3f}{number} {record.results['cpu_s']:.0f}"


def _gate(found: dict[tuple[str, str], CellRecord], names: list[str], is_linear: bool) -> Gate:
    """Require `fit` ahead of every peer on nonlinear systems, and not behind on linear ones.

    Where a peer labels all but `TIE` right, nobody can be ahead by more: there `fit` must not be behind.
    """
    group = [
        name
        for name in names
        if (name in LINEAR) == is_linear and all((name, each) in found for each in (OURS, *PEERS))
    ]
    full = [name for name in group if is_linear or _best_peer(found, name) > 1.0 - TIE]
    good = [
        name for name in group if _accuracy(found, name) - _best_peer(found, name) > (-TIE if name in full else 0.0)
    ]
    planned = sum((name in LINEAR) == is_linear for name in SYSTEMS)
    words = f"not behind by {TIE} on linear systems"
    if not is_linear:
        words = f"ahead of every peer on nonlinear systems; not behind by {TIE} where a peer has more than {1.0 - TIE}"
    is_met = len(good) == planned if len(group) == planned else None
    ties = "" if is_linear else f" ({len(full)} of them where a peer has so much)"
    return Gate(f"`fit` {words}", f"{len(good)} of {len(group)}{ties}", is_met)


def _accuracy(found: dict[tuple[str, str], CellRecord], name: str) -> float:
    return float(found[name, OURS].results["accuracy"])


def _best_peer(found: dict[tuple[str, str], CellRecord], name: str) -> float:
    return max(float(found[name, method].results["accuracy"]) for method in PEERS)


STUDY = Study(
    "peers", "Other libraries on the same data", cells, run_cell, page, resolve, reads=("systems_fit",), runner=runner
)
