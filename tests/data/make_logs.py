"""Write fifteen logs as different people and programs write them: `python tests/data/make_logs.py` (seeded).

Each file comes with the settings that read it and the numbers that must come out.
"""

from __future__ import annotations

import datetime as dt
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "logs"
START = dt.datetime(2024, 3, 11, 6, 0, 0)


@dataclass
class Machine:
    """Episodes of a machine with two sensors, one actuator and two contexts: it works, or works in reverse."""

    obs: list[np.ndarray]
    act: list[np.ndarray]
    context: list[np.ndarray]


@dataclass
class Case:
    """One file.

    Attributes:
        text: its content as bytes.
        words: the settings of `mbrl-hdp fit` that read it.
        obs: observations of every episode that must come out, NaN where missing.
        act: actions of every episode.
        dt: seconds per step; None without a clock.
        context: contexts of every episode; None where the file has none.
    """

    text: bytes
    words: list[str]
    obs: list[np.ndarray]
    act: list[np.ndarray] | None
    dt: float | None
    context: list[np.ndarray] | None = None


def machine(seed: int, lengths: list[int], binary: bool = False) -> Machine:
    """Simulate: obs' = A obs + b act, the sign of b by the context; rounded to three digits as loggers do."""
    rng = np.random.default_rng(seed)
    found = Machine([], [], [])
    for length in lengths:
        state, context = rng.normal(size=2), int(rng.integers(2))
        obs, act, contexts = [], [], []
        for _ in range(length):
            action = float(rng.integers(2)) if binary else round(float(rng.uniform(-1, 1)), 3)
            obs.append(np.round(state + np.array([20.0, 3.0]), 3))
            act.append([action])
            contexts.append(context)
            drive = np.array([0.6, 0.25]) * action * (1 - 2 * context)
            state = np.array([[0.9, 0.1], [-0.1, 0.85]]) @ state + drive + 0.05 * rng.normal(size=2)
            context = 1 - context if rng.uniform() < 0.05 else context
        found.obs.append(np.array(obs))
        found.act.append(np.array(act))
        found.context.append(np.array(contexts))
    return found


def stamp(seconds: float, form: str, start: dt.datetime = START) -> str:
    return (start + dt.timedelta(seconds=seconds)).strftime(form)


def pump_de() -> Case:
    """A German spreadsheet: semicolons, decimal commas, day.month.year, Windows-1252, shifts as words."""
    made = machine(1, [60, 80, 70])
    out = ["Zeitstempel;Bediener;Temp_°C;Druck_bar;Ventil;Schicht"]
    for number, (obs, act) in enumerate(zip(made.obs, made.act, strict=True)):
        for step, (row, drive) in enumerate(zip(obs, act, strict=True)):
            when = stamp(number * 28800 + 10 * step, "%d.%m.%Y %H:%M:%S", START + dt.timedelta(days=1))
            cells = f"{row[0]};{row[1]};{drive[0]}".replace(".", ",")
            out.append(f"{when};{('Meyer', 'Schulz')[step % 2]};{cells};{('früh', 'spät', 'nacht')[number]}")
    words = ["time=Zeitstempel", "episode=Schicht", "obs=[Temp*,Druck_bar]", "act=Ventil", "ignore=Bediener"]
    return Case("\r\n".join(out).encode("cp1252"), words, made.obs, made.act, 10.0)


def rover_tsv() -> Case:
    """A robot: tabs, milliseconds since 1970, contexts as words."""
    made = machine(2, [90, 110, 50])
    out = ["t_ms\trun\tvx\tvy\tmotor_cmd\tmode"]
    for number, (obs, act, context) in enumerate(zip(made.obs, made.act, made.context, strict=True)):
        for step, (row, drive, label) in enumerate(zip(obs, act, context, strict=True)):
            when = 1_710_136_800_000 + 600_000 * number + 50 * step
            out.append(f"{when}\t{number + 7}\t{row[0]}\t{row[1]}\t{drive[0]}\t{('normal', 'reversed')[label]}")
    first = int(made.context[0][0])  # words are numbered in the order in which they appear
    context = [label if first == 0 else 1 - label for label in made.context]
    words = ["time=t_ms", "episode=run", "obs=[vx,vy]", "act=motor_cmd", "context=mode"]
    return Case("\n".join(out).encode(), words, made.obs, made.act, 0.05, context)


def reactor_csv() -> Case:
    """A data logger: remarks above the names, a row of units, ISO dates with an offset, missing cells as NA."""
    made = machine(3, [120, 130])
    holes = np.random.default_rng(30).random((2, 130, 2)) < 0.03
    out = ["# DataLogger 2.1", "# station: R-17", "timestamp,batch,temp,pressure,heater", ",,degC,bar,kW"]
    for number, (obs, act) in enumerate(zip(made.obs, made.act, strict=True)):
        for step, (row, drive) in enumerate(zip(obs, act, strict=True)):
            when = stamp(86400 * number + 2 * step, "%Y-%m-%dT%H:%M:%S+01:00")
            cells = ["NA" if holes[number, step, column] else f"{row[column]}" for column in range(2)]
            row[holes[number, step]] = np.nan
            out.append(f"{when},B{number},{cells[0]},{cells[1]},{drive[0]}")
    words = ["time=timestamp", "episode=batch", "obs=[temp,pressure]", "act=heater", "allow_missing=true"]
    return Case("\n".join(out).encode(), words, made.obs, made.act, 2.0)


def dyno_txt() -> Case:
    """A test bench: columns lined up by blanks, a clock in seconds that starts again with every run."""
    made = machine(4, [100, 60, 90])
    out = [f"{'time':>10}{'torque':>12}{'speed':>12}{'throttle':>12}"]
    for obs, act in zip(made.obs, made.act, strict=True):
        for step, (row, drive) in enumerate(zip(obs, act, strict=True)):
            out.append(f"{0.02 * step:>10.2f}{row[0]:>12}{row[1]:>12}{drive[0]:>12}")
    words = ["time=time", "obs=[torque,speed]", "act=throttle"]
    return Case("\n".join(out).encode(), words, made.obs, made.act, 0.02)


def hvac_csv() -> Case:
    """A building: pandas' own file with its unnamed index, on and off, a break every night."""
    made = machine(5, [60, 70, 60, 50], binary=True)
    out = [",datetime,room,supply,heater"]
    for number, (obs, act) in enumerate(zip(made.obs, made.act, strict=True)):
        for step, (row, drive) in enumerate(zip(obs, act, strict=True)):
            when = stamp(86400 * number + 300 * step, "%Y-%m-%d %H:%M:%S")
            out.append(f"{len(out) - 1},{when},{row[0]},{row[1]},{('off', 'on')[int(drive[0])]}")
    words = ["time=datetime", "obs=[room,supply]", "act=heater", "ignore=[*]"]
    return Case("\n".join(out).encode(), words, made.obs, made.act, 300.0)


def fleet_csv() -> Case:
    """Three machines in one file, rows by time, so that the machines alternate."""
    made = machine(6, [80, 80, 80])
    out = ["unix,unit_id,firmware,temp,flow,setpoint"]
    for step in range(80):
        for number in range(3):
            row, drive = made.obs[number][step], made.act[number][step]
            out.append(f"{1_710_136_800 + 60 * step},pump-{number},v1.{number},{row[0]},{row[1]},{drive[0]}")
    words = ["time=unix", "episode=unit_id", "obs=[temp,flow]", "act=setpoint", "ignore=firmware"]
    return Case("\n".join(out).encode(), words, made.obs, made.act, 60.0)


def servo_csv() -> Case:
    """A laboratory: names with blanks and units in quotes, no clock, trials numbered."""
    made = machine(7, [70, 90, 80])
    out = ['"Trial No.","Angle (deg)","Speed (deg/s)","Motor [V]","Remark"']
    for number, (obs, act) in enumerate(zip(made.obs, made.act, strict=True)):
        for row, drive in zip(obs, act, strict=True):
            out.append(f'{number + 1},{row[0]},{row[1]},{drive[0]},"ok, checked"')
    words = ['episode="Trial No."', 'obs=["Angle (deg)","Speed (deg/s)"]', "act=Motor*", "ignore=Remark"]
    return Case("\n".join(out).encode("utf-8-sig"), words, made.obs, made.act, None)


def events_csv() -> Case:
    """Readings whenever something happened: irregular times, brought to half a second a step."""
    rng = np.random.default_rng(8)
    out, all_obs, all_act = ["seconds,session,level,inflow,pump"], [], []
    for number in range(2):
        times = np.round(np.cumsum(rng.uniform(0.1, 0.9, size=200)), 3)
        level = np.round(np.sin(0.3 * times) + 5, 4)
        inflow = np.round(0.2 * times, 4)
        pump = np.round(rng.uniform(-1, 1, size=200), 2)
        out += [f"{a},{number},{b},{c},{d}" for a, b, c, d in zip(times, level, inflow, pump, strict=True)]
        grid = times[0] + 0.5 * np.arange(int((times[-1] - times[0]) / 0.5 + 1e-9) + 1)
        all_obs.append(np.column_stack([np.interp(grid, times, level), np.interp(grid, times, inflow)]))
        all_act.append(pump[np.searchsorted(times, grid + 1e-9, side="right") - 1][:, None])
    words = ["time=seconds", "episode=session", "obs=[level,inflow]", "act=pump", "resample=0.5"]
    return Case("\n".join(out).encode(), words, all_obs, all_act, 0.5)


def plant_csv() -> Case:
    """A control room: thirty sensors that say the same as two, one that is stuck, reduced to two components."""
    made = machine(9, [90, 110])
    rng = np.random.default_rng(90)
    mix = rng.normal(size=(2, 29))
    names = [f"TI{100 + column}.PV" for column in range(30)]
    out, rows = [",".join(["Time", "campaign", *names, "FV1.OP"])], []
    for number, (obs, act) in enumerate(zip(made.obs, made.act, strict=True)):
        sensors = np.column_stack([np.round((obs - obs.mean(0)) @ mix, 5), np.full(len(obs), 42.0)])
        rows.append(sensors)
        for step, (row, drive) in enumerate(zip(sensors, act, strict=True)):
            when = stamp(7 * 86400 * number + 60 * step, "%Y/%m/%d %H:%M")
            out.append(",".join([when, f"C{number}", *map(str, row), str(drive[0])]))
    words = ["time=Time", "episode=campaign", "obs=[TI*]", "act=FV1.OP", "pca=2"]
    return Case("\n".join(out).encode(), words, rows, made.act, 60.0)


def press_txt() -> Case:
    """The "Unicode text" of a spreadsheet: UTF-16, tabs, month/day/year with AM and PM; lost rows stay missing."""
    made = machine(10, [150])
    lost = set(np.random.default_rng(100).choice(np.arange(5, 140), size=12, replace=False).tolist())
    out = ["Date\tForce\tStroke\tCmd"]
    for step, (row, drive) in enumerate(zip(made.obs[0], made.act[0], strict=True)):
        if step not in lost:
            out.append(f"{stamp(30 * step, '%m/%d/%Y %I:%M:%S %p')}\t{row[0]}\t{row[1]}\t{drive[0]}")
    for step in lost:
        made.obs[0][step] = np.nan
        made.act[0][step] = np.nan
    words = ["time=Date", "obs=[Force,Stroke]", "act=Cmd", "gaps=missing"]
    return Case("\r\n".join(out).encode("utf-16"), words, made.obs, made.act, 30.0)


def mill_csv() -> Case:
    """An American plant: date and time in two columns, thousands with commas in quotes, joined files."""
    made = machine(11, [60, 70])
    names = '"Date","Time","Flow, gpm","Press.","Valve %"'
    out = []
    for number, (obs, act) in enumerate(zip(made.obs, made.act, strict=True)):
        out.append(names)
        row_of = np.column_stack([1000 + 100 * obs[:, 0], obs[:, 1]]).round(3)
        for step, (row, drive) in enumerate(zip(row_of, act, strict=True)):
            when = stamp(36000 * number + 15 * step, '"%m/%d/%Y","%I:%M:%S %p"', START + dt.timedelta(days=10))
            out.append(f'{when},"{row[0]:,.3f}",{row[1]},{drive[0]}')
        made.obs[number] = row_of
    words = ["time=[Date,Time]", "obs=[Flow*,Press.]", "act=Valve*"]
    return Case("\r\n".join(out).encode(), words, made.obs, made.act, 15.0)


def historian_csv() -> Case:
    """A historian: bad values as words, day-month-year with the month's name, every tag with dots."""
    made = machine(12, [80, 60])
    out = ["TimeStamp,FIC101.PV,TI203.PV,FIC101.OP"]
    for number, (obs, act) in enumerate(zip(made.obs, made.act, strict=True)):
        for step, (row, drive) in enumerate(zip(obs, act, strict=True)):
            cells = ["Bad Input" if (step + 7 * column) % 29 == 5 else f"{row[column]}" for column in range(2)]
            row[[cell == "Bad Input" for cell in cells]] = np.nan
            out.append(f"{stamp(86400 * number + 5 * step, '%d-%b-%y %H:%M:%S')},{','.join(cells)},{drive[0]}")
    words = ["time=TimeStamp", "obs=[FIC101.PV,TI203.PV]", "act=FIC101.OP", 'missing=["Bad Input"]']
    return Case("\n".join(out).encode(), words, made.obs, made.act, 5.0)


def bag_csv() -> Case:
    """A robot's bag: names behind a percent sign, nanoseconds since 1970."""
    made = machine(13, [90, 60])
    out = ["%time,field.header.seq,field.twist.linear.x,field.twist.angular.z,field.cmd"]
    for number, (obs, act) in enumerate(zip(made.obs, made.act, strict=True)):
        for step, (row, drive) in enumerate(zip(obs, act, strict=True)):
            when = 1_710_136_800_000_000_000 + 60_000_000_000 * number + 10_000_000 * step
            out.append(f"{when},{len(out)},{row[0]},{row[1]},{drive[0]}")
    words = ["time=time", "obs=[*linear.x,*angular.z]", "act=field.cmd", "ignore=[*seq]"]
    return Case("\n".join(out).encode(), words, made.obs, made.act, 0.01)


def night_csv_gz() -> Case:
    """A packed file whose clock has no date and passes midnight."""
    made = machine(14, [150])
    start = dt.datetime(2024, 3, 11, 23, 59, 40)
    out = ["clock,force,position,cmd"]
    for step, (row, drive) in enumerate(zip(made.obs[0], made.act[0], strict=True)):
        out.append(f"{stamp(0.25 * step, '%H:%M:%S.%f', start)[:-3]},{row[0]},{row[1]},{drive[0]}")
    words = ["time=clock", "obs=[force,position]", "act=cmd"]
    return Case(gzip.compress("\n".join(out).encode(), mtime=0), words, made.obs, made.act, 0.25)


def weather_csv() -> Case:
    """A weather station: dates as one number, -9999 for missing, a separator at the end, rows twice, any order."""
    made = machine(15, [144])
    rows = []
    for step, (row, drive) in enumerate(zip(made.obs[0], made.act[0], strict=True)):
        if step in {3, 77, 140}:
            row[0] = np.nan
        temperature = -9999 if np.isnan(row[0]) else row[0]
        rows.append(f"10384;{stamp(600 * step, '%Y%m%d%H%M')};{temperature};{row[1]};{drive[0]};")
    order = np.random.default_rng(150).permutation([*range(len(rows)), 20, 21])
    out = ["STATION;DATE;T2M;RH;VENT;", *(rows[place] for place in order)]
    words = ["time=DATE", "obs=[T2M,RH]", "act=VENT", "ignore=[*]", "missing=[-9999]"]
    return Case("\n".join(out).encode(), words, made.obs, made.act, 600.0)


CASES: dict[str, Callable[[], Case]] = {
    "pump_de.csv": pump_de,
    "rover.tsv": rover_tsv,
    "reactor.csv": reactor_csv,
    "dyno.txt": dyno_txt,
    "hvac.csv": hvac_csv,
    "fleet.csv": fleet_csv,
    "servo.csv": servo_csv,
    "events.csv": events_csv,
    "plant.csv": plant_csv,
    "press.txt": press_txt,
    "mill.csv": mill_csv,
    "historian.csv": historian_csv,
    "bag.csv": bag_csv,
    "night.csv.gz": night_csv_gz,
    "weather.csv": weather_csv,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, make in CASES.items():
        (FOLDER / name).write_bytes(make().text)


if __name__ == "__main__":
    main()
