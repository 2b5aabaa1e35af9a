"""Time until the live page of many runs can be used, in headless Chromium.

    python benchmarks/serve.py --runs 500 --rows 10000

Makes run folders in a temporary folder, starts `whorl serve`, opens the page twice and prints the seconds until a
screenful of rows, the first curves, all of them and the whole table are on the screen, and until curves answer to the
mouse. Each in seconds since the page was asked for and, in brackets, of processor time of the page's main thread, which
tells more on a machine that has other work. The first time, the server has just started.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CONFIG = """algorithm: {algorithm}
env: {env}
seed: {seed}
total_timesteps: 20000000
max_iterations: 0
actor_lr: {lr}
actor_hidden_sizes:
- 64
- 64
optimizer:
  class: Adam
"""
OTHER_SETTINGS = "".join(f"setting_{number}: {number / 7}\n" for number in range(120))
DIFFERENT = 10
"""files of metrics that are written; the others are copies"""


def make_runs(root: Path, runs: int, rows: int) -> None:
    """Run folders: five seeds of each setting, four environments, three algorithms."""
    draw = random.Random(0)
    originals = []
    for number in range(DIFFERENT):
        path = root.parent / f"metrics_{number}.jsonl"
        with path.open("w") as file:
            for i in range(1, rows + 1):
                row = {
                    "steps": i * 2048,
                    "iteration": i,
                    "episodes": i * 9,
                    "episode/return": 500 * (1 - 2.0 ** (-i / rows * 6)) + draw.gauss(0, 20),
                    "episode/length": draw.random() * 500,
                    "loss/actor": draw.gauss(0, 0.01),
                    "loss/critic": draw.random(),
                    "policy/entropy": draw.random(),
                    "time/steps_per_second": 20_000 + draw.gauss(0, 500),
                    "time/elapsed": i * 0.1,
                }
                if i % 100 == 0:
                    row["evaluation/return"] = draw.random() * 500
                file.write(json.dumps(row) + "\n")
        originals.append(path)
    for number in range(runs):
        setting, seed = divmod(number, 5)
        folder = root / f"RUN_{number:04}"
        folder.mkdir(parents=True)
        text = CONFIG.format(
            algorithm=("ppo", "sac", "dqn")[setting % 3],
            env=f"World{setting % 4}-v0",
            seed=seed,
            lr=(setting // 12 + 1) * 1e-4,
        )
        (folder / "config.yaml").write_text(text + OTHER_SETTINGS)
        shutil.copyfile(originals[number % DIFFERENT], folder / "metrics.jsonl")


WATCH = """(() => {
  const goals = GOALS, seen = new Set();
  const look = () => {
    for (const [name, reached] of Object.entries(goals)) if (!seen.has(name) && document.body && reached()) {
      seen.add(name);
      requestAnimationFrame(() => setTimeout(() => performance.mark("whorl " + name)));  // after it is painted
    }
  };
  new MutationObserver(look).observe(document, { subtree: true, childList: true, attributes: true });
})()"""
COUNT = "document.querySelectorAll('%s').length"


def watched(runs: int) -> dict[str, str]:
    """What is waited for, as expressions of the page."""
    rows, plots = COUNT % "#rows tr[data-name]", COUNT % ".plot"
    read = "document.getElementById('reading').textContent === ''"
    return {
        "first rows": f"{rows} >= {min(runs, 20)}",
        "first curves": COUNT % ".plot[data-drawn]" + " > 0",
        "all curves": f"{plots} > 0 && {COUNT % '.plot[data-drawn]'} === {plots} && {read}",
        "table": f"{rows} >= {min(runs, 500)}",
        "hover": f"{plots} > 0 && {COUNT % '.plot[data-drawn=plotly]'} === {plots}",
    }


def open_page(browser: Any, address: str, runs: int) -> dict[str, tuple[float, float]]:
    """Seconds and processor seconds from asking for the page until each thing is there."""
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    goals = watched(runs)
    functions = ", ".join(f"{json.dumps(name)}: () => {reached}" for name, reached in goals.items())
    page.add_init_script(WATCH.replace("GOALS", f"{{ {functions} }}"))
    browser.start_tracing(page=page, categories=["blink.user_timing", "devtools.timeline"])
    page.goto(address, wait_until="commit")
    while page.evaluate("performance.getEntriesByType('mark').length") < len(goals):
        page.wait_for_timeout(50)
    events = json.loads(browser.stop_tracing())["traceEvents"]
    marks = {event["name"].removeprefix("whorl "): event for event in events if "whorl " in event["name"]}
    thread = {(event["pid"], event["tid"]) for event in marks.values()}
    used = [event["tts"] for event in events if (event["pid"], event["tid"]) in thread and "tts" in event]
    walls = dict(page.evaluate("performance.getEntriesByType('mark').map(m => [m.name, m.startTime / 1000])"))
    found = {name: (float(walls[f"whorl {name}"]), (marks[name]["tts"] - min(used)) / 1e6) for name in goals}
    start = time.perf_counter()
    page.fill("#filter", "algorithm:sac seed:3")
    while page.evaluate(f"document.querySelectorAll('#rows tr').length >= {min(runs, 500)}"):
        page.wait_for_timeout(5)
    found["filter"] = (time.perf_counter() - start, 0.0)
    page.close()
    return found


def measure(runs: int, rows: int) -> list[dict[str, tuple[float, float]]]:
    """Open the page of so many runs twice."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        make_runs(root, runs, rows)
        command = [sys.executable, "-m", "whorl", "serve", str(root), "--port", "0"]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
            sync_playwright() as playwright,
        ):
            try:
                assert server.stdout is not None
                address = server.stdout.readline().split()[-1]
                browser = playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
                )
                return [open_page(browser, address, runs) for _ in range(2)]
            finally:
                server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--rows", type=int, default=10_000)
    options = parser.parse_args()
    for number, found in enumerate(measure(options.runs, options.rows), 1):
        told = [
            f"{name} {wall:.2f} s" + (f" ({used:.2f})" if used else "")
            for name, (wall, used) in found.items()
        ]
        print(f"opened {number}: " + ", ".join(told))


if __name__ == "__main__":
    main()
