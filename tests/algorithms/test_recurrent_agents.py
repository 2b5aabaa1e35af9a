"""Replayed agents with memory: a sequence that opens from a stored state says what acting said."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whorl import conformance
from whorl.agents.agent import Acted, Context
from whorl.collect.collector import LocalCollector
from whorl.conformance import RandomWorld, Subject
from whorl.core import tree
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.data.replay import MEMORIES, Replay, starts, weighted
from whorl.ops.drawn import Drawn

torch.set_num_threads(1)

SMALL: dict[str, Any] = {
    "num_steps": 8,
    "sequence_length": 6,
    "burn_in": 3,
    "stride": 4,
    "n_step": 3,
    "memory_layers": 2,
    "memory_window": 5,
    "last_action": True,
    "last_reward": True,
    "clip_reward": True,
    "reward_clip_range": 0.5,
}


class Watched:
    """Rollouts of an agent with new random weights, and what its nets said to every row, as `say` tells it."""

    def __init__(self, subject: Subject, say: Callable[[Any, Tree, Tree, Tensor], Tree]) -> None:
        self.agent: Any = subject.agent()
        self.draw_weights(0)
        self.said: list[Tree] = []
        """of each row [B, ...]"""
        act = self.agent.act

        def watched(obs: Tree, memory: Tree, context: Context) -> Acted:
            acted = act(obs, memory, context)
            self.said.append(tree.clone(say(self.agent, self.agent.observations(obs), memory, context.reset)))
            return acted

        settings = subject.configured()
        steps, generator = settings.run.num_steps, torch.Generator().manual_seed(0)
        collector = LocalCollector(RandomWorld(subject.spec), self.agent, steps, generator)
        self.agent.act = watched
        collector.reset(0)
        self.replay: Replay = self.agent.experience(torch.Generator())
        for number in range(6):
            self.replay.add(collector.collect(random=number in (0, 2)))
        self.agent.act = act

    def draw_weights(self, seed: int) -> None:
        torch.manual_seed(seed)
        for parameter in self.agent.parameters():
            nn.init.normal_(parameter, std=0.4)

    def sequences(self) -> tuple[Batch, Tree]:
        """Every sequence there is, and what was said to its rows while acting [T, B, ...]."""
        ring, view = self.replay.ring, self.replay.view
        count = view.burn_in + view.length  # type: ignore[attr-defined]
        start = starts(ring, view, 0, ring.rows - view.span)
        start = start[view.allowed(ring, start)]
        batch = view.gather(ring, start, self.agent.discounting())
        assert batch.reset[1:].any() and batch.mask.any() and (batch.mask[view.burn_in :] == 0).any()  # type: ignore[attr-defined]
        row = start // ring.num_envs * view.stride + torch.arange(count).unsqueeze(1)  # [T, B]
        said = tree.stack(self.said)
        return (
            batch.replace(obs=self.agent.observations(batch.obs)),
            tree.map(lambda leaf: leaf[row, (start % ring.num_envs).expand_as(row)], said),
        )


def values(agent: Any, obs: Tree, memory: Tree, reset: Tensor) -> Tree:
    """Q of every choice."""
    return agent.critic.step(obs, memory, reset)[0][..., 0]


def both(agent: Any, obs: Tree, memory: Tree, reset: Tensor) -> Tree:
    """What the actor does, and what each critic remembers [B, critics, ...]."""
    action = agent.actor.step(obs, memory, reset)[0]
    encoded = agent.critic.backbone.encoder(obs)
    remembered = agent.critic.backbone.follow(encoded, memory, reset)[0]
    action = action if isinstance(action, Tensor) else action.mode()
    return {"action": action, "critics": torch.stack(remembered, 1)}


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


CELLS = [("vector", "lstm"), ("vector", "gru"), ("dict", "attention")]


@pytest.mark.parametrize(("observation", "memory"), CELLS)
def test_values_come_back_from_a_stored_sequence(observation: str, memory: str) -> None:
    cell = conformance.subject("dqn", observation, memory, "discrete", **SMALL, prioritized=True)
    watched = Watched(cell, values)
    batch, said = watched.sequences()
    with torch.no_grad():
        again = watched.agent.critic(batch.now)[..., 0]
        known = watched.agent.critic(watched.agent.critic.prepare(batch).now)[..., 0]
    close(again, said)
    assert torch.equal(again, known)
    chosen = batch.action.unsqueeze(-1)
    close(again.gather(-1, chosen)[batch.mask > 0], said.gather(-1, chosen)[batch.mask > 0])
    assert said.std() > 0.1, "the claim says something"


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(("observation", "memory"), CELLS)
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_actions_and_what_critics_remember_come_back_from_a_stored_sequence(
    name: str, observation: str, memory: str, share: bool
) -> None:
    cell = conformance.subject(name, observation, memory, "continuous", **SMALL, share_memory=share)
    watched = Watched(cell, both)
    batch, said = watched.sequences()
    agent = watched.agent
    with torch.no_grad():
        action = agent.actor(batch.now)
        remembered = agent.critic.backbone(batch.now)
    close(action if isinstance(action, Tensor) else action.mode(), said["action"])
    close(remembered.unsqueeze(0) if share else remembered, said["critics"].movedim(2, 0))
    assert said["action"].std() > 0.03, "the claim says something"


def policies(agent: Any, obs: Tree, memory: Tree, reset: Tensor) -> Tree:
    """What the policy does most."""
    return agent.actor.step(obs, memory, reset)[0].mode()


def state_values(agent: Any, obs: Tree, memory: Tree, reset: Tensor) -> Tree:
    """V."""
    return agent.state_value.of(agent.state_value.backbone.step(obs, memory, reset)[0])


@pytest.mark.parametrize(("observation", "memory"), CELLS)
def test_a_cloned_policy_comes_back_from_a_stored_sequence(observation: str, memory: str) -> None:
    """It reads clipped rewards while acting, too."""
    small = {key: value for key, value in SMALL.items() if key != "n_step"}
    watched = Watched(conformance.subject("bc", observation, memory, "continuous", **small), policies)
    batch, said = watched.sequences()
    with torch.no_grad():
        close(watched.agent.actor(batch.now).mode(), said)
    assert said.std() > 0.03, "the claim says something"


@pytest.mark.parametrize(("observation", "memory"), CELLS)
def test_the_values_of_iql_come_back_from_a_stored_sequence(observation: str, memory: str) -> None:
    """They have a memory of their own, which acting keeps."""
    watched = Watched(conformance.subject("iql", observation, memory, "continuous", **SMALL), state_values)
    batch, said = watched.sequences()
    with torch.no_grad():
        close(watched.agent.value(batch.now), said)
    assert said.std() > 0.03, "the claim says something"
    sent = {id(tensor) for tensor in watched.agent.acting_tensors()}
    assert {id(p) for p in watched.agent.state_value.backbone.parameters()} <= sent


def test_whole_episodes_open_as_they_did() -> None:
    cell = conformance.subject(
        "dqn", "vector", "lstm", "discrete", **{**SMALL, "burn_in": 0}, whole_episodes=True
    )
    watched = Watched(cell, values)
    batch, said = watched.sequences()
    assert not batch.memory and batch.reset[0].all()
    with torch.no_grad():
        again = watched.agent.critic(batch.now)[..., 0]
    going = batch.mask > 0
    close(again[going], said[going])


@pytest.mark.parametrize(
    ("name", "action"),
    [("dqn", "discrete"), ("sac", "continuous"), ("td3", "continuous"), ("iql", "continuous")],
)
@pytest.mark.parametrize("memory", ["lstm", "attention"])
def test_refreshed_memory_is_what_the_nets_remember_by_now(name: str, action: str, memory: str) -> None:
    """With unchanged weights it is what was stored; with others what acting with them from there would leave."""
    cell = conformance.subject(name, "vector", memory, action, **SMALL, refresh_memory=True)
    watched = Watched(cell, values if name == "dqn" else both)
    ring, agent = watched.replay.ring, watched.agent
    start = torch.arange(2 * ring.num_envs)
    stored = tree.clone(ring.memories)
    batch = watched.replay.view.gather(ring, start, agent.discounting())
    ring.renew(start, agent.refreshed(batch)[MEMORIES])
    assert_same_memory(ring.memories, stored)
    watched.draw_weights(1)
    found = agent.refreshed(batch)[MEMORIES]
    seen, state = agent.observations(batch.obs), batch.memory
    for row in range(8):
        state = {**state, "last": tree.index(batch.last, row)}
        context = Context(batch.reset[row], torch.Generator(), greedy=True)
        state = agent.act(seen[row], state, context).memory
        if row in (3, 7):
            mine = tree.index(found, row // 4)
            assert set(mine) == set(state) - {"last"}
            assert_same_memory(mine, {key: state[key] for key in mine})
    ring.renew(start, found)
    for env_index in range(ring.num_envs):
        kept = tree.index(ring.memories, (1, env_index))
        assert_same_memory({key: kept[key] for key in found}, tree.index(found, (0, env_index)))


def assert_same_memory(one: Tree, other: Tree) -> None:
    for (path, a), (_, b) in zip(tree.items(one), tree.items(other), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0, msg=path)


@pytest.mark.parametrize("name", ["dqn", "qr_dqn", "iqn"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_munchausens_bonus_is_of_a_row_and_its_value_of_where_the_fold_ends(name: str, n_step: int) -> None:
    """r + .9 clip(t log pi(a|s), -1, 0) + discount * sum_b pi(b|s') (Q(s', b) - t log pi(b|s')),  t = .5"""
    given = {**SMALL, "n_step": n_step, "munchausen": 0.9, "munchausen_temperature": 0.5}
    cell = conformance.subject(name, "vector", "lstm", "discrete", **given)
    watched = Watched(cell, lambda agent, obs, memory, reset: obs)
    agent, (batch, _) = watched.agent, watched.sequences()
    noise, net = agent.draw(batch), agent.target_critic
    with torch.no_grad():
        now, after = (net.backbone(rows) for rows in (batch.now, batch.next))
        if name == "iqn":
            q, following = (agent.mean(net, features, {}) for features in (now, after))
            columns = net.at(after, noise["target_tau"], {})  # [T, B, N, choices]
        else:
            q, following = (net.outputs(features, None).mean(-1) for features in (now, after))
            columns = net.outputs(after, None).transpose(-1, -2)
        bonus = 0.5 * (q / 0.5).log_softmax(-1).gather(-1, batch.action.unsqueeze(-1))
        log_pi = (following / 0.5).log_softmax(-1).unsqueeze(-2)
        value = (log_pi.exp() * (columns - 0.5 * log_pi)).sum(-1)
        reward = batch.reward.unsqueeze(-1) + 0.9 * bonus.clamp(-1, 0)
        expected = reward + batch.discount.unsqueeze(-1) * value
        found = agent.soft_target(batch, noise)
    close(found.unsqueeze(-1) if name == "dqn" else found, expected)


def test_the_target_entropy_of_masked_choices_counts_the_rows_that_are_learned_from() -> None:
    """ratio * log(choices) of each row, though the sequence holds rows of the folds beyond."""
    cell = conformance.subject("sac", "vector", "lstm", "masked", **SMALL)
    watched = Watched(cell, lambda agent, obs, memory, reset: obs["observation"])
    agent, (batch, _) = watched.agent, watched.sequences()
    batch = weighted(batch, {})
    count = batch.shape[0]
    allowed = batch.obs["action_mask"][:count].sum(-1).clamp(min=1).float().log()
    expected = agent.cfg.entropy_ratio * (allowed * batch.mask).sum() / batch.mask.sum()
    assert agent.actions.entropy_target(batch, Drawn(None)).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("observation", ["vector", "image"])
def test_whoever_acts_elsewhere_is_sent_what_acting_reads_and_nothing_twice(observation: str) -> None:
    agent: Any = conformance.subject("sac", observation, "lstm", "continuous", **SMALL).agent()
    sent = [id(tensor) for tensor in agent.acting_tensors()]
    assert len(set(sent)) == len(sent)
    read = [*agent.actor.parameters(), *agent.critic.backbone.parameters()]
    assert {id(tensor) for tensor in read} <= set(sent)


@pytest.mark.parametrize("refresh", [False, True])
def test_stored_states_are_refreshed_if_the_setting_says_so(refresh: bool) -> None:
    cell = conformance.subject("dqn", "vector", "lstm", "discrete", **SMALL, refresh_memory=refresh)
    agent = cell.agent(0)
    found = agent.experience(torch.Generator()).refresh
    assert found == (agent.refreshed if refresh else None)


@pytest.mark.parametrize(
    ("name", "action"),
    [
        *((name, "discrete") for name in ("dqn", "c51", "qr_dqn", "iqn", "ngu", "agent57", "option_critic")),
        *((name, "continuous") for name in ("ddpg", "td3", "sac", "tqc", "iql")),
        ("fast_td3", "continuous"),
    ],
)
def test_metrics_leave_out_rows_that_are_no_transitions(name: str, action: str) -> None:
    components = {"components": ["episodic"]} if name in ("ngu", "agent57") else {}
    case = conformance.subject(name, "vector", "gru", action, **components)
    run = conformance.Run(case)
    for rollout in case.rollouts(run.agent, 4):
        run.experience.add(run.agent.receive(rollout))
    _, batch = next(iter(run.experience.due()))
    masked = batch.mask == 0
    assert masked.any() and (~masked).any()
    other = conformance.copied(batch)
    other.action[masked] = 1
    assert not torch.equal(other.action, batch.action)
    found = [case.agent().update(given).metrics for given in (batch, other)]
    torch.testing.assert_close(found[0], found[1])
