"""The agents in the box: a file of weights and a card (YAML) for each, by name.

The weights are those that acting reads, without critics and target networks where acting needs none, so that all agents
together stay small.
"""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
import yaml

from whorl import api
from whorl.core import files
from whorl.core.errors import CheckpointError, ConfigError, WhorlError, nearest
from whorl.core.version import __version__
from whorl.settings.presets import read_yaml
from whorl.settings.schema import build
from whorl.state.policy import SavedPolicy, export, load_policy

FOLDER = Path(__file__).parent / "agents"
PLACES = ("runs", "name", "tag")
"""settings that say where a run was, which an agent does not need"""
PRIVATE = ("--runs", "--name", "--tag", "--device", "--quiet")
"""flags of a command that concern only where and how it ran"""


@dataclass(frozen=True)
class Card:
    """Where an agent comes from, and how good it is."""

    name: str
    about: str
    """one line"""
    algorithm: str
    env: str
    command: str
    """that trained it"""
    seed: int
    commit: str
    """of Whorl, in training"""
    steps: int
    """environment steps of training"""
    mean_return: float
    std: float
    mean_length: float
    episodes: int
    """episodes of these figures"""
    eval_seed: int
    stochastic: bool
    """whether its actions are sampled; else they are greedy"""
    whorl: str
    """version of Whorl that wrote the card"""
    date: str
    sha256: str
    """of the file of weights"""


def agents(folder: Path = FOLDER) -> dict[str, Card]:
    """The cards of all agents by name."""
    return {path.stem: _read(path) for path in sorted(folder.glob("*.yaml"))}


def load(name: str, folder: Path = FOLDER, device: str = "cpu") -> tuple[SavedPolicy, Card]:
    """The policy of an agent in the box, and its card."""
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = [entry.stem for entry in folder.glob("*.yaml")]
        raise ConfigError(f"there is no agent {name!r} in the box; {nearest(name, known)}")
    card, weights = _read(path), folder / f"{name}.pt"
    if not weights.is_file() or files.sha256(weights) != card.sha256:
        raise CheckpointError(
            f"{weights} is missing or not the file that its card describes; install Whorl again"
        )
    policy = load_policy(torch.load(weights, weights_only=True), device=device)
    policy.steps = card.steps
    return policy, card


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


def _read(path: Path) -> Card:
    found: Any = read_yaml(path.read_text("utf-8"), str(path))
    try:
        return build(Card, dict(found))
    except (TypeError, ValueError, WhorlError) as error:
        raise CheckpointError(f"{path} is no card of an agent: {error}") from None


def _public(command: str, algorithm: str, env: str) -> str:
    """`whorl train ...` out of a command line, without folders of the machine that it ran on."""
    words = shlex.split(command)
    place = next((n for n, word in enumerate(words) if word in ("train", "resume")), None)
    if place is None:
        return f"whorl train {algorithm} {env}"
    kept, skip = [], False
    for word in words[place:]:
        if word.startswith("--"):
            skip = word.partition("=")[0] in PRIVATE
        if not skip:
            kept.append(word)
    return shlex.join(["whorl", *kept])
