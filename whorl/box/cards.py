"""The agents in the box: a file of weights and a card (YAML) for each, by name.

The weights are those that acting reads, without critics and target networks where acting needs none, so that all agents
together stay small.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whorl.core import files
from whorl.core.errors import CheckpointError, ConfigError, WhorlError, nearest
from whorl.settings.presets import read_yaml
from whorl.settings.schema import build
from whorl.state.policy import SavedPolicy, read_policy

FOLDER = Path(__file__).parent / "agents"


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


def names(folder: Path = FOLDER) -> list[str]:
    """The names of all agents; unlike `agents` this reads no file."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def card_of(name: str, folder: Path = FOLDER) -> Card | None:
    """The card of an agent; None where there is no agent of this name."""
    return _read(folder / f"{name}.yaml") if name in names(folder) else None


def load(name: str, folder: Path = FOLDER, device: str = "cpu") -> tuple[SavedPolicy, Card]:
    """The policy of an agent in the box, and its card."""
    path = folder / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(f"there is no agent {name!r} in the box; {nearest(name, names(folder))}")
    card, weights = _read(path), folder / f"{name}.pt"
    if not weights.is_file() or files.sha256(weights) != card.sha256:
        raise CheckpointError(
            f"{weights} is missing or not the file that its card describes; install Whorl again"
        )
    policy = read_policy(weights, device=device)
    policy.steps = card.steps
    return policy, card


def _read(path: Path) -> Card:
    found: Any = read_yaml(path.read_text("utf-8"), str(path))
    try:
        return build(Card, dict(found))
    except (TypeError, ValueError, WhorlError) as error:
        raise CheckpointError(f"{path} is not the card of an agent: {error}") from None
