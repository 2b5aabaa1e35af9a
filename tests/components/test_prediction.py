"""The prediction model: KL divergence, recurrence, windows, what it trains and what it imagines."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
from blocks import IMAGE, VECTOR, build, feed, rollouts

import whorl
from whorl import Logger
from whorl.components.prediction import PredictionConfig
from whorl.conformance import CHECKS, subject
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import Array
from whorl.nets.latent import LatentModel, balanced_kl, decoder
from whorl.ops.distributions import Normal

SMALL = PredictionConfig(size=8, latent_size=4, hidden_size=16, length=4, batch_size=8)


def gaussian(mean: float, std: float) -> Normal:
    return Normal(torch.tensor([mean], requires_grad=True), torch.tensor([log(std)], requires_grad=True))


def test_the_kl_is_that_of_two_gaussians() -> None:
    # log(1 / 0.5) + (0.25 + 1) / 2 - 1/2
    found = balanced_kl(gaussian(1.0, 0.5), gaussian(0.0, 1.0), 0.8, 0.0)
    torch.testing.assert_close(found, torch.tensor(log(2) + 0.625 - 0.5))


def test_the_prior_gets_the_balance_of_the_gradient_and_the_posterior_the_rest() -> None:
    posterior, prior = gaussian(1.0, 1.0), gaussian(0.0, 1.0)  # d KL / d mean = 1 and -1
    balanced_kl(posterior, prior, 0.8, 0.0).sum().backward()
    torch.testing.assert_close(posterior.mean.grad, torch.tensor([0.2]))
    torch.testing.assert_close(prior.mean.grad, torch.tensor([-0.8]))


def test_free_nats_have_no_gradient() -> None:
    posterior, prior = gaussian(1.0, 1.0), gaussian(0.0, 1.0)  # KL 0.5
    found = balanced_kl(posterior, prior, 0.8, 0.75)
    assert float(found.detach()) == 0.75
    found.sum().backward()
    assert posterior.mean.grad == 0 and prior.mean.grad == 0


def test_standard_deviations_are_between_a_tenth_and_1() -> None:
    model = LatentModel(2, 1, 3, 2, 4)
    posterior, prior, _ = model(
        1e3 * torch.randn(3, 5, 2),
        torch.zeros(2, 5, 1),
        torch.zeros(3, 5, dtype=torch.bool),
        torch.zeros(3, 5, 2),
    )
    for found in (posterior, prior):
        std = found.log_std.exp()
        assert (std > 0.0999).all() and (std < 1.0001).all()


def test_the_recurrent_state_starts_again_with_an_episode_and_reads_the_action() -> None:
    model = LatentModel(2, 1, 3, 2, 4)
    model.initial.detach().copy_(torch.tensor([0.1, 0.2, 0.3]))
    state, noise = torch.randn(3, 1, 2), torch.zeros(3, 1, 2)
    reset = torch.tensor([[False], [False], [True]])
    one, two = (model(state, torch.full((2, 1, 1), a), reset, noise)[2][..., :3] for a in (0.0, 1.0))
    assert torch.equal(one[0, 0], model.initial) and torch.equal(one[2, 0], model.initial)
    assert not torch.equal(one[1, 0], model.initial) and not torch.equal(one[1], two[1])


def test_what_is_imagined_follows_the_means_of_the_prior() -> None:
    model = LatentModel(2, 1, 3, 2, 4)
    first, action = torch.randn(1, 5), torch.randn(2, 1, 1)
    found = model.imagine(first, action)
    h = model.cell(torch.cat((first[:, 3:], action[0]), -1), first[:, :3])
    mean = model.prior(h).chunk(2, -1)[0]
    torch.testing.assert_close(found[1], torch.cat((h, mean), -1))
    assert torch.equal(found[0], first) and found.shape == (3, 1, 5)


@pytest.mark.parametrize("shape", [(3,), (9, 10, 3), (4, 16, 12), ()])
def test_decoders_have_the_shape_of_the_observation(shape: tuple[int, ...]) -> None:
    assert decoder(5, Array(shape), 8)(torch.rand(2, 3, 5)).shape == (2, 3, *shape)


def test_windows_are_consecutive_rows_of_one_environment() -> None:
    agent: Any = build("a2c", IMAGE, prediction=SMALL)
    model, (rollout,) = agent.components["prediction"], rollouts(agent)
    _, obs, action, reward, reset, real = model.windows(rollout, agent.observations)
    assert action.shape == (4, 8, 3) and reset.shape == (5, 8)
    every = agent.observations(rollout.obs)
    starts = {}
    for number in range(8):
        row, env_index = (every == obs[""][0, number]).flatten(2).all(2).nonzero()[0].tolist()
        starts[row, env_index] = number
        assert row % 4 == 0 and torch.equal(obs[""][:, number], every[row : row + 5, env_index])
        counted = rollout.mask[row : row + 4, env_index]
        assert torch.equal(real[:, number], counted)
        assert torch.equal(reward[:, number], rollout.reward[row : row + 4, env_index] * counted)
        assert torch.equal(reset[:, number], rollout.reset[row : row + 5, env_index])
    assert len(starts) == 8


def test_windows_of_a_sequence_begin_behind_its_burn_in() -> None:
    """There is nothing to learn from the rows of the burn-in, and their actions are masked."""
    memory = {"memory": "gru", "memory_size": 4, "sequence_length": 8, "burn_in": 3, "sequence_stride": 1}
    agent: Any = build("sac", VECTOR, config={**memory, "share_memory": True}, prediction=SMALL)
    model, experience = agent.components["prediction"], agent.experience(torch.Generator().manual_seed(0))
    for rollout in rollouts(agent, 3):
        experience.add(agent.receive(rollout))
    batch = experience.sample()
    model.cfg = replace(SMALL, batch_size=99)  # all
    _, _, action, reward, _, real = model.windows(batch, agent.observations)
    assert real.shape == (4, 2 * batch.shape[1]) and real.sum() == batch.mask.sum()
    assert real.sum() > 0.8 * real.numel()
    torch.testing.assert_close(reward.sum(), (batch.reward * batch.mask).sum())
    found = torch.bincount(action.argmax(-1)[real > 0], minlength=3)
    assert torch.equal(found, torch.bincount(batch.action[batch.mask > 0], minlength=3))


def test_rows_that_fill_no_window_are_those_of_either_end_by_chance() -> None:
    agent: Any = build("a2c", IMAGE, prediction=SMALL)
    model, (rollout,) = agent.components["prediction"], rollouts(agent)
    rows = len(rollout.reward)
    length = rows // 2 - 1
    model.cfg = replace(SMALL, length=length, batch_size=99)  # all
    model.shown_action = torch.zeros(length, *model.shown_action.shape[1:])
    rollout.reward.copy_(torch.arange(1.0, rows + 1).unsqueeze(1))
    rollout.mask.fill_(1.0)
    learned = {
        tuple(model.windows(rollout, agent.observations)[3].unique().int().tolist()) for _ in range(50)
    }
    assert all(len(found) == 2 * length for found in learned)
    assert learned == {tuple(range(first, first + 2 * length)) for first in (1, 2, 3)}


def test_the_error_is_summed_by_hand() -> None:
    """With decoders of 0 and a reward head of 1 the error is half the squares, over rows that count."""
    agent: Any = build(
        "a2c", IMAGE, prediction=PredictionConfig(size=8, latent_size=4, free_nats=50.0, batch_size=99)
    )
    model, (rollout,) = agent.components["prediction"], rollouts(agent)
    for part in (*model.decoders[0].parameters(), *model.reward.parameters()):
        part.detach().zero_()
    model.reward[-1].bias.detach().fill_(1.0)
    _, obs, _, reward, _, real = model.windows(rollout, agent.observations)
    counts = torch.zeros(real.shape[0] + 1, real.shape[1])
    for row in range(len(real)):
        counts[row : row + 2] = counts[row : row + 2].maximum(real[row].expand(2, -1))
    squares = 0.5 * obs[""].square().flatten(2).sum(-1) * counts
    wanted = (50 * counts + squares).sum() + (0.5 * (1 - reward).square() * real).sum()
    torch.testing.assert_close(model.loss(rollout, agent.observations) * real.shape[1], wanted)


@pytest.mark.parametrize("algorithm", ["a2c", "dqn", "sac"])
def test_predictions_become_better_and_shape_the_encoder(algorithm: str) -> None:
    agent: Any = build(
        algorithm, IMAGE, prediction=PredictionConfig(size=8, latent_size=4, length=4, lr=3e-3)
    )
    given = rollouts(agent, 2)
    model = agent.components["prediction"]
    model.loss(given[0], agent.observations).backward()
    assert all(p.grad is not None and p.grad.any() for p in agent.encoder().parameters())
    agent.zero_grad(set_to_none=True)
    metrics = feed(agent, agent.experience(torch.Generator().manual_seed(0)), given * 4)
    losses = torch.stack([found["loss/prediction"] for found in metrics])
    assert losses[-2:].mean() < losses[:2].mean()


def test_pictures_show_what_was_seen_above_what_is_imagined() -> None:
    agent: Any = build("a2c", IMAGE, prediction=SMALL)
    assert agent.pictures() == {}
    (rollout,) = rollouts(agent)
    agent.components["prediction"].update(agent, rollout)
    image = agent.pictures()["prediction/imagined"]
    assert image.shape == (2 * 16, 5 * 16, 3) and image.dtype == torch.uint8
    frames = rollout.obs.flatten(0, 1).int()
    difference = (frames - image[:16, :16].int()).abs().flatten(1).amax(1)
    assert difference.min() <= 1  # a frame of the rollout, scaled and back


def test_pictures_have_the_axes_that_the_encoder_is_told() -> None:
    """By its shape the observation might be 8 channels of 16 x 16 pixels."""
    encoder = Part("images", {"channels": "last"})
    agent: Any = build(
        "a2c", Array((8, 16, 16), "uint8", 0.0, 255.0), config={"encoder": encoder}, prediction=SMALL
    )
    agent.components["prediction"].update(agent, rollouts(agent)[0])
    assert agent.pictures()["prediction/imagined"].shape == (2 * 8, 5 * 16, 1)


def test_agents_without_anything_to_shape_are_refused() -> None:
    with pytest.raises(ConfigError, match="prediction trains an encoder of images or a memory"):
        build("sac", VECTOR, prediction=SMALL)
    with pytest.raises(ConfigError, match="minibatches of A2C do not have"):
        build("a2c", IMAGE, prediction=PredictionConfig(joins="critic"))
    with pytest.raises(ConfigError, match=r"prediction.predicts names 'sate'; did you mean 'state'"):
        build("sac", {"image": IMAGE, "state": VECTOR}, prediction=PredictionConfig(predicts=("sate",)))


def test_imagined_images_are_logged_with_each_evaluation() -> None:
    seen: list[tuple[str, tuple[int, ...], int]] = []

    class Album(Logger):
        def picture(self, name: str, pixels: Any, steps: int) -> None:
            seen.append((name, pixels.shape, steps))

    settings = {"num_envs": 2, "num_steps": 8, "total_timesteps": 32, "eval_freq": 16, "n_eval_episodes": 1}
    with tempfile.TemporaryDirectory() as folder:
        trainer = whorl.load(
            "DiscoMaze-v0",
            "a2c",
            config={**settings, "eval_max_steps": 3, "runs": folder, "quiet": True, "tensorboard": False},
            components={"prediction": {"length": 4, "size": 8}},
            loggers=[lambda folder, settings: Album()],
        )
        trainer.train()
    steps = [when for name, _, when in seen if name == "prediction/imagined"]
    assert len(steps) == 2 and steps[0] < steps[1]


GATE = ("moves_what_it_trains", "masked_rows_have_no_influence", "can_be_captured")


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(name, marks=[] if name in GATE else pytest.mark.full)
        for name in CHECKS
        if name != "keeps_its_settings"
    ],
)
@pytest.mark.parametrize(
    ("algorithm", "settings", "cfg"),
    [
        (
            "sac",
            {"share_memory": True},
            PredictionConfig(size=8, latent_size=4, joins="critic", adaptive="whole"),
        ),
        pytest.param(
            "ppo", {}, PredictionConfig(size=8, latent_size=4, network="actor"), marks=pytest.mark.full
        ),
    ],
)
def test_recurrent_agents_with_a_model_of_privileged_observations_keep_the_contracts(
    algorithm: str, settings: dict[str, Any], cfg: PredictionConfig, check: str, use: Callable[..., None]
) -> None:
    use(prediction=cfg)
    CHECKS[check](subject(algorithm, "dict", "gru", "continuous", privileged_obs=["speed"], **settings))
