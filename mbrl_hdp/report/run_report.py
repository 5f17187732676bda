"""What a person looks at after a training, written into the run directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mbrl_hdp.errors import DataError, MbrlHdpError
from mbrl_hdp.report.animation import animate_run
from mbrl_hdp.report.curves import write_learning_curve
from mbrl_hdp.report.html import FILE_NAME, write_page
from mbrl_hdp.report.page_data import ANIMATION

# An episode is played and drawn after runs that took longer: it costs some seconds.
_WORTH_ANIMATING_S = 60.0


def write_run_report(folder: Path, has_page: bool = True) -> None:
    """Draw the learning curve of a run that has just ended here, an episode if the run was long, and report.html.

    What cannot be drawn is named on standard error; the run itself is finished and stays so.
    """
    write_learning_curve(folder)
    for name in (FILE_NAME, ANIMATION):  # of a run that went on since
        (folder / name).unlink(missing_ok=True)
    if not has_page:
        return
    try:
        if json.loads((folder / "summary.json").read_text())["wall_time_s"] >= _WORTH_ANIMATING_S:
            animate_run(folder, is_trusted=True)  # this process has just run it
    except MbrlHdpError as error:
        print(f"warning: no episode was drawn: {error}", file=sys.stderr)
    try:
        write_page([folder])
    except MbrlHdpError as error:
        print(f"warning: report.html was not written: {error}", file=sys.stderr)


def animate(paths: Sequence[str], is_trusted: bool) -> None:
    """Play an episode of a run and keep it as rollout.gif, which its page shows.

    Raises:
        DataError: if the paths are not one run.
    """
    if len(paths) != 1 or not (Path(paths[0]) / "metrics.csv").is_file():
        raise DataError("--animate plays an episode of one run of `mbrl-hdp train`; name that run alone")
    animate_run(paths[0], is_trusted=is_trusted)
