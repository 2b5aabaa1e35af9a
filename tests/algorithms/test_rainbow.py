"""Rainbow, part by part: whatever is switched off is gone to the last bit. And what lies beyond it."""

from typing import Any

import pytest
import torch

from whorl.conformance import NUM_ENVS, Run, Subject, same, subject
from whorl.core.spec import Array, Discrete, Spec
from whorl.nets.images import spectral_layers
from whorl.settings.merge import configure

ON: dict[str, dict[str, Any]] = {
    "double": {"double": True},
    "dueling": {"dueling": True},
    "noisy": {"noisy": True, "exploration": "none"},
    "prioritized": {"prioritized": True},
    "n_step": {"n_step": 3},
}
OFF = {
    "double": False,
    "dueling": False,
    "noisy": False,
    "exploration": "epsilon",
    "prioritized": False,
    "n_step": 1,
}
SHARED = {
    "target_update_interval": 5,
    "learning_rate": 0.01,
    "priority_alpha": 0.6,
    "updates_per_step": 0.2,
    "n_step": 1,
}
"""of short runs in which nets part from their targets, and the one setting of a part that presets choose differently"""


def vectors(name: str, settings: dict[str, Any]) -> Subject:
    return subject(name, "vector", "none", "discrete", **{**SHARED, **settings})


def learned(one: Subject, other: Subject) -> tuple[Run, Run]:
    """Two agents with one seed after the same rollouts, which the first of them acted."""
    runs = Run(one), Run(other)
    rollouts = one.rollouts(runs[0].agent, 4)
    for run in runs:
        assert len(run.feed(rollouts)) > 20
    return runs


# One part at a time


def test_rainbow_without_its_other_parts_is_c51_to_the_last_bit() -> None:
    rainbow, plain = learned(vectors("rainbow", OFF), vectors("c51", {}))
    assert same(rainbow.state(), plain.state())


@pytest.mark.parametrize("part", ON)
def test_rainbow_with_one_part_on_is_c51_with_that_part(part: str) -> None:
    rainbow, own = learned(vectors("rainbow", {**OFF, **ON[part]}), vectors("c51", ON[part]))
    assert same(rainbow.state(), own.state())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("double_dqn", "double"),
        ("dueling_dqn", "dueling"),
        ("noisy_dqn", "noisy"),
        ("prioritized_dqn", "prioritized"),
    ],
)
def test_a_parts_own_name_is_dqn_with_that_part_and_no_other(name: str, part: str) -> None:
    named, switched = learned(vectors(name, {}), vectors("dqn", ON[part]))
    assert same(named.state(), switched.state())


@pytest.mark.parametrize("part", ON)
@pytest.mark.parametrize("name", ["dqn", "rainbow"])
def test_every_part_makes_a_difference(name: str, part: str) -> None:
    # switched on alone in DQN, or off alone in Rainbow
    changed = ON[part] if name == "dqn" else {key: OFF[key] for key in ON[part]}
    base = {"n_step": 3} if name == "rainbow" else {}
    one, other = Run(vectors(name, base)), Run(vectors(name, {**base, **changed}))
    rollouts = vectors("dqn", {}).rollouts(Run(vectors("dqn", {})).agent, 4)
    for run in (one, other):
        run.feed(rollouts)
    assert not same(one.agent.state(), other.agent.state())


def test_rainbow_has_all_six_parts() -> None:
    algo = configure("rainbow", "some/env", {}).algo
    assert (algo.double, algo.dueling, algo.noisy, algo.prioritized) == (True, True, True, True)
    assert algo.n_step > 1 and algo.n_atoms > 1
    assert algo.exploration.name == "none"  # noisy layers do it alone


def test_c51_has_two_names() -> None:
    for env in ("CartPole-v1", "some/env"):
        one, other = (configure(name, env, {}) for name in ("c51", "c51_dqn"))
        assert (one.algo, one.run) == (other.algo, other.run)


# Beyond


def test_spectral_norms_are_followed_once_per_update_and_targets_keep_their_own() -> None:
    spec = Spec(Array((12, 12, 2), "uint8", 0.0, 255.0), Discrete(3), NUM_ENVS)
    small = {
        "encoder": {"class": "auto", "width": 1, "pool": 2},
        "batch_size": 8,
        "target_update_interval": 2,
        "updates_per_step": 0.04,
    }
    found = Subject("btr", spec, small)
    run: Any = Run(found)
    online, target = (spectral_layers(net) for net in (run.agent.critic, run.agent.target_critic))
    assert len(online) == len(target) == 12
    with torch.no_grad():
        for layer in online:
            layer.layer.weight.add_(0.05 * torch.randn_like(layer.layer.weight))  # off the orthogonal start
    for rollout in found.rollouts(run.agent, 2):
        run.experience.add(rollout)
    moves = []
    for _, batch in run.experience.due():
        known, kept = [layer.left.clone() for layer in online], [layer.left.clone() for layer in target]
        updated = run.agent.update(batch)
        run.agent.updates += 1
        run.experience.settle(batch, updated)
        assert all(torch.isfinite(value) for value in updated.metrics.values())
        for layer, before in zip(online, known):
            matrix = layer.layer.weight.detach().flatten(1)
            right = matrix.T @ before
            left = matrix @ (right / right.norm())
            torch.testing.assert_close(layer.left, left / left.norm(), atol=1e-5, rtol=0)
            assert not layer.left.equal(before)
        moves.append(not any(a.equal(layer.left) for a, layer in zip(kept, target)))
        if moves[-1]:
            assert all(a.left.equal(b.left) for a, b in zip(online, target))
        else:
            assert all(a.equal(layer.left) for a, layer in zip(kept, target))
    assert moves[:4] == [False, True, False, True]


@pytest.mark.parametrize(
    "algorithm", ["a2c", "trpo", "pqn", "sac", "crossq", "flash_sac", "iql", "ppo with rnd"]
)
def test_spectral_norms_follow_the_weights_in_every_algorithm(algorithm: str) -> None:
    encoder = {"class": "images", "kind": "impala", "spectral_norm": True}
    name, _, component = algorithm.partition(" with ")
    given: dict[str, Any] = {"encoder": encoder, **({} if name == "a2c" else {"batch_size": 8})}
    if component:
        given |= {"components": [component], component: {"encoder": encoder}}
    found = subject(
        name, "image", "none", "continuous" if name in ("crossq", "flash_sac") else "discrete", **given
    )
    run: Any = Run(found)
    trained = {id(parameter) for parameter in run.agent.trained().values()}
    layers = [layer for layer in spectral_layers(run.agent) if id(layer.layer.weight) in trained]
    assert len(layers) % 12 == 0 and layers
    with torch.no_grad():
        for layer in layers:
            layer.layer.weight.add_(0.05 * torch.randn_like(layer.layer.weight))  # off the orthogonal start
    before = [layer.left.clone() for layer in layers]
    run.feed(found.rollouts(run.agent, 2))
    assert not any(a.equal(layer.left) for a, layer in zip(before, layers))
