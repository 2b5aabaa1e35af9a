"""Train an algorithm with its preset on several seeds and record it for its page in the docs.

`python benchmarks/results.py ppo CartPole-v1 --seeds 1 2 3` writes `benchmarks/results/ppo_CartPole-v1.json`
and `docs/curves/ppo_CartPole-v1.png`; `python docs/generate.py` then puts both on the page. The return is that of 100
episodes with the mean action after training (`--best`: of the best evaluation's policy). With `--to FOLDER` both files
are written there, for a machine whose files are brought back by hand. With `--twin` the same agent without its memory
is trained too, on the first seed, and drawn beside it; settings that follow are the twin's own. `--twin components=[]`
is the one without its components instead.
"""

import argparse
import json
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from jobs import ROOT, commit, machine

import whorl
from whorl.log.plot import plot_runs

FORGETFUL = {"memory": "none", "last_action": False, "last_reward": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--commit", default="", help="where there is no git")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--twin", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    settings = given(args.set)
    trained = args.commit or commit()  # not one made meanwhile
    name = f"{args.algorithm}_{args.env}".replace("/", "-")
    with tempfile.TemporaryDirectory() as folder:
        runs, seeds = [], []
        for seed in args.seeds:
            config = {"runs": folder, "seed": seed, "tensorboard": False, **settings}
            result = whorl.load(args.env, args.algorithm, config).train()
            found = whorl.evaluate(result.run_dir, episodes=args.episodes, best=args.best)
            runs.append(result.run_dir)
            seeds.append(
                {
                    "seed": seed,
                    "steps": result.steps,
                    "wall_time": round(result.wall_time, 1),
                    "return": round(found.mean_return, 1),
                }
            )
            print(seeds[-1], flush=True)
        twin: dict[str, Any] = {}
        lacks = ""
        if args.twin is not None:
            changes = given(args.twin)
            lacks = "components" if "components" in changes else "memory"
            own = {**settings, **(FORGETFUL if lacks == "memory" else {}), **changes}
            config = {"runs": folder, "seed": args.seeds[0], "tensorboard": False, **own}
            result = whorl.load(args.env, args.algorithm, config).train()
            found = whorl.evaluate(result.run_dir, episodes=args.episodes, best=args.best)
            runs.append(result.run_dir)
            without = f"the same agent without {lacks}: {found.mean_return:.4g} after {result.steps:,} steps"
            twin = {"twin": own, "note": f"{without} (seed {args.seeds[0]})"}
            print(without, flush=True)
        curve = (args.to or ROOT / "docs" / "curves") / f"{name}.png"
        curve.parent.mkdir(exist_ok=True)
        plot_runs(runs, curve, group_by=("algorithm", lacks) if twin else ("algorithm",))
        points = [evaluations(run) for run in runs]
    record = {
        "algorithm": args.algorithm,
        "env": args.env,
        "settings": settings,
        "policy": "best evaluation" if args.best else "last",
        "episodes": args.episodes,
        "seeds": seeds,
        "evaluations": points,
        "machine": machine(),
        "commit": trained,
        "date": date.today().isoformat(),
        "curve": f"docs/curves/{name}.png",
        **twin,
    }
    path = (args.to or ROOT / "benchmarks" / "results") / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def given(items: list[str]) -> dict[str, Any]:
    """Settings from KEY=VALUE."""
    return {key: yaml.safe_load(value) for key, value in (item.split("=", 1) for item in items)}


def evaluations(run: Path) -> list[tuple[int, float, float]]:
    """Steps, seconds and return of every evaluation while training."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        (row["steps"], round(row["time/elapsed"], 1), round(row["evaluation/return"], 1))
        for row in rows
        if "evaluation/return" in row
    ]


if __name__ == "__main__":
    main()
