"""Behaviours of a Unity scene: what their agents observe and do, and which of them is trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from whorl.core.errors import EnvError, nearest
from whorl.envs.unity.sensors import Sensor, observation_space, sensors_of

CONTINUOUS, DISCRETE = "continuous", "discrete"
"""keys of the parts of a mixed action"""


@dataclass(frozen=True)
class Behavior:
    """A behaviour: agents with the same name, of any team, share one policy."""

    name: str
    sensors: tuple[Sensor, ...]
    continuous: int
    """number of continuous actions"""
    branches: tuple[int, ...]
    """number of choices of each discrete action"""

    def owns(self, key: str) -> bool:
        """Whether a key of the player's messages, `Name?team=N`, is this behaviour."""
        return key == self.name or key.partition("?")[0] == self.name

    @property
    def observation_space(self) -> spaces.Space:
        return observation_space(self.sensors)

    @property
    def action_space(self) -> spaces.Space:
        parts: dict[str, spaces.Space] = {}
        if self.continuous:
            parts[CONTINUOUS] = spaces.Box(-1, 1, (self.continuous,), np.float32)
        if self.branches:
            one = len(self.branches) == 1
            parts[DISCRETE] = (
                spaces.Discrete(self.branches[0]) if one else spaces.MultiDiscrete(list(self.branches))
            )
        return spaces.Dict(parts) if len(parts) == 2 else next(iter(parts.values()))

    def split(self, action: Any) -> tuple[np.ndarray, np.ndarray]:
        """A batch of the environment's actions as continuous [rows, n] and discrete [rows, branches] ones."""
        both = action if isinstance(action, dict) else {CONTINUOUS if self.continuous else DISCRETE: action}
        rows = len(next(iter(both.values())))
        continuous = both.get(CONTINUOUS, np.zeros((rows, 0), np.float32))
        discrete = np.asarray(both.get(DISCRETE, np.zeros((rows, 0), np.int64))).reshape(
            rows, len(self.branches)
        )
        return continuous, discrete

    def idle(self, mask: Sequence[bool]) -> tuple[list[float], list[int]]:
        """The action of an agent without a policy: zeros, and the first choice that is allowed of each branch."""
        allowed = np.broadcast_to(self.allowed(mask), sum(self.branches))
        parts = np.split(allowed, np.cumsum(self.branches)[:-1]) if self.branches else []
        return [0.0] * self.continuous, [int(part.argmax()) for part in parts]

    def allowed(self, mask: Sequence[bool]) -> np.ndarray | bool:
        """The choices that a player's mask, in which true means forbidden, allows; an empty one allows all."""
        return ~np.array(mask, bool) if len(mask) == sum(self.branches) else True


def announced(message: Any) -> dict[str, Behavior]:
    """The behaviours that a message of the player announces, by key."""
    output = message.unity_output
    agents = output.rl_output.agentInfos
    return {
        told.brain_name: _behavior(told.brain_name, told, agents[told.brain_name].value[0].observations)
        for told in output.rl_initialization_output.brain_parameters
        if told.brain_name in agents and agents[told.brain_name].value
    }


def _behavior(key: str, parameters: Any, observations: Sequence[Any]) -> Behavior:
    spec = parameters.action_spec
    continuous, branches = spec.num_continuous_actions, tuple(spec.discrete_branch_sizes)
    if not continuous and not branches:  # communication before version 1.3
        sizes = tuple(parameters.vector_action_size_deprecated)
        if parameters.vector_action_space_type_deprecated == 1:
            continuous = sum(sizes)
        else:
            branches = sizes
    return Behavior(key.partition("?")[0], sensors_of(observations), continuous, branches)


def choose(found: Mapping[str, Behavior], asked: str) -> Behavior:
    """The behaviour to train among those of a scene, by key."""
    if not found:
        raise EnvError("no agent of the scene asks for decisions; give agents the behaviour type Default")
    names = list(dict.fromkeys(behavior.name for behavior in found.values()))
    if not asked and len(names) > 1:
        raise EnvError(
            f"the scene has the behaviours {', '.join(names)}; choose one with the option behavior "
            f"(--env_options.behavior {names[0]})"
        )
    name = asked.partition("?")[0] or names[0]
    matching = [behavior for behavior in found.values() if behavior.name == name]
    if matching and not matching[0].continuous and not matching[0].branches:
        raise EnvError(f"behaviour {name!r} has no actions; give it some in its Behavior Parameters")
    if not matching or (asked not in ("", name) and asked not in found):
        raise EnvError(f"the scene has no behaviour {asked!r}; {nearest(asked, [*names, *found])}")
    if asked in found and asked != name:  # with its team
        return Behavior(asked, found[asked].sensors, found[asked].continuous, found[asked].branches)
    if len(set(matching)) > 1:
        teams = ", ".join(key for key in found if found[key].name == name)
        raise EnvError(
            f"the teams of behaviour {name!r} differ in sensors or actions; choose one of: {teams}"
        )
    return matching[0]
