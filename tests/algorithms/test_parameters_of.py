"""Parametrised actions: where a choice uses some of the continuous dimensions, the others have no density, no target
entropy, and are 0 to critics."""

from dataclasses import replace
from math import log
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from replay_blocks import SGD, batch_of, learn, says
from torch import Tensor

import whorl
from whorl.agents.agent import Agent, Context
from whorl.algorithms.sac import SAC
from whorl.algorithms.tqc import TQC
from whorl.core.errors import EnvError
from whorl.core.spec import Array, Continuous, Discrete, Spec, TupleSpec, differences
from whorl.data.batch import LOG_PROB, Batch
from whorl.envs.adapters.gymnasium import to_spec
from whorl.envs.native import WORLDS, CatchPoint, Goal, HardMove, Platform
from whorl.envs.spaces import probe
from whorl.ops.distributions import MultiCategorical, TanhNormal
from whorl.ops.mixed import Mixed
from whorl.state.saved_spec import pack_spec, unpack_spec

ACTION = TupleSpec({"0": Discrete(3), "1": Continuous((2,), (-1.0, -1.0), (1.0, 1.0))})
USED = ((0,), (0, 1), ())
"""choice 0 uses the first dimension, 1 both, 2 none"""
PROBS = torch.tensor([0.25, 0.5, 0.25])
NEGENTROPY = 0.5 * log(0.25) + 0.5 * log(0.5)
DENSITY = -0.803710
"""log-density of tanh .5 under tanh N(0, 1)"""
PUSH = 0.462117
"""tanh .5"""


def build(cls: type[Agent] = SAC, used: Any = USED, **settings: Any) -> Any:
    torch.manual_seed(0)
    small = {"actor_hidden_sizes": (8,), "critic_hidden_sizes": (8,), "action_coupling": "conditioned"}
    spec = Spec(Array((1,)), ACTION, 2, parameters_of=used)
    agent = cls(spec, cls.Config(**{**small, **settings}))
    return agent.prepare("cpu", lambda name: torch.Generator().manual_seed(len(name)))


def known(cls: type[Agent] = SAC, **settings: Any) -> tuple[Any, Batch]:
    """pi(d) is .25, .5 and .25, pi(c|d) tanh N(0, 1); critics say (i + 1) * (1, 3, 5)_d + c_0 + 2 c_1, targets 10 more.

    Taken: d = 0 with c = (.3, .9), of which it uses the first.
    """
    agent = build(cls, alpha=0.2, alpha_discrete=0.5, **settings)
    head = agent.actor.head

    def policy(obs: Tensor) -> Mixed:
        zeros = torch.zeros(*obs.shape[:-1], 3, 2)
        choices = MultiCategorical(PROBS.log().expand(*obs.shape[:-1], 3), (3,))
        return Mixed(agent.actions.parts, choices, TanhNormal(zeros, zeros, head.used), True, head.table)

    def critics(more: float) -> Any:
        def values(obs: Tensor, reads: Tensor) -> Tensor:
            each = (reads[..., :3] * torch.tensor([1.0, 3.0, 5.0])).sum(-1)
            each = each + reads[..., 3] + 2 * reads[..., 4]
            found = torch.stack((each + more, 2 * each + more))
            return found if cls is SAC else found.unsqueeze(-1)

        return values

    says(agent.actor, policy)
    says(agent.critic, critics(0.0))
    says(agent.target_critic, critics(10.0))
    action: Any = {"0": torch.zeros(1, 1, dtype=torch.int64), "1": torch.tensor([[[0.3, 0.9]]])}
    return agent, batch_of(torch.zeros(2, 1, 1), action, [1.0], [0.9])


def halves(agent: Any, batch: Batch) -> Any:
    half = torch.full((*batch.shape, 2), 0.5)
    return {**agent.draw(batch), "action": half, "next_action": half}


MEAN_DENSITY = (0.25 * 1 + 0.5 * 2) * DENSITY
"""one dimension in choice 0, two in choice 1"""
VALUE = 0.25 * (1 + PUSH) + 0.5 * (3 + 3 * PUSH) + 0.25 * 5


def test_targets_and_losses_count_what_each_choice_uses() -> None:
    agent, batch = known()
    loss, error, q = agent.critic_loss(batch, halves(agent, batch))
    target = 1 + 0.9 * (10 + VALUE - 0.5 * NEGENTROPY - 0.2 * MEAN_DENSITY)
    said = torch.tensor([1.3, 2.6])
    assert float(q) == pytest.approx(1.95)
    assert float(error) == pytest.approx(float((said - target).abs().mean()), abs=1e-5)
    assert float(loss) == pytest.approx(float((said - target).square().sum()), rel=1e-5)
    actor_loss, log_prob, _ = agent.actor_loss(batch, halves(agent, batch))
    assert log_prob.tolist() == pytest.approx([NEGENTROPY, MEAN_DENSITY], abs=1e-5)
    assert float(actor_loss) == pytest.approx(0.5 * NEGENTROPY + 0.2 * MEAN_DENSITY - VALUE, abs=1e-5)


def test_quantiles_of_each_choice_have_the_entropy_of_what_it_uses() -> None:
    agent, batch = known(TQC, n_critics=2, n_quantiles=1, top_quantiles_to_drop=0)
    _, error, _ = agent.critic_loss(batch, halves(agent, batch))
    # The mean of (1 and 2) times the value of a choice
    target = 1 + 0.9 * (10 + 1.5 * VALUE - 0.5 * NEGENTROPY - 0.2 * MEAN_DENSITY)
    assert float(error) == pytest.approx(abs(1.5 * 1.3 - target), abs=1e-5)


@pytest.mark.parametrize(("given", "wanted"), [({}, -0.5 * 1.25), ({"target_entropy": -3.0}, -3.0)])
def test_the_target_entropy_counts_what_the_choices_use_by_their_probability(
    given: dict[str, Any], wanted: float
) -> None:
    settings = {"optimizer": SGD, "alpha_lr": 0.1, "entropy_per_dimension": -0.5, **given}
    agent, batch = known(**settings)
    minimize = agent.minimize
    agent.minimize = lambda name, loss, *more: minimize(name, loss, *more) if name == "alpha" else None
    agent.improve_actor(batch, halves(agent, batch))
    assert agent.temperature.log_alpha[1].item() == pytest.approx(
        log(0.2) + 0.1 * (MEAN_DENSITY + wanted), abs=1e-5
    )


def scattered(cls: type[Agent] = SAC, **settings: Any) -> Any:
    agent = build(cls, **settings)
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1), std=0.5)
    return agent


def test_a_samples_log_probability_is_the_density_of_what_its_choice_uses() -> None:
    agent = scattered()
    policy = agent.actor.step(torch.randn(200, 1), {}, torch.zeros(200, dtype=torch.bool))[0]
    noise = policy.noise(torch.Generator().manual_seed(2))
    action = policy.sample(noise)
    choice, push = action["0"], action["1"]
    used = agent.actions.used[choice]
    assert set(choice.tolist()) == {0, 1, 2}
    assert push[used == 0].abs().max() == 0 < push[used == 1].abs().min()
    before = policy.continuous.before
    rows = torch.arange(200)
    mean, log_std = before.mean[rows, choice], before.log_std[rows, choice]
    each = [TanhNormal(mean[:, [i]], log_std[:, [i]]).log_prob(push[:, [i]]) * used[:, i] for i in range(2)]
    expected = policy.choices.log_prob(choice.unsqueeze(-1)) + sum(each)
    torch.testing.assert_close(policy.log_prob(action), expected, rtol=1e-4, atol=1e-4)
    other = {**action, "1": torch.where(used > 0, push, 0.7)}
    assert policy.log_prob(other).equal(policy.log_prob(action))
    assert agent.actions.read(other).equal(agent.actions.read(action))
    drawn = policy.drawn(noise["continuous"])
    assert drawn.log_density[:, 2].abs().max() == 0
    torch.testing.assert_close(drawn.reads[rows, choice, 3:], push)
    torch.testing.assert_close(policy.entropy(noise), -drawn.log_prob.sum(0))


def test_a_change_of_what_is_not_used_is_no_divergence() -> None:
    agent = scattered()
    policy = agent.actor.step(torch.randn(5, 1), {}, torch.zeros(5, dtype=torch.bool))[0]
    before, used = policy.continuous.before, agent.actions.used
    moved = TanhNormal(before.mean + (1 - used), before.log_std, used)
    assert policy.kl(Mixed(policy.parts, policy.choices, moved, True, policy.table)).abs().max() < 1e-6


def test_random_actions_are_stored_with_the_density_of_what_they_use() -> None:
    agent = build(use_n_step_is=True, n_step=2)
    context = Context(torch.ones(50, dtype=torch.bool), torch.Generator().manual_seed(0), random=True)
    acted = agent.act(torch.zeros(50, 1), {}, context)
    count = torch.tensor([1.0, 2.0, 0.0])[acted.action["0"]]
    torch.testing.assert_close(acted.extras[LOG_PROB], -log(3) - count * log(2))


def test_the_head_has_outputs_for_what_is_used_alone() -> None:
    assert build().actor.head.both.out_features == 2 * 3
    assert build(used=()).actor.head.both.out_features == 2 * 3 * 2


@pytest.mark.parametrize("settings", [{}, {"discrete_dqn_like": True}])
def test_greedy_and_soft_choices_learn_and_act(settings: dict[str, Any]) -> None:
    agent = scattered(TQC, **settings)
    action: Any = {"0": torch.tensor([[0, 1, 2]]), "1": torch.rand(1, 3, 2)}
    batch = batch_of(torch.randn(2, 3, 1), action, [0.0] * 3, [0.9] * 3)
    before = agent.actor.head.both.weight.clone()
    assert all(value.isfinite().all() for value in learn(agent, batch).metrics.values())
    assert not agent.actor.head.both.weight.equal(before)
    context = Context(torch.ones(90, dtype=torch.bool), torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = agent.act(torch.randn(90, 1), {}, context).action
    assert found["1"][agent.actions.used[found["0"]] == 0].abs().max() == 0


@pytest.mark.parametrize("settings", [{"used": ((0, 1),) * 3}, {"action_coupling": "independent"}])
def test_a_declaration_without_a_difference_changes_no_bit(settings: dict[str, Any]) -> None:
    def after(**given: Any) -> list[Tensor]:
        agent = build(**given)
        action: Any = {"0": torch.tensor([[0, 1, 2]]), "1": torch.rand(1, 3, 2)}
        learn(agent, batch_of(torch.randn(2, 3, 1), action, [1.0] * 3, [0.9] * 3))
        return list(agent.parameters())

    without = {**settings, "used": ()}
    assert all(a.equal(b) for a, b in zip(after(**settings), after(**without), strict=True))


# Environments


class Kick(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Dict(how=spaces.Discrete(3), power=spaces.Box(0, 1, (2,), np.float32))
    parameters_of: Any = ([0], np.array([0, 1]), [])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, True, False, {}


def test_a_gymnasium_environment_declares_its_parameters_by_an_attribute() -> None:
    spec = to_spec(probe(lambda: gymnasium.wrappers.TimeLimit(Kick(), 3)), 2)
    assert spec.parameters_of == USED
    assert unpack_spec(pack_spec(spec)).parameters_of == USED
    other = replace(spec, parameters_of=())
    assert differences(spec, spec) == [] and "parameters_of" in differences(spec, other)[0]


def test_a_run_with_declared_parameters_exports_a_policy_that_answers(tmp_path: Any) -> None:
    small = {"total_timesteps": 48, "learning_starts": 16, "random_steps": 16, "batch_size": 8, "eval": False}
    result = whorl.train(
        Kick, "sac", action_coupling="conditioned", quiet=True, runs=str(tmp_path), num_envs=2, **small
    )
    policy = whorl.restore(result.run_dir)
    action = policy.act(np.zeros(1, np.float32))
    assert (
        set(action) == {"how", "power"}
        and np.isfinite(policy.q_values(np.zeros(1, np.float32), action)).all()
    )


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ([[0], [1]], "parameters_of has 2 entries, but there are 3 combinations of discrete choices"),
        ([[0], [2], []], "gives choice 1 the dimension 2, but the continuous dimensions are 0 to 1"),
        ([[], [], []], "parameters_of gives no choice a continuous dimension"),
        ([0, 1, 1], r"parameters_of is \[0, 1, 1\]; it must hold for each discrete choice"),
        ([["power"], [], []], r"parameters_of is \[\['power'\], \[\], \[\]\]; it must hold"),
    ],
)
def test_a_wrong_declaration_is_one_sentence(declared: Any, sentence: str) -> None:
    def make() -> gymnasium.Env:
        env = Kick()
        env.parameters_of = declared
        return env

    with pytest.raises(EnvError, match=sentence) as error:
        to_spec(probe(make), 2)
    assert "\n" not in str(error.value)


def test_native_worlds_say_which_parameters_a_choice_uses() -> None:
    assert Platform(1).spec.parameters_of == ((0,), (1,), (2,))
    assert Goal(1).spec.parameters_of == ((0, 1), (2,), (3,))
    assert Goal(1, kick_x_only=True).spec.parameters_of == ((0,), (2,), (3,))
    assert CatchPoint(1).spec.parameters_of == ((0,), ())
    assert HardMove(1, n=2).spec.parameters_of == ((0,), (1,), (2,), (3,))
    assert HardMove(1, n=2, parameters="one").spec.parameters_of == ()


@pytest.mark.parametrize("name", ["Platform-v0", "Goal-v0", "CatchPoint-v0", "HardMove-v0", "Moving-v0"])
def test_what_a_choice_does_not_use_changes_nothing_in_a_native_world(name: str) -> None:
    spec = WORLDS[name](1).spec
    count, size = spec.action["0"].n, spec.action["1"].size
    choice = torch.arange(count)
    parameters = torch.rand(count, size, generator=torch.Generator().manual_seed(0)) * 2 - 1
    used = torch.zeros(count, size)
    for number, dimensions in enumerate(spec.parameters_of):
        used[number, list(dimensions)] = 1

    def after(given: Tensor) -> Tensor:
        world = WORLDS[name](count)
        world.reset(0)
        return world.step({"0": choice, "1": given}).obs

    assert after(parameters).equal(after(torch.where(used > 0, parameters, -parameters)))
    moved = after(torch.where(used > 0, -parameters, parameters)) != after(parameters)
    assert moved.any(-1)[used.sum(-1) > 0].any()
