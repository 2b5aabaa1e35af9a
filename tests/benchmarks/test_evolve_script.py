"""A population beside single learners: the lines that the script prints."""

import sys
from pathlib import Path

import yaml

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from evolve import evolved, single

SMALL = {
    "algorithm": "ppo",
    "env": "CartPole-v1",
    "population": 2,
    "generations": 2,
    "generation_steps": 64,
    "target_return": 1000,
    "n_eval_episodes": 1,
    "random_params": {"gamma": [0.9, 0.99]},
    "num_envs": 4,
    "num_steps": 16,
    "n_epochs": 1,
}


def test_single_learners_and_populations_report_the_same_things(tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(SMALL))
    alone = single(str(config), 1, str(tmp_path))
    together = evolved(str(config), "pbt", 1, 1, str(tmp_path))
    assert set(together) - set(alone) == {"generations"} and set(alone) < set(together)
    assert alone["steps"] >= 2 * 64 and alone["params"]["gamma"] in (0.9, 0.99) and not alone["reached"]
    assert together["generations"] == 2 and together["steps"] >= 2 * 2 * 64 and not together["reached"]
