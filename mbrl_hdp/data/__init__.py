"""Trajectories: collect (`mbrl_hdp.collect`), check, split, save and load."""

from mbrl_hdp.data.files import load_trajectories as load_trajectories
from mbrl_hdp.data.files import save_trajectories as save_trajectories
from mbrl_hdp.data.trajectories import Episode as Episode
from mbrl_hdp.data.trajectories import Trajectories as Trajectories
from mbrl_hdp.data.trajectories import Transitions as Transitions
