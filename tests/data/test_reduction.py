"""Many sensors that move together: what is suggested, and what components are made of."""

import numpy as np
import pandas as pd
import pytest

from mbrl_hdp.data.arrays import as_trajectories
from mbrl_hdp.data.logs import Log, LogConfig, log_from_frame
from mbrl_hdp.data.reduction import Reduction, few_components, remarks
from mbrl_hdp.data.trajectories import Trajectories
from mbrl_hdp.errors import DataError

RNG = np.random.default_rng(5)
HIDDEN = RNG.normal(size=(200, 3)) * [3.0, 2.0, 1.0]
WIDE = HIDDEN @ RNG.normal(size=(3, 20)) + 0.01 * RNG.normal(size=(200, 20))


def log_of(obs):
    return Log(Trajectories(obs[None], allow_missing=True), tuple(f"T{n}" for n in range(obs.shape[1])), ())


def test_components_of_columns_that_move_together_are_counted():
    assert few_components(as_trajectories(WIDE)) == 3
    assert few_components(as_trajectories(RNG.normal(size=(200, 20)))) is None
    assert few_components(as_trajectories(WIDE[:, :14])) is None
    constant = np.where(np.arange(20) < 6, 1.0, WIDE)
    assert few_components(as_trajectories(constant)) is None  # 14 columns that change


def test_a_reduction_is_suggested_with_what_to_type():
    (line,) = remarks(log_of(WIDE))
    assert line.startswith("20 observations, but 3 principal components hold 99.5% of their variance: pca=3 learns")
    (line,) = remarks(log_of(np.outer(HIDDEN[:, 0], np.ones(20))))
    assert "1 principal component holds" in line


def test_no_complete_rows_hinder_a_reduction_only():
    holey = WIDE.copy()
    holey[np.arange(200), np.arange(200) % 20] = np.nan
    assert few_components(Trajectories(holey[None], allow_missing=True)) is None
    assert list(remarks(log_of(holey))) == []
    with pytest.raises(DataError, match="no two rows are complete"):
        Reduction.of(log_of(holey), 2)


def test_notes_say_what_components_are_made_of():
    reduction = Reduction.of(log_of(WIDE), 2)
    notes = reduction.apply(log_of(WIDE)).notes
    assert notes[0].startswith("pca: 20 columns became 2 components with ")
    weights = np.array(reduction.directions)[:, 1]
    strongest = np.abs(weights).argmax()
    assert notes[2].startswith(f"pc_2: {weights[strongest]:+.2f} T{strongest}, ")
    assert notes[2].endswith(", ...")


def test_true_contexts_of_yes_and_no_keep_their_words():
    frame = pd.DataFrame({"y": np.arange(6.0), "jam": [False, False, True, True, False, False]})
    log = log_from_frame(frame, LogConfig(obs=["y"], context="jam"))
    assert log.context_names == ("False", "True")
    assert log.data.context[0].tolist() == [0, 0, 1, 1, 0]
