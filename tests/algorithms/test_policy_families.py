"""NGU and Agent57: targets beside a plain loop, streams that stay apart, inputs and columns of the family."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from whorl.agents.agent import COMPONENTS, Context
from whorl.collect.collector import LocalCollector
from whorl.conformance import RandomWorld, Run, same, subject
from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Array, Discrete, Spec
from whorl.data.batch import LAST, POLICY, STREAMS, Batch
from whorl.explore.epsilon_greedy import Exploration
from whorl.explore.policies import BEHAVIOUR, FAMILY, relabelled
from whorl.settings.merge import configure

AGENTS = ["ngu", "agent57"]


def learned(algorithm: str, **settings: Any) -> tuple[Any, Batch]:
    """An agent and a batch of its replay buffer."""
    cell = subject(algorithm, "vector", "lstm", "discrete", **settings)
    run = Run(cell)
    for rollout in cell.rollouts(run.agent, 6):
        run.experience.add(run.agent.receive(rollout))
    return run.agent, run.experience.sample()


def h(x: Tensor) -> Tensor:
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + 1e-3 * x


def inverse(y: Tensor) -> Tensor:
    root = ((1 + 4e-3 * (y.abs() + 1 + 1e-3)).sqrt() - 1) / 2e-3
    return y.sign() * (root.square() - 1)


def plain_retrace(
    reward: Tensor,
    discount: Tensor,
    keep: Tensor,
    q: Tensor,
    choice: Tensor,
    action: Tensor,
    mu: Tensor,
    lam: float,
) -> Tensor:
    """Row by row, environment by environment."""
    found = torch.zeros_like(reward)
    for b in range(reward.shape[1]):
        following = 0.0
        for t in reversed(range(reward.shape[0])):
            value = q[t + 1, b, choice[t + 1, b]]
            if t + 1 < reward.shape[0] and keep[t, b] > 0:
                pi = float(action[t + 1, b] == choice[t + 1, b])
                c = lam * min(1.0, pi / float(mu[t + 1, b]))
                value = value + c * (following - q[t + 1, b, action[t + 1, b]])
            found[t, b] = reward[t, b] + discount[t, b] * value
            following = found[t, b]
    return found


@torch.no_grad()
def test_the_target_of_ngu_is_retrace_of_the_mixed_reward() -> None:
    agent, batch = learned("ngu", retrace_lambda=0.9)
    batch.keep[::3] = 0  # more time limits, so that traces would cross them
    q = agent.critic(batch.all).squeeze(-1)
    index = batch.extras[POLICY]
    assert len(index.unique()) > 1
    reward = batch.reward[..., 0] + agent.beta[index] * batch.reward[..., 1]
    target = inverse(agent.target_critic(batch.all).squeeze(-1).double()).float()
    expected = plain_retrace(
        reward,
        batch.discount[..., 0] * agent.discounts[index],
        batch.keep[..., 0],
        target,
        q.argmax(-1),
        batch.action,
        batch.extras[BEHAVIOUR],
        0.9,
    )
    real = batch.mask > 0
    torch.testing.assert_close(agent.target(batch, q)[real], h(expected)[real], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("algorithm", AGENTS)
def test_with_relabel_policy_0_learns_from_the_sequences_of_others(algorithm: str) -> None:
    """Of all of them: as if it had acted. Of half: whole sequences, some of them, in all rows."""
    (agent, batch), (other, _) = learned(algorithm, relabel=1.0), learned(algorithm)
    assert len(batch.last[POLICY].unique()) > 1
    ours, theirs = agent.critic.parameters, other.critic.parameters
    zeros = torch.zeros_like(batch.last[POLICY])
    other.random("critic").set_state(agent.random("critic").get_state())
    agent.update(batch)
    other.update(batch.replace(last={**batch.last, POLICY: zeros}))
    assert all(torch.equal(one, two) for one, two in zip(ours(), theirs()))
    some, batch = learned(algorithm, relabel=0.5)
    index = batch.last[POLICY]
    changed = torch.zeros(index.shape[1], dtype=torch.bool)
    for _ in range(50):
        found = relabelled(some, batch).last[POLICY]
        whole = (found == 0).all(0)
        assert torch.equal(torch.where(whole, 0, index), found)
        changed |= whole & (index != 0).any(0)
    assert torch.equal(changed, (index != 0).any(0))
    assert relabelled(other, batch) is batch


@pytest.mark.parametrize(("stream", "net"), [(1, "critic"), (0, "intrinsic")])
def test_each_network_of_agent57_learns_from_its_own_stream_alone(stream: int, net: str) -> None:
    (agent, batch), (other, _) = learned("agent57"), learned("agent57")
    reward = batch.reward.clone()
    reward[..., stream] += torch.randn(reward.shape[:2], generator=torch.Generator().manual_seed(1))
    agent.update(batch)
    other.update(batch.replace(reward=reward))
    for name in ("critic", "intrinsic"):
        pairs = zip(getattr(agent, name).parameters(), getattr(other, name).parameters())
        equal = all(torch.equal(one, two) for one, two in pairs)
        assert equal == (name == net)


@torch.no_grad()
def test_the_targets_of_agent57_are_retrace_with_the_policy_of_both() -> None:
    agent, batch = learned("agent57", retrace_lambda=0.9, extrinsic_priority=0.8)
    batch.keep[::3] = 0  # more time limits, so that traces would cross them
    index = batch.extras[POLICY]
    online = [net(batch.all).squeeze(-1) for net in (agent.critic, agent.intrinsic)]
    both = inverse(online[0]) + agent.beta[batch.last[POLICY][: len(index) + 1]].unsqueeze(-1) * inverse(
        online[1]
    )
    found = agent.losses(batch)[1]
    for number, net in enumerate((agent.target_critic, agent.target_intrinsic)):
        expected = plain_retrace(
            batch.reward[..., number],
            batch.discount[..., 0] * agent.discounts[index],
            batch.keep[..., 0],
            inverse(net(batch.all).squeeze(-1).double()).float(),
            both.argmax(-1),
            batch.action,
            batch.extras[BEHAVIOUR],
            0.9,
        )
        taken = online[number][:-1].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        real = batch.mask > 0
        torch.testing.assert_close(found[number][real], (taken - h(expected))[real], rtol=1e-4, atol=1e-4)
    with torch.enable_grad():
        priority = agent.update(batch).priority
    torch.testing.assert_close(priority, 0.8 * found[0].abs() + 0.2 * found[1].abs())


@torch.no_grad()
def test_soft_q_lambda_continues_where_an_action_is_nearly_as_good() -> None:
    agent, batch = learned("agent57", soft_lambda=0.01)
    q = torch.tensor([[[1.0, 0.995, 0.5]], [[-1.0, -1.005, -2.0]], [[0.0, 0.0, 0.0]]])
    choice = q.argmax(-1)
    for action, expected in ((0, 1.0), (1, 1.0), (2, 0.0)):
        taken = batch.replace(action=torch.full((2, 1), action))
        assert agent.ratio(taken, choice, q).tolist() == [[expected], [expected]]


def test_errors_that_lead_out_of_the_trust_region_are_ignored() -> None:
    agent, batch = learned("agent57", trust_region=1e-6)
    free, _ = learned("agent57", trust_region=1e6)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in agent.target_critic.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        free.load_state_dict(agent.state_dict())
    limited, whole = agent.losses(batch), free.losses(batch)
    assert torch.equal(limited[1][0], whole[1][0]), "errors, and so priorities, stay"
    taken = agent.critic(batch.all).squeeze(-1)[:-1].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    old = agent.target_critic(batch.all).squeeze(-1)[:-1].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    away = (taken - old).sign() != limited[1][0].sign()
    expected = (0.5 * limited[1][0].square() * batch.weight * ~away).mean()
    torch.testing.assert_close(limited[0][0], expected.detach(), check_layout=False)
    assert limited[0][0] < whole[0][0]


@torch.no_grad()
def test_in_a_trust_region_targets_are_those_of_the_online_networks() -> None:
    """The copies only say how far values may move."""
    agent, batch = learned("agent57", trust_region=2.0, retrace_lambda=0.9)
    for net in (agent.target_critic, agent.target_intrinsic):
        for parameter in net.parameters():
            parameter.add_(1.0)
    index, found = batch.extras[POLICY], agent.losses(batch)[1]
    online = [net(batch.all).squeeze(-1) for net in (agent.critic, agent.intrinsic)]
    choice = agent.mixed(*online, batch.last[POLICY]).argmax(-1)
    for number, q in enumerate(online):
        expected = plain_retrace(
            batch.reward[..., number],
            batch.discount[..., 0] * agent.discounts[index],
            batch.keep[..., 0],
            inverse(q.double()).float(),
            choice,
            batch.action,
            batch.extras[BEHAVIOUR],
            0.9,
        )
        taken = q[:-1].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
        real = batch.mask > 0
        torch.testing.assert_close(found[number][real], (taken - h(expected))[real], rtol=1e-4, atol=1e-4)


def test_errors_are_divided_by_the_deviation_of_their_policy() -> None:
    agent, batch = learned("agent57", normalize_td=True)
    with torch.no_grad():
        agent.deviation.square.copy_(torch.tensor([1.0, 4.0, 9.0, 16.0]))
    losses, errors, _ = agent.losses(batch)
    spread = torch.tensor([1.0, 2.0, 3.0, 4.0])[batch.extras[POLICY]]
    expected = (0.5 * (errors[0] / spread).square() * batch.weight).mean()
    torch.testing.assert_close(losses[0].detach(), expected)
    other = agent.intrinsic_deviation.of(batch.extras[POLICY])
    expected = 0.8 * errors[0].abs() / spread + 0.2 * errors[1].abs() / other
    torch.testing.assert_close(agent.errors(batch), expected)
    torch.testing.assert_close(agent.update(batch).priority, expected)
    seen = batch.mask > 0
    first = batch.extras[POLICY] == 1
    mean = errors[0][seen & first].square().mean()
    torch.testing.assert_close(agent.deviation.square[1], 4.0 + 0.01 * (mean - 4.0))


def test_the_policy_head_imitates_the_greedy_policy_where_it_is_near_its_target() -> None:
    """Of three rows one is too far away: KL(pi' || pi) of (0.5, 0.5) and (0.99, 0.01) is 1.61."""
    agent, _ = learned("agent57", policy_head=True, policy_max_kl=0.5)
    prob = torch.tensor([[0.5, 0.5], [0.8, 0.2], [0.99, 0.01]]).unsqueeze(1)  # [3, 1, choices]
    logits = prob.log().requires_grad_()
    even = torch.zeros(3, 1, 2)
    greedy = torch.tensor([[0], [1], [1]])
    loss, kl = agent.policy_loss(logits, even, greedy, None, torch.ones(3, 1))
    assert loss.item() == pytest.approx(-(math.log(0.5) + math.log(0.2)) / 3)
    near = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    far = 0.5 * math.log(0.5 / 0.99) + 0.5 * math.log(0.5 / 0.01)
    assert kl.item() == pytest.approx((near + far) / 3) and near < 0.5 < far
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient[:, 0], torch.tensor([[-0.5, 0.5], [0.8, -0.8], [0.0, 0.0]]) / 3)
    legal = torch.tensor([[True, False]]).expand(4, 1, 2)
    masked, _ = agent.policy_loss(logits, even, torch.zeros(3, 1, dtype=torch.long), legal, torch.ones(3, 1))
    assert masked.item() == 0, "the only action that is allowed has probability 1"


@torch.no_grad()
def test_the_policy_head_takes_the_place_of_the_greedy_policy() -> None:
    agent, batch = learned("agent57", policy_head=True, retrace_lambda=0.9)
    outputs = agent.critic(batch.all)
    choice = outputs[..., 1].argmax(-1)
    expected = plain_retrace(
        batch.reward[..., 0],
        batch.discount[..., 0] * agent.discounts[batch.extras[POLICY]],
        batch.keep[..., 0],
        inverse(agent.target_critic(batch.all)[..., 0].double()).float(),
        choice,
        batch.action,
        batch.extras[BEHAVIOUR],
        0.9,
    )
    losses, errors, metrics = agent.losses(batch)
    seen = batch.mask > 0
    taken = outputs[:-1, ..., 0].gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(errors[0][seen], (taken - h(expected))[seen], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(losses[0], metrics["loss/critic"] + metrics["loss/policy"])
    mixed = agent.mixed(outputs[..., 0], agent.intrinsic(batch.all)[..., 0], batch.last[POLICY]).argmax(-1)
    assert (mixed != choice).any(), "it has not learned to imitate yet"
    old = agent.target_critic(batch.all)[:-1, ..., 1]
    imitation, _ = agent.policy_loss(outputs[:-1, ..., 1], old, mixed[:-1], None, batch.weight)
    torch.testing.assert_close(metrics["loss/policy"], imitation)
    memory = agent.begin(batch.obs[0])
    context = Context(torch.ones(batch.shape[1], dtype=torch.bool), torch.Generator(), greedy=True)
    acted = agent.act_tracked(batch.obs[0], memory, context)
    scores, _ = agent.evaluate_row(
        agent.observations(batch.obs[0]),
        {**memory, "last": {**memory["last"], POLICY: acted.extras[POLICY]}},
        context.reset,
    )
    assert torch.equal(acted.action, scores.argmax(-1))


def test_the_best_policy_of_a_row_of_metrics_is_one_of_them_and_no_mean() -> None:
    agent, batch = learned("agent57")
    assert "policies/best" not in agent.update(batch).metrics, "what updates return is averaged over them"
    agent.returns.add_(torch.tensor([3]), torch.tensor([1e9]))
    assert agent.row_metrics()["policies/best"] == 3.0


def test_a_reset_of_all_environments_keeps_the_bandits_and_clears_what_belongs_to_an_episode() -> None:
    """As `reset_every` resets environments without snapshots."""
    agent = subject("agent57", "vector", "lstm", "discrete").agent()
    world: Any = RandomWorld(agent.spec)
    collector = LocalCollector(world, agent, 48, torch.Generator().manual_seed(1))
    collector.reset(0)
    collector.collect()
    before = tree.clone(collector.memory)
    with torch.inference_mode():  # as the world's own tensors are by now
        collector.reset(1)
    after, bandit = collector.memory, before[FAMILY]["bandit"]
    assert bandit["count"].min() > 0 and before[FAMILY]["index"].min() >= 0
    assert same(after[FAMILY]["bandit"], bandit)
    with torch.no_grad():
        fresh = agent.begin(tree.index(collector.storage.obs, collector.steps))
    for memory in (after, fresh):
        del memory[FAMILY]["bandit"], memory[COMPONENTS]
    assert same(after, fresh)


@pytest.mark.parametrize("algorithm", AGENTS)
def test_rows_hold_the_policy_and_the_probability_of_its_action(algorithm: str) -> None:
    cell = subject(algorithm, "vector", "lstm", "discrete")
    agent: Any = cell.agent()
    for rollout in cell.rollouts(agent, 4):
        index, reset = rollout.extras[POLICY], rollout.reset
        same = ~reset[1:-1]
        assert torch.equal(index[1:][same], index[:-1][same]), "one policy an episode"
        assert rollout.extras[BEHAVIOUR].min() > 0 and rollout.extras[BEHAVIOUR].max() <= 1
        greedy, rung = rollout.extras[BEHAVIOUR] > 0.5, agent.explore.epsilon(torch.arange(4), agent.progress)
        expected = rung / 3 + (1 - rung) * greedy
        torch.testing.assert_close(rollout.extras[BEHAVIOUR], expected.expand_as(greedy))


@pytest.mark.parametrize("algorithm", AGENTS)
def test_sequences_read_what_acting_read(algorithm: str) -> None:
    """The network's features of a replayed sequence are those of acting, only if all inputs are aligned."""
    cell = subject(algorithm, "vector", "lstm", "discrete", burn_in=0, sequence_length=8)
    run = Run(cell)
    rollouts = cell.rollouts(run.agent, 3)
    for rollout in rollouts:
        run.experience.add(run.agent.receive(rollout))
    agent: Any = run.agent
    batch = run.experience.view.gather(run.experience.ring, torch.arange(4), run.experience.discounting)
    q = agent.critic(batch.replace(obs=agent.observations(batch.obs)).all).squeeze(-1)
    if algorithm == "agent57":
        other = agent.intrinsic(batch.replace(obs=agent.observations(batch.obs)).all).squeeze(-1)
        q = agent.mixed(q, other, batch.last[POLICY][: len(q)])
    first = rollouts[0]
    probable = first.extras[BEHAVIOUR][:8] > 0.5
    real = first.mask[:8] > 0
    greedy = q[:8].argmax(-1) == first.action[:8]
    assert torch.equal(greedy[real], probable[real]), "acting was greedy where it says so"


@pytest.mark.parametrize("algorithm", AGENTS)
def test_the_memory_reads_intrinsic_reward_and_policy(algorithm: str) -> None:
    agent, batch = learned(algorithm)
    critic: Any = agent.critic
    before = critic(batch.all)
    streams = {name: value + 1 for name, value in batch.last[STREAMS].items()}
    assert not torch.equal(critic(batch.replace(last={**batch.last, STREAMS: streams}).all), before)
    policies = 3 - batch.last[POLICY]
    assert not torch.equal(critic(batch.replace(last={**batch.last, POLICY: policies}).all), before)
    held = agent.stored(2)
    assert FAMILY not in held and LAST in held


@pytest.mark.parametrize("algorithm", AGENTS)
def test_intrinsic_rewards_are_read_in_units_of_what_the_most_exploring_policy_gets(algorithm: str) -> None:
    (agent, batch), (other, _) = learned(algorithm, max_beta=0.1), learned(algorithm, max_beta=0.2)
    half = {name: value / 2 for name, value in batch.last[STREAMS].items()}
    found = other.critic(batch.replace(last={**batch.last, STREAMS: half}).all)
    torch.testing.assert_close(found, agent.critic(batch.all))


@pytest.mark.parametrize("algorithm", AGENTS)
def test_the_epsilons_of_the_presets_are_the_papers(algorithm: str) -> None:
    # epsilon^(1 + 8 i / (N - 1)) with epsilon .4 and nine environments: .4, .4^2, ..., .4^9
    settings: Any = configure(algorithm, "CartPole-v1", {"num_envs": 9}).algo
    spec = Spec(Array((4,)), Discrete(2), 9)
    ladder = Exploration(spec, settings).epsilon(torch.arange(9), torch.tensor(0.0))
    assert ladder.tolist() == pytest.approx([0.4**power for power in range(1, 10)])


def test_what_a_family_of_policies_needs_is_named() -> None:
    with pytest.raises(ConfigError, match="NGU is recurrent, but memory is none"):
        subject("ngu", "vector", "none", "discrete").agent()
    with pytest.raises(ConfigError, match=r"has none; use components: \[episodic\]"):
        subject("ngu", "vector", "lstm", "discrete", components=[]).agent()
    with pytest.raises(ConfigError, match="rnd computes its rewards when learning"):
        subject("agent57", "vector", "lstm", "discrete", components=["rnd"]).agent()
    with pytest.raises(ConfigError, match=r"but episodic.normalize divides them when learning; leave it out"):
        subject("ngu", "vector", "lstm", "discrete", episodic={"normalize": True}).agent()
    with pytest.raises(ConfigError, match="bandit_window is 3, but each of 4 policies"):
        subject("agent57", "vector", "lstm", "discrete", bandit_window=3).agent()
    for gamma in ("max_gamma", "min_gamma"):
        with pytest.raises(ConfigError, match=f"{gamma} .*1.*use numbers below 1"):
            subject("ngu", "vector", "lstm", "discrete", **{gamma: 1.0}).agent()
