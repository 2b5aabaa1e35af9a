"""Settings that are drawn at random: what `random_params` may say, and which values come out of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whorl
from whorl.core.errors import ConfigError
from whorl.settings.draws import Choices, Interval, draw_all, read_draws, take_random


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_values_are_chosen_in_proportion_to_counts_that_start_at_one() -> None:
    choices = Choices((1, 2, 3))
    assert choices.counts([3, 3, 1]) == [2, 1, 3]
    # rng.choice compares one uniform number with the cumulated probabilities 2/6, 3/6, 1.
    for seed in range(50):
        number = rng(seed).random()
        expected = 1 if number < 2 / 6 else 2 if number < 3 / 6 else 3
        assert choices.select(rng(seed), [3, 3, 1]) == expected


def test_an_interval_is_uniform_in_its_numbers_or_in_their_logarithms() -> None:
    number = rng().random()
    assert Interval(2, 10).draw(rng()) == 2 + 8 * number
    assert Interval(1e-4, 1e-2, log=True).draw(rng()) == pytest.approx(1e-4 * 100**number)


def test_a_number_around_the_configured_value_is_drawn_until_it_is_within_bounds() -> None:
    normal = rng(3)
    first = next(value for _ in range(100) if 0.4 <= (value := 0.5 + 0.2 * normal.standard_normal()) <= 0.6)
    assert read_draws({"x": {"std": 0.2, "truncated": [0.4, 0.6]}}, {"x": 0.5}.get)["x"].draw(rng(3)) == first


def test_selected_numbers_give_mean_and_deviation_of_the_next() -> None:
    # ln 1e-3 and ln 1e-2: the mean is that of 10^-2.5, the deviation half the distance.
    found = Interval(1e-9, 1.0, log=True).select(rng(), [1e-3, 1e-2])
    assert found == pytest.approx(10 ** (-2.5 + 0.5 * rng().standard_normal()))


def test_a_perturbed_number_is_multiplied_and_stays_within_its_bounds() -> None:
    interval = Interval(0.001, 0.0011)
    factor = (0.8, 1.2)[int(rng().integers(2))]
    assert Interval(0, 1).perturb(rng(), 0.5, (0.8, 1.2)) == 0.5 * factor
    assert interval.perturb(rng(), 0.001, (0.8,)) == 0.001
    assert interval.perturb(rng(), 0.001, (1.2,)) == 0.0011


def test_a_whole_number_stays_whole_and_moves() -> None:
    interval = read_draws({"n_epochs": {"low": 1, "high": 20}}, {"n_epochs": 10}.get)["n_epochs"]
    assert interval.perturb(rng(), 2, (1.2,)) == 3
    assert interval.perturb(rng(), 10, (0.8,)) == 8
    assert isinstance(interval.draw(rng()), int)


def test_a_perturbed_choice_moves_to_a_neighbour() -> None:
    choices = Choices(("a", "b", "c"))
    assert choices.perturb(rng(), "a", ()) == "b"
    assert {choices.perturb(rng(seed), "b", ()) for seed in range(20)} == {"a", "c"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2], "random_params is .* must be a mapping of settings"),
        ({"x": 3}, "random_params.x is 3; it must be a list of values"),
        ({"x": [3]}, "two values or more"),
        ({"x": {"lo": 1, "high": 2}}, "has a key 'lo'; did you mean 'low'"),
        ({"x": {"low": 1}}, "it must be a list of values"),
        ({"x": {"low": 2, "high": 1}}, "the smaller first"),
        ({"x": {"low": 0, "high": 1, "log": True}}, "above 0 where log is true"),
        ({"x": {"std": 1, "truncated": [0, 1]}}, "around the configured value, which is None"),
        ({"x": {"low": "a", "high": 1}}, "random_params.x.low is 'a'; it must be a number"),
    ],
)
def test_mistakes_are_one_sentence(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_draws(given, {}.get)


def test_layers_are_merged_by_name_and_dotted_keys_are_part_of_them() -> None:
    layers = [{"random_params": {"a": [1, 2], "b": [1, 2]}, "gamma": 0.9}, {"random_params.b": [3, 4]}]
    assert take_random(layers, {}) == ({"a": [1, 2], "b": [3, 4]}, [{"gamma": 0.9}, {}])


def test_a_run_draws_its_settings_from_its_seed_and_saves_the_values() -> None:
    given = {"gamma": [0.9, 0.95, 0.99], "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    found = []
    for seed in (1, 1, 2):
        settings = whorl.load("CartPole-v1", "ppo", random_params=given, seed=seed).settings
        expected = draw_all(read_draws(given, {}.get), rng(seed))
        assert settings.plain()["gamma"] == expected["gamma"]
        assert settings.plain()["actor_lr"] == settings.plain()["critic_lr"] == expected["learning_rate"]
        assert "random_params" not in settings.plain()
        found.append(settings.plain()["actor_lr"])
    assert found[0] == found[1] != found[2]


def test_settings_that_nobody_chose_follow_drawn_ones() -> None:
    # The preset's batch is 256 of 8 x 32 rows: with 64 steps it has 512.
    settings = whorl.load("CartPole-v1", "ppo", random_params={"num_steps": [64, 128]}).settings
    assert settings.batch_size == 256 * settings.num_steps // 32


def test_what_a_later_file_or_argument_sets_is_not_drawn(tmp_path: Path) -> None:
    path = tmp_path / "draws.yaml"
    path.write_text("gamma: 0.7\nrandom_params: {gamma: [0.5, 0.6], learning_rate: [0.1, 0.2]}")

    def load(algorithm: Any = "ppo", **settings: Any) -> Any:
        return whorl.load("CartPole-v1", algorithm, files=[path], **settings).settings

    assert load().gamma in (0.5, 0.6)  # in the same layer it is the value that `std` would draw around
    assert load(gamma=0.99).gamma == load(discount=0.99).gamma == load(config={"gamma": 0.99}).gamma == 0.99
    assert load(gamma=0.99).actor_lr in (0.1, 0.2)
    assert load(lr=1e-3).actor_lr == 1e-3
    assert load(whorl.PPOConfig(gamma=0.9)).gamma == 0.9
    assert load(whorl.PPOConfig(gamma=0.9), random_params={"gamma": [0.1, 0.2]}).gamma in (0.1, 0.2)
    found = whorl.load("CartPole-v1", "ppo", {"random_params": {"gamma": [0.5, 0.6]}}, gamma=0.99)
    assert found.settings.gamma == 0.99
    with pytest.raises(
        ConfigError, match=r"random_params.learning_rate draws actor_lr and critic_lr, but actor_lr"
    ):
        load(actor_lr=1e-3)


def test_options_of_components_that_a_later_layer_sets_are_not_drawn() -> None:
    layers: list[dict[str, Any]] = [{"random_params": {"rnd.lr": [1, 2], "rnd.batch_size": [1, 2]}}]
    later: list[dict[str, Any]] = [{"rnd": {"lr": 3}}, {"rnd.lr": 3}, {"components": {"rnd": {"lr": 3}}}]
    for layer in later:
        assert take_random([*layers, layer], {})[0] == {"rnd.batch_size": [1, 2]}


def test_a_run_draws_options_of_components_and_parts() -> None:
    def load(**given: Any) -> Any:
        return whorl.load("CartPole-v1", "ppo", random_params=given, components=["rnd"]).settings

    found = load(
        **{
            "rnd.lr": {"std": 1e-5, "truncated": [1e-5, 1e-3]},
            "rnd.batch_size": {"low": 16, "high": 64},
            "optimizer.weight_decay": [0.1, 0.2],
        }
    )
    default = load(gamma=[0.9, 0.99]).components["rnd"]
    assert 0 < abs(found.components["rnd"].lr - default.lr) < 1e-4
    assert found.components["rnd"].batch_size in range(16, 65)
    assert found.optimizer.plain()["weight_decay"] in (0.1, 0.2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gamma": [2.0, 3.0]}, r"random_params: gamma is \d.0; it must be from 0 to 1"),
        (
            {"gama": {"std": 1, "truncated": [0, 1]}},
            "random_params: ppo has no setting 'gama'; did you mean 'gamma'",
        ),
        ({"rnd.lr": [1, 2]}, r"random_params.rnd.lr: rnd is not in use; add it: components: \[rnd\]"),
        ({"icm.lrr": [1, 2]}, "random_params: icm has no setting 'lrr'"),
    ],
)
def test_mistakes_of_a_run_name_random_params(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        whorl.load("CartPole-v1", "ppo", random_params=given, components=["icm"])


def test_a_saved_run_draws_nothing_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"drawn once, when a run starts: .* in its config.yaml"):
        whorl.resume(tmp_path, {"random_params": {"gamma": [0.9, 0.99]}})
