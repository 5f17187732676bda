"""The state of all studies in one table: what is finished, what is stale, which gates are met, ours beside the paper's.

README.md and docs/results/README.md hold such tables between markers; `mbrl-hdp reproduce --readme` writes them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mbrl_hdp.data.atomic import atomic_path
from mbrl_hdp.errors import DataError
from mbrl_hdp.experiments.studies import load_study, study_names
from mbrl_hdp.experiments.studies.records import read_records
from mbrl_hdp.experiments.studies.study import CURRENT, MARK, Gate, Study, table

BEGIN, END = "<!-- results: written by mbrl-hdp reproduce --readme -->", "<!-- results: end -->"

# What a study asks; those of the paper first, in its order.
QUESTIONS = {
    "resultA": "Result A: do three priors find the contexts? chains, time courses, lucky and unlucky seeds",
    "table1": "Table 1: mass of the third context by K and threshold",
    "tableS3": "Table S3: how far does the chain depend on K? (cells of table1)",
    "resultB": "Result B: does distillation in training regularise? (cells of table1)",
    "table2": "Table 2: returns on cart-pole with hard and soft failures, every agent",
    "resultC": "Result C: learning curves, what GPMM and RNN-PPO take for the context (cells of table2)",
    "table3": "Table 3: returns on the drone and the intersection",
    "baselines": "the agents of Table 2 that are not ours (its cells), the paper's protocol beside ours",
    "rnn_variants": "appendix: other architectures of RNN-PPO",
    "nu_study": "appendix: a point estimate of the shared weights against a Beta distribution",
    "merging": "appendix: six contexts, does a threshold merge them?",
    "nonmarkov": "appendix: contexts that depend on the one before",
    "statedependent": "appendix: contexts that depend on the position",
    "newcontexts": "appendix: two contexts are learned, then two more",
    "sixteen": "appendix: sixteen contexts on a ring",
    "theorem1": "Theorem 1 on random chains, by formula and by simulation",
    "theorem3": "Theorems 2 and 3 checked exactly on small C-MDPs",
    "settings": "hyper-parameters: the paper's beside ours, and what it leaves open",
    "sample_efficiency": "how many real episodes does C-CEM need? the figure that the paper lacks",
    "robust": "does every seed find the two contexts of cart-pole hard?",
    "soft": "a soft failure with a high threshold: one context, as the paper says?",
    "priors": "Dirichlet and no prior, and the threshold that each needs",
    "recipes": "the paper's recipe as written beside the robust one",
    "small_data": "a hundred trajectories instead of 500",
    "chain_bias": "does the learned chain switch as often as the data?",
    "durations": "do contexts last as long as in the data, and is geometric taken where the chain is Markov?",
    "durations_control": "what does it earn C-CEM to know how long a context has lasted?",
    "raw_angles": "cart-pole hard with a raw angle and `dynamics=auto`, no hints",
    "twelve_fit": "are the contexts of the drone and the intersection found, with the tasks' own transition models?",
    "twelve_auto": "the same with `dynamics=auto`, no hints",
    "twelve_variants": "drone and intersection with other switch rates, starts and actuations: C-CEM beside ceilings",
    "systems": "are the contexts of systems that nobody prepared found with defaults only?",
    "systems_fit": "what does `fit` with pure defaults say about these systems, and how often is its verdict right?",
    "systems_control": "does control with nothing but defaults reach the same planner that knows the truth?",
    "logs": "what does `fit` with pure defaults say about logs as strangers record them?",
    "peers": "dynamax and hmmlearn on the same data, with the true number (cells of systems_fit)",
    "novelty": "a context that nobody has seen appears: how soon is it noticed, how often falsely, what is learned?",
    "belief_reliability": "is the filter right as often as it says? (on the models of novelty)",
    "sbc": "is the posterior of the chain right as often as it says? simulation-based calibration",
    "scaling": "how does the time of the structure search grow with transitions and contexts?",
}
# Those of README.md.
PAPER = tuple(QUESTIONS)[: tuple(QUESTIONS).index("robust")]


@dataclass(frozen=True)
class StudyState:
    """What is known of a study.

    Attributes:
        name: word on the command line.
        num_cells: cells that it plans.
        num_finished: cells that were run, stale ones included.
        num_stale: cells that were run with other code or settings than the present ones.
        gates: its requirements.
        headline: its finding in one line; empty where nothing has run or it has none.
        minutes: minutes of one thread that its finished cells took.
    """

    name: str
    num_cells: int
    num_finished: int
    num_stale: int
    gates: Sequence[Gate]
    headline: str
    minutes: float

    @property
    def cell_words(self) -> str:
        """Finished of planned cells, with a mark where some are stale."""
        if not self.num_cells:
            return "-"
        return f"{self.num_finished} of {self.num_cells}{self._mark}"

    @property
    def gate_words(self) -> str:
        """How many gates are met, missed and open, with a mark where cells are stale."""
        counts = [(word, sum(gate.is_met is value for gate in self.gates))
                  for word, value in (("met", True), ("missed", False), ("open", None))]  # fmt: skip
        words = ", ".join(f"{count} {word}" for word, count in counts if count)
        return f"{words}{self._mark}" if words else "-"

    @property
    def missed(self) -> list[str]:
        """Gates that are missed, with what was found."""
        return [f"{gate.name}: {gate.found}{self._mark}" for gate in self.gates if gate.is_met is False]

    @property
    def _mark(self) -> str:
        return f" {MARK}" if self.num_stale else ""


def study_state(study: Study, folder: Path) -> StudyState:
    """Read the finished cells of a study."""
    cells = study.cells(None, False)
    records = list(read_records(study, folder, cells).values())
    gates = study.page(records).gates if records else []
    headline = study.headline(records) if records and study.headline is not None else ""
    stale = sum(record.state != CURRENT for record in records)
    minutes = sum(record.time_s for record in records) / 60.0
    return StudyState(study.name, len(cells), len(records), stale, gates, headline, minutes)


def all_states(folder: Path) -> list[StudyState]:
    """Read the state of every study, in the order of `QUESTIONS`."""
    known = list(QUESTIONS)
    return [study_state(load_study(name), folder) for name in sorted(study_names(), key=known.index)]


def paper_table(states: Sequence[StudyState], folder: str) -> str:
    """Return the table of README.md: the paper's studies."""
    rows = [
        [_link(state, f"{folder}/"), QUESTIONS[state.name], state.cell_words, state.gate_words, state.headline]
        for state in states
        if state.name in PAPER
    ]
    return table(("`mbrl-hdp reproduce`", "question", "cells", "gates", "ours beside the paper's"), rows)


def full_table(states: Sequence[StudyState]) -> str:
    """Return the table of docs/results/README.md: all studies, then the gates that are missed."""
    rows = [
        [
            _link(state, ""),
            QUESTIONS[state.name],
            state.cell_words,
            state.gate_words,
            f"{state.minutes:.0f}" if state.num_finished else "-",
            state.headline,
        ]
        for state in states
    ]
    missed = [f"- {state.name}: {words}" for state in states for words in state.missed]
    return "\n".join(
        [
            table(("study", "question", "cells", "gates", "minutes", "ours beside the paper's"), rows),
            "",
            "Gates that are missed:" if missed else "No gate is missed.",
            "",
            *missed,
        ]
    ).rstrip()


def _link(state: StudyState, prefix: str) -> str:
    has_page = state.num_finished or not state.num_cells
    return f"[{state.name}]({prefix}{state.name}.md)" if has_page else state.name


def write_tables(folder: Path, root: Path) -> list[Path]:
    """Write the tables of README.md and of the README of the results anew; return the files.

    Raises:
        DataError: if a file has no markers.
    """
    states = all_states(folder)
    pages: list[tuple[Path, Callable[[], str]]] = [
        (root / "README.md", lambda: paper_table(states, "docs/results")),
        (folder / "README.md", lambda: full_table(states)),
    ]
    for path, written in pages:
        text = with_block(path.read_text(), written(), path)
        with atomic_path(path) as temporary:
            temporary.write_text(text)
    return [path for path, _ in pages]


def with_block(text: str, block: str, path: Path) -> str:
    """Return a text with what is between its markers replaced.

    Raises:
        DataError: if it has no markers.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise DataError(f"{path} has no lines {BEGIN!r} and {END!r}; put them where the table belongs")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"
