"""The studies that `mbrl-hdp reproduce` knows, one file each; a file is loaded when its study is asked for."""

from __future__ import annotations

import importlib

from mbrl_hdp.experiments.studies.study import Study

_STUDIES = {
    "robust": "robust",
    "table1": "table1",
    "table2": "table2",
    "table3": "table3",
    "baselines": "baselines",
    "tableS3": "table_s3",
    "priors": "priors",
    "small_data": "small_data",
    "soft": "soft",
    "chain_bias": "chain_bias",
    "recipes": "recipes",
    "theorem3": "theorem3",
    "systems": "systems",
    "systems_fit": "systems_fit",
}


def study_names() -> list[str]:
    """Return every study's name."""
    return list(_STUDIES)


def load_study(name: str) -> Study:
    """Return a study by its name."""
    study: Study = importlib.import_module(f"mbrl_hdp.experiments.studies.{_STUDIES[name]}").STUDY
    return study
