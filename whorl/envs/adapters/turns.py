"""Games that are played in turns (PettingZoo's AEC API), with the methods of its parallel API.

A step is one turn: the agent whose turn it is acts. The step answers the agent whose turn is next, with its observation
and all reward since its own last turn, and the agents whose game is over; all others wait. An agent appears with its
first turn; rewards before it are discarded.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from whorl.core.arrays import MASK_KEY
from whorl.core.errors import EnvError

Answers: TypeAlias = tuple[
    dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
]
"""observations, rewards, terminated, truncated and infos of the agents that a step answers"""


def in_turns(env: Any) -> bool:
    """Whether an object with agents and spaces is played in turns; before its first reset, too."""
    return hasattr(env, "last") and hasattr(env, "observe")


class Turns:
    """One game."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.metadata = getattr(env, "metadata", {})
        self.possible_agents = list(env.possible_agents)
        self.agents: list[str] = []
        """those that have had a turn and are in the game"""

    def observation_space(self, agent: str) -> spaces.Space:
        found: spaces.Space = self.env.observation_space(agent)
        return found

    def action_space(self, agent: str) -> spaces.Space:
        found: spaces.Space = self.env.action_space(agent)
        return found

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        self.env.reset(seed=seed)
        self.agents = []
        obs, _, _, _, infos = self._answers()
        return obs, infos

    def step(self, actions: Mapping[str, Any]) -> Answers:
        self.env.step(actions[self.env.agent_selection])
        return self._answers()

    def mask(self) -> Any:
        """The actions that the agent whose turn it is may choose, where the game says so."""
        seen, _, _, _, info = self.env.last()
        return seen[MASK_KEY] if isinstance(seen, Mapping) and MASK_KEY in seen else info.get(MASK_KEY)

    def render(self) -> np.ndarray | None:
        frame = self.env.render()
        return frame if isinstance(frame, np.ndarray) else None

    def close(self) -> None:
        self.env.close()

    def _answers(self) -> Answers:
        """Go on to the next turn, past agents whose game is over."""
        found: Answers = ({}, {}, {}, {}, {})
        while self.env.agents:
            agent = self.env.agent_selection
            *_, ends, cut, _ = answer = self.env.last()
            columns: Iterable[dict[str, Any]] = found
            for column, value in zip(columns, answer):
                column[agent] = value
            if agent not in self.agents:
                self.agents.append(agent)
            if not (ends or cut):
                break
            self.agents.remove(agent)
            self.env.step(None)  # it leaves
            if agent in self.env.agents:
                raise EnvError(
                    f"agent {agent!r} has ended its game and stays in it; step(None) has to remove it"
                )
        if self.agents and not self.env.agents:
            raise EnvError(
                f"agent {self.agents[0]!r} left the game and was neither terminated nor truncated; set one of them "
                "before it leaves"
            )
        return found
