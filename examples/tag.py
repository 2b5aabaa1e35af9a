"""Tag on a line: a hunter runs after prey. An environment with PettingZoo's parallel API, which needs no package."""

import numpy as np
from gymnasium import spaces


class Tag:
    """Two agents of the type prey walk left, stay or walk right; the hunter chooses its speed. Who is caught is out."""

    possible_agents = ("hunter_0", "prey_0", "prey_1")

    def __init__(self, length=50, render_mode=None):
        self.length = length

    def observation_space(self, agent):
        return spaces.Box(-2, 2, (3 if agent == "hunter_0" else 2,), np.float32)

    def action_space(self, agent):
        return spaces.Box(-1, 1, (1,), np.float32) if agent == "hunter_0" else spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        self.place = {agent: self.random.uniform(-1, 1) for agent in self.agents}
        return self.observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.steps += 1
        for agent, action in actions.items():
            speed = 0.1 * float(action[0]) if agent == "hunter_0" else 0.05 * (action - 1)
            self.place[agent] = float(np.clip(self.place[agent] + speed, -1, 1))
        gap = {agent: abs(self.place[agent] - self.place["hunter_0"]) for agent in actions}
        caught = {agent: agent != "hunter_0" and gap[agent] < 0.1 for agent in actions}
        left = [agent for agent in actions if not caught[agent]]
        reward = {agent: -10.0 if caught[agent] else gap[agent] for agent in actions}
        reward["hunter_0"] = 10.0 * sum(caught.values()) - 0.1
        terminated = {**caught, "hunter_0": left == ["hunter_0"]}
        truncated = dict.fromkeys(actions, self.steps >= self.length)
        self.agents = [agent for agent in left if not terminated[agent] and not truncated[agent]]
        return self.observe(actions), reward, terminated, truncated, {agent: {} for agent in actions}

    def observe(self, agents):
        hunter = self.place["hunter_0"]
        prey = [self.place[agent] - hunter if agent in self.agents else 2.0 for agent in ("prey_0", "prey_1")]
        return {
            agent: np.array(
                [hunter, *prey] if agent == "hunter_0" else [self.place[agent], hunter], np.float32
            )
            for agent in agents
        }

    def render(self):  # for videos: whorl eval RUN --video
        frame = np.full((60, 420, 3), 255, np.uint8)
        for agent in self.agents:
            left = round(200 * (self.place[agent] + 1))
            frame[20:40, left : left + 20] = (200, 60, 40) if agent == "hunter_0" else (40, 110, 200)
        return frame

    def close(self): ...

    def get_snapshot(self):  # with these two a run resumes bit for bit
        return {name: getattr(self, name) for name in ("random", "agents", "steps", "place")}

    def set_snapshot(self, snapshot):
        vars(self).update(snapshot)
