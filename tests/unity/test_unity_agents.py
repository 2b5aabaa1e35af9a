"""Agents as rows, by hand: decisions and ends of different agents, in messages of every kind."""

from typing import Any

import numpy as np
import wire

from whorl.envs.adapters.unity import layout_of
from whorl.envs.stepping import Buffers
from whorl.envs.unity.agents import Agents, PlayerAgents
from whorl.envs.unity.behaviors import Behavior
from whorl.envs.unity.messages import messages
from whorl.envs.unity.sensors import Sensor

KEY = "Walker?team=0"
WALKER = Behavior("Walker", (Sensor("VectorSensor", (1,), False, False),), 1, (2, 3))


class Hand:
    """Agents of one player whose messages are written by hand; each agent does 10 * row + number of the step."""

    def __init__(self, rows: int, **others: tuple[int, tuple[int, ...]]) -> None:
        self.agents = Agents(WALKER, Buffers.empty(layout_of(WALKER), rows), {})
        self.brains = {KEY: wire.brain(KEY, 1, (2, 3))}
        self.brains |= {name: wire.brain(name, *spec) for name, spec in others.items()}
        self.rows, self.steps = rows, 0

    def tell(self, *told: tuple[Any, ...], **others: list[bytes]) -> None:
        """Agents as (id, observation, reward) that ask, and with "end" or "cut" after it that end."""
        several = [
            wire.agent(id, [wire.vector([seen])], reward, bool(end), end == ["cut"])
            for id, seen, reward, *end in told
        ]
        told_of = {**({KEY: several} if several else {}), **others}
        new = [self.brains.pop(key) for key in list(self.brains) if key in told_of]
        message = wire.output(told_of, new)
        self.agents.take(messages().UnityMessageProto.FromString(message))

    def step(self) -> None:
        """The policy acts, and a step begins."""
        self.steps += 1
        action = 10.0 * np.arange(self.rows)[:, None] + self.steps
        self.agents.act(action.astype(np.float32), np.tile([1, 2], (self.rows, 1)))
        self.agents.begin()

    def sent(self) -> dict[str, Any]:
        return wire.actions(self.agents.message().SerializeToString())

    def row(self, number: int) -> tuple[Any, ...]:
        """What a step returns for a row: observation, reward and what happened."""
        out = self.agents.out
        flags = [
            name
            for name, flag in (
                ("terminated", out.terminated),
                ("truncated", out.truncated),
                ("reset", out.reset),
            )
            if flag[number]
        ]
        flags += [] if self.agents.answered[number] else ["waits"]
        return (float(out.obs[0][number, 0]), float(out.reward[number]), *flags)


def begun(rows: int, *told: tuple[Any, ...], **others: tuple[int, tuple[int, ...]]) -> Hand:
    hand = Hand(rows, **others)
    hand.agents.begin()
    hand.tell(*told)
    return hand


def test_agents_that_ask_together_are_answered_in_the_order_of_the_message() -> None:
    hand = begun(2, (5, 0.5, 0.0), (3, 0.3, 0.0))
    assert hand.row(0) == (0.5, 0.0, "reset") and hand.row(1)[0] == np.float32(0.3)
    hand.step()
    assert hand.sent() == {KEY: [([1.0], [1, 2]), ([11.0], [1, 2])]}
    hand.tell((3, 4.0, 0.25), (5, 6.0, 0.75))
    assert hand.row(0) == (6.0, 0.75) and hand.row(1) == (4.0, 0.25)
    hand.step()
    assert hand.sent() == {KEY: [([12.0], [1, 2]), ([2.0], [1, 2])]}


def test_an_agent_that_does_not_ask_waits_and_keeps_its_action() -> None:
    hand = begun(2, (0, 1.0, 0.0), (1, 2.0, 0.0))
    hand.step()
    assert len(hand.sent()[KEY]) == 2
    hand.tell((0, 1.5, 0.5))
    assert hand.row(0) == (1.5, 0.5) and hand.row(1) == (2.0, 0.0, "waits")
    hand.step()
    assert hand.agents.can_be_answered and hand.sent() == {KEY: [([2.0], [1, 2])]}
    hand.tell((0, 1.75, 0.5), (1, 2.5, 3.0))
    assert hand.row(0) == (1.75, 0.5) and hand.row(1) == (2.5, 3.0)
    hand.step()
    assert hand.sent() == {KEY: [([3.0], [1, 2]), ([13.0], [1, 2])]}


def test_an_episode_that_ends_and_begins_in_one_message_takes_two_steps_while_others_wait() -> None:
    hand = begun(2, (0, 1.0, 0.0), (1, 2.0, 0.0))
    hand.step()
    hand.sent()
    hand.tell((0, 9.0, -1.0, "end"), (0, 0.25, 0.5), (1, 2.5, 0.5))
    assert hand.row(0) == (9.0, -1.0, "terminated") and hand.row(1) == (2.5, 0.5)
    hand.step()
    assert hand.row(0) == (0.25, 0.0, "reset") and hand.row(1) == (2.5, 0.0, "waits")
    assert not hand.agents.can_be_answered  # the policy has not seen the first observation
    hand.step()
    # Row 1 acted in step 2 on what it saw, and that is what counts.
    assert hand.sent() == {KEY: [([3.0], [1, 2]), ([12.0], [1, 2])]}
    hand.tell((0, 0.5, 1.0), (1, 3.0, 1.0))
    assert hand.row(0) == (0.5, 1.0) and hand.row(1) == (3.0, 1.0)


def test_reaching_the_step_limit_is_truncated_and_not_terminated() -> None:
    hand = begun(1, (0, 1.0, 0.0))
    hand.step()
    hand.sent()
    hand.tell((0, 7.0, 0.5, "cut"))
    assert hand.row(0) == (7.0, 0.5, "truncated")


def test_a_message_with_ends_alone_is_answered_without_the_policy() -> None:
    hand = begun(2, (0, 1.0, 0.0), (1, 2.0, 0.0))
    hand.step()
    hand.sent()
    hand.tell((0, 9.0, -1.0, "end"))
    assert hand.agents.can_be_answered and hand.sent() == {}
    hand.tell((0, 0.5, 0.0), (1, 2.5, 0.5))
    assert hand.row(0) == (9.0, -1.0, "terminated") and hand.row(1) == (2.5, 0.5)
    hand.step()
    assert hand.row(0) == (0.5, 0.0, "reset") and hand.row(1) == (2.5, 0.0, "waits")


def test_an_agent_that_asks_a_step_after_its_end_begins_at_once() -> None:
    hand = begun(2, (0, 1.0, 0.0), (1, 2.0, 0.0))
    hand.step()
    hand.sent()
    hand.tell((0, 9.0, -1.0, "end"), (1, 2.5, 0.5))
    hand.step()
    assert hand.row(0) == (9.0, 0.0, "waits")
    assert hand.sent() == {KEY: [([12.0], [1, 2])]}
    hand.tell((0, 0.5, 0.0), (1, 3.0, 0.5))
    assert hand.row(0) == (0.5, 0.0, "reset") and hand.row(1) == (3.0, 0.5)


def test_an_agent_that_comes_instead_of_another_takes_its_row() -> None:
    hand = begun(1, (0, 1.0, 0.0))
    hand.step()
    hand.sent()
    hand.tell((0, 9.0, -1.0, "end"), (8, 0.5, 0.0))
    assert hand.row(0) == (9.0, -1.0, "terminated")
    hand.step()
    assert hand.row(0) == (0.5, 0.0, "reset")
    hand.step()
    hand.sent()
    hand.tell((8, 0.75, 2.0))
    assert hand.row(0) == (0.75, 2.0)


def test_agents_beyond_the_rows_and_of_other_behaviours_do_nothing_that_is_forbidden() -> None:
    hand = begun(1, (0, 1.0, 0.0), **{"Guard?team=1": (2, (3,))})
    hand.step()
    hand.sent()
    guard = wire.agent(4, [wire.vector([0.0])], mask=[True, True, False])
    hand.tell((0, 1.5, 0.0), (1, 9.0, 0.0), **{"Guard?team=1": [guard]})
    assert hand.agents.surplus == 1
    hand.step()
    assert hand.sent() == {
        KEY: [([2.0], [1, 2]), ([0.0], [0, 0])],
        "Guard?team=1": [([0.0, 0.0], [2])],
    }


def test_behaviours_that_were_announced_once_are_remembered_after_a_reset() -> None:
    hand = begun(1, (0, 1.0, 0.0), **{"Guard?team=1": (1, ())})
    guard = wire.agent(4, [wire.vector([0.0])])
    hand.tell((0, 1.5, 0.0), **{"Guard?team=1": [guard]})
    hand.agents.clear()
    hand.agents.begin()
    hand.tell((0, 0.5, 0.0), **{"Guard?team=1": [guard]})
    hand.step()
    assert hand.sent()["Guard?team=1"] == [([0.0], [])]


def test_masks_say_what_is_allowed_and_none_allows_everything() -> None:
    hand = begun(1)
    told = wire.agent(0, [wire.vector([1.0])], mask=[True, False, False, True, False])
    hand.tell(**{KEY: [told]})
    assert hand.agents.out.obs[-1][0].tolist() == [False, True, True, False, True]
    hand.step()
    hand.sent()
    hand.tell((0, 1.0, 0.0))
    assert hand.agents.out.obs[-1][0].all()


def test_rewards_of_a_group_are_added() -> None:
    hand = begun(1, (0, 1.0, 0.0))
    hand.step()
    hand.sent()
    hand.tell(**{KEY: [wire.agent(0, [wire.vector([1.0])], 0.5, group_reward=2.0)]})
    assert hand.row(0) == (1.0, 2.5)


def test_a_new_player_drops_what_was_under_way() -> None:
    hand = begun(2, (0, 1.0, 0.0), (1, 2.0, 0.0))
    hand.step()
    hand.sent()
    hand.agents.clear()
    hand.brains = {KEY: wire.brain(KEY, 1, (2, 3))}
    hand.tell((7, 0.5, 4.0), (9, 0.75, 4.0))
    assert hand.row(0) == (0.5, 0.0, "reset") and hand.row(1) == (0.75, 0.0, "reset")


def test_each_behaviour_of_a_scene_gets_the_actions_of_its_own_policy() -> None:
    watcher = Behavior("Watcher", WALKER.sensors, 2, ())
    agents = PlayerAgents([Agents(one, Buffers.empty(layout_of(one), 1), {}) for one in (WALKER, watcher)])
    agents.begin()
    keys = {KEY: wire.brain(KEY, 1, (2, 3)), "Watcher?team=0": wire.brain("Watcher?team=0", 2, ())}
    asking = {key: [wire.agent(0, [wire.vector([0.5])], 0.0, False, False)] for key in keys}
    agents.take(messages().UnityMessageProto.FromString(wire.output(asking, list(keys.values()))))
    assert not agents.can_be_answered
    for one, continuous, discrete in zip(agents.agents, ([3.0], [4.0, 5.0]), ([1, 2], [])):
        one.act(np.array([continuous], np.float32), np.array([discrete], np.int64))
    assert agents.can_be_answered
    sent = wire.actions(agents.message().SerializeToString())
    assert sent == {KEY: [([3.0], [1, 2])], "Watcher?team=0": [([4.0, 5.0], [])]}
