"""Soft actor-critics on mixed actions: a bandit and a two-step task whose soft-optimal policy and Q are closed forms.

A reward b_d + alpha_c * log p_d(c), with p_d the density of tanh N(m_d, s_d), has the soft optimum
pi(c|d) = p_d and pi(d) = softmax(b / alpha_d), and the soft value alpha_d * log sum_d exp(b_d / alpha_d).
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from whorl.agents.agent import Agent
from whorl.agents.estimates import distribution
from whorl.conformance import Subject
from whorl.conformance.subjects import settings_of
from whorl.core.spec import Array, Continuous, Discrete, Spec, TupleSpec
from whorl.data.batch import Batch
from whorl.data.replay import weighted
from whorl.ops.distributions import TanhNormal

torch.set_num_threads(1)

ALPHA_D, ALPHA_C, GAMMA = 0.4, 0.25, 0.8
MEAN, STD = torch.tensor([-0.3, 0.5]), torch.tensor([0.7, 0.9])
BONUS = torch.tensor([[0.0, 0.3], [0.5, -0.2], [-0.3, 0.4]])
"""b_d in the state 0, which leads to state 1 + d, and in the states 1 and 2, which are the last"""
ACTION = TupleSpec({"0": Discrete(2), "1": Continuous((1,), (-1.0,), (1.0,))})
SETTINGS: dict[str, Any] = {
    "alpha": ALPHA_C,
    "alpha_discrete": ALPHA_D,
    "tune_alpha": False,
    "gamma": GAMMA,
    "actor_hidden_sizes": (16,),
    "critic_hidden_sizes": (32, 32),
    "activation": "elu",
    "actor_lr": 1e-2,
    "critic_lr": 1e-2,
    "tau": 0.3,
    "lr_schedule": "linear",
    "top_quantiles_to_drop": 0,
    "n_quantiles": 5,
    "n_critics": 2,
    "ensemble_q_num": 2,
    "policy_delay": 1,
    "critic_network": "mlp",
    "batch_size": 128,
    "num_envs": 4,
}
LAST = torch.tensor([0.0, 1.0, 1.0])


def log_density(choice: Tensor, push: Tensor, coupled: bool) -> Tensor:
    """log p_d(c), or without coupling log p_0(c)"""
    choice = choice if coupled else torch.zeros_like(choice)
    inside = push.clamp(-0.995, 0.995)
    return TanhNormal(MEAN[choice].unsqueeze(-1), STD[choice].log().unsqueeze(-1)).log_prob(
        inside.unsqueeze(-1)
    )


def soft_value(state: Tensor) -> Tensor:
    """V of the last states; of the state before, from `soft_bonus`"""
    return ALPHA_D * (BONUS[state] / ALPHA_D).logsumexp(-1)


def soft_bonus() -> Tensor:
    """b_d [states, 2] with what follows: the soft value of each choice"""
    found = BONUS.clone()
    found[0] += GAMMA * soft_value(torch.tensor([1, 2]))
    return found


def transitions(size: int, coupled: bool, generator: torch.Generator, states: int = 3) -> Batch:
    """Random actions in random states."""
    state = torch.randint(states, (size,), generator=generator)
    choice = torch.randint(2, (size,), generator=generator)
    push = (torch.rand(size, generator=generator) * 4 - 2).tanh()
    reward = BONUS[state, choice] + ALPHA_C * log_density(choice, push, coupled)
    after = torch.where(state == 0, 1 + choice, state)
    obs = torch.eye(3)[torch.stack((state, after))]
    discount = (GAMMA * (1 - LAST[state])).unsqueeze(0)
    one = torch.ones(1, size)
    batch = Batch(
        obs,
        torch.stack((torch.ones(size), torch.zeros(size))) > 0,
        {"0": choice.unsqueeze(0), "1": push.reshape(1, size, 1)},
        reward.unsqueeze(0),
        discount,
        one * 0,
        one,
    )
    return weighted(batch, {})


def built(name: str, coupled: bool, **settings: Any) -> Any:
    known = settings_of(name)
    wanted = {**SETTINGS, "action_coupling": "conditioned" if coupled else "independent", **settings}
    spec = Spec(Array((3,)), ACTION, 4)
    given = {key: value for key, value in wanted.items() if key in known or key == "num_envs"}
    return Subject(name, spec, given).agent()


def taught(name: str, coupled: bool, updates: int = 300) -> Any:
    agent, generator = built(name, coupled), torch.Generator().manual_seed(3)
    for number in range(updates):
        agent.progress.fill_(number / updates)
        agent.update(transitions(128, coupled, generator))
        agent.updates += 1
    return agent


def rows() -> Any:
    none = torch.zeros(1, 3)
    return Batch(torch.eye(3).unsqueeze(0), none == 0, {}, none, none, none, none).now


@torch.no_grad()
def q_error(agent: Agent, coupled: bool) -> float:
    """The mean distance from Q(s, d, c) = b_d + alpha_c log p_d(c) + gamma V(s') over a grid of c."""
    net: Any = agent
    distances = []
    for push in torch.linspace(-0.8, 0.8, 9):
        for choice in range(2):
            chosen = torch.full((3,), choice)
            action = {"0": chosen.unsqueeze(0), "1": push.expand(1, 3, 1)}
            values = net.critic(rows(), net.actions.read(action))
            after = 1 if values.dim() > 3 + len(net.actions.outputs) else 0
            found = net.actions.pick(values, action, after)
            found = found.mean(-1) if after else found
            wanted = soft_bonus()[:, choice] + ALPHA_C * log_density(chosen, push.expand(3), coupled)
            distances.append((found.mean(0)[0] - wanted).abs())
    return float(torch.stack(distances).mean())


def bandit_targets(coupled: bool) -> dict[str, float]:
    """Target entropies of the soft optimum in state 0: with these alpha_d and alpha_c are the tuned temperatures."""
    probs = (soft_bonus()[0] / ALPHA_D).softmax(-1)
    entropy = float(-(probs * probs.log()).sum())
    noise = torch.randn(200_000, 1, generator=torch.Generator().manual_seed(0))
    found = [
        -float(TanhNormal(MEAN[d : d + 1], STD[d : d + 1].log()).sample_with_log_prob(noise)[1].mean())
        for d in (0, 1)
    ]
    continuous = float(probs[0]) * found[0] + float(probs[1]) * found[1] if coupled else found[0]
    return {"entropy_ratio": entropy / math.log(2), "target_entropy": continuous}


def exact_critics(agent: Any, coupled: bool) -> None:
    """Let the critics say Q(s, d, c) itself."""
    quantiles = (agent.cfg.n_quantiles,) if hasattr(agent.cfg, "n_quantiles") else ()

    def forward(rows: Any, reads: Tensor, noise: Any = None) -> Tensor:
        state = rows.selected.argmax(-1).unsqueeze(-1).expand(*rows.selected.shape[:-1], 2)  # [T, B, choices]
        choice = torch.arange(2).expand_as(state)
        push = reads[..., -1] if coupled else reads.expand(*reads.shape[:-1], 2)
        value = soft_bonus()[state, choice] + ALPHA_C * log_density(choice, push, coupled)
        found = value.reshape(*value.shape, *[1] * len(quantiles)).expand(*value.shape, *quantiles)
        return found.expand(agent.critic.members, *found.shape)

    agent.critic.forward = forward


def check_policy(agent: Agent, coupled: bool, states: slice, within: float) -> None:
    """The probability of each choice, and mean and deviation of the push before its tanh."""
    policy: Any = distribution(agent, rows())
    torch.testing.assert_close(
        policy.each[0].exp()[0, states], (soft_bonus() / ALPHA_D).softmax(-1)[states], atol=within / 2, rtol=0
    )
    for choice in range(2):
        given = policy.given(torch.full((1, 3, 1), choice)).before
        which = choice if coupled else 0
        for found, wanted in ((given.mean, MEAN), (given.log_std.exp(), STD)):
            assert found[0, states, 0].tolist() == pytest.approx(
                [float(wanted[which])] * len(found[0, states]), abs=within
            )


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("name", ["sac", pytest.param("tqc", marks=pytest.mark.full)])
def test_policy_and_temperatures_where_critics_are_exact(name: str, coupled: bool) -> None:
    """Both temperatures are tuned from another value, towards the entropies of the soft optimum."""
    agent = built(
        name,
        coupled,
        tune_alpha=True,
        alpha=1.0,
        alpha_discrete=0.2,
        alpha_lr=2e-2,
        **bandit_targets(coupled),
    )
    exact_critics(agent, coupled)
    generator = torch.Generator().manual_seed(3)
    for number in range(400):
        agent.progress.fill_(number / 400)
        agent.anneal()
        batch = transitions(128, coupled, generator, states=1)
        agent.improve_actor(batch, agent.draw(batch))
    assert agent.temperature().tolist() == pytest.approx([ALPHA_D, ALPHA_C], rel=0.1)
    check_policy(agent, coupled, slice(0, 1), 0.06)


@pytest.mark.parametrize(
    ("name", "coupled"),
    [
        ("sac", True),
        ("tqc", False),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in (("sac", False), ("tqc", True), ("redq", False), ("redq", True), ("droq", True))
        ),
    ],
)
def test_policy_and_q_of_a_two_step_task(name: str, coupled: bool) -> None:
    agent = taught(name, coupled)
    check_policy(agent, coupled, slice(0, 3), 0.12)
    assert q_error(agent, coupled) < 0.07
