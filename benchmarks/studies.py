"""The same agent with and without a method, on several seeds, in one table and one picture.

    python benchmarks/studies.py run --studies deep_sea disco_maze --jobs 8 --gpu --seconds 540 --output studies.jsonl
    python benchmarks/studies.py report studies.jsonl

Every run is a process with its share of the cores. `report` prints the tables and writes, for each study,
`benchmarks/results/study_NAME.json` and `docs/curves/study_NAME.png`. The score is the mean of the last tenth of a
run's training of the study's metric; beside it are the return of deterministic episodes of the last policy, or the mean
of the metric in them where it is a measure of the environment (coverage). A run that has not spent its budget after
`--limit` seconds is stopped, and the table shows its steps. Studies with a threshold also show the steps until the
metric first reached it.
"""

import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from jobs import ROOT, CommandLine, Record, known_seconds, origin, read_all, run_with, train

from whorl.log.plot import plot_runs

ROWS = 300
"""rows of metrics kept of a run"""
RETURN, SUCCESS, EVALUATION = "episode/return", "episode/success_rate", "evaluation/return"
NOVELTY = ("none", "count", "rnd", "icm", "noveld", "e3b", "episodic")


@dataclass(frozen=True)
class Study:
    """Variants of an agent on environments."""

    envs: tuple[str, ...]
    variants: Mapping[str, tuple[str, Mapping[str, Any]]]
    """algorithm and its settings by the label of the curve"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """of all variants"""
    metric: str = RETURN
    """what is compared: of training, the mean over the last tenth"""
    episodes: int = 20
    """played deterministically after training"""
    threshold: float | None = None
    """of the metric; the steps until it is first reached are compared"""


def with_novelty(algorithm: str, names: Iterable[str] = NOVELTY) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """An algorithm alone and with each of these components."""
    return {
        name: (algorithm, {} if name == "none" else {"components": [name]})
        for name in dict.fromkeys(("none", *names))
    }


CORRECTION = {
    "1 step": ("sac", {"n_step": 1}),
    "5 steps": ("sac", {"n_step": 5}),
    "5 steps, V-trace": ("sac", {"n_step": 5, "use_n_step_is": True}),
}
HARD_GRIDS = (
    "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-MultiRoom-N6-v0",
    "MiniGrid-KeyCorridorS3R3-v0",
    "MiniGrid-ObstructedMaze-2Dlh-v0",
)
WEIGHTS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("beta 0.3", {"max_beta": 0.3}),
    ("beta 0.03", {"max_beta": 0.03}),
    ("beta 0.003", {"max_beta": 0.003}),
    ("preset", {}),
    ("preset, 2 policies", {"num_policies": 2}),
    ("preset, clusters", {"episodic": {"cluster_distance": 0.2}}),
)
"""of the intrinsic reward of NGU and Agent57, and other settings that change what is explored"""
SMALL_NETWORKS: Mapping[str, Any] = {
    "actor_hidden_sizes": [64, 64],
    "critic_hidden_sizes": [64, 64],
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "alpha_lr": 1e-3,
}
SMALL_MEMORY: Mapping[str, Any] = {
    **SMALL_NETWORKS,
    "memory_size": 64,
    "num_steps": 20,
    "sequence_length": 20,
    "burn_in": 10,
    "sequence_stride": 10,
    "updates_per_step": 0.2,
    "learning_starts": 2000,
    "random_steps": 2000,
    "eval_freq": 1000,
}
"""recurrent agents that a core trains in minutes"""
HIDDEN_STATE: Mapping[str, Any] = {"env_options": {"state": True}, "privileged_obs": ["state"]}
"""training knows what the policy does not observe"""
STUDIES: dict[str, Study] = {
    "deep_sea": Study(
        ("DeepSea-v0",),
        with_novelty("ppo"),
        {"env_options": {"size": 30}, "total_timesteps": 500_000, "eval": False},
    ),
    "disco_maze": Study(
        ("DiscoMaze-v0",),
        with_novelty("ppo", ("rnd", "episodic")),
        {"eval": False},
        metric="episode/coverage",
        episodes=64,
    ),
    "disco_maze_7": Study(
        ("DiscoMaze-v0",),
        with_novelty("ppo", ("rnd", "episodic")),
        {"env_options": {"size": 7, "max_steps": 60}, "total_timesteps": 400_000, "eval": False},
        metric="episode/coverage",
        episodes=64,
    ),
    "families": Study(
        ("CartPole-v1", "TMaze-v0", "SparseMountainCar-v0", "SparseCartPoleSwingUp-v0"),
        {"ngu": ("ngu", {}), "agent57": ("agent57", {}), "r2d2": ("r2d2", {})},
        {"eval": False},
    ),
    "sparse_mountain_car": Study(
        ("SparseMountainCar-v0",),
        {
            **{
                f"{name}, {label}": (name, settings)
                for label, settings in WEIGHTS
                for name in ("ngu", "agent57")
            },
            "r2d2": ("r2d2", {}),
        },
        {"eval": False, "total_timesteps": 300_000},
    ),
    "sparse_mountain_car_continuous": Study(
        ("SparseMountainCarContinuous-v0",),
        {
            "sac": ("sac", {}),
            "sac, icm": ("sac", {"components": ["icm"], "icm": {"normalize": False}}),
            "sac, rnd_actions": (
                "sac",
                {"components": ["rnd_actions"], "rnd_actions": {"candidates": 50, "lr": 1e-3}},
            ),
        },
        {
            **SMALL_NETWORKS,
            "actor_lr": 3e-4,
            "critic_lr": 3e-4,
            "alpha_lr": 3e-4,
            "num_envs": 10,
            "num_steps": 10,
            "n_step": 10,
            "alpha": 0.1,
            "reward_scale": 100,
            "normalize_obs": True,
            "updates_per_step": 0.1,
            "batch_size": 128,
            "learning_starts": 100,
            "random_steps": 100,
            "total_timesteps": 20_000,
            "eval_freq": 2_000,
        },
        metric=EVALUATION,
        threshold=0.9,
    ),
    "minigrid": Study(
        HARD_GRIDS,
        with_novelty("ppo", ("noveld", "e3b")),
        {"eval": False, "total_timesteps": 1_500_000},
        episodes=100,
    ),
    "hybrid": Study(
        ("Platform-v0", "Goal-v0", "CatchPoint-v0", "HardMove-v0", "Moving-v0"),
        {
            "sac, conditioned": ("sac", {"action_coupling": "conditioned"}),
            "sac, independent": ("sac", {"action_coupling": "independent"}),
            "tqc, conditioned": ("tqc", {"action_coupling": "conditioned"}),
            "tqc, independent": ("tqc", {"action_coupling": "independent"}),
            "ppo": ("ppo", {}),
        },
        {"eval": False},
        metric=SUCCESS,
        episodes=200,
    ),
    "position_only": Study(
        ("PendulumP-v0",),
        {
            "rsac": ("rsac", {}),
            "rsac_share": ("rsac_share", {}),
            "rsac_share, critics with state": ("rsac_share", HIDDEN_STATE),
            "rsac_share, prediction with state": (
                "rsac_share",
                {**HIDDEN_STATE, "components": ["prediction"], "prediction": {"joins": "critic"}},
            ),
        },
        {**SMALL_MEMORY, "total_timesteps": 25_000},
        metric=EVALUATION,
        threshold=-200,
    ),
    "stale_replay": Study(
        ("PendulumFull-v0", "CartPoleContinuousLong-v0"),
        CORRECTION,
        {
            **SMALL_NETWORKS,
            "num_envs": 16,
            "num_steps": 8,
            "updates_per_step": 0.25,
            "batch_size": 128,
            "learning_starts": 10_000,
            "random_steps": 10_000,
            "total_timesteps": 30_000,
            "eval_freq": 1000,
        },
        metric=EVALUATION,
    ),
    "stale_replay_mujoco": Study(
        ("HalfCheetah-v5", "Hopper-v5"),
        CORRECTION,
        {
            "num_envs": 16,
            "num_steps": 8,
            "updates_per_step": 0.25,
            "learning_starts": 10_000,
            "random_steps": 10_000,
            "total_timesteps": 120_000,
            "eval_freq": 10_000,
            "n_eval_episodes": 8,
            "workers": 0,
        },
        metric=EVALUATION,
    ),
    "rainbow": Study(
        ("MinAtar/Asterix-v1",),
        {
            "preset": ("rainbow", {}),
            "3 steps, adam_eps 1.5e-5": ("rainbow", {"n_step": 3, "adam_eps": 1.5e-5}),
            "3 steps, adam_eps 1e-6, sigma 0.1": (
                "rainbow",
                {"n_step": 3, "adam_eps": 1e-6, "noisy_sigma": 0.1},
            ),
            "3 steps, epsilon-greedy": ("rainbow", {"n_step": 3, "noisy": False, "exploration": "epsilon"}),
            "3 steps, uniform replay": ("rainbow", {"n_step": 3, "prioritized": False}),
            "c51": ("c51", {}),
            "c51, dueling": ("c51", {"dueling": True}),
            "c51, double": ("c51", {"double": True}),
            "c51, prioritized": ("c51", {"prioritized": True}),
            "c51, noisy": ("c51", {"noisy": True, "exploration": "none"}),
            "c51, 3 steps": ("c51", {"n_step": 3}),
            "epsilon-greedy": ("rainbow", {"noisy": False, "exploration": "epsilon"}),
            "values from -20": ("rainbow", {"v_min": -20.0, "total_timesteps": 1_000_000}),
            "c51, values from -20": ("c51", {"v_min": -20.0, "total_timesteps": 1_000_000}),
            "values from -20, epsilon-greedy": (
                "rainbow",
                {"v_min": -20.0, "noisy": False, "exploration": "epsilon", "total_timesteps": 1_000_000},
            ),
        },
        {"total_timesteps": 400_000, "eval": False},
    ),
}


def all_jobs(
    names: Iterable[str], seeds: Sequence[int], variants: Sequence[str], envs: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """One seed of everything first; of some variants and environments where they are given."""
    return [
        {"study": name, "env": env, "variant": variant, "seed": seed}
        for seed in seeds
        for name in names
        for env in STUDIES[name].envs
        for variant in STUDIES[name].variants
        if (not variants or variant in variants) and (not envs or env in envs)
    ]


def one(job: Mapping[str, Any], limit: float) -> Record:
    study = STUDIES[job["study"]]
    algorithm, own = study.variants[job["variant"]]
    settings = {**study.settings, **own, "seed": job["seed"]}
    where = origin()  # the commit that is run, not one made meanwhile
    found = train(job["env"], algorithm, settings, study.episodes, limit)
    every = math.ceil(len(found.rows) / ROWS)
    rows = [row for number, row in enumerate(found.rows) if number % every == 0 or study.metric not in row]
    config = {**found.config, "variant": job["variant"]}
    values = [row[study.metric] for row in found.rows if study.metric in row]
    last = values[-math.ceil(len(values) / 10) :]
    shown = ("steps", "time/elapsed", study.metric)
    return {
        **found.record,
        **where,
        "score": fmean(last) if last else None,
        **(
            {} if study.threshold is None else {"reached": reached(found.rows, study.metric, study.threshold)}
        ),
        "rows": [{name: row[name] for name in shown if name in row} for row in rows],
        "config": config,
    }


def reached(rows: Iterable[Mapping[str, Any]], metric: str, threshold: float) -> int | None:
    """Steps of the first row whose metric is at least the threshold; None: never."""
    return next((row["steps"] for row in rows if row.get(metric, -math.inf) >= threshold), None)


def estimate(job: Mapping[str, Any], records: list[Record], limit: float) -> float:
    """Seconds that a job takes; the whole limit before any of its kind is known."""
    study = STUDIES[job["study"]]
    steps = study.variants[job["variant"]][1].get("total_timesteps", study.settings.get("total_timesteps", 0))
    known = known_seconds(records, job, (("study", "env", "variant"),), steps) if steps else None
    return min(known or math.inf, limit) + 20


def report(records: Iterable[Record], to: Path | None) -> str:
    """Write the results and the picture of every study; their tables."""
    studies: dict[str, list[Record]] = {}
    for record in records:
        studies.setdefault(record["job"]["study"], []).append(record)
    texts = []
    for name, runs in studies.items():
        runs.sort(key=lambda run: (run["job"]["env"], run["job"]["variant"], run["job"]["seed"]))
        draw(name, runs, (to or ROOT / "docs" / "curves") / f"study_{name}.png")
        kept = [{key: value for key, value in run.items() if key not in ("rows", "config")} for run in runs]
        path = (to or ROOT / "benchmarks" / "results") / f"study_{name}.json"
        path.write_text(json.dumps({"metric": STUDIES[name].metric, "runs": kept}, indent=1) + "\n", "utf-8")
        texts.append(f"{name}: {STUDIES[name].metric}\n\n{table(runs)}")
    return "\n\n".join(texts)


def table(runs: Sequence[Record]) -> str:
    groups: dict[tuple[str, str], list[Record]] = {}
    for run in runs:
        groups.setdefault((run["job"]["env"], run["job"]["variant"]), []).append(run)
    threshold = STUDIES[runs[0]["job"]["study"]].threshold
    names = ["environment", "agent", "score", "played", "steps", "wall time", "seeds"]
    if threshold is not None:
        names.append(f"steps to {threshold:g}")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for (env, variant), found in groups.items():
        steps, seconds = (fmean(run[key] for run in found) for key in ("steps", "wall_time"))
        cells = (
            env,
            variant,
            spread(found, "score"),
            spread([_played(run) for run in found], "played"),
            f"{steps:,.0f}",
        )
        line = f"| {' | '.join(cells)} | {seconds:,.0f} s | {len(found)} |"
        if threshold is not None:
            line += " " + ", ".join(
                "never" if run["reached"] is None else f"{run['reached']:,}" for run in found
            )
            line += " |"
        lines.append(line)
    return "\n".join(lines)


def _played(run: Record) -> Record:
    """What deterministic episodes reached: the study's metric where the environment measures it, else the return."""
    name = STUDIES[run["job"]["study"]].metric.partition("/")[2]
    return {"played": run.get("measures", {}).get(name, run["return"])}


def spread(runs: Sequence[Record], key: str) -> str:
    values = [run[key] for run in runs if run[key] is not None]
    if not values:
        return ""
    return f"{fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def draw(name: str, runs: Sequence[Record], path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, run in enumerate(runs):
            place = Path(folder, str(number))
            place.mkdir()
            (place / "config.yaml").write_text(yaml.safe_dump(run["config"]))
            (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in run["rows"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        folders = [Path(folder, str(number)) for number in range(len(runs))]
        plot_runs(folders, path, metrics=(STUDIES[name].metric,), group_by=("variant",))


def main() -> None:
    line = CommandLine.of(__doc__, limit=480)
    line.run.add_argument("--studies", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    line.run.add_argument("--variants", nargs="+", default=[], help="only these")
    line.run.add_argument("--envs", nargs="+", default=[], help="only these")
    line.report.add_argument("--to", type=Path, help="write all files there instead")
    args = line.parser.parse_args()
    if args.command == "job":
        print(json.dumps(one(args.job, args.limit)))
    elif args.command == "run":
        found = all_jobs(args.studies, args.seeds, args.variants, args.envs)
        run_with(args, found, partial(estimate, limit=args.limit))
    else:
        print(report(read_all(args), args.to))


if __name__ == "__main__":
    main()
