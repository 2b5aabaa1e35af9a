"""Auxiliary losses: contrast, siamese Q, rows that follow, gradients that agree, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from blocks import IMAGE, VECTOR, build, feed, rollouts

from whorl.agents.auxiliary import rows_later
from whorl.components.atc import ATCConfig
from whorl.components.byol import BYOLConfig
from whorl.components.prediction import PredictionConfig
from whorl.components.siamese_q import SiameseQConfig
from whorl.conformance import CHECKS, Run, subject
from whorl.conformance.subjects import MIXED
from whorl.core.errors import ConfigError
from whorl.data.batch import Batch

ATC = ATCConfig(features=8, hidden_size=16, batch_size=16, shift=2)
SIAMESE = SiameseQConfig(shift=2)
CHEAP = [name for name in CHECKS if name != "keeps_its_settings"]


def numbered(mask: list[list[int]]) -> Batch:
    """A batch whose observation in row t of environment b is 10 t + b."""
    counted = torch.tensor(mask, dtype=torch.float32)
    rows, num_envs = counted.shape
    obs = 10 * torch.arange(rows + 1).unsqueeze(1) + torch.arange(num_envs)
    return Batch(obs, obs > 0, {}, counted, mask=counted)


def test_later_rows_stop_at_final_observations_and_at_the_end_of_the_batch() -> None:
    batch = numbered([[1, 1], [1, 0], [1, 1]])  # environment 1: row 1 is the final observation of an episode
    index = torch.arange(6)
    assert rows_later(batch, index, 1).tolist() == [10, 11, 20, 11, 30, 31]
    assert rows_later(batch, index, 2).tolist() == [20, 11, 30, 11, 30, 31]
    assert rows_later(batch, index[3:], 9).tolist() == [11, 30, 31]


@pytest.mark.parametrize("n_step", [1, 3])
def test_transitions_have_the_observation_some_steps_later(n_step: int) -> None:
    agent: Any = build("dqn", IMAGE, atc=replace(ATC, steps=2))
    replay = agent.experience(torch.Generator().manual_seed(0))
    object.__setattr__(replay.view, "n_step", n_step)
    assert replay.view.successors == (2,) and replay.view.span == max(2, n_step)
    (rollout,) = rollouts(agent)
    replay.add(rollout)
    batch = replay.sample()
    rows = rollout.obs.flatten(0, 1)
    for number in range(batch.shape[1]):
        here = int((rows == batch.obs[0, number]).flatten(1).all(1).nonzero()[0])
        real = rollout.mask.flatten()
        later = here + 4 if len(real) > here + 4 and real[here + 4] == 0 else here + 8
        assert torch.equal(batch.extras["successor_2"][0, number], rows[later])


def test_the_contrast_is_a_cross_entropy_with_the_positives() -> None:
    agent: Any = build("dqn", IMAGE, atc=replace(ATC, shift=0, steps=2))
    atc, (rollout,) = agent.components["atc"], rollouts(agent)
    index = torch.tensor([0, 5, 10])
    atc.draw = lambda batch, count: index
    obs = agent.observations(rollout.obs).flatten(0, 1)
    anchor = atc.projection(atc.encoder(obs[index]))
    later = agent.observations(rows_later(rollout, index, 2))
    positive = atc.target_projection(atc.target_encoder(later))
    logits = (anchor + atc.prediction(anchor)) @ atc.bilinear.weight.T @ positive.T
    assert rollout.mask.flatten()[index].all()
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(3))
    torch.testing.assert_close(atc.loss(rollout, agent.observations), loss)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac"])
def test_the_contrast_falls_and_its_targets_move(algorithm: str) -> None:
    agent: Any = build(algorithm, IMAGE, atc=replace(ATC, lr=2e-3, batch_size=64))
    atc, given = agent.components["atc"], rollouts(agent, 4)
    before = [value.clone() for value in atc.target_projection.parameters()]
    metrics = feed(agent, agent.experience(torch.Generator().manual_seed(0)), given * 3)
    losses = torch.stack([found["loss/atc"] for found in metrics])
    assert losses[-3:].mean() < losses[:2].mean()
    after = list(atc.target_projection.parameters())
    assert not any(torch.equal(old, new) for old, new in zip(before, after))


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_siamese_q_is_0_for_equal_critics_and_equal_views(algorithm: str) -> None:
    for shift, zero in ((0, True), (3, False)):
        agent: Any = build(algorithm, IMAGE, siamese_q=SiameseQConfig(shift=shift))
        siamese, (rollout,) = agent.components["siamese_q"], rollouts(agent)
        assert bool(siamese.loss(rollout, agent.observations) == 0) is zero


def test_siamese_q_is_the_squared_difference_to_the_target_critic() -> None:
    agent: Any = build("sac", IMAGE, siamese_q=SiameseQConfig(shift=0, weight=2.0, joins="critic"))
    siamese, (rollout,) = agent.components["siamese_q"], rollouts(agent)
    with torch.no_grad():
        agent.target_critic.nets.biases[-1].add_(3.0)
    torch.testing.assert_close(siamese.loss(rollout, agent.observations), torch.tensor(18.0))
    siamese.loss(rollout, agent.observations).backward()
    assert all(p.grad is None for p in agent.target_critic.parameters())
    assert all(p.grad is not None for p in agent.critic.parameters())


@pytest.mark.parametrize(
    ("algorithm", "action"), [("iql", "discrete"), ("iql", "mixed"), ("option_critic", "discrete")]
)
def test_siamese_q_gives_critics_the_actions_as_they_read_them(algorithm: str, action: str) -> None:
    cell = subject(algorithm, "image", "none", action, components=["siamese_q"])
    run = Run(cell)
    (updated, *_) = run.feed(cell.rollouts(run.agent, 2))
    assert updated.metrics["loss/siamese_q"] > 0


@pytest.mark.parametrize("coupling", ["independent", "conditioned"])
def test_siamese_q_of_mixed_actions_compares_what_the_critics_say_of_them(coupling: str) -> None:
    """A value for each of 3 * 2 * 3 combinations, or conditioned one for the combination that was taken."""
    config = {"action_coupling": coupling}
    agent: Any = build(
        "sac", IMAGE, config=config, action=MIXED, siamese_q=SiameseQConfig(shift=0, joins="critic")
    )
    (rollout,) = rollouts(agent)
    siamese, read = agent.components["siamese_q"], agent.actions.read(rollout.action)
    with torch.no_grad():
        for parameter in agent.target_critic.parameters():
            parameter.mul_(1.1)
        now = rollout.replace(obs=agent.observations(rollout.obs)).now
        squares = (agent.critic(now, read) - agent.target_critic(now, read)).square()
    assert squares.shape == (2, 16, 4, *([18] if coupling == "independent" else []))
    mean = squares.mean((0, -1) if coupling == "independent" else 0)
    wanted = (mean * rollout.mask).sum() / rollout.mask.sum()
    torch.testing.assert_close(siamese.loss(rollout, agent.observations), wanted)
    assert wanted > 0


@pytest.mark.parametrize("adaptive", ["layer", "whole"])
def test_an_opposing_auxiliary_gradient_leaves_the_agents_own_as_it_is(adaptive: str) -> None:
    """The auxiliary loss is minus the critic's: no gradient of a shared parameter agrees."""
    agent: Any = build("dqn", IMAGE, byol=BYOLConfig(joins="critic", adaptive=adaptive))  # type: ignore[arg-type]
    weights = list(agent.critic.parameters())
    heads = list(agent.components["byol"].projection.parameters())

    def value() -> torch.Tensor:
        return sum((weight.square().sum() for weight in weights), torch.zeros(()))

    def opposed(batch: Batch) -> torch.Tensor:
        return -value() + sum(head.sum() for head in heads)

    agent._joined["critic"] = [replace(agent._joined["critic"][0], loss=opposed)]
    (agent._batch,) = rollouts(agent)
    seen: list[Any] = []
    agent._steppers["critic"] = lambda gradients, rate, gate: seen.extend(gradients)
    agent.minimize("critic", value())
    for weight, gradient in zip(weights, seen):
        torch.testing.assert_close(gradient, 2 * weight)
    places = {id(p): number for number, p in enumerate(agent._parameters_of["critic"])}
    assert all((seen[places[id(head)]] == 1).all() for head in heads)


@pytest.mark.parametrize("order", [("byol", "atc"), ("atc", "byol")])
def test_gradients_are_compared_with_the_agents_own_and_not_with_those_of_other_losses(
    order: tuple[str, str],
) -> None:
    """The agent's gradient is 2 w; BYOL adds -6 w wherever it points, and ATC's -2 w must not follow it."""
    known = {"byol": BYOLConfig(joins="critic"), "atc": replace(ATC, joins="critic", adaptive="whole")}
    agent: Any = build("dqn", IMAGE, **{name: known[name] for name in order})
    weights = list(agent.critic.parameters())

    def value(factor: float) -> torch.Tensor:
        return sum((factor * weight.square().sum() for weight in weights), torch.zeros(()))

    factors = {"off": -3.0, "whole": -1.0}
    agent._joined["critic"] = [
        replace(joined, loss=lambda batch, factor=factors[joined.adaptive]: value(factor))
        for joined in agent._joined["critic"]
    ]
    (agent._batch,) = rollouts(agent)
    seen: list[Any] = []
    agent._steppers["critic"] = lambda gradients, rate, gate: seen.extend(gradients)
    agent.minimize("critic", value(1.0))
    for weight, gradient in zip(weights, seen):
        torch.testing.assert_close(gradient, -4 * weight)


@pytest.mark.parametrize(
    ("name", "cfg"),
    [
        ("atc", replace(ATC, colour=0.1)),
        ("byol", BYOLConfig(features=8, hidden_size=16, batch_size=16, predicts="next", intensity=0.1)),
        ("prediction", PredictionConfig(size=8, latent_size=4, hidden_size=16)),
    ],
)
def test_a_joined_loss_sees_later_observations_as_one_with_an_optimizer_of_its_own(
    name: str, cfg: Any
) -> None:
    """With n-step returns the next observation is in the extras of a sample."""
    agent: Any = build("dqn", IMAGE, **{name: replace(cfg, joins="critic")})
    replay = agent.experience(torch.Generator().manual_seed(0))
    object.__setattr__(replay.view, "n_step", 3)
    replay.add(*rollouts(agent))
    agent._batch = replay.sample()
    assert agent._batch.extras["successor"].dtype == torch.uint8
    (joined,), seen = agent._joined["critic"], list[torch.Tensor]()
    agent.generators["critic"].manual_seed(3)
    wanted = joined.loss(agent._batch, agent.observations)

    def heard(batch: Batch) -> torch.Tensor:
        seen.append(joined.loss(batch))
        return seen[0]

    agent._joined["critic"] = [replace(joined, loss=heard)]
    agent.generators["critic"].manual_seed(3)
    agent.minimize("critic", sum((weight.sum() for weight in agent.critic.parameters()), torch.zeros(())))
    torch.testing.assert_close(seen[0], wanted)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"atc.adaptive is 'whole', .*set atc.joins to critic"):
        build("dqn", IMAGE, atc=replace(ATC, adaptive="whole"))
    with pytest.raises(
        ConfigError, match=r"atc.weight is 0.5, .* set atc.lr instead, or atc.joins to critic"
    ):
        build("dqn", IMAGE, atc=replace(ATC, weight=0.5))
    with pytest.raises(ConfigError, match=r"atc.joins is 'actor', but DQN has the optimizers critic"):
        build("dqn", IMAGE, atc=replace(ATC, joins="actor"))
    with pytest.raises(ConfigError, match="no images"):
        build("dqn", VECTOR, atc=ATC)
    with pytest.raises(ConfigError, match=r"minibatches of PPO do not have; leave atc.joins out"):
        build("ppo", IMAGE, atc=replace(ATC, joins="critic"))
    with pytest.raises(ConfigError, match="use sac, tqc, td3, ddpg or dqn"):
        build("ppo", IMAGE, siamese_q=SIAMESE)


@pytest.mark.parametrize("check", CHEAP)
@pytest.mark.parametrize(
    ("algorithm", "action", "cfg"),
    [
        pytest.param("ppo", "discrete", ATC, marks=pytest.mark.full),
        ("sac", "continuous", replace(ATC, joins="critic", adaptive="whole", colour=0.1)),
        pytest.param("dqn", "discrete", replace(ATC, steps=3), marks=pytest.mark.full),
    ],
)
def test_agents_with_atc_pass_the_conformance_suite(
    algorithm: str, action: str, cfg: ATCConfig, check: str, use: Callable[..., None]
) -> None:
    use(atc=cfg)
    CHECKS[check](subject(algorithm, "image", "none", action))


@pytest.mark.parametrize("check", CHEAP)
@pytest.mark.parametrize(
    ("algorithm", "memory", "action", "cfg"),
    [
        pytest.param("sac", "none", "continuous", SIAMESE, marks=pytest.mark.full),
        pytest.param(
            "dqn",
            "gru",
            "discrete",
            replace(SIAMESE, joins="critic", adaptive="layer"),
            marks=pytest.mark.full,
        ),
        pytest.param("tqc", "none", "continuous", SIAMESE, marks=pytest.mark.full),
        pytest.param("tqc", "none", "masked-mixed", SIAMESE, marks=pytest.mark.full),
        ("sac", "none", "masked-mixed", replace(SIAMESE, joins="critic", adaptive="layer")),
    ],
)
def test_agents_with_siamese_q_pass_the_conformance_suite(
    algorithm: str, memory: str, action: str, cfg: SiameseQConfig, check: str, use: Callable[..., None]
) -> None:
    use(siamese_q=cfg)
    CHECKS[check](subject(algorithm, "image", memory, action))
