"""Environments that answer late: what is collected of each is what it would be if all answered at once."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from whorl.agents.agent import Acted, Agent
from whorl.collect.collector import LocalCollector
from whorl.collect.waiting import WaitingCollector
from whorl.core.errors import EnvError
from whorl.core.spec import Array, Continuous, Spec
from whorl.data.batch import Batch
from whorl.data.replay import Replay
from whorl.data.views import Sequences, Transitions, View
from whorl.distributed.actor import ActorProcess, Role
from whorl.envs.make import find
from whorl.envs.vector import Step, VectorEnv
from whorl.run.evaluate import run_episodes
from whorl.settings.merge import configure
from whorl.state.policy import build_agent

NUM_ENVS, STEPS, STRIDE = 4, 12, 4
SPEC = Spec(Array((3,)), Continuous((1,), (-1.0,), (1.0,)), NUM_ENVS)


class Counters(VectorEnv):
    """Environment b counts its steps and remembers its actions; its episodes have b + 3 steps, every second is cut."""

    id = "counters"

    def __init__(self) -> None:
        self.spec = SPEC
        self.limit = torch.arange(NUM_ENVS) + 3

    def reset(self, seed: int) -> Tensor:
        self.time = torch.zeros(NUM_ENVS, dtype=torch.int64)
        self.episode = torch.zeros(NUM_ENVS, dtype=torch.int64)
        self.sum = torch.zeros(NUM_ENVS)
        return self.observe()

    def observe(self) -> Tensor:
        return torch.stack((self.time.float() + 100 * self.episode, self.sum, self.limit.float()), 1)

    def step(self, action: Tensor) -> Step:
        return self.advance(action, torch.ones(NUM_ENVS, dtype=torch.bool))

    def advance(self, action: Tensor, moves: Tensor) -> Step:
        over = self.time == self.limit
        reset, acts = over & moves, ~over & moves
        self.time = torch.where(reset, 0, self.time + acts)
        self.episode = self.episode + reset
        self.sum = torch.where(reset, 0.0, self.sum + torch.where(acts, action[:, 0], 0.0))
        ended = acts & (self.time == self.limit)
        cut = ended & (self.episode % 2 == 1)
        reward = torch.where(acts, action[:, 0] + self.time, 0.0)
        return Step(self.observe(), reward, ended & ~cut, cut, reset)


class Late(Counters):
    """The same, but an environment may take several steps to answer; actions while it does are ignored."""

    waits = True

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def reset(self, seed: int) -> Tensor:
        self.pending = torch.zeros(NUM_ENVS, dtype=torch.bool)
        self.action = torch.zeros(NUM_ENVS, 1)
        return super().reset(seed)

    def step(self, action: Tensor) -> Step:
        self.action = torch.where(self.pending.unsqueeze(1), self.action, action)
        moves = torch.rand(NUM_ENVS, generator=self.generator) < torch.tensor([1.0, 0.7, 0.4, 0.2])
        found = self.advance(self.action, moves)
        self.pending = ~moves
        found.waits = ~moves
        return found


class Remembering(Agent):
    """Acts on what it has seen in the episode; the action grows with each call, so that a held one is told apart."""

    stores_memory, stride = True, STRIDE

    def initial_memory(self, num_envs: int) -> Any:
        return {"seen": torch.zeros(num_envs, 1)}

    def act(self, obs: Any, memory: Any, context: Any) -> Acted:
        kept = torch.where(context.reset.unsqueeze(1), 0.0, memory["seen"])
        seen = 0.5 * kept + obs[:, :1]
        return Acted(torch.cos(seen), {"seen": seen}, {"seen_before": kept[:, 0]})


class Restless(Remembering):
    """Another action every time, even for the same observation."""

    calls = 0

    def act(self, obs: Any, memory: Any, context: Any) -> Acted:
        self.calls += 1
        acted = super().act(obs, memory, context)
        return Acted(torch.full((NUM_ENVS, 1), float(self.calls)), acted.memory, acted.extras)


class Drawing(Remembering):
    """Keeps the number of the call that gave the action, as an option that was drawn is kept."""

    calls = 0

    def initial_memory(self, num_envs: int) -> Any:
        return {"drawn": torch.zeros(num_envs)}

    def act(self, obs: Any, memory: Any, context: Any) -> Acted:
        self.calls += 1
        number = torch.full((NUM_ENVS,), float(self.calls))
        return Acted(number.unsqueeze(1), {"drawn": number}, {"seen_before": memory["drawn"]})


class Steps(torch.nn.Module):
    """A component that counts the steps of each episode, in place."""

    acts, outlives_episodes = True, ()

    def initial_memory(self, num_envs: int) -> Any:
        return {"steps": torch.zeros(num_envs)}

    def track(self, memory: Any, obs: Any, action: Any, next_obs: Any, reset: Tensor) -> Any:
        memory["steps"].add_(1).masked_fill_(reset, 0)
        return memory, {"steps": memory["steps"].clone()}


class Tracking(Remembering):
    """With a component that changes its memory in place."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.components["steps"] = Steps()


def collect(kind: Any, env: Any, rollouts: int, agent: type[Agent] = Remembering) -> list[Batch]:
    collector = kind(env, agent(SPEC, None), STEPS, torch.Generator())
    collector.reset(0)
    found = []
    for _ in range(rollouts):
        batch = collector.collect()
        found.append(batch.replace(**{k: _clone(v) for k, v in batch.tensors().items()}))
    return found


def _clone(value: Any) -> Any:
    return {k: _clone(v) for k, v in value.items()} if isinstance(value, dict) else value.clone()


def rows(batches: list[Batch], env: int) -> list[tuple[float, ...]]:
    """What is known of each step of an environment."""
    found = []
    for batch in batches:
        for t in range(STEPS):
            if batch.mask[t, env]:
                found.append(
                    (
                        *batch.obs[t, env].tolist(),
                        *batch.action[t, env].tolist(),
                        float(batch.reward[t, env]),
                        float(batch.continues[t, env]),
                        *batch.obs[t + 1, env].tolist(),
                        float(batch.extras["seen_before"][t, env]),
                    )
                )
    return found


def test_each_environment_has_the_rows_that_it_would_have_if_it_answered_at_once() -> None:
    prompt, late = collect(LocalCollector, Counters(), 8), collect(WaitingCollector, Late(), 24)
    for env in range(NUM_ENVS):
        want, got = rows(prompt, env), rows(late, env)
        length = min(len(want), len(got))
        assert length > 40
        assert got[:length] == want[:length]


def test_each_observation_counts_once_in_the_statistics() -> None:
    prompt, late = collect(LocalCollector, Counters(), 8), collect(WaitingCollector, Late(), 24)
    assert all(bool(batch.observed.all()) for batch in prompt)
    for env in range(NUM_ENVS):
        want, got = (
            [
                tuple(batch.obs[t, env].tolist())
                for batch in some
                for t in range(STEPS)
                if batch.observed[t, env]
            ]
            for some in (prompt, late)
        )
        length = min(len(want), len(got))
        assert length > 40
        assert got[:length] == want[:length]
    agent: Any = build_agent(configure("ppo", "Pendulum-v1", {"num_envs": NUM_ENVS}), SPEC, 0)
    for batch in late:
        agent.end_update(batch)
    assert float(agent.observations.statistics["observation"].count) == sum(
        float(batch.observed.sum()) for batch in late
    )


def test_components_follow_what_was_answered_alone() -> None:
    for batch in collect(WaitingCollector, Late(), 3, Tracking):
        time = batch.obs[1:, :, 0] % 100  # of the episode, after each row
        real = batch.mask > 0
        assert batch.extras["steps"][real].equal(time[real])


def test_actions_are_greedy_where_collecting_is() -> None:
    class Greedy(Remembering):
        collects_greedily = True

        def act(self, obs: Any, memory: Any, context: Any) -> Acted:
            greedy.add(context.greedy)
            return super().act(obs, memory, context)

    greedy = set[bool]()
    collector = WaitingCollector(Late(), Greedy(SPEC, None), STEPS, torch.Generator())
    collector.reset(0)
    greedy.clear()
    collector.collect()
    assert greedy == {True}


def test_actions_in_effect_are_part_of_the_state() -> None:
    env, agent = Late(), Restless(SPEC, None)
    collector = WaitingCollector(env, agent, STEPS, torch.Generator())
    collector.reset(0)
    collector.collect()
    saved = _clone(collector.state_dict())
    other = WaitingCollector(Late(), Restless(SPEC, None), STEPS, torch.Generator())
    other.reset(0)
    other.load_state_dict(saved)
    assert saved["waits"].any() and other.state_dict()["waits"].equal(saved["waits"])
    assert other.state_dict()["in_effect"]["action"].equal(collector.state_dict()["in_effect"]["action"])


def test_a_checkpoint_without_the_memory_of_actions_in_effect_is_restored() -> None:
    """Earlier versions have written it."""
    collector, other = (
        WaitingCollector(Late(), Drawing(SPEC, None), STEPS, torch.Generator()) for _ in range(2)
    )
    collector.reset(0)
    collector.collect()
    saved = _clone(collector.state_dict())
    del saved["in_effect"]["memory"]
    other.load_state_dict(saved)
    assert other.state_dict()["in_effect"]["memory"]["drawn"].equal(saved["memory"]["drawn"])


def test_rows_hold_the_action_that_was_in_effect_and_not_a_later_one() -> None:
    """Rewards are action + time, and each call gives another action."""
    for batch in collect(WaitingCollector, Late(), 6, Restless):
        time = batch.obs[1:, :, 0] % 100
        real = batch.mask > 0
        assert torch.equal(batch.reward[real], (batch.action[..., 0] + time)[real])
        assert 0 < real.float().mean() < 0.8


def test_the_memory_after_a_row_is_that_of_the_action_in_effect() -> None:
    late = 0
    for batch in collect(WaitingCollector, Late(), 6, Drawing):
        both = (batch.mask[:-1] * batch.mask[1:]) > 0
        before, action = batch.extras["seen_before"][1:], batch.action[:-1, :, 0]
        assert torch.equal(before[both], action[both])
        late += int(((batch.action[1:, :, 0] - action)[both] > 1).sum())
    assert late > 20, "no environment was late"


def test_nothing_is_kept_across_rows_that_are_missing() -> None:
    for batch in collect(WaitingCollector, Late(), 6):
        assert not (batch.keep[:-1] * (1 - batch.mask[1:])).any()
        # Within an episode nothing else is cut.
        goes_on = (batch.mask[:-1] * batch.mask[1:]) > 0
        assert batch.keep[:-1][goes_on].all()


def test_stored_memory_is_that_before_the_row() -> None:
    for batch in collect(WaitingCollector, Late(), 4):
        for block in range(STEPS // STRIDE):
            row = block * STRIDE
            real = (batch.mask[row] > 0) & ~batch.reset[row]
            assert torch.equal(batch.memories["seen"][block, real, 0], batch.extras["seen_before"][row][real])


def test_episodes_are_counted_once_and_in_full() -> None:
    collector = WaitingCollector(Late(), Remembering(SPEC, None), STEPS, torch.Generator())
    collector.episode_statistics.record = True
    collector.reset(0)
    for _ in range(10):
        collector.collect()
    ended = collector.episode_statistics.ended
    assert len(ended) > 30
    assert all(episode.length == episode.env_index + 3 for episode in ended)


class Dropping(Late):
    """Now and then environments 1 and 2 begin again in the middle of an episode, as if they had been replaced."""

    calls = 0

    def step(self, action: Tensor) -> Step:
        self.calls += 1
        if self.calls % 17:
            return super().step(action)
        self.action = torch.where(self.pending.unsqueeze(1), self.action, action)
        dropped = torch.tensor([False, True, True, False])
        self.time[dropped], self.sum[dropped] = 0, 0.0
        self.episode += dropped
        self.pending = ~dropped
        nothing = torch.zeros(NUM_ENVS)
        return Step(self.observe(), nothing, nothing > 0, nothing > 0, dropped, waits=~dropped)


@pytest.mark.parametrize("steps", [1, STEPS])
def test_episodes_that_are_dropped_are_not_counted(steps: int) -> None:
    agent = Remembering(SPEC, None)
    agent.stride = 1
    collector = WaitingCollector(Dropping(), agent, steps, torch.Generator())
    collector.episode_statistics.record = True
    collector.reset(0)
    for _ in range(240 // steps):
        collector.collect()
    ended = collector.episode_statistics.ended
    assert {episode.env_index for episode in ended} == {0, 1, 2, 3}
    assert all(episode.length == episode.env_index + 3 for episode in ended)
    sums = collector.episode_statistics.drain()
    assert sums["length"] == sum(episode.length for episode in ended)


def replay_of(view: View) -> Replay:
    memory = Remembering(SPEC, None).initial_memory(1) if isinstance(view, Sequences) else None
    return Replay(
        SPEC,
        "cpu",
        torch.Generator().manual_seed(0),
        view=view,
        gamma=1.0,
        buffer_size=60 * NUM_ENVS,
        batch_size=64,
        learning_starts=0,
        memory=memory,
        stride=view.stride,
    )


def test_nothing_is_drawn_where_a_burn_in_fits_into_no_rollout() -> None:
    """Here every environment lacks a row in every rollout."""
    replay = replay_of(Sequences(4, burn_in=STEPS, stride=STRIDE))
    replay.expect_gaps()
    for batch in collect(WaitingCollector, Late(), 6, Remembering):
        short = batch.replace(mask=batch.mask.clone(), keep=batch.keep.clone())
        short.mask[-3], short.keep[-4:-2] = 0, 0
        replay.add(short)
        assert not replay.can_start()
    with pytest.warns(
        UserWarning,
        match="learning has not started.* 14 rows .* burn_in 12 needs.* raise num_steps, or lower burn_in",
    ):
        assert list(replay.due()) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(replay.due()) == [], "it says so once"


class Mute(Late):
    """After some steps nothing asks for an action any more."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.left = answers

    def step(self, action: Tensor) -> Step:
        self.left -= 1
        found = self.advance(action, torch.full((NUM_ENVS,), self.left >= 0))
        found.waits = torch.full((NUM_ENVS,), self.left < 0)
        return found


def test_an_evaluation_without_an_answer_ends_with_a_sentence() -> None:
    agent = Remembering(SPEC, None)
    with pytest.raises(
        EnvError, match=r"counters: no environment answered within 9 steps .* raise eval_max_steps"
    ):
        run_episodes(agent, Mute(0), 4, seed=0, max_steps=9)
    # Environment 0 ends its episode of three steps, the others have been silent since their second or third.
    with pytest.warns(UserWarning, match="evaluation truncated 3 of 4 episodes after 9 steps"):
        found = run_episodes(agent, Mute(3), 4, seed=0, max_steps=9)
    assert sorted(found.lengths) == [3, 3, 3, 3] and found.cut == 3


def test_actors_collect_from_environments_that_wait_as_this_process_does() -> None:
    role = Role(Remembering(SPEC, None), find(Late), NUM_ENVS, STEPS)
    actor = ActorProcess(role, 0, (0, 0))
    assert isinstance(actor.collector, WaitingCollector)
    _, tensors = actor.roll(False)
    expected = collect(WaitingCollector, Late(), 1, Remembering)[0]
    assert torch.equal(tensors["mask"], expected.mask) and not expected.mask.all()
    assert torch.equal(tensors["obs"], expected.obs)


def test_environments_of_a_second_actor_have_numbers_of_their_own() -> None:
    class Noting(Remembering):
        def act(self, obs: Any, memory: Any, context: Any) -> Acted:
            seen.append(context.env_index)
            return super().act(obs, memory, context)

    seen: list[Any] = []
    role = Role(Noting(SPEC, None), find(Late), NUM_ENVS, STEPS)
    actor = ActorProcess(role, 1, (0, 0))
    seen.clear()
    actor.roll(False)
    assert seen and all(numbers.tolist() == list(range(NUM_ENVS, 2 * NUM_ENVS)) for numbers in seen)


@pytest.mark.parametrize("view", [Transitions(1), Transitions(3), Sequences(4, stride=STRIDE)], ids=str)
@pytest.mark.parametrize("steps", [STEPS, STRIDE])
def test_replay_never_joins_rows_that_do_not_follow_each_other(view: View, steps: int) -> None:
    replay = replay_of(view)
    collector = WaitingCollector(Late(1), Remembering(SPEC, None), steps, torch.Generator())
    collector.reset(0)
    drawn = 0
    for number in range(30):
        replay.add(collector.collect())
        if number < 6:
            continue
        batch = replay.sample()
        drawn += int(batch.mask.sum())
        now, ahead = batch.obs[:-1], batch.obs[1:]
        real = batch.mask > 0
        # Episodes differ by hundreds; within one, sums of actions are what rewards add up to.
        same = (now[..., 0] // 100 == ahead[..., 0] // 100) & real
        assert torch.equal(same, real)
        if view != Transitions(3):
            want = ahead[..., 1] - now[..., 1] + ahead[..., 0] % 100
            assert torch.allclose(batch.reward[real], want[real], atol=1e-4)
        else:
            first, last = (now[..., 0] % 100).long(), (ahead[..., 0] % 100).long()
            times = torch.tensor([[sum(range(a + 1, b + 1)) for a, b in zip(first[0], last[0])]])
            want = ahead[..., 1] - now[..., 1] + times
            assert torch.allclose(batch.reward[real], want[real], atol=1e-3)
            assert int((last - first)[real].min()) >= 1
    assert drawn > 200


def test_replay_of_single_rows_bootstraps_from_the_observation_before_a_missing_row() -> None:
    agent = Remembering(SPEC, None)
    agent.stride = 1
    replay = Replay(
        SPEC, "cpu", torch.Generator(), view=Transitions(3), gamma=1.0, buffer_size=400, batch_size=64
    )
    collector = WaitingCollector(Late(2), agent, 1, torch.Generator())
    collector.reset(0)
    for _ in range(80):
        replay.add(collector.collect())
    for _ in range(20):
        batch = replay.sample()
        first, last = (batch.obs[:, :, 0] % 100).long()
        assert (last > first).all()
        terminated = (last == batch.obs[1, :, 2]) & (batch.obs[1, :, 0] // 100 % 2 == 0)
        assert torch.equal(batch.discount[0] == 0, terminated)  # never a return that lost its bootstrap value
        want = batch.obs[1, :, 1] - batch.obs[0, :, 1]
        want = want + torch.tensor([sum(range(a + 1, b + 1)) for a, b in zip(first, last)])
        assert torch.allclose(batch.reward[0], want, atol=1e-3)


def test_evaluation_counts_steps_and_not_rows() -> None:
    found = run_episodes(Remembering(SPEC, None), Late(3), 12, seed=0)
    assert sorted(found.lengths) == sorted(list(range(3, 3 + NUM_ENVS)) * 3)


def test_evaluation_starts_each_episode_with_an_empty_memory() -> None:
    """A new episode is still one when its first action is answered late."""

    class Watching(Remembering):
        def act(self, obs: Any, memory: Any, context: Any) -> Acted:
            acted = super().act(obs, memory, context)
            seen.append((obs[:, 0] % 100, acted.extras["seen_before"]))
            return acted

    seen: list[tuple[Tensor, Tensor]] = []
    run_episodes(Watching(SPEC, None), Late(3), 12, seed=0)
    kept = torch.cat([before[time == 0] for time, before in seen])
    assert len(kept) > 12 and not kept.any()
