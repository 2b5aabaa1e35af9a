"""Bootstrap your own latent: the sign of the loss, what it trains, how its targets move, both kinds of optimizer."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from blocks import IMAGE, VECTOR, build, feed, rollouts

from whorl.components.byol import BYOLConfig
from whorl.conformance import CHECKS, CheckedRunner, subject
from whorl.core.errors import ConfigError
from whorl.core.spec import Array

SMALL = BYOLConfig(features=8, hidden_size=16, batch_size=16, shift=2)
JOINED = BYOLConfig(features=8, hidden_size=16, batch_size=16, shift=2, joins="critic")
NEXT = replace(SMALL, predicts="next")


def rows(agent: Any) -> Any:
    """A batch with prepared observations."""
    (rollout,) = rollouts(agent)
    return rollout.replace(obs=agent.observations(rollout.obs))


def test_the_distance_is_0_for_equal_directions_and_4_for_opposite_ones() -> None:
    agent: Any = build("dqn", IMAGE, byol=SMALL)
    byol = agent.components["byol"]
    view = torch.rand(5, 16, 16, 3)
    target = byol.target_projection(byol.target_encoder(view)).detach()
    for sign, expected in ((3.0, 0.0), (-3.0, 4.0)):
        byol.prediction.forward = lambda _, sign=sign: sign * target
        torch.testing.assert_close(byol.distance(view, view), torch.full((5,), expected), atol=1e-5, rtol=0)


def test_the_loss_trains_encoder_and_heads_but_no_target() -> None:
    agent: Any = build("sac", IMAGE, byol=SMALL)
    byol = agent.components["byol"]
    byol.loss(rows(agent)).backward()
    trained = [*agent.encoder().parameters(), *byol.projection.parameters(), *byol.prediction.parameters()]
    assert all(value.grad is not None and value.grad.any() for value in trained)
    fixed = [*byol.target_encoder.parameters(), *byol.target_projection.parameters()]
    assert all(value.grad is None for value in fixed)
    assert agent.encoder() is agent.critic.backbone.encoder


@pytest.mark.parametrize("cfg", [SMALL, JOINED])
def test_targets_move_by_tau(cfg: BYOLConfig) -> None:
    agent: Any = build("dqn", IMAGE, byol=cfg)
    byol = agent.components["byol"]
    pairs = ((byol.target_encoder, agent.encoder()), (byol.target_projection, byol.projection))
    before = [value.clone() for target, _ in pairs for value in target.parameters()]
    (rollout,) = rollouts(agent)
    batch = agent.experience(torch.Generator().manual_seed(0))
    batch.add(rollout)
    agent.learn("update", batch.sample())
    online = [value for _, net in pairs for value in net.parameters()]
    after = [value for target, _ in pairs for value in target.parameters()]
    for old, new, value in zip(before, after, online):
        torch.testing.assert_close(new, (1 - cfg.tau) * old + cfg.tau * value)
        assert not torch.equal(new, old)


@pytest.mark.parametrize("cfg", [SMALL, JOINED])
@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac"])
def test_the_loss_falls(algorithm: str, cfg: BYOLConfig) -> None:
    agent: Any = build(algorithm, IMAGE, byol=cfg)
    given = rollouts(agent, 4)
    metrics = feed(agent, agent.experience(torch.Generator().manual_seed(0)), given * 3)
    losses = torch.stack([found["loss/byol"] for found in metrics])
    assert losses[-4:].mean() < losses[:2].mean()


def test_the_loss_falls_to_0_where_views_agree() -> None:
    agent: Any = build("dqn", IMAGE, byol=replace(SMALL, shift=0, lr=3e-3, batch_size=64))
    byol, (rollout,) = agent.components["byol"], rollouts(agent)
    first = float(byol.loss(rollout, agent.observations).detach())
    for _ in range(30):
        byol.update(agent, rollout)
    assert float(byol.last_loss) < 0.2 * first


def test_the_next_observation_is_predicted_from_the_action() -> None:
    agent: Any = build("dqn", IMAGE, byol=replace(NEXT, shift=0))
    byol, (rollout,) = agent.components["byol"], rollouts(agent)
    obs, action = agent.observations(rollout.obs).flatten(0, 1)[:6], rollout.action.flatten()[:6]
    code = byol.step(torch.cat((byol.projection(byol.encoder(obs)), torch.eye(3)[action]), -1))
    after = byol.target_projection(byol.target_encoder(agent.observations(rollout.obs).flatten(0, 1)[4:10]))
    byol.draw = lambda batch, count: torch.arange(6)  # the environments of row 0, and two of row 1
    cosine = torch.cosine_similarity(byol.prediction(code), after, dim=-1)
    assert rollout.mask.flatten()[:6].all()
    torch.testing.assert_close(byol.errors(rollout, agent.observations)[0], 2 - 2 * cosine)


def test_joined_gradients_are_added_to_the_critics() -> None:
    alone, joined = build("dqn", IMAGE), build("dqn", IMAGE, byol=JOINED)
    assert "byol" not in joined._optimizers
    heads = [
        p
        for part in ("projection", "prediction")
        for p in getattr(joined.components["byol"], part).parameters()
    ]
    trained = {id(p) for p in joined._parameters_of["critic"]}
    assert all(id(p) in trained for p in heads)
    given = rollouts(alone, 2)
    for agent in (alone, joined):
        feed(agent, agent.experience(torch.Generator().manual_seed(0)), given)
    own = dict(joined.critic.named_parameters())  # type: ignore[union-attr]
    moved = [name for name, value in alone.critic.named_parameters() if not torch.equal(value, own[name])]  # type: ignore[union-attr]
    assert any("encoder" in name for name in moved)


def test_the_loss_is_weighted_and_adds_both_orders_of_two_views() -> None:
    agent: Any = build("dqn", IMAGE, byol=replace(JOINED, weight=3.0))
    byol, batch = agent.components["byol"], rows(agent)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def distance(view: torch.Tensor, other: torch.Tensor, action: None = None) -> torch.Tensor:
        seen.append((view, other))
        return torch.full((len(view),), float(len(seen)))

    byol.distance = distance
    loss = byol.loss(batch.replace(mask=torch.ones_like(batch.mask)))
    (one, two), (again, first) = seen
    assert not torch.equal(one, two) and torch.equal(one, first) and torch.equal(two, again)
    assert (float(loss), float(byol.last_loss)) == (9.0, 3.0)  # 3 * (1 + 2)


def test_the_prediction_from_a_view_is_held_against_the_target_of_the_other() -> None:
    agent: Any = build("dqn", IMAGE, byol=SMALL)
    byol = agent.components["byol"]
    view, other = torch.rand(2, 5, 16, 16, 3)
    byol.prediction.forward = lambda _: byol.target_projection(byol.target_encoder(other))
    torch.testing.assert_close(byol.distance(view, other), torch.zeros(5), atol=1e-5, rtol=0)


def test_the_loss_of_masked_rows_does_not_count() -> None:
    agent: Any = build("dqn", IMAGE, byol=SMALL)
    byol, batch = agent.components["byol"], rows(agent)
    batch = batch.replace(mask=torch.zeros_like(batch.mask))
    assert byol.loss(batch) == 0


def test_an_environment_without_images_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="byol trains an encoder of images, but the environment has no images"
    ):
        build("dqn", VECTOR, byol=SMALL)


@pytest.mark.parametrize("cfg", [SMALL, JOINED])
def test_its_step_can_be_captured(cfg: BYOLConfig) -> None:
    agent = build("sac", Array((16, 16, 3), "uint8", 0.0, 255.0), byol=cfg)
    agent.runner = CheckedRunner()
    assert feed(agent, agent.experience(torch.Generator().manual_seed(0)), rollouts(agent, 2))


@pytest.mark.parametrize("check", [name for name in CHECKS if name != "keeps_its_settings"])
@pytest.mark.parametrize(
    "cfg",
    [
        SMALL,
        JOINED,
        pytest.param(replace(JOINED, adaptive="layer"), marks=pytest.mark.full),
        pytest.param(NEXT, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize(
    ("algorithm", "action"), [("ppo", "discrete"), ("sac", "continuous"), ("dqn", "discrete")]
)
def test_agents_with_byol_pass_the_conformance_suite(
    algorithm: str, action: str, cfg: BYOLConfig, check: str, use: Callable[..., None]
) -> None:
    use(byol=cfg)
    CHECKS[check](subject(algorithm, "image", "none", action))
