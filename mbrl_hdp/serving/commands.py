"""`mbrl-hdp export` and `mbrl-hdp serve`: their options, checked before any work."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from mbrl_hdp.errors import ConfigError

_SOURCE = "folder that `mbrl-hdp fit ... out=DIR` or model.save(DIR) wrote, or a run directory of `mbrl-hdp train`"
_TRUST = "let the run import the modules that its settings name"
_MAX_PORT = 65_535


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `mbrl-hdp serve`."""
    parser.add_argument("source", metavar="RUN_OR_MODEL", help=_SOURCE)
    parser.add_argument("--port", type=int, default=8000, help="port (default 8000; 0 takes any free one)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default 127.0.0.1: this machine only; there is no password and no encryption)",
    )
    parser.add_argument("--max-streams", type=int, default=1000, help="streams open at once (default 1000)")
    parser.add_argument(
        "--idle-seconds", type=float, default=3600.0, help="close a stream without a request for so long (default 3600)"
    )
    parser.add_argument("--max-bytes", type=int, default=65_536, help="largest request (default 65536)")
    parser.add_argument("--state", metavar="FILE.json", help="restore the streams from here; save them at the end")
    parser.add_argument("--trust", action="store_true", help=_TRUST)


def run_serve(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C.

    Raises:
        ConfigError: naming the option that is wrong, or the package that is missing.
    """
    if not 0 <= options.port <= _MAX_PORT:
        raise ConfigError(f"--port must lie between 0 and {_MAX_PORT}, got {options.port}")
    for flag in ("max_streams", "idle_seconds", "max_bytes"):
        if not getattr(options, flag) >= 1:
            raise ConfigError(f"--{flag.replace('_', '-')} must be at least 1, got {getattr(options, flag)}")
    state = None if options.state is None else Path(options.state)
    if state is not None and (state.is_dir() or not state.absolute().parent.is_dir()):
        raise ConfigError(f"--state {state}: there is no folder {state.parent}, or it is a folder itself")
    require("aiohttp", "serve")
    from mbrl_hdp.runtime import configure

    configure()
    from mbrl_hdp.serving.loading import check_servable, open_served
    from mbrl_hdp.serving.server import ServeOptions, serve
    from mbrl_hdp.serving.streams import Limits

    limits = Limits(options.max_streams, options.idle_seconds)
    served = check_servable(open_served(options.source, options.trust))
    return serve(served, ServeOptions(options.host, options.port, limits, options.max_bytes, state))


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `mbrl-hdp export`."""
    parser.add_argument("source", metavar="RUN_OR_MODEL", help=_SOURCE)
    parser.add_argument("-o", "--out", default="exported", metavar="DIR", help="folder to write (default: exported)")
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        help="compare the files with the model, step by step (default: where onnxruntime is installed)",
    )
    parser.add_argument("--trust", action="store_true", help=_TRUST)


def run_export(options: argparse.Namespace) -> int:
    """Write the files, compare them with the model, print what was done.

    Raises:
        ConfigError: if there is nothing to export, or a package is missing.
        ExportError: if the files do not return the model's numbers.
    """
    require("onnx", "onnx")
    if options.check:
        require("onnxruntime", "onnx")
    from mbrl_hdp.experiments.run_folder import check_can_hold

    folder = Path(options.out)
    check_can_hold("--out", folder)
    from mbrl_hdp.runtime import configure

    configure()
    from mbrl_hdp.serving.export import export_onnx
    from mbrl_hdp.serving.loading import open_served

    served = open_served(options.source, options.trust, needs_agent=False)
    words = export_onnx(served, folder)
    print(f"{folder}: {', '.join([*words['files'].values(), 'export.json', 'run.py', 'README.md'])}")
    if served.agent_name is not None and served.policy is None:
        print(f"agent={served.agent_name} is no SAC policy: a planner cannot be written as ONNX, only the filter was")
    if options.check or (options.check is None and importlib.util.find_spec("onnxruntime") is not None):
        from mbrl_hdp.serving.export_check import check_export

        found = check_export(served, folder)
        parts = {"beliefs": found.belief, "log evidence": found.log_evidence, "actions": found.action}
        seen = ", ".join(f"{name} {value:.1e}" for name, value in parts.items() if value is not None)
        print(f"checked on {found.num_steps} imagined steps with onnxruntime; largest differences: {seen}")
    else:
        print("not checked: pip install onnxruntime, or leave out --no-check")
    return 0


def require(module: str, extra: str) -> None:
    """Raise if a package of an extra is not installed.

    Raises:
        ConfigError: naming the package and how to install it.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"this needs the package {module}: pip install 'mbrl-hdp[{extra}]', or pip install {module}")
