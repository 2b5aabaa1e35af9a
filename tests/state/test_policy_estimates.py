"""A restored policy gives values, probabilities and Q values, and predicts in the form of Stable-Baselines3."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from whorl.agents.agent import Context
from whorl.core.errors import WhorlError
from whorl.core.spec import Array, Spec, from_env, to_env
from whorl.envs.adapters.gymnasium import action_spec
from whorl.ops.transforms import value_rescale_inverse
from whorl.settings.merge import configure
from whorl.state.policy import SavedPolicy, build_agent, export, load_policy

LETTERS = spaces.Discrete(3, start=2)
FORCE = spaces.Box(np.array([-2.0, 0.0]), np.array([1.0, 5.0]), dtype=np.float64)
TREE = spaces.Dict(
    move=spaces.Box(0, np.inf, (2,)), pick=spaces.Tuple((LETTERS, spaces.MultiDiscrete([3, 2])))
)
OBS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def policy(algorithm: str, space: spaces.Space, **settings: Any) -> SavedPolicy:
    """An untrained policy with random weights, exported and loaded again."""
    spec = Spec(Array((3,)), action_spec(space), 2)
    found = configure(algorithm, "x", settings)
    agent = build_agent(found, spec, seed=1)
    generator = torch.Generator().manual_seed(1)
    for parameter in agent.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return load_policy(export(agent, found))


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "ppg", "impala", "reinforce_baseline", "sac"])
def test_probabilities_sum_to_one_and_match_the_log_probability_of_every_action(algorithm: str) -> None:
    made = policy(algorithm, LETTERS)
    probabilities = made.probabilities(OBS)
    assert probabilities.shape == (4, 3) and np.allclose(probabilities.sum(1), 1, atol=1e-6)
    assert np.allclose(made.probabilities(OBS[1]), probabilities[1], atol=1e-6)
    for number in range(3):
        log_prob = made.log_prob(OBS, np.full(4, number + 2))
        assert np.allclose(np.exp(log_prob), probabilities[:, number], atol=1e-6)
    assert made.act(OBS[0]) == probabilities[0].argmax() + 2
    assert made.value(OBS).shape == (4,) and np.isscalar(made.value(OBS[0]))


@pytest.mark.parametrize("algorithm", ["dqn", "rainbow", "qr_dqn", "iqn", "pqn"])
def test_q_values_rank_the_greedy_action_first(algorithm: str) -> None:
    made = policy(algorithm, LETTERS)
    values = made.q_values(OBS)
    assert values.shape == (4, 3)
    assert (made.act(OBS) == values.argmax(1) + 2).all()
    assert np.allclose(made.value(OBS), values.max(1), atol=1e-5)
    assert np.isclose(made.q_values(OBS[0], 3), values[0, 1], atol=1e-5)
    with pytest.raises(WhorlError, match=r"has no probabilities; it has act, predict, value, q_values"):
        made.probabilities(OBS)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ngu", {}),
        ("agent57", {}),
        ("agent57", {"rescale_values": False}),
        ("r2d2", {"num_envs": 2}),
    ],
)
def test_recurrent_q_values_rank_the_action_that_evaluation_takes_first(
    algorithm: str, settings: dict[str, Any]
) -> None:
    made = policy(algorithm, LETTERS, memory_size=8, hidden_sizes=[8], **settings)
    for step in range(5):
        seen = OBS + step
        values, value = made.q_values(seen, reward=step), made.value(seen, reward=step)
        assert values.shape == (4, 3) and values.std(1).min() > 1e-4
        assert np.allclose(value, values.max(1), rtol=1e-4)
        assert np.allclose(made.q_values(seen, np.full(4, 3), reward=step), values[:, 1], rtol=1e-4)
        assert (made.act(seen, reward=step) == values.argmax(1) + 2).all()


def test_values_of_agent57_are_those_of_the_policy_that_earned_most() -> None:
    made = policy("agent57", LETTERS, memory_size=8, hidden_sizes=[8])
    first = made.q_values(OBS)
    made.agent.returns.add_(torch.tensor([5]), torch.tensor([1.0]))
    assert not np.allclose(made.q_values(OBS), first, rtol=1e-3)
    values = made.q_values(OBS)
    assert (made.act(OBS) == values.argmax(1) + 2).all()


def test_values_are_returns_where_the_network_learns_rescaled_ones() -> None:
    made = policy("dqn", LETTERS, rescale_values=True)
    plain = policy("dqn", LETTERS)
    assert np.allclose(
        made.q_values(OBS), value_rescale_inverse(torch.as_tensor(plain.q_values(OBS))), rtol=1e-4
    )
    assert np.allclose(made.value(OBS), made.q_values(OBS).max(1), rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["sac", "td3", "ddpg", "tqc", "crossq"])
def test_continuous_critics_value_an_action_of_the_environment(algorithm: str) -> None:
    made = policy(algorithm, FORCE)
    greedy = made.act(OBS)
    assert np.allclose(made.q_values(OBS, greedy), made.value(OBS), atol=1e-4)
    assert np.isclose(made.q_values(OBS[2], greedy[2]), made.q_values(OBS, greedy)[2], atol=1e-4)
    other = np.tile(FORCE.high, (4, 1))
    assert not np.allclose(made.q_values(OBS, other), made.value(OBS), atol=1e-4)
    with pytest.raises(WhorlError, match=r"call q_values\(obs, action\)"):
        made.q_values(OBS)
    with pytest.raises(WhorlError, match=r"the action has shape \(3,\), but this observation needs \(2,\)"):
        made.q_values(OBS[0], np.zeros(3))


def test_a_discrete_soft_critic_has_a_q_value_for_each_action() -> None:
    made = policy("sac", LETTERS)
    expected = (made.probabilities(OBS) * made.q_values(OBS)).sum(1)
    assert np.allclose(made.value(OBS), expected, atol=1e-5)


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_critics_of_iql_read_actions_of_any_kind(memory: str) -> None:
    given: dict[str, Any] = {"memory": memory, "memory_size": 8} if memory != "none" else {}
    made = policy("iql", LETTERS, **given)
    values = made.q_values(OBS)
    assert values.shape == (4, 3) and made.q_values(OBS[0]).shape == (3,)
    for number in range(3):
        assert np.allclose(made.q_values(OBS, np.full(4, number + 2)), values[:, number], atol=1e-5)
    assert values.std(1).min() > 1e-3, "the claim says something"
    both = spaces.Tuple((LETTERS, FORCE))
    acted = policy("iql", both, **given).act(OBS[0])
    assert np.isfinite(policy("iql", both, **given).q_values(OBS[0], acted))


def test_a_policy_without_a_critic_says_what_it_has() -> None:
    with pytest.raises(
        WhorlError, match=r"reinforce .* has no value; it has act, predict, probabilities, log_prob"
    ):
        policy("reinforce", LETTERS).value(OBS)
    with pytest.raises(WhorlError, match=r"td3 .* has no log_prob; it has act, predict, value, q_values"):
        policy("td3", FORCE).log_prob(OBS, FORCE.sample())


def test_parts_of_a_tree_have_their_own_probabilities() -> None:
    made = policy("ppo", TREE)
    found = made.probabilities(OBS)
    letters, (three, two) = found["pick"]
    assert found["move"] is None
    assert (letters.shape, three.shape, two.shape) == ((4, 3), (4, 3), (4, 2))
    # The joint log-probability of the discrete parts is the sum over them; the same `move` cancels.
    one = {"move": np.ones(2, np.float32), "pick": (2, np.array([0, 0]))}
    other = {"move": np.ones(2, np.float32), "pick": (4, np.array([2, 1]))}
    difference = made.log_prob(OBS[0], one) - made.log_prob(OBS[0], other)
    by_hand = letters[0, 0] * three[0, 0] * two[0, 0] / (letters[0, 2] * three[0, 2] * two[0, 1])
    assert np.isclose(np.exp(difference), by_hand, rtol=1e-4)
    with pytest.raises(WhorlError, match="the action lacks 'pick'; this policy has move, pick"):
        made.log_prob(OBS[0], {"move": np.ones(2)})


def test_canonical_actions_are_the_inverse_of_the_environments() -> None:
    spec = action_spec(
        spaces.Dict(a=FORCE, b=TREE, c=spaces.MultiBinary((2, 2)), d=spaces.Box(-np.inf, 3, (1,)))
    )
    numbers = {
        "a": torch.tensor([[0.25, -0.5]]),
        "b": {
            "move": torch.tensor([[0.0, 4.0]]),
            "pick": {"0": torch.tensor([2]), "1": torch.tensor([[1, 0]])},
        },
        "c": torch.tensor([[1, 0, 1, 1]]),
        "d": torch.tensor([[-7.0]]),
    }
    back = from_env(spec, to_env(spec, numbers))
    assert torch.allclose(back["a"], numbers["a"]) and torch.allclose(back["d"], numbers["d"])
    assert torch.allclose(back["b"]["move"], numbers["b"]["move"])
    assert torch.equal(back["b"]["pick"]["0"], numbers["b"]["pick"]["0"])
    assert torch.equal(back["b"]["pick"]["1"], numbers["b"]["pick"]["1"])
    assert torch.equal(back["c"], numbers["c"])


RECURRENT: dict[str, Any] = {"memory": "lstm", "memory_size": 8}


def test_predict_carries_the_state_and_leaves_what_act_keeps() -> None:
    free = spaces.Box(-np.inf, np.inf, (2,))
    made, twin = policy("ppo", free, **RECURRENT), policy("ppo", free, **RECURRENT)
    state = None
    for row in OBS:
        action, state = made.predict(row, state)
        assert np.array_equal(action, twin.act(row))
    assert state is not None
    again, _ = made.predict(OBS[0], state, episode_start=np.array([True]))
    assert np.array_equal(again, made.predict(OBS[0])[0])
    assert not np.array_equal(again, made.predict(OBS[0], state)[0])
    assert np.array_equal(made.act(OBS[0]), again)  # `predict` did not touch the memory of `act`
    with pytest.raises(WhorlError, match="the state belongs to 1 environments, but 4 observations"):
        made.predict(OBS, state)


def test_predict_without_a_memory_returns_no_state() -> None:
    action, state = policy("ppo", LETTERS).predict(OBS, deterministic=False)
    assert state is None and action.shape == (4,)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac"])
def test_estimates_of_a_recurrent_policy_continue_its_episode(algorithm: str) -> None:
    space = FORCE if algorithm == "sac" else LETTERS
    made = policy(algorithm, space, **RECURRENT)
    first = made.value(OBS[3])
    for row in OBS[:3]:
        made.act(row)
    later = made.value(OBS[3])
    assert not np.isclose(first, later, atol=1e-6)
    assert made.value(OBS[3]) == later  # asking changes nothing
    if algorithm == "ppo":
        kept = made._state
        assert kept is not None
        context = Context(kept.fresh, torch.Generator(), greedy=True)
        acted = made.agent.act(torch.from_numpy(OBS[3:]), kept.memory, context)
        action = acted.action.item() + 2
        assert np.isclose(made.log_prob(OBS[3], action), acted.extras["log_prob"].item(), atol=1e-5)
    made.reset()
    assert np.isclose(made.value(OBS[3]), first, atol=1e-6)


def test_tensors_give_tensors() -> None:
    made = policy("ppo", LETTERS)
    obs = torch.from_numpy(OBS)
    assert all(isinstance(found, torch.Tensor) for found in (made.value(obs), made.probabilities(obs)))
