"""Time until the live page of many runs can be used, in headless Chromium.

    python benchmarks/serve.py --runs 500 --rows 10000

Makes run folders in a temporary folder, starts `whorl serve`, opens the page twice and prints the seconds until the
table is complete and until the first curves are drawn. The first time, the server has read nothing yet.
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


def open_page(browser: Any, address: str, runs: int) -> dict[str, float]:
    """Seconds from asking for the page until each thing is there."""
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    found = {}
    start = time.perf_counter()
    page.goto(address, wait_until="commit")
    for name, expression in {
        "table": f"document.querySelectorAll('#rows tr[data-name]').length >= {min(runs, 500)}",
        "curves": "document.querySelectorAll('.plot[data-drawn]').length > 0",
        "all curves": "document.getElementById('reading').textContent === ''",
    }.items():
        while not page.evaluate(expression):
            page.wait_for_timeout(5)
        found[name] = time.perf_counter() - start
    start = time.perf_counter()
    page.fill("#filter", "algorithm:sac seed:3")
    while page.evaluate(f"document.querySelectorAll('#rows tr').length >= {min(runs, 500)}"):
        page.wait_for_timeout(5)
    found["filter"] = time.perf_counter() - start
    page.close()
    return found


def measure(runs: int, rows: int) -> list[dict[str, float]]:
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
        print(f"opened {number}: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.items()))


if __name__ == "__main__":
    main()
