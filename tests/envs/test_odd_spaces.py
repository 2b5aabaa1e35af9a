"""Spaces that hold nothing, can't be read, or have no axes; resets that need what nobody gives them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import whorl
from whorl.core.errors import EnvError, WhorlError
from whorl.envs.spaces import observation_parts


class Odd(gymnasium.Env):
    """Ten steps, with samples of its space as observations."""

    def __init__(self, space: spaces.Space, actions: spaces.Space | None = None) -> None:
        self.observation_space = space
        self.action_space = actions or spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        self.observation_space.seed(0)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.observation_space.sample(), 1.0, False, self.count == 10, {}


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (
            spaces.Box(-1, 1, (0,)),
            "the observation space is Box([], [], (0,), float32), which holds no values",
        ),
        (spaces.Dict({}), "the observation space is Dict(), which holds no values"),
        (spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Box(-1, 1, (0, 3))), "space, key 'b', is Box"),
        (spaces.Dict(a=spaces.Discrete(2), mission=spaces.Text(9)), "key 'mission', is a Text space, which"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Sequence(spaces.Discrete(3)))), "key '1', is a Sequence"),
    ],
)
def test_a_space_that_can_not_be_read_is_named_with_its_place(space: spaces.Space, said: str) -> None:
    (found,) = whorl.check(lambda: Odd(space))
    assert said in found
    with pytest.raises(EnvError) as error:
        whorl.load(lambda: Odd(space), "ppo")
    assert said in str(error.value)


def test_an_action_space_without_values_is_told() -> None:
    (found,) = whorl.check(lambda: Odd(spaces.Discrete(2), spaces.Box(-1, 1, (0,))))
    assert found.startswith("the action space is Box([], [], (0,), float32), which holds no values")


class NeedsOptions(Odd):
    """Reads its options without looking whether there are any."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(3))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.level = options["level"]
        return super().reset(seed=seed)


def test_a_reset_that_needs_options_is_told_that_it_gets_none() -> None:
    (found,) = whorl.check(NeedsOptions)
    assert "reset is called without options, so that its argument `options` is None" in found


def test_a_wrapper_with_statistics_is_named_where_a_seed_does_not_repeat() -> None:
    def normalized() -> gymnasium.Env:
        return gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1"))

    (found,) = whorl.check(normalized)
    assert "such as NormalizeObservation, is normalize_obs here" in found


@pytest.mark.parametrize("episodes", [1, 3])
@pytest.mark.parametrize(
    "make",
    [
        lambda: Odd(spaces.Box(-1, 1, (), np.float32), spaces.Box(-1, 1, (), np.float32)),
        lambda: Odd(spaces.Dict(a=spaces.Box(-1, 1, ()), b=spaces.Discrete(3))),
    ],
)
def test_observations_without_axes_are_trained_on_played_and_recorded(
    make: Callable[[], gymnasium.Env], episodes: int, tmp_path: Path
) -> None:
    small = {
        "num_envs": 2,
        "workers": 0,
        "num_steps": 16,
        "total_timesteps": 32,
        "eval": False,
        "quiet": True,
    }
    result = whorl.train(make, "ppo", small, runs=str(tmp_path))
    assert whorl.evaluate(result, episodes, env=make).lengths == [10] * episodes
    policy = whorl.restore(result)
    env = make()
    assert env.action_space.contains(policy.act(env.reset(seed=0)[0]))
    recorded = whorl.record(policy, episodes, env=make, output=tmp_path / "data" / "odd-v0")
    assert recorded.lengths == [10] * episodes


LOCKS = spaces.MultiDiscrete([[2, 3], [4, 1]], start=[[0, 5], [-1, 0]])
SHORT = {"total_timesteps": 64, "num_envs": 2, "num_steps": 16, "quiet": True}
NESTED = spaces.Dict(inner=spaces.Tuple((spaces.MultiDiscrete([3, 2]), spaces.Box(-1, 1, (2,)))), locks=LOCKS)


def test_multi_discrete_observations_are_one_hots_end_to_end() -> None:
    (_, read), *_ = observation_parts(LOCKS, spaces.Discrete(2), "none")
    assert read(np.array([[1, 7], [-1, 0]])).tolist() == [0, 1, 0, 0, 1, 1, 0, 0, 0, 1]
    (_, read_batch), *_ = observation_parts(LOCKS, spaces.Discrete(2), "none", batch_dims=1)
    assert read_batch(np.array([[[1, 7], [-1, 0]], [[0, 5], [2, 0]]])).tolist() == [
        [0, 1, 0, 0, 1, 1, 0, 0, 0, 1],
        [1, 0, 1, 0, 0, 0, 0, 0, 1, 1],
    ]


@pytest.mark.parametrize(("given", "shown"), [([0, 2], r"\[0, 2\]"), ([-1, 0], r"\[-1,  0\]")])
def test_a_number_outside_of_its_choices_is_told(given: list[int], shown: str, tmp_path: Path) -> None:
    class Beyond(Odd):
        def step(self, action: Any) -> Any:
            return np.array(given), *super().step(action)[1:]

    with pytest.raises(EnvError, match=rf"is array\({shown}\), which is not in MultiDiscrete\(\[3 2\]\)"):
        whorl.train(lambda: Beyond(spaces.MultiDiscrete([3, 2])), "ppo", {**SHORT, "runs": tmp_path})


@pytest.mark.parametrize("options", [{}, {"frame_stack": 2}])
def test_a_policy_takes_multi_discrete_observations_as_the_environment_gives_them(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    def make(**_: Any) -> gymnasium.Env:
        return Odd(NESTED)

    result = whorl.train(make, "ppo", {**SHORT, "runs": tmp_path}, env_options=options)
    policy = whorl.restore(result)
    columns = policy.spec.observation["locks"].shape[0]
    assert columns == 10 * options.get("frame_stack", 1) and policy.spec.observation["inner"]["0"].binary
    obs = [NESTED.sample() for _ in range(3)]
    single = [policy.probabilities(one) for one in obs[:1]]
    batch = {
        "inner": tuple(np.stack([one["inner"][part] for one in obs]) for part in range(2)),
        "locks": np.stack([one["locks"] for one in obs]),
    }
    policy.reset()
    np.testing.assert_allclose(policy.probabilities(batch)[0], single[0], rtol=1e-5)
    with pytest.raises(WhorlError, match=r"trained on \[0, 5, -1, 0\] to \[1, 7, 2, 0\]"):
        policy.act({**obs[0], "locks": np.array([[0, 0], [0, 0]])})


def test_a_policy_reads_numbers_as_training_did(tmp_path: Path) -> None:
    policy = whorl.restore(whorl.train(lambda: Odd(LOCKS), "ppo", {**SHORT, "runs": tmp_path}))
    (_, read), *_ = observation_parts(LOCKS, spaces.Discrete(2), "none", batch_dims=1)
    LOCKS.seed(0)
    obs = np.stack([LOCKS.sample() for _ in range(20)])
    seen = policy.agent.observations(torch.from_numpy(read(obs)))
    expected = policy.agent.actor.head(policy.agent.actor.backbone.read(seen), None).probs.detach()
    np.testing.assert_allclose(policy.probabilities(obs), expected.numpy(), atol=1e-6)
    np.testing.assert_allclose(policy.probabilities(read(obs)), expected.numpy(), atol=1e-6)
    assert float(expected.std(0).max()) > 1e-4  # so that another observation would be noticed


def test_the_exported_policy_takes_the_numbers_too(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = whorl.restore(whorl.train(lambda: Odd(LOCKS), "ppo", {**SHORT, "runs": tmp_path}))
    policy.export(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    (port,) = session.get_inputs()
    assert port.shape[1:] == [2, 2] and port.type == "tensor(int64)"
    obs = np.stack([LOCKS.sample() for _ in range(20)])
    (actions, *_) = session.run(None, {port.name: obs})
    np.testing.assert_array_equal(actions, policy.act(obs))


class Numbers(Odd):
    """As runs read a MultiDiscrete space before it was one-hot."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(0, 2, (2,)))


def test_a_run_that_read_the_numbers_is_told_what_to_do(tmp_path: Path) -> None:
    result = whorl.train(Numbers, "ppo", {**SHORT, "runs": tmp_path})
    for call in (whorl.evaluate, whorl.resume):
        with pytest.raises(EnvError, match="read as one-hots since this run was made"):
            call(result, env=lambda: Odd(spaces.MultiDiscrete([3, 2])))
    assert whorl.restore(result).act(np.array([2, 1])) in (0, 1)
    assert whorl.evaluate(result, env=Numbers, episodes=1).mean_return == 10
