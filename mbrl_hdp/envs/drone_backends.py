"""Simulators of the drone: the Bullet engine, the gym-pybullet-drones package, or our own numpy."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from mbrl_hdp.envs.drone_physics import (
    ACT_DIM,
    PROPELLER_SPIN,
    PROPELLER_X,
    PROPELLER_Y,
    DronePhysics,
    FloatArray,
    TakeOffConfig,
    motor_speeds,
)
from mbrl_hdp.errors import ConfigError, did_you_mean

_LEVEL = (0.0, 0.0, 0.0, 1.0)
_AT_REST = (0.0, 0.0, 0.0)
_BODY_RADIUS, _BODY_HEIGHT = 0.06, 0.025
# What gym-pybullet-drones reads from its own vehicle file: a config that asks for anything else is refused.
_FIXED_IN_PACKAGE = (
    "mass",
    "gravity",
    "arm",
    "inertia_xy",
    "inertia_z",
    "thrust_coefficient",
    "torque_coefficient",
    "thrust_to_weight",
)
INSTALL_HINT = (
    "backend 'gym_pybullet_drones' needs the package of that name, which is on no package index: clone "
    "github.com/utiasDSL/gym-pybullet-drones, then in its folder `pip install 'setuptools<81' transforms3d && pip "
    "install --no-deps .`; or use backend='pybullet', the same physics without it"
)


class DroneBackend(Protocol):
    """One drone that can be put back to its start and stepped."""

    def reset(self) -> FloatArray:
        """Put the drone at rest at its start and return the observation `12`, angles as the backend has them."""

    def step(self, act: FloatArray, actuation: ArrayLike) -> FloatArray:
        """Hold the motor speeds of the action for one control step; return the observation `12`."""

    def close(self) -> None:
        """Free the simulator."""


class VectorBackend:
    """Our own numpy, one drone."""

    def __init__(self, config: TakeOffConfig) -> None:
        self._physics = DronePhysics(config)
        self._state = self._physics.start(1, np.random.default_rng(0))

    def reset(self) -> FloatArray:
        """See `DroneBackend`."""
        self._state = self._physics.start(1, np.random.default_rng(0))
        return self._physics.observe(self._state)[0]

    def step(self, act: FloatArray, actuation: ArrayLike) -> FloatArray:
        """See `DroneBackend`."""
        params = {"actuation": np.asarray(actuation, dtype=np.float64)[None]}
        self._state = self._physics.step(self._state, act[None], params)
        return self._physics.observe(self._state)[0]

    def close(self) -> None:
        """See `DroneBackend`."""


class PybulletBackend:
    """The Bullet engine with a vehicle of ours; there is nothing else in its world, no ground either."""

    def __init__(self, config: TakeOffConfig) -> None:
        import pybullet

        self._bullet, self._config = pybullet, config
        self._client: int | None = pybullet.connect(pybullet.DIRECT)
        self._world = {"physicsClientId": self._client}
        pybullet.setGravity(0.0, 0.0, -config.gravity, **self._world)
        pybullet.setTimeStep(1.0 / config.physics_rate, **self._world)
        self._body = self._load()

    def reset(self) -> FloatArray:
        """See `DroneBackend`; repositions, which is much quicker than loading the world again."""
        return _reposition(self._bullet, self._body, self._config, self._world)

    def step(self, act: FloatArray, actuation: ArrayLike) -> FloatArray:
        """See `DroneBackend`."""
        bullet, body, world = self._bullet, self._body, self._world
        square = motor_speeds(self._config, act, np.asarray(actuation, dtype=np.float64)) ** 2
        forces = (self._config.thrust_coefficient * square).tolist()
        yaw_torque = self._config.torque_coefficient * float(square @ PROPELLER_SPIN)
        frame = bullet.LINK_FRAME
        for _ in range(self._config.num_substeps):
            for propeller, force in enumerate(forces):
                bullet.applyExternalForce(body, propeller, (0.0, 0.0, force), _AT_REST, frame, **world)
            bullet.applyExternalTorque(body, ACT_DIM, (0.0, 0.0, yaw_torque), frame, **world)
            bullet.stepSimulation(**world)
        return _read(bullet, body, world)

    def close(self) -> None:
        """See `DroneBackend`; disconnects, harmless when called again."""
        if self._client is not None:
            self._bullet.disconnect(self._client)
            self._client = None

    def _load(self) -> int:
        bullet, config = self._bullet, self._config
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "drone.urdf"
            file.write_text(vehicle_description(config), encoding="utf-8")
            flags = bullet.URDF_USE_INERTIA_FROM_FILE
            body: int = bullet.loadURDF(str(file), (0.0, 0.0, config.start_height), flags=flags, **self._world)
        damping = {"linearDamping": config.linear_damping, "angularDamping": config.angular_damping}
        bullet.changeDynamics(body, -1, **damping, **self._world)
        return body


class PackageBackend:
    """The control task (CtrlAviary) of gym-pybullet-drones, without its ground and without its slow reset."""

    def __init__(self, config: TakeOffConfig) -> None:
        _refuse_other_vehicles(config)
        try:
            import pybullet
            from gym_pybullet_drones.envs.CtrlAviary import CtrlAviary
            from gym_pybullet_drones.utils.enums import DroneModel, Physics
        except ImportError as error:
            raise ConfigError(f"{INSTALL_HINT} (import failed: {error})") from error
        with contextlib.redirect_stdout(io.StringIO()):  # it lists its constants
            self._aviary: Any = CtrlAviary(
                drone_model=DroneModel.CF2X,
                physics=Physics.PYB,
                initial_xyzs=np.array([[0.0, 0.0, config.start_height]]),
                pyb_freq=config.physics_rate,
                ctrl_freq=config.control_rate,
                gui=False,
            )
        self._bullet, self._config = pybullet, config
        self._body = int(self._aviary.getDroneIds()[0])
        self._world = {"physicsClientId": self._aviary.getPyBulletClient()}
        pybullet.removeBody(self._aviary.PLANE_ID, **self._world)
        damping = {"linearDamping": config.linear_damping, "angularDamping": config.angular_damping}
        pybullet.changeDynamics(self._body, -1, **damping, **self._world)

    def reset(self) -> FloatArray:
        """See `DroneBackend`."""
        return _reposition(self._bullet, self._body, self._config, self._world)

    def step(self, act: FloatArray, actuation: ArrayLike) -> FloatArray:
        """See `DroneBackend`."""
        rpm = motor_speeds(self._config, act, np.asarray(actuation, dtype=np.float64))
        self._aviary.step(rpm[None])
        return _read(self._bullet, self._body, self._world)

    def close(self) -> None:
        """See `DroneBackend`; harmless when called again."""
        if self._aviary is not None:
            self._aviary.close()
            self._aviary = None


BACKENDS: Mapping[str, Callable[[TakeOffConfig], DroneBackend]] = {
    "pybullet": PybulletBackend,
    "gym_pybullet_drones": PackageBackend,
    "vector": VectorBackend,
}


def make_backend(name: str, config: TakeOffConfig) -> DroneBackend:
    """Build a backend by name.

    Raises:
        ConfigError: for an unknown name, or a package that is missing.
    """
    if name not in BACKENDS:
        raise ConfigError(f"backend={name!r} is not a backend of the drone; {did_you_mean(name, BACKENDS)}")
    return BACKENDS[name](config)


def vehicle_description(config: TakeOffConfig) -> str:
    """Describe the vehicle for the engine (URDF): the body, four massless propeller links, one at the centre."""
    places = [*zip(config.arm * PROPELLER_X, config.arm * PROPELLER_Y, strict=True), (0.0, 0.0)]
    links = "".join(_massless_link(index, float(x), float(y)) for index, (x, y) in enumerate(places))
    xy, z = config.inertia_xy, config.inertia_z
    return f"""<?xml version="1.0"?>
<robot name="drone">
  <link name="body">
    <inertial>
      <mass value="{config.mass!r}"/>
      <inertia ixx="{xy!r}" ixy="0" ixz="0" iyy="{xy!r}" iyz="0" izz="{z!r}"/>
    </inertial>
    <collision><geometry><cylinder radius="{_BODY_RADIUS}" length="{_BODY_HEIGHT}"/></geometry></collision>
  </link>{links}
</robot>
"""


def _massless_link(index: int, x: float, y: float) -> str:
    return f"""
  <link name="link{index}">
    <inertial><mass value="0"/><inertia ixx="0" ixy="0" ixz="0" iyy="0" iyz="0" izz="0"/></inertial>
  </link>
  <joint name="joint{index}" type="fixed">
    <parent link="body"/><child link="link{index}"/><origin xyz="{x!r} {y!r} 0"/>
  </joint>"""


def _reposition(bullet: Any, body: int, config: TakeOffConfig, world: Mapping[str, int]) -> FloatArray:
    bullet.resetBasePositionAndOrientation(body, (0.0, 0.0, config.start_height), _LEVEL, **world)
    bullet.resetBaseVelocity(body, _AT_REST, _AT_REST, **world)
    return _read(bullet, body, world)


def _read(bullet: Any, body: int, world: Mapping[str, int]) -> FloatArray:
    position, quaternion = bullet.getBasePositionAndOrientation(body, **world)
    velocity, rate = bullet.getBaseVelocity(body, **world)
    return np.array((*position, *bullet.getEulerFromQuaternion(quaternion), *velocity, *rate))


def _refuse_other_vehicles(config: TakeOffConfig) -> None:
    standard = TakeOffConfig()
    for name in _FIXED_IN_PACKAGE:
        if getattr(config, name) != getattr(standard, name):
            raise ConfigError(
                f"backend 'gym_pybullet_drones' has a vehicle of its own with {name}={getattr(standard, name)!r}, "
                f"got {getattr(config, name)!r}; use backend='pybullet' for other vehicles"
            )
