"""Built-in structures of the per-context transition model, and `auto`, which compares the general ones."""

from __future__ import annotations

from collections.abc import Iterable

from mbrl_hdp.hooks import PluginSpec, hookimpl
from mbrl_hdp.inference.dynamics import ContextDynamics
from mbrl_hdp_dynamics.auto import AutoConfig, build_auto
from mbrl_hdp_dynamics.delta_mlp import CartpoleConfig, DeltaMlpConfig, build_cartpole, build_delta_mlp
from mbrl_hdp_dynamics.drone import DroneConfig, build_drone
from mbrl_hdp_dynamics.linear import LinearConfig, build_linear
from mbrl_hdp_dynamics.sparse import SparseConfig, build_sparse
from mbrl_hdp_dynamics.vehicle import VehicleConfig, build_vehicle


@hookimpl
def mbrl_hdp_register_dynamics() -> Iterable[PluginSpec[ContextDynamics]]:
    """Register the built-in structures."""
    return [
        PluginSpec("auto", AutoConfig, build_auto, "sparse, linear or delta_mlp: what predicts held-out episodes best"),
        PluginSpec("delta_mlp", DeltaMlpConfig, build_delta_mlp, "a network per context for the change of any state"),
        PluginSpec("sparse", SparseConfig, build_sparse, "sums of products, sines and hinges chosen from the data"),
        PluginSpec("linear", LinearConfig, build_linear, "an affine map per context: the switching linear model"),
        PluginSpec("cartpole", CartpoleConfig, build_cartpole, "cart-pole: sine and cosine of the pole's angle"),
        PluginSpec("drone", DroneConfig, build_drone, "drone: networks for accelerations, kinematics for the rest"),
        PluginSpec(
            "vehicle", VehicleConfig, build_vehicle, "cars: networks for speed and heading, kinematics for place"
        ),
    ]
