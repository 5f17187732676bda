"""`mbrl-hdp fit` and `mbrl-hdp label`, from a user's CSV file to labels, and what they refuse."""

import csv
import json
import runpy
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from omegaconf import OmegaConf

import mbrl_hdp
from mbrl_hdp.cli import main
from mbrl_hdp.envs.recordings import record
from mbrl_hdp.experiments import fit_command
from mbrl_hdp.inference.scoring import align

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pump(tmp_path_factory):
    """The example's logs, with the truth to score against, and the fit that its README shows, at small size."""
    folder = tmp_path_factory.mktemp("pump")
    write_log = runpy.run_path(str(ROOT / "examples" / "own_logs" / "simulate_pump.py"))["write_log"]
    write_log(folder / "machine.csv", num_shifts=14, seed=0, has_truth=True)
    write_log(folder / "second.csv", num_shifts=4, seed=1, has_truth=True)
    write_log(folder / "unlabelled.csv", num_shifts=4, seed=1)
    settings = ["dynamics=linear", "max_contexts=5", "prior.row_concentration=10", "fit.polish_steps=100"]
    settings += ["fit.halves_within_s=0"]  # only the verdict looks at halves
    assert main(["fit", str(folder / "machine.csv"), *settings, f"out={folder / 'model'}"]) == 0
    return folder


def read_rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_finds_the_three_regimes(pump):
    summary = json.loads((pump / "model" / "summary.json").read_text())
    assert summary["num_contexts"] == 3
    assert summary["context_accuracy"] > 0.97
    assert summary["transition_error"] < 0.05
    assert summary["switch_delay"] < 2.0
    assert np.sum(summary["truth"]["confusion"]) == summary["num_transitions"]
    assert len(summary["slot_mass"]) == summary["max_contexts"] == 5
    assert sum(summary["stationary"]) == pytest.approx(1.0)
    assert summary["versions"]["torch"]


def test_the_folder_holds_everything(pump):
    names = {path.name for path in (pump / "model").iterdir()}
    assert names >= {
        *("model.safetensors", "model.json", "config.yaml", "columns.json", "summary.json", "report.txt"),
        *("labels.csv", "transition.png", "stationary.png", "contexts.png", "stays.png"),
    }
    config = OmegaConf.load(pump / "model" / "config.yaml")
    assert config.prior.name == "hdp"
    assert config.prior.row_concentration == 10
    assert config.fit.polish_steps == 100
    assert config.data.endswith("machine.csv")
    assert "3 contexts" in (pump / "model" / "report.txt").read_text()
    assert mbrl_hdp.load(pump / "model").num_contexts == 3


def test_label_writes_what_the_model_says(pump, capsys):
    out = pump / "labels.csv"
    assert main(["label", str(pump / "model"), str(pump / "unlabelled.csv"), "-o", str(out)]) == 0
    assert "accuracy" not in capsys.readouterr().out
    model = mbrl_hdp.load(pump / "model")
    data = mbrl_hdp.load_trajectories(pump / "second.csv")
    rows = read_rows(out)
    assert len(rows) == data.num_transitions
    columns = [f"{kind}_{k}" for kind in ("filtered", "smoothed") for k in range(3)]
    assert list(rows[0]) == ["episode", "step", *columns, "most_likely"]
    filtered = np.array([[float(row[f"filtered_{k}"]) for k in range(3)] for row in rows])
    np.testing.assert_allclose(filtered, model.filter(data)[data.is_step], atol=1e-5)
    smoothed = np.array([[float(row[f"smoothed_{k}"]) for k in range(3)] for row in rows])
    np.testing.assert_allclose(smoothed, model.smooth(data)[data.is_step], atol=1e-5)
    labels = np.array([int(row["most_likely"]) for row in rows])
    assert align(labels, data.context[data.is_step]).accuracy > 0.97
    places = [(int(row["episode"]), int(row["step"])) for row in rows]
    assert places == [(n, t) for n, length in enumerate(data.lengths) for t in range(length)]


def test_label_scores_a_file_with_truth(pump, capsys):
    assert main(["label", str(pump / "model"), str(pump / "second.csv"), "-o", str(pump / "l.csv")]) == 0
    assert "accuracy against the file's contexts: 0.9" in capsys.readouterr().out


def test_label_takes_columns_in_any_order(pump, capsys):
    rows = [line.split(",") for line in (pump / "unlabelled.csv").read_text().splitlines()]
    swapped = [",".join([row[4], row[0], *row[2:4], row[1], "x"]) for row in rows]
    (pump / "swapped.csv").write_text("\n".join([swapped[0].replace(",x", ",note"), *swapped[1:]]))
    for name in ("unlabelled", "swapped"):
        words = ["ignore=[note]"] if name == "swapped" else []
        line = ["label", str(pump / "model"), str(pump / f"{name}.csv"), *words, "-o", str(pump / f"{name}_l.csv")]
        assert main(line) == 0, capsys.readouterr().err
    assert (pump / "swapped_l.csv").read_text() == (pump / "unlabelled_l.csv").read_text()


def test_label_names_all_columns_that_are_missing(pump, capsys):
    text = (pump / "unlabelled.csv").read_text()
    (pump / "other.csv").write_text(text.replace("obs_flow", "obs_f").replace("obs_pressure", "obs_p"))
    assert main(["label", str(pump / "model"), str(pump / "other.csv"), "-o", str(pump / "no.csv")]) == 2
    message = capsys.readouterr().err
    assert "other.csv" in message
    assert "obs_flow" in message.partition("missing are")[2]
    assert "obs_pressure" in message.partition("missing are")[2]
    assert not (pump / "no.csv").exists()


def test_a_model_is_not_overwritten_unless_asked(pump, capsys):
    before = (pump / "model" / "model.safetensors").read_bytes()
    line = ["fit", str(pump / "machine.csv"), "max_contexts=2", f"out={pump / 'model'}"]
    assert main(line) == 2
    assert "overwrite=true" in capsys.readouterr().err
    assert (pump / "model" / "model.safetensors").read_bytes() == before


def test_label_refuses_what_is_no_model_or_no_data(pump, capsys, tmp_path):
    assert main(["label", str(tmp_path), str(pump / "second.csv"), "-o", str(tmp_path / "no.csv")]) == 2
    assert "no model in" in capsys.readouterr().err
    assert main(["label", str(pump / "model"), str(tmp_path / "none.csv"), "-o", str(tmp_path / "no.csv")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["label", str(pump / "model"), str(pump / "second.csv"), "-o", str(tmp_path)]) == 2
    assert "folder" in capsys.readouterr().err
    np.savez(tmp_path / "wide.npz", obs=np.zeros((2, 5, 7)))
    assert main(["label", str(pump / "model"), str(tmp_path / "wide.npz"), "-o", str(tmp_path / "no.csv")]) == 2
    assert "columns" in capsys.readouterr().err
    assert not (tmp_path / "no.csv").exists()


def test_the_same_command_gives_the_same_model(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", obs=np.cumsum(rng.normal(size=(6, 21, 2)), 1))
    words = [
        "dynamics=delta_mlp",
        "dynamics.hidden_sizes=[8]",
        "max_contexts=3",
        "fit.num_steps=10",
        "fit.num_restarts=1",
        "fit.polish_steps=5",
    ]
    for name in ("a", "b"):
        assert main(["fit", str(tmp_path / "d.npz"), *words, "seed=3", f"out={tmp_path / name}"]) == 0
    assert (tmp_path / "a" / "labels.csv").read_text() == (tmp_path / "b" / "labels.csv").read_text()
    assert main(["fit", str(tmp_path / "d.npz"), *words, "seed=4", f"out={tmp_path / 'c'}"]) == 0
    first, second = (json.loads((tmp_path / name / "summary.json").read_text()) for name in "ac")
    assert first["log_likelihood"] != second["log_likelihood"]
    assert first["context_accuracy"] is None
    assert first["truth"] is None


BAD_LINES = {
    "no data": (["prior=hdp"], ["which data"]),
    "two files": (["data.npz", "other.npz"], ["data.npz", "other.npz", "name the folder"]),
    "missing file": (["nothing.csv"], ["nothing.csv", "does not exist"]),
    "unknown ending": (["data.sas"], [".sas", ".npz"]),
    "unknown option": (["data.npz", "prior=hpd"], ["prior", "hpd", "'hdp'"]),
    "unknown key": (["data.npz", "max_context=3"], ["max_context", "'max_contexts'"]),
    "group of train only": (["data.npz", "env=cartpole_hard"], ["env", "known"]),
    "unknown plugin key": (["data.npz", "prior.row_concentratoin=3"], ["row_concentration"]),
    "unknown fit key": (["data.npz", "fit.num_stps=3"], ["fit.num_steps"]),
    "wrong type": (["data.npz", "fit.num_steps=many"], ["fit.num_steps", "many"]),
    "out of range": (["data.npz", "fit.num_steps=0"], ["fit.num_steps", "at least 1"]),
    "sweep": (["data.npz", "seed=0,1"], ["seed=0,1", "one value"]),
    "out is a file": (["data.npz", "out=data.npz"], ["out=data.npz", "folder"]),
    "dynamics for other data": (["data.npz", "dynamics=cartpole"], ["cartpole"]),
    "unknown flag": (["data.npz", "--jobs"], ["--jobs", "--help"]),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_refuses_before_anything_is_written(case, capsys, tmp_path, monkeypatch):
    words, expected = BAD_LINES[case]
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", obs=np.random.default_rng(0).normal(size=(3, 6, 2)))
    code = main(["fit", *words])
    streams = capsys.readouterr()
    assert code == 2
    assert len(streams.err.strip().splitlines()) == 1, streams.err
    for word in expected:
        assert word in streams.err
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


def test_cfg_shows_the_configuration(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--cfg", "job", "dynamics=linear", "max_contexts=7"]) == 0
    config = OmegaConf.create(capsys.readouterr().out)
    assert config.max_contexts == 7
    assert config.dynamics.name == "linear"
    assert list(tmp_path.iterdir()) == []


def test_the_demo_runs_at_tiny_size_and_again(tmp_path, capsys):
    demo = runpy.run_path(str(ROOT / "examples" / "demo.py"))
    tiny = ["max_contexts=2", "fit.num_steps=2", "fit.polish_steps=0", "fit.num_restarts=1", "fit.start=random"]
    assert demo["learn_contexts"](tmp_path / "demo", 4, tiny) == 0
    text = capsys.readouterr().out
    assert "Against the 2 true contexts" in text
    assert f"in {tmp_path / 'demo'}/" in text
    assert (tmp_path / "demo" / "contexts.png").is_file()
    assert (tmp_path / "demo" / "report.html").read_text().count(">reversed<") >= 2  # names in the tables
    assert json.loads((tmp_path / "demo" / "summary.json").read_text())["names"]["obs"][2] == "angle"
    assert demo["learn_contexts"](tmp_path / "demo", 4, [*tiny, "--no-report"]) == 0


@pytest.fixture(scope="module")
def building(tmp_path_factory):
    """A log of a building with the weather among the observations."""
    folder = tmp_path_factory.mktemp("building")
    for seed in (0, 1):
        recording = record("building_weather", seed)
        obs, heater = recording.obs[0, :1801], recording.act[0, :1801]
        context = recording.context[0, :1801, None]
        header = "room,outside,sun,heater,context"
        table = np.concatenate([obs, heater, context], 1)
        np.savetxt(folder / f"{seed}.csv", table, delimiter=",", header=header, comments="")
    return folder


_WEATHER = [
    "obs=[room,outside,sun]",
    "act=[heater]",
    "max_contexts=3",
    "fit.num_steps=50",
    "fit.polish_steps=5",
    "fit.halves_within_s=0",
]


def test_weather_among_the_observations_becomes_an_input(building, capsys):
    assert main(["fit", str(building / "0.csv"), *_WEATHER, f"out={building / 'model'}"]) == 0
    assert "outside, sun: nothing recorded influences them" in capsys.readouterr().err
    columns = json.loads((building / "model" / "columns.json").read_text())
    assert (columns["obs"], columns["act"]) == (["room"], ["heater", "outside", "sun"])
    assert json.loads((building / "model" / "summary.json").read_text())["num_contexts"] == 3
    assert main(["label", str(building / "model"), str(building / "1.csv"), "-o", str(building / "labels.csv")]) == 0
    found = [int(row["most_likely"]) for row in read_rows(building / "labels.csv")]
    truth = [int(float(row["context"])) for row in read_rows(building / "1.csv")][:-1]
    assert align(np.array(found), np.array(truth)).accuracy > 0.97


@pytest.mark.parametrize("words", [["external=keep"], ["dynamics=linear"], ["pca=3"]])
def test_columns_stay_observations_where_that_is_wanted(building, words):
    log, columns = fit_command._read(fit_command.prepare([str(building / "0.csv"), *_WEATHER, *words]), None, False)
    assert log.data.obs_dim == 3
    assert columns.obs == ("room", "outside", "sun")


@pytest.fixture(scope="module")
def swings(tmp_path_factory):
    """Five episodes of a cart-pole as a log with names of its own."""
    cart = gymnasium.make("mbrl_hdp/CartPoleSwingUp-v0", actuation=(1.0, -1.0)).get_wrapper_attr("as_batch")(5)
    data = mbrl_hdp.collect(cart, num_episodes=5, seed=1, progress=False)
    folder = tmp_path_factory.mktemp("swings")
    for name, turn in (("log", 0.0), ("radians", 2.0 * np.pi), ("degrees", 360.0)):
        obs = data.obs.copy()
        if turn:
            obs[..., 2] = obs[..., 2] * turn / (2.0 * np.pi) % turn
        rows = [
            [n, *obs[n, t], *(data.act[n, t] if t < data.max_steps else [""])]
            for n in range(5)
            for t in range(data.max_steps + 1)
        ]
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["run", "x", "v", "pole_angle", "spin", "force"], *rows])
    return folder


_SWINGS = ["episode=run", "obs=[x,v,pole_angle,spin]", "act=[force]", "max_contexts=3", "fit.num_restarts=1"]
_SWINGS += ["fit.num_steps=5", "fit.polish_steps=2", "fit.halves_within_s=0", "dynamics=delta_mlp"]


def test_angles_are_named_by_name_or_pattern(swings):
    assert main(["fit", str(swings / "log.csv"), *_SWINGS, "angles=[*_angle]", f"out={swings / 'model'}"]) == 0
    search = mbrl_hdp.load(swings / "model").report.search
    assert (search["angles"], search["num_contexts"]) == ([2], 2)


@pytest.mark.parametrize(
    ("name", "angles", "words"),
    [
        ("log", "[poleangle]", "angles=[poleangle]: 'poleangle' is no observation; did you mean 'pole_angle'?"),
        ("radians", "[pole_angle]", "pole_angle jumps by a whole turn of 6.283"),
        ("degrees", "[pole_angle]", "numpy.unwrap(numpy.radians(...)) makes it"),
    ],
)
def test_angles_that_would_mislead_are_refused_before_anything_is_learned(swings, capsys, name, angles, words):
    out = swings / "refused"
    assert main(["fit", str(swings / f"{name}.csv"), *_SWINGS, f"angles={angles}", f"out={out}"]) == 2
    assert words in capsys.readouterr().err
    assert not (out / "model.safetensors").exists()


def test_an_angle_that_jumps_back_after_a_turn_is_pointed_out(swings):
    _, columns = fit_command._read(fit_command.prepare([str(swings / "degrees.csv"), *_SWINGS]), None, False)
    (note,) = columns.notes
    assert note.startswith("pole_angle jumps by a whole turn of 360 (")
    assert "numpy.unwrap(numpy.radians(...)), and named in angles=" in note


def test_principal_components_are_no_angles(swings, capsys):
    assert main(["fit", str(swings / "log.csv"), *_SWINGS, "angles=[pole_angle]", "pca=2", "out=unused"]) == 2
    assert "pca= and angles=" in capsys.readouterr().err
