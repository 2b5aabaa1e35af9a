"""Train presets on several seeds and record them for the pages of their algorithms.

    python benchmarks/presets.py run --groups classic box2d --jobs 16 --seconds 540 --output presets.jsonl
    python benchmarks/presets.py run --groups mujoco minatar atari --gpu --jobs 4 --seconds 540 --output gpu.jsonl
    python benchmarks/presets.py report presets.jsonl gpu.jsonl

Every run is a process with its share of the cores and the settings of the preset as they are. `report` prints a table
and writes `benchmarks/results/ALGORITHM_ENV.json` and `docs/curves/ALGORITHM_ENV.png`, which `python docs/generate.py`
puts on the pages. The return is that of 100 deterministic episodes of the last policy (20 of an Atari game). A run that
has not spent its budget after `--limit` seconds is stopped and recorded as such.
"""

import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from jobs import ROOT, CommandLine, Record, known_seconds, origin, read_all, run_with, train

from whorl.log.plot import plot_runs
from whorl.settings.merge import configure
from whorl.settings.presets import WRAPPED

EPISODES, ATARI_EPISODES = 100, 20
RESULTS = ROOT / "benchmarks" / "results"
ROWS = 300
"""most rows of training metrics kept of a run; all evaluations are kept"""
SHOWN = ("steps", "time/elapsed", "episode/return", "evaluation/return")
DISCRETE, CONTINUOUS = ("ppo", "dqn", "rainbow"), ("ppo", "sac", "td3", "tqc")
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "classic": {
        **dict.fromkeys(("CartPole-v1", "Acrobot-v1", "MountainCar-v0"), DISCRETE),
        **dict.fromkeys(("Pendulum-v1", "MountainCarContinuous-v0"), CONTINUOUS),
    },
    "box2d": {
        "LunarLander-v3": DISCRETE,
        **dict.fromkeys(("LunarLanderContinuous-v3", "BipedalWalker-v3"), CONTINUOUS),
    },
    "mujoco": dict.fromkeys(
        ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5"), CONTINUOUS
    ),
    "minatar": dict.fromkeys(("MinAtar/Breakout-v1", "MinAtar/Asterix-v1"), DISCRETE),
    "atari": dict.fromkeys(("PongNoFrameskip-v4", "BreakoutNoFrameskip-v4"), DISCRETE),
}
RATES = {
    False: {"ppo": 2000, "dqn": 600, "rainbow": 100, "sac": 90, "td3": 120, "tqc": 50},
    True: {"ppo": 10_000, "dqn": 3000, "rainbow": 1500, "sac": 2000, "td3": 2500, "tqc": 1500},
}
"""steps/s without and with a GPU before anything is measured"""


def tuned(algorithm: str, env: str) -> bool:
    """Whether a preset has settings for the environment or its family."""
    own, others = (configure(algorithm, name, {}).plain() for name in (env, env + WRAPPED))
    return {**own, "env": ""} != {**others, "env": ""}


def all_jobs(
    groups: Iterable[str], algorithms: Sequence[str], envs: Sequence[str], seeds: Sequence[int], gpu: bool
) -> list[dict[str, Any]]:
    """One seed of every preset first; of those the longest, which need the whole time of a call."""
    pairs = [
        (name, env)
        for group in groups
        for env, names in GROUPS[group].items()
        for name in names
        if name in algorithms and (not envs or env in envs)
    ]
    missing = [f"{name} on {env}" for name, env in pairs if not tuned(name, env)]
    if missing:
        print(f"nothing is tuned for {', '.join(missing)}", flush=True)
    found = [
        {"algorithm": name, "env": env, "seed": seed}
        for seed in seeds
        for name, env in pairs
        if tuned(name, env)
    ]
    return sorted(found, key=lambda job: (job["seed"], -estimate(job, [], math.inf, gpu)))


def budget(job: Mapping[str, Any], gpu: bool) -> int:
    given = {"hardware": "gpu" if gpu else "cpu"}
    return int(configure(job["algorithm"], job["env"], given).run.total_timesteps)


def one(job: Mapping[str, Any], limit: float) -> Record:
    found = train(job["env"], job["algorithm"], {"seed": job["seed"]}, episodes(job["env"]), limit)
    return {**found.record, **origin(), "rows": thinned(found.rows), "config": found.config}


def episodes(env: str) -> int:
    return ATARI_EPISODES if env in GROUPS["atari"] else EPISODES


def thinned(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every evaluation, and of the other rows as many as a picture shows."""
    every = math.ceil(len(rows) / ROWS)
    return [
        {name: row[name] for name in SHOWN if name in row}
        for number, row in enumerate(rows)
        if number % every == 0 or "evaluation/return" in row or number == len(rows) - 1
    ]


def estimate(job: Mapping[str, Any], records: list[Record], limit: float, gpu: bool) -> float:
    """Seconds that a job takes with its start and its evaluations."""
    steps = budget(job, gpu)
    known = known_seconds(records, job, (("algorithm", "env"),), steps)
    return min(known or 30 + steps / RATES[gpu][job["algorithm"]], limit + 30)


def report(records: Iterable[Record], to: Path | None, note: str = "") -> str:
    """Write the result and the curve of every preset; a table of them."""
    pairs: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        pairs.setdefault((record["job"]["algorithm"], record["job"]["env"]), []).append(record)
    lines = ["| algorithm | environment | return | steps | wall time | seeds | machine |", "|---" * 7 + "|"]
    for (algorithm, env), runs in sorted(pairs.items()):
        runs.sort(key=lambda run: run["job"]["seed"])
        name = file_name(algorithm, env)
        draw(runs, (to or ROOT / "docs" / "curves") / f"{name}.png")
        text = json.dumps(result(algorithm, env, name, runs, note), indent=1)
        ((to or RESULTS) / f"{name}.json").write_text(text + "\n", "utf-8")
        returns = [run["return"] for run in runs]
        shown = f"{fmean(returns):,.1f} ({min(returns):,.1f} to {max(returns):,.1f})"
        steps, seconds = (fmean(run[key] for run in runs) for key in ("steps", "wall_time"))
        cells = (algorithm, env, shown, f"{steps:,.0f}", f"{seconds:,.0f} s", len(runs), runs[0]["machine"])
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(lines)


def file_name(algorithm: str, env: str) -> str:
    return f"{algorithm}_{env}".replace("/", "-")


def draw(runs: Sequence[Record], path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            place = Path(folder, str(run["job"]["seed"]))
            place.mkdir()
            (place / "config.yaml").write_text(yaml.safe_dump(run["config"]))
            (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in run["rows"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        plot_runs(sorted(Path(folder).iterdir()), path)


def result(algorithm: str, env: str, name: str, runs: Sequence[Record], note: str = "") -> dict[str, Any]:
    """The record that `docs/generate.py` reads."""
    planned = runs[0]["config"]["total_timesteps"]
    cut = [run for run in runs if run["steps"] < planned]
    notes = [f"stopped before {planned:,} steps, at a time limit"] if cut else []
    if busy := shared(runs):
        notes.append(f"beside other programs: {busy:,.0f} s of processor time")
    notes += [note] if note else []
    return {
        "algorithm": algorithm,
        "env": env,
        "settings": {},
        "policy": "last",
        "episodes": episodes(env),
        "seeds": [
            {
                "seed": run["job"]["seed"],
                "steps": run["steps"],
                "wall_time": round(run["wall_time"], 1),
                "return": round(run["return"], 1),
            }
            for run in runs
        ],
        "evaluations": [
            [
                (row["steps"], round(row["time/elapsed"], 1), round(row["evaluation/return"], 1))
                for row in run["rows"]
                if "evaluation/return" in row
            ]
            for run in runs
        ],
        "machine": f"{runs[0]['machine']}, {runs[0]['cores']} used by each run",
        "commit": runs[0]["commit"],
        "date": max(run["date"] for run in runs),
        "curve": f"docs/curves/{name}.png",
        **({"note": "; ".join(notes)} if notes else {}),
    }


def shared(runs: Sequence[Record]) -> float:
    """Mean processor time of runs without a GPU that had much less of it than wall time; 0: they had their cores."""
    if any(run["config"].get("hardware") != "cpu" or "processor_time" not in run for run in runs):
        return 0.0
    busy, wall = (fmean(run[key] for run in runs) for key in ("processor_time", "wall_time"))
    return busy if busy < 0.8 * wall * runs[0]["cores"] else 0.0


def main() -> None:
    line = CommandLine.of(__doc__, limit=480)
    line.run.add_argument("--groups", nargs="+", default=list(GROUPS), choices=list(GROUPS))
    line.run.add_argument("--algorithms", nargs="+", default=list(RATES[False]), choices=list(RATES[False]))
    line.run.add_argument("--envs", nargs="+", default=[])
    line.run.add_argument("--missing", action="store_true", help="only presets without a recorded result")
    line.report.add_argument("--to", type=Path, help="write all files there instead")
    line.report.add_argument("--note", default="", help="what is to be said of every result")
    args = line.parser.parse_args()
    if args.command == "job":
        print(json.dumps(one(args.job, args.limit)))
    elif args.command == "run":
        found = all_jobs(args.groups, args.algorithms, args.envs, args.seeds, args.gpu)
        if args.missing:
            found = [
                job
                for job in found
                if not (RESULTS / f"{file_name(job['algorithm'], job['env'])}.json").exists()
            ]
        run_with(args, found, partial(estimate, limit=args.limit, gpu=args.gpu))
    else:
        print(report(read_all(args), args.to, args.note))


if __name__ == "__main__":
    main()
