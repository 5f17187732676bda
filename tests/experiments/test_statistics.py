"""Statistics of returns: hand-computed numbers, and the n beside each."""

import numpy as np
import pytest

from mbrl_hdp.experiments.statistics import improvement, return_statistics
from mbrl_hdp.experiments.studies import returns_table
from mbrl_hdp.experiments.studies.study import CellRecord

ONE, TWO = np.array([1.0, 2.0, 3.0, 10.0]), np.array([5.0, 5.0, 6.0, 8.0])


def test_statistics_of_two_seeds():
    found = return_statistics([ONE, TWO])
    assert found.mean == pytest.approx((4.0 + 6.0) / 2)
    # 1 2 | 3 5 5 6 | 8 10: the middle half of all eight.
    assert found.iqm == pytest.approx((3 + 5 + 5 + 6) / 4)
    assert found.std == pytest.approx(np.std([1, 2, 3, 10, 5, 5, 6, 8], ddof=1))
    assert (found.num_seeds, found.num_episodes) == (2, 8)
    assert 1.0 < found.interval[0] < 5.0 < found.interval[1] < 10.0


def test_the_interval_has_the_spread_between_seeds():
    seeds = [np.full(50, value) for value in (10.0, 20.0, 30.0)]
    assert return_statistics(seeds).interval == (10.0, 30.0)  # three equal draws have probability 1/27 > 2.5 %
    assert return_statistics([np.concatenate(seeds)]).interval[0] > 18.0


def test_improvement_counts_pairs_of_runs_and_halves_ties():
    found = improvement([(np.array([3.0, 5.0]), np.array([1.0, 3.0, 4.0]))])
    # 3 beats 1, ties 3, loses to 4; 5 beats all.
    assert found.probability == pytest.approx((1 + 0.5 + 0 + 3) / 6)
    assert found.num_runs == 2
    assert improvement([(np.array([3.0]), np.array([1.0, 2.0]))]).interval is None


def test_improvement_averages_environments():
    found = improvement([(np.array([2.0, 2.0]), np.array([1.0, 1.0])), (np.array([0.0, 0.0]), np.array([1.0, 1.0]))])
    assert found.probability == 0.5


def record(agent, returns, seed=100, failure="hard", **settings):
    summary = {"returns": returns}
    return CellRecord({"agent": agent, "failure": failure, "seed": seed, **settings}, {"summary": summary}, "c", 1.0)


def test_tables_name_n_and_keep_variants_apart():
    records = [record("A", [1.0, 3.0]), record("A", [5.0, 7.0], 101), record("B", [0.0, 0.0]),
               record("B", [9.0, 9.0], variant="long")]  # fmt: skip
    rows = returns_table.return_rows("A", records, ("2.0 ± 1.0",), ["hard"])
    assert rows[0][1].startswith("4.00 ± 2.58, IQM 4.00 [")
    assert rows[0][1].endswith(", n=2x2")
    assert rows[1] == ["A, paper", "2.0 ± 1.0"]
    assert returns_table.improvement_cell(records, "A", "B", "hard") == "1.00, n=2x1"
    assert returns_table.improvement_cell(records, "A", "B, long", "hard") == "0.00, n=2x1"
    assert returns_table.improvement_cell(records, "A", "B", "soft .1") == "-"


def test_a_table_compares_every_pair_once():
    records = [record(agent, [value, value]) for agent, value in (("A", 1.0), ("B", 2.0), ("C", 3.0))]
    lines = returns_table.improvement_table(records, ("B", "A"), ["hard"]).splitlines()[4:]
    assert [line.split(" | ")[0] for line in lines] == ["| B against A", "| B against C", "| A against C"]
