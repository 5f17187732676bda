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


def require(module: str, extra: str) -> None:
    """Raise if a package of an extra is not installed.

    Raises:
        ConfigError: naming the package and how to install it.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"this needs the package {module}: pip install 'mbrl-hdp[{extra}]', or pip install {module}")
