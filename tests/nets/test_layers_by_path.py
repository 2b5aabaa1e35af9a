"""Layers, losses, action selectors and optimizers of value-based agents and A2C by name or import path."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import whorl
from whorl.agents.agent import Context
from whorl.algorithms.a2c import A2C
from whorl.algorithms.dqn import DQN
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import Array, Discrete, Spec
from whorl.nets.noisy import IndependentNoisyLinear, NoisyLinear
from whorl.settings.merge import configure
from whorl.settings.presets import read_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "rlcycle_rainbow.yaml"
SPEC = Spec(Array((4,)), Discrete(3), 2)
MIXED = [
    {"class": "IndependentNoisyLinear", "outputs": 5},
    "Tanh",
    {"class": "Linear", "out_features": "undefined"},
]


def agent(**settings: Any) -> Any:
    torch.manual_seed(0)
    return DQN(SPEC, DQN.Config(**settings)).prepare("cpu", lambda name: torch.Generator().manual_seed(1))


def lowest(q: Tensor, allowed: Tensor | None, generator: torch.Generator, progress: Tensor) -> Tensor:
    """An action selector: the action with the lowest value."""
    return q.argmin(-1)


def fourth_power(value: Tensor, target: Tensor) -> Tensor:
    return (value - target) ** 4


def test_every_layer_of_a_stream_is_plain_or_noisy_as_described() -> None:
    built = agent(dueling=True, advantage_network=Part.of(MIXED), value_network=Part.of(["NoisyLinear"]))
    first, _, last = built.critic.advantage.layers
    assert isinstance(first, IndependentNoisyLinear) and first.weight.shape == (5, 4)
    assert isinstance(last, torch.nn.Linear) and last.weight.shape == (3, 5)
    assert isinstance(built.critic.value.layers[0], NoisyLinear)
    noise = built.critic.draw(torch.Generator().manual_seed(0))
    assert set(noise) == {"advantage", "value"} and set(noise["advantage"]) == {"0"}
    features = torch.randn(2, 4)
    quiet, loud = built.critic.outputs(features, {}), built.critic.outputs(features, noise)
    assert quiet.shape == (2, 3, 1) and not quiet.equal(loud)


def test_independent_noise_by_hand() -> None:
    layer = IndependentNoisyLinear(2, 1, sigma=0.5)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.bias.fill_(3.0)
    noise = torch.tensor([[2.0, -4.0, 6.0]])
    value = torch.tensor([[10.0, 1.0]])
    # (1 + .5 * 2) * 10 + (2 - .5 * 4) * 1 + 3 + .5 * 6
    assert layer(value, noise).item() == pytest.approx(26.0)
    assert layer(value).item() == pytest.approx(15.0)
    drawn = layer.draw(torch.Generator().manual_seed(0))
    assert drawn.shape == (1, 3) and len(set(drawn.flatten().tolist())) == 3
    assert IndependentNoisyLinear(3, 2).weight.abs().max() <= 1.0


def test_noise_of_one_stream_alone_is_drawn() -> None:
    built = agent(dueling=True, value_network=Part.of(["NoisyLinear"]))
    assert set(built.critic.draw(None)) == {"value"}


def test_a_trunk_lies_before_both_streams() -> None:
    built = agent(dueling=True, trunk_network=Part.of([{"class": "Linear", "out_features": 7}, "ReLU"]))
    assert built.critic.backbone.size == 7
    assert built.critic.advantage.hidden.layers[0].weight.shape[1] == 7


def test_a_network_by_name_gets_an_output_layer() -> None:
    built = agent(advantage_network=Part("residual", {"width": 6}))
    assert built.critic.outputs(torch.randn(2, 4), {}).shape == (2, 3, 1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"advantage_network": Part.of([{"class": "Linear", "out_features": 8}])},
            "the last layer, 'Linear', has 8 outputs; leave its output size out, which is 3 here",
        ),
        (
            {"trunk_network": Part.of([{"class": "NoisyLinear", "outputs": 8}])},
            "layer 'NoisyLinear' is noisy, which only advantage_network and value_network take",
        ),
    ],
)
def test_mistakes_are_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        agent(**settings)


def test_an_action_selector_by_path_explores_and_greedy_acting_does_not_use_it() -> None:
    whorl.register("exploration", "lowest", lowest)
    built = agent(exploration=Part("lowest"))
    q = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 6.0]])
    context = Context(torch.zeros(2, dtype=torch.bool), torch.Generator())
    obs = torch.zeros(2, 4)
    assert built.explore(q, obs, context, torch.zeros(())).tolist() == [0, 1]
    context.greedy = True
    assert built.explore(q, obs, context, torch.zeros(())).tolist() == [1, 2]


def test_an_action_selector_that_does_not_fit_is_named() -> None:
    with pytest.raises(ConfigError, match=r"exploration 'torch.sigmoid' cannot be called with \(q, allowed"):
        agent(exploration=Part("torch.sigmoid"))
    with pytest.raises(ConfigError, match="exploration is 'epsilom'; did you mean 'epsilon'"):
        configure("dqn", "CartPole-v1", {"exploration": "epsilom"})


def test_losses_by_path() -> None:
    whorl.register("loss", "fourth_power", fourth_power)
    dqn = agent(loss=Part("fourth_power"))
    assert float(dqn.loss(torch.tensor(3.0), torch.tensor(1.0))) == 16
    a2c = A2C(SPEC, A2C.Config(critic_loss=Part("fourth_power")))
    assert float(a2c.value_loss(torch.tensor(3.0), torch.tensor(1.0))) == 16
    assert (
        float(agent(loss=Part("huber", {"delta": 0.5})).loss(torch.tensor(3.0), torch.tensor(1.0))) == 0.875
    )


@pytest.mark.skipif(find_spec("ale_py") is None, reason="needs the extra atari")
def test_rlcycles_rainbow_trains(tmp_path: Path) -> None:
    small = {
        "total_timesteps": 32,
        "learning_starts": 20,
        "buffer_size": 500,
        "batch_size": 4,
        "runs": str(tmp_path),
        "quiet": True,
        "tensorboard": False,
        "workers": 0,
        "eval": False,
        "checkpoint_freq": 10**9,
    }
    trainer = whorl.load("PongNoFrameskip-v4", "c51", small, files=[str(EXAMPLE)])
    trainer.train()
    critic: Any = trainer.agent.critic
    kinds = [type(layer).__name__ for layer in critic.advantage.layers]
    assert kinds == ["NoisyLinear", "ReLU", "NoisyLinear"]
    assert critic.advantage.layers[2].weight.shape == (6 * 51, 512)
    assert critic.value.layers[2].weight.shape == (51, 512)
    assert trainer.agent.updates > 0


def test_the_example_is_valid_for_pong() -> None:
    settings = configure("c51", "PongNoFrameskip-v4", *read_file(EXAMPLE))
    assert settings.algo.tau == 0.005 and settings.env_options == {"life_loss": True}
    assert settings.algo.clip_reward


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"exploration": Part("boltzmann", {"temperature": 5})},
            "exploration 'boltzmann' has no options, but temperature is given",
        ),
        ({"value_network": Part("residual")}, "value_network is used only with dueling"),
    ],
)
def test_what_would_change_nothing_is_an_error(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        agent(**settings)


def test_the_linear_head_takes_no_options() -> None:
    with pytest.raises(ConfigError, match="head 'linear' has no options, but bias is given"):
        A2C(SPEC, A2C.Config(actor_head=Part("linear", {"bias": False})))
