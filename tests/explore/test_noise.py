"""Noise on actions: its deviation, its process, its spread over environments, and what is left of it at the end."""

from typing import Any

import pytest
import torch
from torch import Tensor

import whorl
from whorl.agents.agent import Context
from whorl.core.errors import ConfigError
from whorl.core.spec import MASK_KEY, Array, Continuous, Discrete, MultiDiscrete, Spec
from whorl.explore.noise import (
    MEMORY,
    ActionNoise,
    AddedNoise,
    AddedNoiseConfig,
    HeldNoise,
    NoiseConfig,
    random_action,
)

TWO = Continuous((2,), (-1.0, 0.0), (1.0, 5.0))
START = torch.zeros(())


def noise_of(num_envs: int = 4, **settings: Any) -> ActionNoise:
    return ActionNoise(Spec(Array((3,)), TWO, num_envs), 2, NoiseConfig(**settings))


def context(num_envs: int, seed: int = 0, **given: Any) -> Context:
    reset = given.pop("reset", torch.zeros(num_envs, dtype=torch.bool))
    return Context(reset, torch.Generator().manual_seed(seed), **given)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_gaussian_noise_has_its_deviation_and_no_memory() -> None:
    found, num_envs = noise_of(noise_scale=0.2), 20_000
    assert found.initial(4) == {}
    action, memory = found(torch.zeros(num_envs, 2), {}, context(num_envs), START)
    assert memory == {}
    # five deviations of the estimate: .2 / sqrt(2 * 20000)
    assert action.std(0).tolist() == pytest.approx([0.2, 0.2], abs=5e-3)
    assert action.mean(0).tolist() == pytest.approx([0.0, 0.0], abs=8e-3)
    assert abs(float(torch.corrcoef(action.T)[0, 1])) < 0.04


def test_actions_with_noise_stay_in_their_range() -> None:
    action, _ = noise_of(noise_scale=5.0)(torch.zeros(100, 2), {}, context(100), START)
    assert float(action.max()) == 1.0 and float(action.min()) == -1.0


def test_an_ornstein_uhlenbeck_process_returns_to_zero_and_starts_there_in_each_episode() -> None:
    found = noise_of(2, noise="ou", noise_scale=0.1, noise_theta=0.25)
    memory, zero = found.initial(2), torch.zeros(2, 2)
    memory[MEMORY]["x"].fill_(9.0)  # of an episode that is over
    x = zero
    for row, started in enumerate(([True, True], [False, False], [False, True])):
        action, memory = found(zero, memory, context(2, row, reset=torch.tensor(started)), START)
        drawn = normal(2, 2, seed=row)
        if row == 0:
            x = 0.1 * drawn
        elif row == 1:
            x = 0.75 * x + 0.1 * drawn
        else:  # the second environment is reset
            x = torch.stack((0.75 * x[0] + 0.1 * drawn[0], 0.1 * drawn[1]))
        torch.testing.assert_close(action, x)
        torch.testing.assert_close(memory[MEMORY]["x"], x)


def test_the_process_remembers_what_the_range_of_actions_cuts_off() -> None:
    found = noise_of(1, noise="ou", noise_scale=0.0, noise_theta=0.5)
    action, memory = found(torch.zeros(1, 2), {MEMORY: {"x": torch.full((1, 2), 4.0)}}, context(1), START)
    assert action.tolist() == [[1.0, 1.0]]
    assert memory[MEMORY]["x"].tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize("kind", ["gaussian", "ou"])
def test_a_range_of_scales_is_spread_over_the_envs_of_the_run(kind: str) -> None:
    found = noise_of(5, noise=kind, noise_scale=(0.1, 0.3))
    scales = torch.tensor([0.1, 0.15, 0.2, 0.25, 0.3])
    action, _ = found(torch.zeros(5, 2), found.initial(5), context(5, env_index=torch.arange(5)), START)
    torch.testing.assert_close(action, scales[:, None] * normal(5, 2))
    # A worker that has environments 2 and 3 only
    some, _ = found(torch.zeros(2, 2), found.initial(2), context(2, env_index=torch.tensor([2, 3])), START)
    torch.testing.assert_close(some, scales[2:4, None] * normal(2, 2))
    # Somebody who is no environment of the run, an evaluation say, takes the middle.
    other, _ = found(torch.zeros(7, 2), found.initial(7), context(7), START)
    torch.testing.assert_close(other, 0.2 * normal(7, 2))


@pytest.mark.parametrize(("progress", "left"), [(0.0, 1.0), (0.5, 0.6), (1.0, 0.2)])
@pytest.mark.parametrize("kind", ["gaussian", "ou"])
def test_noise_falls_linearly_to_its_final_share(kind: str, progress: float, left: float) -> None:
    found = noise_of(3, noise=kind, noise_scale=0.1, noise_final=0.2)
    action, _ = found(torch.zeros(3, 2), found.initial(3), context(3), torch.tensor(progress))
    torch.testing.assert_close(action, left * 0.1 * normal(3, 2))


def test_without_noise_actions_are_as_they_are() -> None:
    action = torch.rand(4, 2)
    found, after = noise_of(noise="none")(action, {"other": START}, context(4), START)
    assert found.equal(action) and after == {}


def test_a_share_of_actions_is_random_env_by_env() -> None:
    num_envs = 20_000
    action, _ = noise_of(noise="none", epsilon=0.3)(
        torch.full((num_envs, 2), 0.5), {}, context(num_envs), START
    )
    random = (action != 0.5).all(-1)
    assert ((action != 0.5).any(-1) == random).all()  # all dimensions of a environment or none
    assert float(random.float().mean()) == pytest.approx(0.3, abs=0.017)  # five deviations
    drawn = action[random]
    assert float(drawn.min()) < -0.99 and 0.99 < float(drawn.max()) <= 1.0
    assert drawn.mean(0).tolist() == pytest.approx([0.0, 0.0], abs=0.04)


# Scales of episodes


def test_scales_are_drawn_for_each_episode_and_kept_in_it() -> None:
    found = noise_of(4, noise_scale=(0.1, 0.3), noise_redraw=True)
    memory, zero = found.initial(4), torch.zeros(4, 2)
    index = torch.arange(4)
    _, memory = found(
        zero, memory, context(4, 0, reset=torch.ones(4, dtype=torch.bool), env_index=index), START
    )
    first = memory[MEMORY]["scale"]
    generator = torch.Generator().manual_seed(0)
    torch.testing.assert_close(first, 0.1 + 0.2 * torch.rand(4, 1, generator=generator))
    torch.manual_seed(0)
    started = torch.tensor([False, True, False, False])
    action, memory = found(zero, memory, context(4, 1, reset=started, env_index=index), START)
    second = memory[MEMORY]["scale"]
    assert (second == first).flatten().tolist() == [True, False, True, True]
    generator = torch.Generator().manual_seed(1)
    torch.rand(4, 1, generator=generator)
    torch.testing.assert_close(action, second * torch.randn(4, 2, generator=generator))


def test_drawn_scales_are_even_in_their_range() -> None:
    num_envs = 20_000
    found = noise_of(num_envs, noise_scale=(0.1, 0.3), noise_redraw=True)
    reset = torch.ones(num_envs, dtype=torch.bool)
    zero = torch.zeros(num_envs, 2)
    scale = found(zero, found.initial(num_envs), context(num_envs, reset=reset), START)[1][MEMORY]["scale"]
    assert float(scale.min()) >= 0.1 and float(scale.max()) <= 0.3
    assert float(scale.mean()) == pytest.approx(0.2, abs=5 * 0.2 / (12 * num_envs) ** 0.5)


def test_a_scale_is_drawn_from_the_range_for_one_environment_and_in_an_episode_that_began_at_random() -> None:
    found = noise_of(1, noise_scale=(0.1, 0.3), noise_redraw=True)
    begun = torch.zeros(1, dtype=torch.bool)  # random actions so far, none of them with noise
    zero, index = torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)
    drawn = {
        float(
            found(zero, found.initial(1), context(1, seed, reset=begun, env_index=index), START)[1][MEMORY][
                "scale"
            ]
        )
        for seed in range(4)
    }
    assert len(drawn) == 4 and all(0.1 <= scale <= 0.3 for scale in drawn)


def test_one_scale_cannot_be_drawn_again() -> None:
    with pytest.raises(ConfigError, match="give it a range"):
        noise_of(noise_redraw=True)


# Held noise


def test_noise_is_held_for_as_many_steps_as_drawn() -> None:
    held = HeldNoise(2, 3)
    # 1, 1/4 and 1/9 of their sum 49/36
    assert held.chances.tolist() == pytest.approx([36 / 49, 45 / 49])
    memory = {MEMORY: {"held": torch.full((3, 2), 9.0), "left": torch.tensor([0, 2, 1])}}
    fresh, started = torch.randn(3, 2), torch.tensor([False, False, True])
    noise, memory = held(fresh, memory, context(3, reset=started))
    torch.testing.assert_close(noise, torch.stack((fresh[0], torch.full((2,), 9.0), fresh[2])))
    drawn = torch.rand(3, 1, generator=torch.Generator().manual_seed(0))
    length = 1 + (drawn >= held.chances).sum(-1)
    assert memory[MEMORY]["left"].tolist() == [int(length[0]) - 1, 1, int(length[2]) - 1]
    assert memory[MEMORY]["held"].equal(noise)


def test_lengths_of_held_noise_follow_the_square_of_their_inverse() -> None:
    held, num_envs = HeldNoise(1, 4), 40_000
    _, memory = held(torch.zeros(num_envs, 1), held.initial(num_envs), context(num_envs))
    share = (memory[MEMORY]["left"] + 1).bincount(minlength=5)[1:] / num_envs
    whole = sum(k**-2 for k in range(1, 5))
    assert share.tolist() == pytest.approx([k**-2 / whole for k in range(1, 5)], abs=0.012)


def test_noise_that_is_not_held_needs_no_memory() -> None:
    held, fresh = HeldNoise(2, 1), torch.randn(3, 2)
    assert held.initial(3) == {}
    assert held(fresh, {}, context(3))[0].equal(fresh)


# Warm-up


def test_random_actions_are_canonical_and_even() -> None:
    spec = Spec(Array((3,)), TWO, 4)
    drawn = random_action(spec, torch.zeros(10_000, 3), torch.Generator().manual_seed(0))
    assert drawn.shape == (10_000, 2)
    assert float(drawn.min()) >= -1 and float(drawn.max()) <= 1
    for column in drawn.T:
        # 1000 in each tenth, within five deviations of 30
        assert (torch.histc(column, 10, -1, 1) - 1000).abs().max() < 150


@pytest.mark.parametrize(("mask", "allowed"), [([1, 1, 1, 1], 4), ([0, 1, 0, 1], 2), ([0, 0, 1, 0], 1)])
def test_random_choices_are_even_over_what_is_allowed(mask: list[int], allowed: int) -> None:
    num_envs = 8000
    spec = Spec({"state": Array((2,)), MASK_KEY: Array((4,), "int8")}, Discrete(4), 4)
    obs = {
        "state": torch.zeros(num_envs, 2),
        MASK_KEY: torch.tensor(mask, dtype=torch.int8).expand(num_envs, 4),
    }
    count = random_action(spec, obs, torch.Generator().manual_seed(0)).bincount(minlength=4)
    for place, open_here in enumerate(mask):
        assert count[place] == (pytest.approx(num_envs / allowed, abs=220) if open_here else 0)


def test_random_choices_without_a_mask_are_even() -> None:
    spec = Spec(Array((2,)), Discrete(4), 4)
    drawn = random_action(spec, torch.zeros(8000, 2), torch.Generator().manual_seed(0))
    assert drawn.dtype == torch.int64
    assert (drawn.bincount(minlength=4) - 2000).abs().max() < 200


def test_every_dimension_of_several_choices_is_even() -> None:
    spec = Spec(Array((2,)), MultiDiscrete((2, 3)), 4)
    drawn = random_action(spec, torch.zeros(6000, 2), torch.Generator().manual_seed(0))
    assert (drawn[:, 0].bincount() - 3000).abs().max() < 200
    assert (drawn[:, 1].bincount() - 2000).abs().max() < 200


# Noise beside that of a stochastic policy


def added(action: Any, num_envs: int, **settings: Any) -> AddedNoise:
    return AddedNoise(Spec(Array((3,)), action, num_envs), AddedNoiseConfig(**settings))


def test_added_noise_is_spread_over_the_environments() -> None:
    found = added(TWO, 5, action_noise=(0.0, 0.4))
    assert found.scale[:, 0].tolist() == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    action, _ = found(torch.zeros(2, 2), {}, context(2, env_index=torch.tensor([4, 1])))
    torch.testing.assert_close(action, torch.tensor([[0.4], [0.1]]) * normal(2, 2))


def test_added_noise_leaves_discrete_and_greedy_actions_and_evaluation_alone() -> None:
    space = {"choice": Discrete(3), "move": TWO}
    found = added(space, 2, action_noise=0.5)
    given = {"choice": torch.tensor([2, 0]), "move": torch.zeros(2, 2)}
    everyone = torch.arange(2)
    noisy, _ = found(given, {}, context(2, env_index=everyone))
    assert torch.equal(noisy["choice"], given["choice"]) and bool((noisy["move"] != 0).all())
    assert found(given, {}, context(2, env_index=everyone, greedy=True))[0] is given
    assert found(given, {}, context(2))[0] is given
    assert added(space, 2)(given, {}, context(2, env_index=everyone))[0] is given
    loud, _ = added(TWO, 2, action_noise=9.0)(torch.zeros(2, 2), {}, context(2, env_index=everyone))
    assert float(loud.abs().max()) == 1


def test_added_noise_with_a_theta_is_an_ornstein_uhlenbeck_process_that_starts_at_zero_in_each_episode() -> (
    None
):
    space = {"choice": Discrete(3), "left": TWO, "right": Continuous((1,), (-1.0,), (1.0,))}
    found = added(space, 2, action_noise=0.1, action_noise_theta=0.25)
    given = {"choice": torch.tensor([2, 0]), "left": torch.zeros(2, 2), "right": torch.zeros(2, 1)}
    everyone, memory, x = torch.arange(2), found.initial(2), torch.zeros(2, 3)
    memory[MEMORY]["x"].fill_(9.0)  # of an episode that is over
    for seed, resets in enumerate(([True, True], [False, False], [False, True])):
        now = context(2, seed, reset=torch.tensor(resets), env_index=everyone)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.cat([torch.randn(2, size, generator=generator) for size in (2, 1)], -1)
        x = 0.75 * x.masked_fill(torch.tensor(resets).unsqueeze(1), 0.0) + 0.1 * drawn
        action, memory = found(given, memory, now)
        torch.testing.assert_close(torch.cat([action["left"], action["right"]], -1), x)
        torch.testing.assert_close(memory[MEMORY]["x"], x)
        assert action["choice"] is given["choice"]


def test_added_noise_without_memory_needs_none() -> None:
    assert added(TWO, 2, action_noise=0.1).initial(2) == {}
    assert added(TWO, 2, action_noise_theta=0.15).initial(2) == {}


@pytest.mark.parametrize("algorithm", ["sac", "tqc"])
def test_soft_actor_critics_collect_with_added_noise(algorithm: str, tmp_path: Any) -> None:
    given = {
        "quiet": True,
        "eval": False,
        "save_model": False,
        "device": "cpu",
        "workers": 0,
        "num_envs": 3,
        "num_steps": 8,
        "random_steps": 0,
        "learning_starts": 1000,
        "runs": str(tmp_path),
    }
    stored = []
    for noise in ([0.0, 0.0], [0.0, 0.5]):
        with whorl.load("Pendulum-v1", algorithm, {**given, "action_noise": noise}) as trainer:
            trainer.step()
            stored.append(trainer.experience.ring.columns["action"][:8, :, 0].clone())  # type: ignore[attr-defined]
    same = (stored[0][0] == stored[1][0]).tolist()  # the first step: the same samples, before the noise
    assert same == [True, False, False]


@pytest.mark.parametrize("algorithm", ["sac", "tqc"])
def test_correlated_noise_goes_on_from_row_to_row_while_collecting(algorithm: str, tmp_path: Any) -> None:
    given = {"action_noise": 0.3, "num_envs": 1, "num_steps": 100, "random_steps": 0, "learning_starts": 1000}
    quiet = {"quiet": True, "eval": False, "save_model": False, "workers": 0, "runs": str(tmp_path)}
    changes = []
    for theta in (1.0, 0.05):
        settings = {**given, **quiet, "action_noise_theta": theta, "log_std_range": (-20.0, -10.0)}
        with whorl.load("Pendulum-v1", algorithm, settings) as trainer:
            trainer.step()
            action = trainer.experience.ring.columns["action"][:90, 0, 0]  # type: ignore[attr-defined]
            changes.append(float(action.diff().abs().mean() / action.abs().mean()))
    assert changes[1] < changes[0] / 2


def test_added_noise_and_stored_probabilities_exclude_each_other() -> None:
    given = {"num_envs": 1, "action_noise": 0.1, "use_n_step_is": True, "n_step": 3}
    with pytest.raises(ConfigError, match="which action_noise changes; leave one of them out"):
        whorl.load("Pendulum-v1", "sac", given).build()
