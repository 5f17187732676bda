"""What is installed, what is missing, what to do (`mbrl-hdp doctor`)."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mbrl_hdp.runtime import configure

_DISTRIBUTION = "mbrl-hdp"
_LOCK = "requirements.lock"

# Packages that can be installed and still fail: import them for real.
_FRAGILE = {
    "mbrl": "mbrl.models",
    "gym-cartpole-swingup": "gym_cartpole_swingup.envs.cartpole_swingup",
    "highway-env": "highway_env",
    "pybullet": "pybullet",
    "numba": "numba",
    "pyro-ppl": "pyro",
}

_PLAIN = "pip install --no-deps"
_EXTRAS = {
    "gym_pybullet_drones": (
        "the drone on the original simulator (backend=gym_pybullet_drones); the default backend needs only pybullet",
        "it is on no package index: clone github.com/utiasDSL/gym-pybullet-drones, then in its folder `pip install "
        "'setuptools<81' transforms3d && pip install --no-deps .`",
    ),
    **{
        f"hydra_plugins.hydra_{name}_launcher": (f"sweeps {where} (hydra/launcher={launcher})", f"{_PLAIN} {packages}")
        for name, where, launcher, packages in (
            ("ray", "with Ray", "ray", "-r requirements-ray.lock"),
            ("joblib", "on all cores", "joblib", "hydra-joblib-launcher==1.2.0 joblib"),
            ("submitit", "on SLURM", "submitit_slurm", "hydra-submitit-launcher==1.2.0 submitit"),
        )
    },
    "onnxruntime": ("`mbrl-hdp export` (with onnx)", "pip install 'mbrl-hdp[onnx]'"),
    "aiohttp": ("`mbrl-hdp serve`", "pip install 'mbrl-hdp[serve]'"),
    "wandb": ("tracker=wandb", f"{_PLAIN} -r requirements-extras.lock"),
    "mlflow": ("tracker=mlflow", f"{_PLAIN} -r requirements-extras.lock"),
    "minari": ("Minari datasets in and out", f"{_PLAIN} -r requirements-extras.lock"),
    "pyarrow": ("parquet files", "pip install pyarrow"),
    "polars": ("polars tables", "pip install polars"),
    "gpytorch": ("agent=gpmm", "pip install 'mbrl-hdp[baselines]'"),
    "sb3_contrib": ("agent=rnn_ppo, rnn_ppo_plain, sac_stack", "pip install 'mbrl-hdp[baselines]'"),
}


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report; `status` is ok, differs, missing, optional or note."""

    status: str
    what: str
    found: str
    advice: str = ""


def is_healthy(findings: Sequence[Finding]) -> bool:
    """Return whether nothing that is needed is missing."""
    return all(finding.status != "missing" for finding in findings)


def health(findings: Sequence[Finding]) -> str:
    """Return one line: what is wrong, what is only optional, and that the rest is fine."""
    counts = Counter(finding.status for finding in findings)
    failed, differs = counts["missing"], counts["differs"]
    words = "Nothing is missing" if not failed else f"{failed} {'part is' if failed == 1 else 'parts are'} missing"
    words += f": {counts['ok']} {'check is' if counts['ok'] == 1 else 'checks are'} fine"
    words += f", {differs} {'differs' if differs == 1 else 'differ'} from what was tested" if differs else ""
    optional = counts["optional"]
    parts = "optional part is" if optional == 1 else "optional parts are"
    return words + (f", {optional} {parts} not installed" if optional else "")


def examine() -> list[Finding]:
    """Check Python, every dependency, the extras, the plugins and the thread settings."""
    return [_python(), *_dependencies(), *_extras(), *_plugins(), *_threads()]


def _python() -> Finding:
    version = platform.python_version()
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding("missing", "Python", version, "use Python 3.11, 3.12 or 3.13")
    return Finding("ok", "Python", f"{version} on {platform.system()} {platform.machine()}")


def _dependencies() -> Iterator[Finding]:
    tested = tested_versions()
    for requirement in _requirements():
        yield _dependency(requirement, tested.get(canonicalize_name(requirement.name)))


def _requirements() -> list[Requirement]:
    try:
        lines = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return [Requirement(_DISTRIBUTION)]
    parsed = [Requirement(line) for line in lines]
    return [requirement for requirement in parsed if requirement.marker is None or requirement.marker.evaluate()]


def _dependency(requirement: Requirement, tested: str | None) -> Finding:
    name = requirement.name
    wanted = f"{name}=={tested}" if tested else str(requirement)
    install = f"pip install --no-deps '{wanted}' (or `make setup` in the checkout)"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding("missing", name, "not installed", install)
    broken = _import_error(name)
    if broken:
        return Finding("missing", name, f"{version} does not import: {broken}", install)
    plain = version.partition("+")[0]
    if not requirement.specifier.contains(plain, prereleases=True):
        return Finding("missing", name, f"{version}, needed {requirement.specifier}", install)
    if tested and plain != tested:
        return Finding("differs", name, f"{version}, tested with {tested}", f"if something fails: {install}")
    return Finding("ok", name, version)


def _import_error(name: str) -> str | None:
    module = _FRAGILE.get(canonicalize_name(name))
    if module is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _import_quietly(module)
        except Exception as error:  # noqa: BLE001 - a half-broken package may raise anything at import
            return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return None


def _import_quietly(module: str) -> None:
    """Import without the banners that gym and pybullet print."""
    saved = os.dup(1), os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        try:
            importlib.import_module(module)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            os.close(saved[0])
            os.close(saved[1])


def _extras() -> Iterator[Finding]:
    for module, (purpose, advice) in _EXTRAS.items():
        try:
            is_there = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            is_there = False
        name = module.rpartition(".")[2]
        yield (
            Finding("ok", name, "installed")
            if is_there
            else Finding("optional", name, "not installed", f"only for {purpose}: {advice}")
        )


def _plugins() -> Iterator[Finding]:
    from mbrl_hdp.hooks import load_registry

    registry = load_registry()
    yield Finding("ok", "plugins", f"{len(registry.all())} registered", "`mbrl-hdp plugins` lists them")
    for problem in registry.problems:
        yield Finding("differs", f"plugin {problem.plugin}", problem.package, problem.message)


def _threads() -> Iterator[Finding]:
    cores = os.cpu_count() or 1
    set_by_user = os.environ.get("OMP_NUM_THREADS")
    done = configure()
    yield Finding(
        "note",
        "threads",
        f"{done['threads']} per process on {cores} cores"
        + (f" (OMP_NUM_THREADS was {set_by_user})" if set_by_user else ""),
        "small networks are fastest on one thread; run seeds side by side, or set runtime.threads",
    )
    yield Finding("note", "memory allocator", done["malloc"], "runtime.tune_malloc=false leaves it alone")


def tested_versions() -> dict[str, str]:
    """Read the versions that were tested together from the lock that ships with the package."""
    package = Path(__file__).resolve().parent
    for path in (package / _LOCK, package.parent / _LOCK):
        if path.is_file():
            return _parse_lock(path.read_text())
    return {}


def _parse_lock(text: str) -> dict[str, str]:
    versions: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("#") or "==" not in line:
            continue
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            versions[canonicalize_name(requirement.name)] = next(iter(requirement.specifier)).version
    return versions
