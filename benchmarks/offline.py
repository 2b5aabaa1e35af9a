"""Offline results on datasets recorded here: how good are bc, td3_bc, iql and cql on medium and expert data?

    python benchmarks/offline.py                                   # Pendulum-v1, with SAC as the teacher
    python benchmarks/offline.py --env Hopper-v5 HalfCheetah-v5 --teacher-steps 1000000 --steps 300000 --seeds 1 2 3
    python benchmarks/offline.py --env Hopper-v5 --record medium=RUN expert=hopper     # from runs or agents of the box

Without `--record`, of each environment one SAC run is trained. Its first checkpoint whose evaluation passes `--medium`
of the way from the first to the last one records *medium*, the last one *expert*. Each algorithm is trained on both,
and the table has the mean return of its last policy over the seeds beside that of the data. Whatever is there already
is not made again.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import whorl
from whorl.datasets.rows import read
from whorl.state import checkpoint

ALGORITHMS = ("bc", "td3_bc", "iql", "cql")


def teacher(env: str, folder: Path, args: argparse.Namespace) -> Path:
    """The run that the datasets are recorded from."""
    run = folder / "teacher"
    if not (run / "done").exists():
        settings: dict[str, Any] = {"keep_checkpoints": 0, "seed": 0, "runs": str(folder), "name": "teacher"}
        if args.teacher_steps:
            settings |= {"total_timesteps": args.teacher_steps}
            settings |= {"checkpoint_freq": max(1, args.teacher_steps // 20)}
        trained = whorl.train(env, "sac", settings, device=args.device, quiet=True).run_dir
        (trained / "done").touch()
    return run


def recorded(env: str, folder: Path, args: argparse.Namespace) -> dict[str, Path]:
    """The datasets medium and expert."""
    if args.record:
        return {name: from_policy(folder / name, policy, args) for name, policy in args.record}
    found = {name: folder / name for name in ("medium", "expert")}
    if all((path / "data").exists() for path in found.values()):
        return found
    run = teacher(env, folder, args)
    saved = sorted(checkpoint.checkpoints(run), key=checkpoint.number)
    scores = [whorl.evaluate(path, 10).mean_return for path in saved]
    worst, best = scores[0], scores[-1]
    middle = next(n for n, score in enumerate(scores) if score >= worst + args.medium * (best - worst))
    for name, number in (("medium", middle), ("expert", len(saved) - 1)):
        if not (found[name] / "data").exists():
            whorl.record(saved[number], args.episodes, output=found[name], deterministic=False)
    return found


def from_policy(data: Path, policy: str, args: argparse.Namespace) -> Path:
    """A dataset of a run or of an agent in the box."""
    if not (data / "data").exists():
        whorl.record(policy, args.episodes, output=data, deterministic=False)
    return data


def score(env: str, algorithm: str, data: Path, seed: int, folder: Path, args: argparse.Namespace) -> float:
    """The return of one run's last policy."""
    name = f"{algorithm}_{data.name}_{seed}"
    file = folder / f"{name}.json"
    if not file.exists():
        settings: dict[str, Any] = {
            "total_timesteps": args.steps,
            "seed": seed,
            "runs": str(folder),
            "name": name,
        }
        settings |= {"dataset": str(data), "eval_freq": max(1, args.steps // 5)}
        if args.hidden_sizes:
            settings |= {"hidden_sizes": args.hidden_sizes}
        run = whorl.train(env, algorithm, settings, device=args.device, quiet=True).run_dir
        found = whorl.evaluate(run, args.eval_episodes)
        file.write_text(json.dumps({"return": found.mean_return, "std": found.std}))
    return float(json.loads(file.read_text())["return"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", nargs="+", default=["Pendulum-v1"])
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--teacher-steps", type=int, default=0, help="0: those of SAC's preset")
    parser.add_argument("--medium", type=float, default=0.4, help="share of the teacher's improvement")
    parser.add_argument(
        "--record", nargs="+", metavar="NAME=POLICY", type=lambda pair: tuple(pair.split("=", 1)), default=[]
    )
    parser.add_argument("--episodes", type=int, default=200, help="of each dataset")
    parser.add_argument("--steps", type=int, default=100_000, help="updates of each run")
    parser.add_argument("--hidden-sizes", nargs="+", type=int, help="of all networks; default: the presets'")
    parser.add_argument("--eval-episodes", type=int, default=20)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=Path("runs/offline"))
    args = parser.parse_args()
    print(f"| environment | data | return of the data | {' | '.join(args.algorithms)} |")
    print(f"|---|---|---|{'---|' * len(args.algorithms)}")
    for env in args.env:
        folder = args.output.resolve() / env.replace("/", "_")
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in recorded(env, folder, args).items():
            returns = read(str(data), whorl.make(env).source.spec(1)).returns
            cells = [f"{fmean(returns):.1f}"]
            for algorithm in args.algorithms:
                found = [score(env, algorithm, data, seed, folder, args) for seed in args.seeds]
                cells.append(f"{fmean(found):.1f} ± {pstdev(found):.1f}")
            print(f"| {env} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
