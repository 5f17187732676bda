"""Install the wheel with the lock on other versions of Python, and try it there from an empty folder.

    python -m benchmarks.wheels [--pythons python3.12 ...] [--tests tests/belief ...] [--folder DIR] [--write PAGE]

An interpreter that is not found is left out. The environments (some GB each) are made in a temporary folder, or in
--folder, where a second call finds them. Packages of the lock that have no wheel for a version are left out and named.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mbrl_hdp.experiments.reproduce import code_version
from mbrl_hdp.experiments.studies.study import table

ROOT = Path(__file__).resolve().parents[1]
# Compiled where there is no wheel: minutes, and a C++ compiler.
NEEDS_COMPILER = ("pybullet",)
TRIED = (
    "doctor",
    "plugins",
    "fit data.npz dynamics=linear max_contexts=3 fit.num_steps=30 fit.polish_steps=10 out=model",
    "label model data.npz -o labels.csv",
    "export model -o exported",
    "train profile=smoke agent=c_cem env=cartpole_hard hydra.run.dir=run",
    "evaluate run --episodes 2",
)
DATA = (
    "import gymnasium, mbrl_hdp; cart = gymnasium.make('mbrl_hdp/CartPoleSwingUp-v0', actuation=(1.0, -1.0));"
    "mbrl_hdp.collect(cart.get_wrapper_attr('as_batch')(20), num_episodes=20, seed=0).save('data.npz')"
)
COLUMNS = ("Python", "left out of the lock", "`pip check`", "commands", "tests")


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it printed, whatever its exit code."""
    return subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)


def must(*command: str | Path, cwd: Path) -> str:
    """Run a command that has to succeed."""
    done = run(*command, cwd=cwd)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("WARNING")]
        raise SystemExit("\n".join([f"{' '.join(map(str, command))} failed:", *lines[-30:]]))
    return done.stdout


def install(interpreter: str, wheel: Path, folder: Path) -> tuple[Path, list[str]]:
    """Make an environment with lock and wheel; return its Python and what was left out."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        must(interpreter, "-m", "venv", folder / "venv", cwd=folder)
    pip = (python, "-m", "pip", "--disable-pip-version-check", "-q")
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    version = must(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])", cwd=folder).strip()
    left_out = [] if version == "3.11" else [name for name in NEEDS_COMPILER if any(name in line for line in lines)]
    lock = folder / "requirements.lock"
    lock.write_text("\n".join(line for line in lines if not line.startswith(tuple(left_out) or ("\0",))) + "\n")
    torch = next(line for line in lines if line.startswith("torch=="))
    must(*pip, "install", "-c", lock, torch, cwd=folder)
    must(*pip, "install", "--no-deps", "-r", lock, cwd=folder)
    must(*pip, "install", "--no-deps", "--force-reinstall", wheel, cwd=folder)
    return python, left_out


def row(interpreter: str, wheel: Path, tests: list[str], folder: Path) -> list[str]:
    """Try one version of Python, in an environment in a folder; return the line of the table."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        empty = Path(place)
        python, left_out = install(interpreter, wheel, folder)
        version = must(python, "-c", "import platform; print(platform.python_version())", cwd=folder).strip()
        wrong = [line for line in run(python, "-m", "pip", "check", cwd=folder).stdout.splitlines() if line.strip()]
        must(python, "-c", DATA, cwd=empty)
        failed = []
        for words in TRIED:
            done = run(python, "-m", "mbrl_hdp", *words.split(), cwd=empty)
            if done.returncode:
                failed.append(f"{words.split()[0]} (exit code {done.returncode})")
            print(f"{version}: {words}: exit code {done.returncode}", flush=True)
        says = _tests(python, tests) if tests else "not run"
    found = f"{len(TRIED) - len(failed)} of {len(TRIED)}" + (f"; failed: {', '.join(failed)}" if failed else "")
    return [version, ", ".join(left_out) or "nothing", f"{len(wrong)} lines", found, says]


def _tests(python: Path, tests: list[str]) -> str:
    """Run part of the suite against the wheel (the checkout's tests, not its package)."""
    with tempfile.TemporaryDirectory() as place:
        for name in ("tests", "benchmarks", "examples", "docs", "conf"):
            shutil.copytree(ROOT / name, Path(place) / name)
        for name in ("pyproject.toml", "README.md", "requirements.lock", "Makefile", "CHANGELOG.md"):
            shutil.copy(ROOT / name, place)
        began = time.monotonic()
        done = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=Path(place))
        print(done.stdout[-2000:], flush=True)
        return f"{done.stdout.strip().splitlines()[-1]} ({' '.join(tests)}; {time.monotonic() - began:.0f} s)"


def main() -> int:
    """Try every interpreter and print the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pythons", nargs="+", default=["python3.11", "python3.12", "python3.13"])
    parser.add_argument("--tests", nargs="+", default=[], help="part of the suite to run there")
    parser.add_argument("--folder", type=Path, help="keep the environments here (default: a temporary folder)")
    parser.add_argument("--write", type=Path, help="also write the outcome to this Markdown file")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        must(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place, ROOT, cwd=ROOT)
        (wheel,) = Path(place).glob("*.whl")
        for interpreter in options.pythons:
            path = shutil.which(interpreter)
            if path is None or run(path, "--version", cwd=ROOT).returncode:
                print(f"{interpreter} is not installed", flush=True)
                continue
            rows.append(row(path, wheel, options.tests, (options.folder or Path(place)).absolute() / Path(path).name))
            print(rows[-1], flush=True)
    text = "\n\n".join([
        "# The wheel on several versions of Python",
        f"Written by `python -m benchmarks.wheels` at commit {code_version()}; do not edit.",
        "For every version: a new environment, torch and the lock by pip, the wheel, then from an empty folder: "
        + ", ".join(f"`{words.split()[0]}`" for words in TRIED)
        + ". `pip check` counts lines about pins that are overridden on purpose (README). Where pybullet is left out "
        "(it has no wheel there and would be compiled), `doctor` names it as missing and returns 1.",
        table(COLUMNS, rows),
    ]) + "\n"  # fmt: skip
    print(text)
    if options.write is not None:
        options.write.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
