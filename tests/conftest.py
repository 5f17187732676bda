"""Shape checks for every call in the mathematical rooms, and quiet single-thread runs."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
from jaxtyping import install_import_hook

from tests import shape_memory

# The same examples every time: a green suite stays green. MBRL_HDP_FUZZ=1 draws new ones.
hypothesis.settings.register_profile("fixed", derandomize=os.environ.get("MBRL_HDP_FUZZ", "0") != "1")
hypothesis.settings.load_profile("fixed")

CHECKED = [
    "mbrl_hdp.probability",
    "mbrl_hdp.inference",
    "mbrl_hdp.distil",
    "mbrl_hdp.belief",
    "mbrl_hdp.control",
    "mbrl_hdp_priors",
    "mbrl_hdp_distillers",
    "mbrl_hdp_durations",
    "mbrl_hdp_dynamics",
]

# MBRL_HDP_SHAPE_CHECKS=0 switches the checks off, to see a plain traceback.
if os.environ.get("MBRL_HDP_SHAPE_CHECKS", "1") != "0":
    shape_memory.install()
    install_import_hook(CHECKED, "beartype.beartype")

import torch

torch.set_num_threads(1)
