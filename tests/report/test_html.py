"""Pages: what they hold, that nothing in them runs but our own scripts, and how they behave in a real browser."""

import json
import re
import shutil
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import yaml
from PIL import Image

from mbrl_hdp import FitConfig, Trajectories, fit
from mbrl_hdp.cli import main
from mbrl_hdp.data.logs import Log
from mbrl_hdp.data.names import Names
from mbrl_hdp.data.roles import LogConfig
from mbrl_hdp.errors import CheckpointError, DataError
from mbrl_hdp.experiments.columns import ColumnNames
from mbrl_hdp.report.curves import read_run
from mbrl_hdp.report.fit_report import write_fit_report
from mbrl_hdp.report.html import render, save_page, write_page
from mbrl_hdp.report.live import LivePage, make_server
from mbrl_hdp.report.page_charts import metric_curve
from mbrl_hdp.report.page_data import gather

EVIL = "</script><script>document.title='hacked'</script>"
MOST_BYTES = 10_000_000


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit whose columns, contexts and settings have hostile names."""
    rng = np.random.default_rng(0)
    context = np.repeat([[0, 1, 0, 1]] * 8, 25, axis=1)
    change = rng.normal(size=(8, 100, 3), scale=0.1) + np.where(context == 0, 1.0, -1.0)[..., None]
    obs = np.concatenate([np.zeros((8, 1, 3)), np.cumsum(change, 1)], axis=1)
    data = Trajectories(obs, rng.normal(size=(8, 100, 1)), context=context)
    config = FitConfig(num_steps=6, num_restarts=1, polish_steps=2, start="random")
    model = fit(data, dynamics="linear", max_contexts=3, config=config, progress=False)
    folder = tmp_path_factory.mktemp("fit") / "fit"
    model.save(folder)
    (folder / "config.yaml").write_text(yaml.safe_dump({"data": f"logs/{EVIL[2:9]}.csv", "note": EVIL}))
    stamps = tuple(np.array([f"2024-03-0{day}T06:00:00"]) for day in range(1, 9))
    shifts = tuple(f"shift {number}" for number in range(8))
    log = Log(data, (EVIL, "flow", "x" * 60), ("valve",), 0.5, (), (), shifts, stamps, {"flow": "l/min"})
    write_fit_report(model, model.analyse(data), folder, Names(log.obs_names, log.act_names), log)
    data.save(folder.parent / "data.npz")
    return folder


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    for number, (agent, seed) in enumerate([(a, s) for a in ("c_cem", EVIL) for s in (0, 1)]):
        run = folder / str(number)
        run.mkdir()
        config = {"seed": seed, "env": {"name": "cartpole_hard"}, "agent": {"name": agent}}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        rows = [f"{epoch},{10 * epoch + 10},-5.0,2,{number + 20 * epoch},1.0" for epoch in range(3)]
        header = "epoch,num_real_episodes,train_return,num_contexts,return_mean,return_std"
        (run / "metrics.csv").write_text("\n".join([header, *rows]) + "\n")
        (run / "summary.json").write_text(json.dumps({"returns": [70.0 + number, 80.0], "wall_time_s": 60.0}))
    return folder


@pytest.fixture(scope="module")
def page(fitted):
    return (fitted / "report.html").read_text()


def test_the_page_says_what_the_summary_says(fitted, page):
    summary = json.loads((fitted / "summary.json").read_text())
    assert f"<strong>{summary['num_contexts']} contexts</strong>" in page
    assert summary["level"] in page
    assert page.count('class="heat"') >= 2 * summary["num_contexts"] ** 2
    seen = [moves for moves in summary["counted"]["moves"] if sum(moves)]
    assert len(seen) > 1
    for moves in seen:
        assert f">{moves[0] / sum(moves):.3f}<" in page
    assert "right as often as it says" in page


def test_what_was_decided_when_the_data_was_read_is_shown(fitted, tmp_path):
    folder = shutil.copytree(fitted, tmp_path / "noted")
    log = Log(Trajectories(np.zeros((1, 3, 1))), ("a",), (), notes=("t: dates, 30 s a step", "1 gap <was> filled"))
    ColumnNames.of(log, LogConfig()).save(folder)
    text = write_page([folder]).read_text()
    assert "How the data was read: t: dates, 30 s a step; 1 gap &lt;was&gt; filled." in text


def test_a_context_that_no_step_has_says_so(fitted, tmp_path):
    folder = shutil.copytree(fitted, tmp_path / "unused")
    summary = json.loads((folder / "summary.json").read_text())
    summary["counted"]["dwells"][1] |= {"num_ended": 0, "num_cut": 0, "mean": None}
    summary["is_held_out"] = False
    (folder / "summary.json").write_text(json.dumps(summary))
    text = write_page([folder]).read_text()
    contexts = text.partition('id="contexts"')[2].partition("</section>")[0]
    assert contexts.count("no step") == 1
    assert "never left" not in contexts
    assert text.count('class="stay"') == summary["num_contexts"] - 1 + len(summary["stays"])  # labels, then the model
    assert "(none was held out)" in text


def test_text_of_files_is_shown_and_not_run(page, sweep):
    for text in (page, render(gather([sweep]))):
        assert EVIL not in text
        scripts = re.findall(r"<script([^>]*)>", text)
        assert [words for words in scripts if "application/json" not in words] == [""]
        assert "&lt;script&gt;" in text
        policy = re.search(r'Security-Policy" content="([^"]*)"', text)[1]
        assert "default-src &#39;none&#39;" in policy
        assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]


def test_a_sweep_names_its_runs_with_seed_and_versions(sweep, tmp_path):
    runs = shutil.copytree(sweep, tmp_path / "sweep")
    summary = json.loads((runs / "0" / "summary.json").read_text())
    (runs / "0" / "summary.json").write_text(json.dumps(summary | {"versions": {"torch": "9.8.7"}}))
    settings = render(gather([runs])).partition('<section id="settings">')[2]
    assert str(runs / "0") in settings
    assert "torch 9.8.7" in settings
    assert "unknown" in settings  # the others have none
    for run in runs.iterdir():
        (run / "summary.json").write_text(json.dumps(summary | {"versions": {"torch": "9.8.7"}}))
    assert render(gather([runs])).count("torch 9.8.7") == 1  # the same in all runs


def test_the_page_is_small_and_asks_for_nothing(page):
    assert len(page) < MOST_BYTES / 20
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert "url(" not in page


def test_a_fit_is_reported_again_without_its_data(fitted, page, tmp_path):
    again = write_page([shutil.copytree(fitted, tmp_path / "moved")], tmp_path / "again.html").read_text()
    assert re.sub(r"<footer>.*", "", again, flags=re.S) == re.sub(r"<footer>.*", "", page, flags=re.S)


@pytest.fixture
def run(fitted, sweep, tmp_path):
    """A run that somebody sent: it has a model and data, and its settings name a module."""
    folder = shutil.copytree(sweep / "0", tmp_path / "run")
    config = {"seed": 0, "env": {"name": "cartpole_hard", "reward": "evil_module:f"}, "agent": {"name": "c_cem"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "summary.json").unlink()
    (folder / "evil_module.py").write_text("raise SystemExit('it ran')")
    last = folder / "checkpoints" / "epoch_00010"
    (folder / "checkpoints" / "epoch_00009").mkdir(parents=True)
    shutil.copytree(fitted, last / "model")
    shutil.copy(fitted.parent / "data.npz", last / "data.npz")
    (folder / "history.jsonl").write_text('{"started": "2024-01-01", "epochs_done": 0}\n{"started": "<b>later"}\n')
    Image.new("P", (8, 8)).save(folder / "rollout.gif")
    return folder


def test_a_run_is_shown_with_its_model_and_nothing_of_it_is_imported(run, capsys):
    assert main(["report", str(run)]) == 0
    text = (run / "report.html").read_text()
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    assert "evil_module" not in sys.modules
    assert "not finished" in text
    assert 'id="learning"' in text
    assert 'id="timeline"' in text
    assert 'src="data:image/gif;base64,R0lGOD' in text
    assert "&lt;b&gt;later" in text
    assert main(["report", str(run), "--animate"]) == 2
    assert "evil_module (env.reward)" in capsys.readouterr().err


def test_contexts_found_are_counted_in_whole_numbers(run):
    drawn = metric_curve(read_run(run), "num_contexts", "contexts found")
    assert re.findall(r'text-anchor="end">([^<]*)<', drawn) == ["0", "1", "2"]


def test_parts_that_cannot_be_shown_are_left_out_with_a_word(run):
    (run / "rollout.gif").write_bytes(b"no picture")
    (run / "checkpoints" / "epoch_00010" / "model" / "model.safetensors").write_bytes(b"broken")
    page = gather([run])
    assert page.animation is None
    assert page.model is None
    assert [note.partition(":")[0] for note in page.notes] == ["The model is not shown", "The animation is not shown"]
    assert "is no GIF" in render(page)


def test_what_cannot_be_shown_is_named(fitted, sweep, tmp_path, capsys):
    with pytest.raises(DataError, match=r"report .*fit alone"):
        gather([fitted, sweep / "0"])
    with pytest.raises(DataError, match="no such folder"):
        gather([tmp_path / "nothing"])
    assert main(["report", str(sweep), "-o", str(tmp_path / "x.txt")]) == 2
    assert "ends in .html" in capsys.readouterr().err
    broken = shutil.copytree(fitted, tmp_path / "broken")
    (broken / "summary.json").write_text('{"num_contexts": 2}')
    with pytest.raises(DataError, match="does not hold what this version"):
        write_page([broken])
    (broken / "elsewhere").symlink_to(tmp_path)
    with pytest.raises(CheckpointError, match="leaves the run directory"):
        write_page([broken])


def test_without_a_report_an_older_one_goes(fitted, tmp_path):
    import mbrl_hdp

    model = mbrl_hdp.load(fitted)
    folder = shutil.copytree(fitted, tmp_path / "again")
    data = Trajectories(np.cumsum(np.ones((1, 20, 3)), 1), np.zeros((1, 19, 1)))
    text = write_fit_report(model, model.analyse(data), folder, has_page=False)
    assert "report.html" not in text
    assert not (folder / "report.html").exists()


def test_a_live_page_follows_the_run_for_this_machine_only(sweep, tmp_path):
    run = shutil.copytree(sweep / "0", tmp_path / "run")
    (run / "summary.json").unlink()
    with make_server([run]) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"

        def get(path, host=None):
            request = urllib.request.Request(address + path, headers={"Host": host} if host else {})
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=20) as answer:
                return answer.read().decode()

        try:
            before, text = get("/version"), get("/")
            assert "3 epochs so far" in text
            assert get("/version") == before
            with (run / "metrics.csv").open("a") as file:
                file.write("3,40,-5.0,2,60,1.0\n")
            assert get("/version") != before
            assert "4 epochs so far" in get("/")
            for host in (f"evil.example:{server.server_port}", "127.0.0.1:1"):
                with pytest.raises(urllib.error.HTTPError, match="403"):
                    get("/", host=host)
        finally:
            server.shutdown()
            thread.join()


def test_a_live_page_of_a_run_before_its_first_epoch_waits(sweep, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(sweep / "0" / "config.yaml", run)
    text = LivePage([run]).html()
    assert "Waiting for the first epoch" in text
    assert f"{run} has not finished its first epoch</p>" in text


class TestInTheBrowser:
    def test_charts_fit_on_a_telephone(self, browser, sweep, tmp_path):
        run = shutil.copytree(sweep / "0", tmp_path / "run")
        (run / "summary.json").unlink()
        browser.open(save_page(gather([run]), tmp_path / "run.html").as_uri(), width=500)
        across = "Math.max(...[...document.querySelectorAll('.chart')].map((c) => c.getBoundingClientRect().right))"
        assert browser.run("return document.querySelectorAll('.chart.wide').length") > 0
        assert browser.run(f"return {across}") <= browser.run("return innerWidth")

    def test_a_fit(self, browser, fitted, tmp_path):
        browser.open((fitted / "report.html").as_uri())
        assert browser.run("return document.title").endswith("mbrl-hdp")
        assert browser.run("return document.querySelector('#sensors button').textContent") == EVIL
        whole = self.view(browser)
        assert whole == [0, 8 * 101]
        axis = browser.run(
            "return [...document.querySelectorAll('#charts .axis text')].map((node) => node.textContent)"
        )
        assert axis[:2] == ["shift 0", "2024-03-01T06:00:00"]  # a name, and its time below
        self.zooms(browser, whole)
        self.fits_its_window(browser, fitted / "report.html", tmp_path)
        assert browser.complaints() == []
        asked, failed = browser.requests()
        assert asked
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        assert failed == []

    def test_a_sweep(self, browser, sweep, tmp_path):
        path = write_page([sweep], tmp_path / "sweep.html")
        browser.open(path.as_uri())
        assert browser.run("return document.querySelectorAll('path.band').length") == 2
        self.fits_its_window(browser, path, tmp_path)
        assert browser.complaints() == []
        asked, failed = browser.requests()
        assert asked
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        assert failed == []

    def test_a_live_page_renews_itself(self, browser, sweep, tmp_path):
        run = shutil.copytree(sweep / "0", tmp_path / "run")
        (run / "summary.json").unlink()
        with make_server([run]) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                browser.open(f"http://127.0.0.1:{server.server_port}/")
                self.waits_for(browser, "return document.body.dataset.live === 'following'")
                with (run / "metrics.csv").open("a") as file:
                    file.write("3,40,-5.0,2,60,1.0\n")
                self.waits_for(browser, "return document.querySelector('.badge').textContent.startsWith('4 epochs')")
                assert browser.complaints() == []
                asked, failed = browser.requests()
                assert {url.partition("//")[2].partition("/")[0] for url in asked if url.startswith("http")} == {
                    f"127.0.0.1:{server.server_port}"
                }
                assert failed == []
            finally:
                browser.open("about:blank")
                server.shutdown()
                thread.join()

    @staticmethod
    def waits_for(browser, script):
        until = time.monotonic() + 60
        while not browser.run(script):
            assert time.monotonic() < until, script
            time.sleep(0.1)

    @staticmethod
    def view(browser):
        found = browser.run("const box = document.getElementById('charts'); return [box.dataset.from, box.dataset.to]")
        return [float(value) for value in found]

    def zooms(self, browser, whole):
        at = {"origin": browser.element("#charts"), "duration": 0}
        press, release = {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}
        move = {"type": "pointerMove", "y": 0, **at}
        browser.act("pointer", {**move, "x": 0}, press, {**move, "x": 100}, {**move, "x": 150}, release)
        dragged = self.view(browser)
        assert whole[0] < dragged[0] < dragged[1] < whole[1]
        assert dragged[1] - dragged[0] == pytest.approx(150 / (1120 - 80 - 110) * 808, rel=0.2)
        assert "step" in browser.run("return document.getElementById('readout').textContent")
        browser.act("wheel", {"type": "scroll", "x": 0, "y": 0, "deltaX": 0, "deltaY": -120, **at})
        wheeled = self.view(browser)
        assert wheeled[1] - wheeled[0] == pytest.approx(0.8 * (dragged[1] - dragged[0]), rel=1e-3)
        browser.click("[data-do=right]")
        assert self.view(browser)[0] > wheeled[0]
        browser.click("[data-do=all]")
        assert self.view(browser) == whole
        for _ in range(3):  # where one episode ends and the next begins, with its long time stamp
            browser.click("[data-do=in]")
        assert browser.run(TOUCHING) == []
        panels = "return document.querySelectorAll('#charts svg.strip').length"
        before = browser.run(panels)
        browser.click("#sensors button:nth-child(4)")
        assert browser.run(panels) == before + 1

    @staticmethod
    def fits_its_window(browser, path, tmp_path):
        """At two widths, light and dark: nothing hangs out of the page and no two labels of an axis touch."""
        for width in (1200, 500):
            browser.open(path.as_uri(), width)
            for theme in ("light", "dark"):
                if browser.run("return getComputedStyle(document.documentElement).colorScheme") != theme:
                    browser.click("#theme")
                browser.screenshot(tmp_path / f"{width}_{theme}.png")
                shades = np.asarray(Image.open(tmp_path / f"{width}_{theme}.png").convert("L"))
                assert (np.median(shades) > 200) == (theme == "light")
            assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0
            assert browser.run(TOUCHING) == []


TOUCHING = """
const found = [];
for (const svg of document.querySelectorAll("svg")) {
  const boxes = [...svg.querySelectorAll("text")].map((node) => [node.textContent, node.getBoundingClientRect()]);
  boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([two, b]) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 1 && down > 3) found.push(`${one} / ${two}`);
  }));
}
return found;
"""
