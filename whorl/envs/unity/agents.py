"""The agents of one player as rows of a batch.

Agents ask for decisions when they like, and a player goes on only when all that ask in a message have an action. A row
is one agent. It is in one of these states:

    EMPTY    no agent, or one whose episode ended and that has not asked since
    READY    its observation was returned, and the policy is about to act
    ACTING   its action is known, and the agent has not answered
    ENDED    its last observation was returned, and the first one of its next episode is stored

A row that is ACTING or EMPTY after a step *waits* (see `whorl.envs.vector.Step`). An agent whose episode ends often
asks for the next decision in the same message. Its first observation can only be returned by the next step, after the
last one of the old episode: that step sends nothing, and the player's other agents wait.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from whorl.envs.stepping import Buffers
from whorl.envs.unity.behaviors import Behavior, announced
from whorl.envs.unity.messages import messages

EMPTY, READY, ACTING, ENDED = range(4)


class Agents:
    """Rows `out` of a batch for the agents of one behaviour in one player.

    Args:
        scene: all behaviours by key, as far as they are known; a player announces each of them once.
    """

    def __init__(self, behavior: Behavior, out: Buffers, scene: Mapping[str, Behavior]) -> None:
        self.behavior, self.out = behavior, out
        self._scene = dict(scene)
        rows = len(out.reward)
        self.state = np.full(rows, EMPTY)
        self.answered = np.zeros(rows, bool)
        """rows to which something happened in this step; the others wait"""
        self.surplus = 0
        """agents without a row in the newest message"""
        self._of: dict[tuple[str, int], int] = {}
        self._owner: list[tuple[str, int] | None] = [None] * rows
        self._stored: dict[int, Any] = {}
        self._asking: dict[str, list[tuple[int | None, Any]]] = {}
        """agents that wait for an action, with their rows, in the order in which the player expects actions"""
        self._continuous = np.zeros((rows, behavior.continuous), np.float32)
        self._discrete = np.zeros((rows, len(behavior.branches)), np.int64)
        self._masked = bool(behavior.branches)
        # Dict spaces are ordered by name.
        self._sensors = sorted(range(len(behavior.sensors)), key=lambda at: behavior.sensors[at].name)

    def clear(self) -> None:
        """Forget all agents: the player was reset or replaced."""
        self.state.fill(EMPTY)
        self._of.clear()
        self._owner = [None] * len(self._owner)
        self._stored.clear()
        self._asking.clear()

    def act(self, continuous: np.ndarray, discrete: np.ndarray) -> None:
        """Take the actions of rows that are READY; others have theirs, or need none."""
        ready = self.state == READY
        self._continuous[ready], self._discrete[ready] = continuous[ready], discrete[ready]
        self.state[ready] = ACTING

    def begin(self) -> None:
        """A step begins: forget the last one, and return the first observations that are stored."""
        out = self.out
        for column in (out.reward, out.terminated, out.truncated, out.reset, self.answered):
            column.fill(0)
        for row, info in self._stored.items():
            self._open(row, info)
        self._stored.clear()

    @property
    def can_be_answered(self) -> bool:
        """Whether all agents that asked have an action, so that the player can be answered."""
        return all(
            row is None or self.state[row] == ACTING for asking in self._asking.values() for row, _ in asking
        )

    def message(self, side_channel: bytes = b"") -> Any:
        """The answer to the player: an action for each agent that asked."""
        found = messages().UnityMessageProto()
        into = found.unity_input.rl_input
        into.side_channel = side_channel
        for key, asking in self._asking.items():
            value = into.agent_actions[key].value
            for row, info in asking:
                if row is None:
                    continuous, discrete = self._scene[key].idle(info.action_mask)
                else:
                    continuous, discrete = self._continuous[row].tolist(), self._discrete[row].tolist()
                action = value.add()
                action.continuous_actions.extend(continuous)
                action.discrete_actions.extend(discrete)
                action.vector_actions_deprecated.extend(continuous)  # for players before version 1.3
                action.vector_actions_deprecated.extend(discrete)
        self._asking.clear()
        return found

    def take(self, message: Any) -> None:
        """Enter what a message of the player says: ends of episodes first, then agents that ask."""
        self._scene |= announced(message)
        infos = {key: found.value for key, found in message.unity_output.rl_output.agentInfos.items()}
        for key, several in infos.items():
            if self.behavior.owns(key):
                for info in several:
                    row = self._of.get((key, info.id))
                    if info.done and row is not None and self.state[row] == ACTING:
                        self._end(row, info)
        asking = {key: [info for info in several if not info.done] for key, several in infos.items()}
        here = {(key, info.id) for key, several in asking.items() for info in several}
        self._asking = {
            key: [
                (self._decide(key, info, here) if self.behavior.owns(key) else None, info) for info in several
            ]
            for key, several in asking.items()
            if several
        }
        self.surplus = sum(
            row is None for key in self._asking if self.behavior.owns(key) for row, _ in self._asking[key]
        )

    def _decide(self, key: str, info: Any, here: set[tuple[str, int]]) -> int | None:
        """An agent asks for an action; its row."""
        row = self._of.get((key, info.id))
        if row is None:
            row = self._free_row(here)
            if row is None:
                return None
            self._of.pop(self._owner[row] or ("", 0), None)
            self._of[key, info.id], self._owner[row] = row, (key, info.id)
        if self.state[row] == ACTING:
            self._write(row, info)
            self.state[row] = READY
        elif self.answered[row]:  # its episode ended in this step
            self._stored[row] = info
            self.state[row] = ENDED
        else:
            self._open(row, info)
        return row

    def _free_row(self, here: set[tuple[str, int]]) -> int | None:
        """A row without an agent, or else with one whose episode ended and that does not ask now."""
        empty = [int(row) for row in np.flatnonzero(self.state == EMPTY)]
        unowned = [row for row in empty if self._owner[row] is None]
        gone = [row for row in empty if self._owner[row] not in here]
        return next(iter(unowned or gone), None)

    def _open(self, row: int, info: Any) -> None:
        """Return the first observation of an episode."""
        self._write(row, info)
        self.out.reward[row] = 0.0
        self.out.reset[row] = True
        self.state[row] = READY

    def _end(self, row: int, info: Any) -> None:
        self._write(row, info)
        self.out.terminated[row] = not info.max_step_reached
        self.out.truncated[row] = info.max_step_reached
        self.state[row] = EMPTY

    def _write(self, row: int, info: Any) -> None:
        self.answered[row] = True
        self.out.reward[row] = info.reward + info.group_reward
        for array, number in zip(self.out.obs, self._sensors):
            array[row] = self.behavior.sensors[number].read(info.observations[number])
        if self._masked:
            self.out.obs[-1][row] = self.behavior.allowed(info.action_mask)


class PlayerAgents:
    """All agents of one player: those of each behaviour that is trained."""

    def __init__(self, agents: list[Agents]) -> None:
        self.agents = agents

    def clear(self) -> None:
        """Forget all agents: the player was reset or replaced."""
        for one in self.agents:
            one.clear()

    def begin(self) -> None:
        """A step begins."""
        for one in self.agents:
            one.begin()

    @property
    def can_be_answered(self) -> bool:
        """Whether all agents that asked have an action, so that the player can be answered."""
        return all(one.can_be_answered for one in self.agents)

    def message(self, side_channel: bytes = b"") -> Any:
        """The answer to the player: for each agent that asked the action of its own behaviour, or none."""
        found = self.agents[0].message(side_channel)
        actions = found.unity_input.rl_input.agent_actions
        for one in self.agents[1:]:
            theirs = one.message().unity_input.rl_input.agent_actions
            for key in theirs:
                if one.behavior.owns(key):
                    actions[key].CopyFrom(theirs[key])
        return found

    def take(self, message: Any) -> None:
        """Enter what a message of the player says."""
        for one in self.agents:
            one.take(message)
