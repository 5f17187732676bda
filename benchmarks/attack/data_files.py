"""Bad data files: exit code 2, one line that names file and place, under two seconds, nothing written."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.attack.attempts import BAD, REFUSED, Family, Verdict, sample
from benchmarks.attack.command_lines import LIMIT, problem_of
from benchmarks.attack.material import QUICK_FIT, Material, machine_csv
from benchmarks.attack.sandbox import changes, run_command, state_of

Make = Callable[[Path], None]
HEADER = "episode,step,obs_0,act_0\n"
_ROWS = "0,0,1.0,0.5\n0,1,2.0,0.5\n0,2,1.5,\n"


@dataclass(frozen=True)
class BadFile:
    """A data file that cannot be used.

    Attributes:
        name: file name; a word of it says what is wrong.
        make: writes it.
        place: what the one line must name besides the file.
        command: fit or label.
    """

    name: str
    make: Make
    place: str
    command: str = "fit"


def _text(content: str | bytes) -> Make:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode()) and None


def _changed(old: str, new: str, count: int = 1) -> Make:
    """Change the machine's log."""
    return _text(machine_csv(0).replace(old, new, count))


def _rows(rows: str, header: str = HEADER) -> Make:
    return _text(header + rows)


def _npz(**arrays: object) -> Make:
    def make(path: Path) -> None:
        np.savez(path, **{name: np.asarray(array) for name, array in arrays.items()})

    return make


def _bomb(path: Path) -> None:
    """Two megabytes that unpack to two gigabytes of zeros."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1, 2**28, 1)})
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("obs.npy", "w", force_zip64=True) as file,
    ):
        file.write(header.getvalue())
        block = bytes(1 << 24)
        for _ in range(128):
            file.write(block)


def _claims(path: Path) -> None:
    """An array whose header claims a petabyte."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1, 10**14, 1)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("obs.npy", header.getvalue() + bytes(64))


def _damaged_npz(path: Path) -> None:
    np.savez(path, obs=np.random.default_rng(0).normal(size=(2, 50, 2)))
    content = bytearray(path.read_bytes())
    content[300] ^= 255
    path.write_bytes(content)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)


_GOOD = np.random.default_rng(0).normal(size=(3, 20, 2))
_HUGE_CELL = "9" * 5_000_000

FILES: tuple[BadFile, ...] = (
    # Things that are no ordinary files.
    BadFile("fifo.csv", os.mkfifo, "pipe"),
    BadFile("fifo.npz", os.mkfifo, "pipe"),
    BadFile("zero.csv", lambda path: path.symlink_to("/dev/zero"), "device"),
    BadFile("zero.npz", lambda path: path.symlink_to("/dev/zero"), "device"),
    BadFile("random.csv", lambda path: path.symlink_to("/dev/urandom"), "device"),
    BadFile("folder.csv", Path.mkdir, "folder"),
    BadFile("folder.npz", Path.mkdir, "folder"),
    BadFile("loop.csv", lambda path: path.symlink_to(path), "loop.csv"),
    BadFile("dangling.csv", lambda path: path.symlink_to("nowhere"), "does not exist"),
    BadFile("sparse.csv", _sparse, "bytes"),
    BadFile("fifo_label.csv", os.mkfifo, "pipe", "label"),
    # Bombs and sizes.
    BadFile("bomb.npz", _bomb, "unpacks"),
    BadFile("bomb_label.npz", _bomb, "unpacks", "label"),
    BadFile("claims.npz", _claims, "claims.npz"),
    BadFile("huge_cell.csv", _rows(f"0,0,{_HUGE_CELL},0\n0,1,1,\n"), "line 2"),
    BadFile("huge_word.csv", _rows(f"0,0,{'x' * 5_000_000},0\n0,1,1,\n"), "line 2"),
    BadFile("huge_name.csv", _rows(_ROWS, f"episode,step,obs_0,{'x' * 5_000_000}\n"), "line 1"),
    BadFile("many_columns.csv", _text("episode,step," + ",".join(f"x{i}" for i in range(50_000)) + "\n"), "line 1"),
    BadFile("labels_1e9.csv", _changed(",0\n", ",1000000000\n"), "line 2"),
    BadFile("labels_1e9.npz", _npz(obs=_GOOD, context=np.full((3, 19), 10**9)), "context"),
    BadFile("labels_1e300.csv", _changed(",0\n", ",1e300\n"), "line 2"),
    BadFile("labels_1e9_label.csv", _changed(",0\n", ",1000000000\n"), "line 2", "label"),
    # Text that is no table.
    BadFile("empty.csv", _text(""), "empty"),
    BadFile("blank.csv", _text("\n\n \n"), "empty"),
    BadFile("binary.csv", _text(bytes(range(256))), "UTF-8"),
    BadFile("utf16.csv", _text(machine_csv(0).encode("utf-16")[:-1]), "UTF-8"),
    BadFile("nul.csv", _changed("0,1,", "0,\x001,"), "line"),
    BadFile("header_only.csv", _text(HEADER), "no rows"),
    BadFile("semicolons.csv", _text(machine_csv(0).replace(",", ";") + "0;1;2\n"), "cells"),
    BadFile("tabs.csv", _text(machine_csv(0).replace(",", "\t") + "\t".join("1" * 30) + "\n"), "cells"),
    BadFile("html.csv", _text("<html><body>404</body></html>\n"), "line 1"),
    BadFile("json.csv", _text('{"a": [1, 2]}\n'), "line 1"),
    BadFile("nested.csv", _text("[" * 200_000), "line 1"),
    # Columns.
    BadFile("no_names.csv", _text("0,1\n0,2\n0,3\n"), "no names"),
    BadFile("no_obs.csv", _text("episode,step,act_0\n0,0,1\n0,1,\n"), "obs_"),
    BadFile("twice.csv", _text("episode,step,obs_0,obs_0\n0,0,1,1\n0,1,1,1\n"), "obs_0"),
    BadFile("unknown.csv", _text("episode,step,obs_0,temperature\n0,0,1,1\n0,1,1,1\n"), "temperature"),
    BadFile("numbered.csv", _text("episode,step,obs_0,obs_2\n0,0,1,1\n0,1,1,1\n"), "obs_1"),
    BadFile("escape.csv", _text("episode,step,obs_0,\x1b[31mred\n0,0,1,1\n0,1,1,1\n"), "line 1"),
    # Cells.
    BadFile("word.csv", _rows("0,0,1,2\n0,1,abc,\n"), "line 3"),
    BadFile("nan.csv", _rows("0,0,1,2\n0,1,nan,\n"), "line 3"),
    BadFile("inf.csv", _rows("0,0,1,2\n0,1,inf,\n"), "line 3"),
    BadFile("overflow.csv", _rows("0,0,1,2\n0,1,1e999,\n"), "line 3"),
    BadFile("missing_cell.csv", _rows("0,0,1\n0,1,2,\n"), "line 2"),
    BadFile("more_cells.csv", _rows("0,0,1,2,3\n0,1,2,\n"), "line 2"),
    BadFile("gap.csv", _rows("0,0,1,2\n0,2,2,\n"), "line 3"),
    BadFile("double.csv", _rows("0,0,1,2\n0,0,2,\n"), "line 3"),
    BadFile("order.csv", _rows("1,0,1,2\n1,1,1,\n0,0,2,1\n0,1,1,\n"), "line 4"),
    BadFile("start.csv", _rows("0,1,1,2\n0,2,2,\n"), "line 2"),
    BadFile("short.csv", _rows("0,0,1,\n"), "line 2"),
    BadFile("last_row.csv", _rows("0,0,1,2\n0,1,2,3\n"), "line 3"),
    BadFile("fraction.csv", _rows("0,0.5,1,2\n0,1.5,2,\n"), "line 2"),
    BadFile("context.csv", _changed(",0\n", ",-3\n"), "line 2"),
    BadFile(
        "constant.csv",
        _rows("".join(f"0,{t},1.0,0.5\n" for t in range(9)) + "0,9,1.0,\n"),
        "no observation ever changes",
    ),
    BadFile("tiny.csv", _rows("0,0,1,2\n0,1,2,\n"), "few"),
    # Arrays.
    BadFile("text.npz", _text("hello"), "text.npz"),
    BadFile("damaged.npz", _damaged_npz, "damaged"),
    BadFile("objects.npz", _npz(obs=np.array([{}], dtype=object)), "objects.npz"),
    BadFile("no_obs.npz", _npz(act=_GOOD), "obs"),
    BadFile("unknown.npz", _npz(obs=_GOOD, acts=_GOOD), "acts"),
    BadFile("shape.npz", _npz(obs=_GOOD, act=np.zeros((3, 20, 1))), "act"),
    BadFile("flat.npz", _npz(obs=np.zeros(7)), "obs"),
    BadFile("strings.npz", _npz(obs=np.array([["a", "b"]])), "obs"),
    BadFile("nan.npz", _npz(obs=np.where(np.arange(20)[:, None] == 7, np.nan, _GOOD)), "step 7"),
    BadFile("complex.npz", _npz(obs=_GOOD + 1j), "obs"),
    BadFile("version.npz", _npz(obs=_GOOD, schema_version=99), "schema_version"),
    BadFile("other_columns.csv", _text(machine_csv(0).replace("obs_flow", "obs_heat")), "obs_heat", "label"),
)


def attack(root: Path, is_small: bool) -> Iterator[Verdict]:
    """Fit or label every file; nothing but the file itself may be there afterwards."""
    material, folder = Material(root), root / "data_files"
    for bad in sample(FILES, is_small, 12):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = folder / bad.name
        bad.make(path)
        model = material.fit()
        words = ["fit", bad.name, *QUICK_FIT, "out=out"] if bad.command == "fit" else ["label", str(model), bad.name]
        before = state_of(folder)
        outcome = run_command(words, folder, limit=300.0)
        problem = problem_of(outcome, bad.place, changes(before, state_of(folder)), is_timed=not is_small)
        if (
            problem is None
            and bad.name not in outcome.lines[0]
            and bad.place not in {"no observation ever changes", "few"}
        ):
            problem = "does not name the file"
        text = outcome.lines[0] if problem is None else f"{problem}; {' / '.join(outcome.lines[-2:])[-400:]}"
        kind = REFUSED if problem is None else BAD
        yield Verdict("data_files", f"{bad.command} {bad.name}", kind, text, outcome.seconds)


FAMILY = Family(
    "data_files", f"exit code 2, one line that names file and place, under {LIMIT:.0f} s, nothing written", attack
)
