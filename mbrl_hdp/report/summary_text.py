"""The summary of a fit as lines of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mbrl_hdp.inference.starts import FULL, STUDENT
from mbrl_hdp.report.effects import effect_lines, effect_table

if TYPE_CHECKING:
    from mbrl_hdp.report.summary import FitSummary, Truth


def summary_text(summary: FitSummary) -> str:
    """Return what is printed about a fit: blocks of lines with an empty line between them."""
    blocks = [
        _found(summary),
        _contexts(summary),
        _what_they_do(summary),
        _how_sure(summary),
        _levels(summary),
        _truth(summary),
        _what_to_change(summary),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _found(summary: FitSummary) -> list[str]:
    contexts = _contexts_found(summary.num_contexts)
    return [
        f"{contexts} in {_steps_of(summary)} of {summary.num_episodes} "
        f"{'episode' if summary.num_episodes == 1 else 'episodes'} "
        f"(at most {summary.max_contexts} were allowed; prior {summary.parts['prior']}, dynamics "
        f"{summary.parts['dynamics']}, seed {summary.seed}, {summary.wall_time_s:.0f} s)",
        f"How sure: {summary.advice.verdict}",
        *(f"Note: {remark}" for remark in summary.remarks),
    ]


def _steps_of(summary: FitSummary) -> str:
    """Return how many steps there are; without data, whose notes count the holes, also how many are complete."""
    if summary.num_steps is None:
        return f"{summary.num_transitions} steps without missing values"
    has_holes = summary.counted is None and summary.num_transitions != summary.num_steps
    complete = f" ({summary.num_transitions} without missing values)" if has_holes else ""
    return f"{summary.num_steps} steps{complete}"


def _contexts_found(count: int) -> str:
    return "1 context" if count == 1 else f"{count} contexts"


def _contexts(summary: FitSummary) -> list[str]:
    columns = "".join(f"{f'to {k}':>8}" for k in range(summary.num_contexts))
    head = f"{'context':<8}{'share of time':>14}{'stays for':>14}{'in labels':>11}{'region':>8}"
    lines = [f"{head}   next context:{columns}"]
    for k in range(summary.num_contexts):
        row = "".join(f"{value:>8.3f}" for value in summary.transition[k])
        dwell = f"{summary.mean_dwell[k]:.1f} steps" if summary.mean_dwell[k] < 1e4 else "for ever"
        share = summary.regions[k]
        region = "-" if share is None else f"{share:.0%}"
        counted = "-" if summary.counted is None else _steps(summary.counted.dwells[k].mean)
        lines.append(f"{k:<8}{summary.stationary[k]:>14.1%}{dwell:>14}{counted:>11}{region:>8}   {'':>13}{row}")
    if summary.counted is not None:
        lines.append("stays for: mean under the model; in labels: mean of the stays counted in this data")
    if any(share is not None for share in summary.regions):
        lines.append(
            "region: how much of when a context is left follows from state and action; a hidden one is near 0 %"
        )
    return lines + _lasting(summary)


def _steps(mean: float | None) -> str:
    return "never left" if mean is None else f"{mean:.1f}"


def _lasting(summary: FitSummary) -> list[str]:
    """Return in words how long contexts last, where that was learned."""
    found = summary.duration
    if "sizes" not in found:
        return []
    sizes = ", ".join(map(str, found["sizes"]))
    words = {
        "minimum": f"at least {sizes} steps, then geometric",
        "negative_binomial": f"negative binomial, {sizes} phases",
    }.get(found["name"], f"{found['name']}, {sizes} phases")
    gains = [f"{each['name']} {each['gain']:+.1f} (+- {each['error']:.1f})" for each in found["compared"][1:]]
    compared = f"; gain over geometric on held-out data, in nats: {', '.join(gains)}" if gains else ""
    return [f"stays: {'geometric' if found['name'] == 'geometric' else words}{compared}"]


def _what_they_do(summary: FitSummary) -> list[str]:
    lines: list[str] = []
    if len(summary.effects) > 1:
        effects = [*effect_lines(summary.effects), *effect_table(summary.effects, summary.names)]
        lines += ["What each context does (linearised at the data):", *(f"  {line}" for line in effects)]
    if summary.equations:
        lines += ["What each context does in a step:"]
        for number, equations in enumerate(summary.equations):
            lines += [f"  context {number}", *(f"    {line}" for line in equations)]
    return lines


def _dropped_below(summary: FitSummary) -> str:
    end = f"{summary.threshold:.1%}"
    is_higher = summary.train_threshold is not None and summary.train_threshold > (summary.threshold or 0.0)
    return f"{summary.train_threshold:.1%} while learning and {end} at the end" if is_higher else end


def _largest_dropped(dropped: list[float], summary: FitSummary) -> str:
    words = "the dropped slot has" if len(dropped) == 1 else f"largest of {len(dropped)} dropped slots"
    limit = max(summary.threshold or 0.0, summary.train_threshold or 0.0)
    # It was below the limit when it was dropped; on a short log the prior then expects more of contexts not yet seen.
    why = ", which the prior expects of a slot without data" if max(dropped) > limit else ""
    return f"{words} {max(dropped):.2%}{why}"


def _how_sure(summary: FitSummary) -> list[str]:
    dropped = [mass for slot, mass in enumerate(summary.slot_mass) if slot not in summary.slots]
    lines = ["What speaks for it:"]
    if summary.threshold is not None:
        lines.append(
            f"  smallest kept share {min(summary.stationary):.1%}; "
            + (f"{_largest_dropped(dropped, summary)}; " if dropped else "no slot was dropped; ")
            + f"slots below {_dropped_below(summary)} are dropped"
        )
    for number, run in enumerate(summary.runs, 1):
        lines.append(
            f"  run {number} ({_run_name(run)}): {_contexts_found(run['num_contexts'])}, log-likelihood per step "
            f"{run['held_out_log_likelihood']:.3f}, prediction error {run['held_out_rmse']:.3f}"
            + ("  <- taken" if run["taken"] else f", labels agree {run.get('agreement', math.nan):.2f}")
        )
    if summary.runs:
        scored = "held-out data" if summary.is_held_out else "the data learned from; none was held out"
        capped = "; an error counts at most as the spread of the changes, since tails are heavy"
        lines.append(f"  (log-likelihood and prediction error: of {scored}{capped if 'far' in summary.search else ''})")
    if summary.half_agreement:
        listed = " and ".join(f"{value:.2f}" for value in summary.half_agreement)
        lines.append(f"  labels agree {listed} with those of models learned from each half of the data alone")
    if summary.half_agreement or len(summary.runs) > 1:
        lines.append("  (agreement: adjusted Rand index; 1: the same labels, 0: chance)")
    if "num_contexts" in summary.search:
        lines.append(f"  the structure search found {summary.search['num_contexts']} before these runs")
    if summary.search.get("skipped"):
        lines.append(f"  not needed: {', '.join(summary.search['skipped'])}; the runs above leave nothing to explain")
    lines += [f"  refused: {words}" for words in summary.search.get("refused", [])]
    if summary.certainty is not None:
        lines.append(f"  mean posterior probability of the most likely context of a step: {summary.certainty:.3f}")
    return lines


def _run_name(run: dict[str, Any]) -> str:
    kind = {STUDENT: ", heavy tails", FULL: ", correlated noise"}.get(run.get("noise", ""), "")
    return f"{run['dynamics']}{kind}, {run['schedule']}" if "dynamics" in run else str(run["schedule"])


def _levels(summary: FitSummary) -> list[str]:
    """Return the tree of merges, one level a line."""
    if len(summary.levels) < 2:
        return []
    lines = ["With fewer contexts, model.at_level(n) (evidence lost per step, in nats):"]
    for level in summary.levels[1:]:
        groups = "   ".join("+".join(map(str, group)) for group in level["groups"])
        bound = "at most " if level["is_approximate"] else ""
        # The error is that of a mean over episodes; one episode has none.
        error = f" (+- {level['error']:.3f})" if summary.num_episodes > 1 else ""
        lines.append(f"  {len(level['groups'])}: {bound}{level['loss']:.3f}{error}   {groups}")
    return lines


def _truth(summary: FitSummary) -> list[str]:
    truth = summary.truth
    if truth is None:
        return []
    delay = truth.switch_delay
    seen = "no switches" if delay is None else f"switches seen after {delay:.2f} steps on average"
    lines = [
        f"Against the {truth.num_contexts} true contexts in the data:",
        f"  accuracy {truth.accuracy:.4f}; transition error {truth.transition_error:.4f}; {seen}",
        "  steps by learned (row) and true (column) context:",
    ]
    return lines + [f"  {line}" for line in _confusion(truth, summary.names.contexts)]


def _confusion(truth: Truth, known: Sequence[str]) -> list[str]:
    """Return the table of steps; columns have the names of the true contexts, or `true 0`, `true 1`, ..."""
    names = [known[k] if k < len(known) else f"true {k}" for k in range(len(truth.confusion[0]))]
    widths = [max(9, len(name) + 2) for name in names]
    head = f"{'':<10}" + "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    rows = (
        f"{f'context {k}':<10}" + "".join(f"{count:>{width}}" for count, width in zip(row, widths, strict=True))
        for k, row in enumerate(truth.confusion)
    )
    return [head, *rows]


def _what_to_change(summary: FitSummary) -> list[str]:
    return ["If it looks wrong:", *(f"  - {line}" for line in summary.advice.suggestions)]
