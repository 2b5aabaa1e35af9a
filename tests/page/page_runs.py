"""Run folders for tests of the page, made without training."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from whorl.log.maps import save_maps
from whorl.state import runlock

CONFIG: dict[str, Any] = {
    "algorithm": "ppo",
    "env": "CartPole-v1",
    "seed": 1,
    "total_timesteps": 1000,
    "max_iterations": 0,
    "tag": "",
    "actor_lr": 0.001,
    "optimizer": {"class": "Adam", "betas": [0.9, 0.999]},
    "device": "cpu",
    "actor_hidden_sizes": [64, 64],
}


def row(steps: int, **values: Any) -> dict[str, Any]:
    """A row of metrics; `__` in a name is a slash."""
    found = {"steps": steps, "iteration": steps // 10, "episodes": steps // 5, "episode/return": steps / 10}
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return {**found, "time/elapsed": steps / 100, "time/steps_per_second": 100.0, **named}


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Add rows to metrics.jsonl."""
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in rows)


def make_run(folder: Path, rows: int = 50, config: Mapping[str, Any] | None = None, **values: Any) -> Path:
    """A run folder with `rows` rows of metrics, 10 steps apart."""
    folder.mkdir(parents=True)
    settings = {**CONFIG, **(config or {})}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    write_rows(folder, [row(10 * (number + 1), **values) for number in range(rows)])
    return folder


def add_pictures(run: Path) -> None:
    """A GIF of an episode and the maps of a run."""
    (run / "videos").mkdir()
    frames = [Image.new("RGB", (32, 24), (shade, 80, 120)) for shade in (0, 120, 240)]
    frames[0].save(run / "videos" / "newest_seed1.gif", save_all=True, append_images=frames[1:], loop=0)
    save_maps(run, {"visits": np.arange(12).reshape(3, 4), "rnd": np.linspace(0, 1, 12).reshape(3, 4)})


def own(run: Path, pid: int, **changes: Any) -> None:
    """Make a process the owner of a run folder."""
    owner = replace(runlock.Owner.current(), pid=pid, start=runlock._start_of(pid), **changes)
    (run / runlock.NAME).write_text(json.dumps(asdict(owner)))
