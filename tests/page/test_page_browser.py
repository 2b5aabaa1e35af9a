"""The page clicked through in headless Chromium."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from browser import Watch, chromium, served, until
from page_runs import add_pictures, make_run, own, row, write_rows

from whorl.log.groups import STYLE, Style
from whorl.page.report import write_report

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
WAITS = "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(7))\nprint(flush=True)\nsignal.pause()"
"""a program that ends with status 7 when it is asked to"""
LAST = "p => p.data.filter(t => t.mode === 'lines').at(-1).x.at(-1)"


def make_runs(root: Path) -> None:
    for seed in (1, 2):
        make_run(root / f"ppo_{seed}", config={"seed": seed}, loss__actor=0.1, system__load=0.5)
    add_pictures(root / "ppo_1")
    (root / "ppo_1" / "log.txt").write_text("the last line\n")
    make_run(
        root / "dqn_1",
        config={"algorithm": "dqn", "tag": "<img src=x onerror=alert(1)>"},
        episode__return=3.0,
    )
    make_run(
        root / "sac_1", config={"algorithm": "sac", "env": "<b>Ant</b>-v5", "seed": 9}, episode__return=-9.0
    )


def test_a_run_is_found_followed_and_stopped(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for name in ("ppo_1", "dqn_1"):
        make_run(root / name, config={"algorithm": name[:3]})
    (root / "ppo_1" / "log.txt").write_text("the last line\n")
    with served(root) as (address, _), chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 700})
        watch = Watch(page)
        page.goto(address)
        until(page, "document.querySelectorAll('.plot[data-drawn=plotly]').length === 1")
        assert page.evaluate(f"({LAST})(document.querySelector('.plot'))") == 500
        buttons = page.evaluate("[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)")
        assert buttons == ["Zoom", "Pan", "Reset axes"]  # none that would upload the data
        for name in ("ppo_1", "dqn_1"):
            write_rows(root / name, [row(800)])
        until(page, f"({LAST})(document.querySelector('.plot')) === 800")  # without a reload
        page.fill("#filter", "algorithm:ppo")
        until(page, "document.querySelectorAll('#rows tr').length === 1")
        page.click("tr[data-name=ppo_1] .name button")
        page.click("#tabs >> text=Log")
        page.wait_for_selector(".pane pre >> text=the last line")
        with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline()
            own(root / "ppo_1", process.pid)
            page.click("#stop")
            assert process.wait(600) == 7
        page.wait_for_selector("#resume")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert watch.wrong == []


def test_curves_are_drawn_before_the_plotting_library_is_there(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_runs(root)
    with served(root) as (address, _), chromium() as browser:
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        waiting: list[Any] = []
        page.route("**/plotly.js", lambda route: waiting.append(route))  # it is held back
        page.goto(address)
        until(
            page, "document.querySelectorAll('.plot[data-drawn=sketch] svg path[stroke-width]').length >= 3"
        )
        assert page.locator("#rows tr").count() == 4
        for one in waiting:
            one.continue_()
        until(page, "document.querySelectorAll('.plot[data-drawn=plotly]').length === 2")
        assert page.locator(".plot > svg").count() == 0  # the sketch is gone


@pytest.mark.full
def test_the_page_is_clicked_through(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_runs(root)
    with served(root) as (address, _), chromium() as browser:
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        watch = Watch(page)
        page.goto(address)
        assert "token" not in page.url  # it is no longer in the address, so not in the history
        until(page, "document.querySelectorAll('.plot[data-drawn=plotly]').length === 2")

        names = "[...document.querySelectorAll('#rows tr')].map(r => r.dataset.name)"
        page.click("th button >> text=Return")
        assert page.evaluate(names) == ["ppo_1", "ppo_2", "dqn_1", "sac_1"]
        page.click("th button >> text=Return")
        assert page.evaluate(names) == ["sac_1", "dqn_1", "ppo_1", "ppo_2"]
        page.fill("#filter", "ppo seed:2")
        until(page, f"{names}.join() === 'ppo_2'")
        page.fill("#filter", "return<10 algorithm:dqn")
        until(page, f"{names}.join() === 'dqn_1'")
        page.fill("#filter", "env:cartpole")
        until(page, f"{names}.length === 3")
        page.click("#plot-shown")
        until(page, "document.querySelectorAll('.panel').length === 1")
        assert "2 seeds" in page.inner_text(".legend")

        # New points come without a reload.
        plot = page.locator(".plot").first
        assert plot.evaluate(LAST) == 500
        for seed in (1, 2):
            write_rows(root / f"ppo_{seed}", [row(800, loss__actor=0.1, system__load=0.5)])
        until(page, f"({LAST})(document.querySelector('.plot')) === 800")
        page.select_option("#metric", "loss/actor")
        until(page, "document.querySelector('.panel h4').innerText.includes('loss / actor')")
        page.click("#differ summary")
        assert "algorithm" in page.inner_text("#differ-table")

        page.click("tr[data-name=ppo_1] .name button")
        page.click("#tabs >> text=Settings")
        page.fill(".pane input", "actor_lr")
        assert page.inner_text(".pane table").split() == ["actor_lr", "0.001"]
        page.click("#tabs >> text=Videos")
        until(page, "document.querySelector('.pane img')?.naturalWidth === 32")
        page.click("#tabs >> text=Maps")
        until(page, "[...document.querySelectorAll('.pane img')].filter(i => i.naturalWidth).length === 2")
        page.click("#tabs >> text=System")
        page.wait_for_selector(".pane .plot[data-metric='system/load'][data-drawn=plotly]")
        page.click("#tabs >> text=Log")
        page.wait_for_selector(".pane pre >> text=the last line")

        page.set_viewport_size({"width": 390, "height": 800})
        page.click("#detail-close")
        until(page, "document.documentElement.scrollWidth === 390")
        assert watch.wrong == []

        report = write_report(sorted(root.iterdir()), tmp_path / "report.html", STYLE)
        still = browser.new_page(viewport={"width": 390, "height": 800})
        watch = Watch(still)
        still.goto(report.as_uri())
        until(still, "document.querySelectorAll('.plot[data-drawn=plotly]').length === 2")
        still.select_option("#x", "time")
        still.click("tr[data-name=ppo_1] .name button")
        still.click("#tabs >> text=Videos")
        until(still, "document.querySelector('.pane img')?.naturalWidth === 32")
        assert still.locator("#resume").count() == 0 or not still.locator("#resume").is_visible()
        assert watch.wrong == []


def test_legends_say_what_lines_bands_and_circles_are(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    make_runs(root)
    for seed in (1, 2):
        write_rows(root / f"ppo_{seed}", [row(600, evaluation__return=7.0)])
    style = Style(statistic="iqm", band="std")
    report = write_report(sorted(root.iterdir()), tmp_path / "report.html", style)
    with served(root) as (address, _), chromium() as browser:
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        for where, look in ((address, "mean and 95% CI"), (report.as_uri(), "IQM ± std")):
            page.goto(where)
            until(page, "document.querySelectorAll('.legend .key').length === 2")
            said = [one.inner_text() for one in page.locator(".legend .key").all()]
            assert sorted(said) == ["", f"{look} of the seeds · ○ evaluation"]


def test_buttons_of_a_plot_do_not_cover_its_curves_on_a_phone(tmp_path: Path) -> None:
    make_runs(tmp_path / "runs")
    with served(tmp_path / "runs") as (address, _), chromium() as browser:
        phone = browser.new_page(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
        phone.goto(address)
        until(phone, "document.querySelectorAll('.plot[data-drawn=plotly]').length === 2")
        buttons, curves = (
            phone.evaluate(f"document.querySelector('.plot {part}').getBoundingClientRect().toJSON()")
            for part in (".modebar", ".nsewdrag")
        )
        assert buttons["width"] > 0 and buttons["bottom"] <= curves["top"]
