"""The studies that `mbrl-hdp reproduce` knows, one file each; a file is loaded when its study is asked for."""

from __future__ import annotations

import importlib

from mbrl_hdp.experiments.studies.study import Study

# Name -> module, with the study's own name in it where that is not STUDY.
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
    "durations": "durations",
    "durations_control": "durations_control",
    "recipes": "recipes",
    "resultA": "result_a",
    "resultB": "result_b",
    "resultC": "result_c",
    "sample_efficiency": "sample_efficiency",
    "rnn_variants": "rnn_variants",
    "merging": "merging",
    "nonmarkov": "assumptions:NONMARKOV",
    "statedependent": "assumptions:STATEDEPENDENT",
    "newcontexts": "new_contexts",
    "sixteen": "sixteen",
    "theorem1": "theorem1",
    "theorem3": "theorem3",
    "nu_study": "nu_study",
    "systems": "systems",
    "systems_fit": "systems_fit",
    "systems_control": "systems_control",
    "logs": "logs",
    "raw_angles": "raw_angles",
    "peers": "peers",
    "scaling": "scaling",
    "twelve_fit": "twelve_fit",
    "twelve_auto": "twelve_auto",
    "twelve_variants": "twelve_variants",
    "novelty": "novelty",
    "sbc": "sbc",
    "belief_reliability": "belief_reliability",
    "settings": "settings_page",
}


def study_names() -> list[str]:
    """Return every study's name."""
    return list(_STUDIES)


def load_study(name: str) -> Study:
    """Return a study by its name."""
    module, _, attribute = _STUDIES[name].partition(":")
    study: Study = getattr(importlib.import_module(f"mbrl_hdp.experiments.studies.{module}"), attribute or "STUDY")
    return study
