"""Put the policy of a run into the box: its weights for acting, and a card."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

import torch
import yaml

from whorl import api
from whorl.box.cards import FOLDER, Card
from whorl.core import files
from whorl.core.errors import ConfigError
from whorl.core.version import __version__
from whorl.state.policy import export

PLACES = ("runs", "name", "tag")
"""settings that say where a run was, which an agent does not need"""
PRIVATE = (
    *("--runs", "--name", "--tag", "--device", "--quiet", "--max-seconds"),
    *("--eval-freq", "--n-eval-episodes", "--checkpoint-freq", "--log-freq"),
)
"""flags of a command that concern only where it ran, for how long and how it was watched"""


def add(
    run: str | Path,
    name: str,
    *,
    about: str = "",
    best: bool = False,
    episodes: int = 100,
    seed: int = 12_345,
    stochastic: bool = False,
    trust: Sequence[str] = (),
    folder: Path = FOLDER,
) -> Card:
    """Put the policy of a run into the box: play `episodes`, write its weights and its card."""
    if not name.replace("-", "").replace("_", "").isalnum() or name != name.lower():
        raise ConfigError(f"the name is {name!r}; use small letters, digits, - and _")
    policy = api.restore(run, best=best, trust=trust)
    found = api.evaluate(policy, episodes, seed=seed, deterministic=not stochastic, trust=trust)
    settings, origin = policy.settings, policy.origin
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / f"{name}.pt"
    saved = export(policy.agent, settings, acting=True)
    saved["config"] = {key: value for key, value in saved["config"].items() if key not in PLACES}
    with files.scratch(weights) as temp:
        torch.save(saved, temp)
        temp.replace(weights)
    card = Card(
        name=name,
        about=about or f"{settings.algorithm} on {settings.env}",
        algorithm=settings.algorithm,
        env=settings.env,
        command=_public(str(origin.get("command", "")), settings.algorithm, settings.env),
        seed=settings.run.seed,
        commit=str((origin.get("whorl_commit") or {}).get("id", "")),
        steps=policy.steps,
        mean_return=round(found.mean_return, 3),
        std=round(found.std, 3),
        mean_length=round(sum(found.lengths) / len(found.lengths), 1),
        episodes=episodes,
        eval_seed=seed,
        stochastic=stochastic,
        whorl=__version__,
        date=date.today().isoformat(),
        sha256=files.sha256(weights),
    )
    text = yaml.safe_dump(asdict(card), sort_keys=False, width=110)
    files.write_atomic(folder / f"{name}.yaml", text.encode())
    return card


def _public(command: str, algorithm: str, env: str) -> str:
    """`whorl train ...` out of a command line, without folders of the machine that it ran on."""
    words = shlex.split(command)
    place = next((n for n, word in enumerate(words) if word in ("train", "resume")), None)
    if place is None:
        return f"whorl train {algorithm} {env}"
    kept, skip = [], False
    for word in words[place:]:
        if word.startswith("--"):
            skip = word.partition("=")[0].replace("_", "-") in PRIVATE
        if not skip:
            kept.append(word)
    return shlex.join(["whorl", *kept])
