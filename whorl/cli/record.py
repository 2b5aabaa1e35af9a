"""`whorl record`: episodes of a trained policy as a dataset."""

from dataclasses import dataclass
from typing import Annotated

from whorl.cli.command import command, env_options_of, one_name, parser_of, wants_help
from whorl.cli.report import show_table
from whorl.settings.schema import Device, NonNegative, PositiveCount, Probability, Range


@dataclass(frozen=True)
class RecordFlags:
    """Flags of `whorl record`."""

    episodes: PositiveCount = 100
    """episodes to record"""
    output: str = ""
    """folder of the dataset; default: where Minari keeps datasets, with the id whorl/ENV/ALGORITHM-vN"""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 12_345
    """seed of the episodes"""
    max_steps: Annotated[int, Range(0, 10**12)] = 0
    """steps after which an episode is truncated; 0: eval_max_steps of the run"""
    stochastic: bool = False
    """sample actions instead of taking the mean or most likely one"""
    epsilon: Probability = 0.0
    """probability of a random action"""
    noise: NonNegative = 0.0
    """standard deviation of Gaussian noise on continuous actions, for actions scaled to [-1, 1]"""
    best: bool = False
    """use the policy with the best evaluation instead of the newest"""
    device: Device = "cpu"
    """device of the policy"""
    env: str = ""
    """play in this environment instead of the run's"""
    trust: tuple[str, ...] = ()
    """your own code that may be loaded: an import path, a module, a file (my_env.py), or the hash of code saved with
    the run (code:HASH)"""


@command(
    "record RUN [--episodes N] [--output FOLDER] [--stochastic] [--epsilon 0.1] [--noise 0.1] [--best]",
    RecordFlags,
)
def record(words: list[str]) -> int:
    """write episodes of a trained policy as a dataset"""
    parser = parser_of("record", env_options=True)
    asked, words = wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    from whorl import api

    run, own, rest = one_name(parser, words, RecordFlags)
    found = api.record(
        run,
        own.episodes,
        output=own.output or None,
        env=own.env or None,
        env_options=env_options_of(rest),
        seed=own.seed,
        max_steps=own.max_steps,
        deterministic=not own.stochastic,
        epsilon=own.epsilon,
        noise=own.noise,
        best=own.best,
        trust=own.trust,
        device=own.device,
    )
    rows = {
        "dataset": found.id if not own.output else str(found.folder),
        "episodes": len(found.returns),
        "steps": found.steps,
        "mean return": round(found.mean_return, 3),
    }
    show_table(rows, str(found.folder))
    return 0
