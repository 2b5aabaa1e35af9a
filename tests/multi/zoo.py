"""Environments with PettingZoo's parallel API: agents of two kinds, some of which die early or appear late."""

from typing import Any

import numpy as np
from gymnasium import spaces

LENGTH = 6
RUNNERS, GUARD = ("runner_0", "runner_1"), "guard_0"


class Meadow:
    """Every observation and reward says whose it is and when: agent number, episode, time; reward 100 agent + time.

    runner_0 is truncated at the end, runner_1 terminated at step 3, guard_0 appears at step 2 and is terminated at the
    end. A copy differs from another in `origin`, drawn from its seed.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        self.metadata = {"name": type(self).__name__.lower()}
        self.possible_agents = [*RUNNERS, GUARD]
        self.agents: list[str] = []
        self.episode = self.time = 0
        self.origin = 0.0
        self.random = np.random.default_rng(0)
        self.received: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1e6, 1e6, (4,) if agent in RUNNERS else (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2) if agent in RUNNERS else spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        if seed is not None:
            self.random = np.random.default_rng(seed)
            self.episode = 0
        self.origin = float(np.round(self.random.random(), 3))
        self.episode, self.time, self.agents = self.episode + 1, 0, list(RUNNERS)
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        assert set(actions) == set(self.agents), (actions, self.agents)
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), (agent, action)
        self.received.append(dict(actions))
        self.time += 1
        acted, over = list(self.agents), self.time == LENGTH
        terminated = {
            agent: (agent == "runner_1" and self.time == 3) or (agent == GUARD and over) for agent in acted
        }
        truncated = {agent: agent == "runner_0" and over for agent in acted}
        reward = {agent: 100.0 * self.number(agent) + self.time for agent in acted}
        self.agents = [agent for agent in acted if not terminated[agent] and not truncated[agent]]
        if self.time == 2:
            self.agents.append(GUARD)
        seen = [*acted, *(agent for agent in self.agents if agent not in acted)]
        return self._observe(seen), reward, terminated, truncated, {agent: {} for agent in seen}

    def number(self, agent: str) -> int:
        return self.possible_agents.index(agent) + 1

    def _observe(self, agents: list[str]) -> dict[str, np.ndarray]:
        found = {}
        for agent in agents:
            values = [self.number(agent), self.episode, self.time, self.origin]
            found[agent] = np.array(values if agent in RUNNERS else values[:3], np.float32)
        return found

    def get_snapshot(self) -> dict[str, Any]:
        own = {"episode": self.episode, "time": self.time, "origin": self.origin, "random": self.random}
        return {**own, "agents": list(self.agents)}

    def set_snapshot(self, snapshot: dict[str, Any]) -> None:
        for name, value in snapshot.items():
            setattr(self, name, value)

    def render(self) -> None:
        return None

    def close(self) -> None: ...


class Unsaved(Meadow):
    """The same without snapshots."""

    def get_snapshot(self) -> None:
        return None


class Corridors(Meadow):
    """Each agent has a task of its own: runners learn to choose 1, the guard to say 0.5; both see a constant."""

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        obs, _, terminated, truncated, infos = super().step(actions)
        reward = {
            agent: float(action) if agent in RUNNERS else 1.0 - abs(float(action[0]) - 0.5)
            for agent, action in actions.items()
        }
        return obs, reward, terminated, truncated, infos

    def _observe(self, agents: list[str]) -> dict[str, np.ndarray]:
        return {agent: np.ones(self.observation_space(agent).shape, np.float32) for agent in agents}


class Rounds:
    """Played in turns (PettingZoo's AEC API): red_0, red_1, blue_0, and again. Each turn earns every agent its number.

    red_1 is terminated by the fourth turn, the others are truncated by the eighth. The only legal action is the number
    of the turn modulo 3, as the mask in `info` says, which allows nothing when an agent is gone.
    """

    possible_agents = ("red_0", "red_1", "blue_0")

    def __init__(self, render_mode: str | None = None) -> None:
        self.metadata = {"name": "rounds", "render_fps": 4}
        self.received: list[str] = []
        self.episode = 0

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 1e6, (3 if agent.startswith("red") else 2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.agent_selection = list(self.possible_agents), "red_0"
        self.next, self.turn, self.episode = "red_0", 0, self.episode + 1
        self.earned = dict.fromkeys(self.agents, 0)

    def observe(self, agent: str) -> np.ndarray:
        values = [self.possible_agents.index(agent) + 1, self.turn, self.episode]
        return np.array(values[: self.observation_space(agent).shape[0]], np.float32)

    def last(self) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        agent = self.agent_selection
        ends, cut = agent == "red_1" and self.turn == 4, self.turn == 8
        mask = np.zeros(3, np.int8) if ends or cut else np.eye(3, dtype=np.int8)[self.turn % 3]
        return self.observe(agent), self.earned[agent], ends, cut, {"action_mask": mask}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        _, _, ends, cut, info = self.last()
        if ends or cut:
            assert action is None
            self.agents.remove(agent)
        else:
            assert info["action_mask"][action], (agent, action)
            self.received.append(agent)
            self.turn, self.earned[agent] = self.turn + 1, 0
            for number, other in enumerate(self.possible_agents, 1):
                self.earned[other] += number
            order = [*self.possible_agents, *self.possible_agents]
            here = order.index(agent) + 1
            alive = [one for one in self.agents if not (one == "red_1" and self.turn == 4)]
            self.next = next(one for one in order[here:] if one in alive)
        gone = [one for one in self.agents if self.turn == 8 or (one == "red_1" and self.turn == 4)]
        self.agent_selection = gone[0] if gone else self.next

    def get_snapshot(self) -> dict[str, Any]:
        names = ("agents", "agent_selection", "next", "turn", "episode", "earned")
        return {name: getattr(self, name) for name in names}

    def set_snapshot(self, snapshot: dict[str, Any]) -> None:
        vars(self).update(snapshot)

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), 20 * self.turn, np.uint8)

    def close(self) -> None: ...
