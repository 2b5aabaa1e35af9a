"""A population beside single learners with the same settings, which draw what `random_params` name once.

    python benchmarks/evolve.py examples/evolve_swing_up.yaml --seeds 1 2 3 4 --parallel 2

Single learners train for as many steps as each learner of the population, and are evaluated as often, on as many
episodes; whoever reaches `target_return` stops. Both rules start from the same settings. Each result is a line of JSON.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import whorl
from whorl.population import setup
from whorl.population.config import EvolveConfig
from whorl.population.evolver import read_lineage
from whorl.settings.presets import read_file
from whorl.settings.schema import build


def single(config: str, seed: int, runs: str) -> dict[str, Any]:
    """One learner with settings drawn from its seed."""
    read = read_file(config)
    own, drawn, layers = setup.split(read, setup.named(read, "algorithm", "ppo"))
    population = build(EvolveConfig, own)
    settings = {key: value for layer in layers for key, value in layer.items()}
    algorithm, env = settings.pop("algorithm"), settings.pop("env")
    schedule = {"total_timesteps": population.generations * population.generation_steps}
    schedule |= {"eval_freq": population.generation_steps, "save_model": False, "tensorboard": False}
    settings |= {"random_params": drawn, "seed": seed, "quiet": True, "runs": runs, **schedule}
    stop = whorl.StopAtReturn(population.target_return)
    trainer = whorl.load(env, algorithm, settings, callbacks=[stop])
    result = trainer.train()
    plain = trainer.settings.plain()
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    scores = [row["evaluation/return"] for row in rows if "evaluation/return" in row]
    return {
        "what": "single learner",
        "seed": seed,
        "best": max(scores),
        "last": scores[-1],
        "reached": max(scores) >= population.target_return,
        "steps": result.steps,
        "params": {name: plain.get(name, plain.get("actor_lr")) for name in drawn},
    }


def evolved(config: str, rule: str, seed: int, parallel: int, runs: str) -> dict[str, Any]:
    """A population."""
    result = whorl.evolve(config, rule=rule, seed=seed, parallel=parallel, runs=runs)
    rows = read_lineage(result.run_dir)
    last = [row.score for row in rows if row.generation == rows[-1].generation]
    return {
        "what": rule,
        "seed": seed,
        "best": result.mean_return,
        "last": max(last),
        "reached": result.reason == "the target return is reached",
        "steps": result.steps,
        "generations": result.generations,
        "params": dict(result.params or {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", nargs="?", default="examples/evolve_swing_up.yaml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4], help="of single learners")
    parser.add_argument("--rules", nargs="*", default=["cem", "pbt"])
    parser.add_argument("--population-seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--parallel", type=int, default=0, help="learners at a time; 0: one per core")
    parser.add_argument("--output", type=Path, help="file to append the lines to")
    parser.add_argument("--runs", default="", help="folder to keep the runs in")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        runs = asked.runs or temporary
        jobs = [lambda seed=seed: single(asked.config, seed, runs) for seed in asked.seeds]
        jobs += [
            lambda rule=rule, seed=seed: evolved(asked.config, rule, seed, asked.parallel, runs)
            for rule in asked.rules
            for seed in asked.population_seeds
        ]
        for job in jobs:
            began = time.monotonic()
            line = json.dumps({**job(), "seconds": round(time.monotonic() - began, 1)})
            print(line, flush=True)
            if asked.output:
                with asked.output.open("a") as file:
                    file.write(f"{line}\n")


if __name__ == "__main__":
    main()
