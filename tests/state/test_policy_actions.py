"""`policy.act` returns members of the action space, whatever tree of spaces it is, with and without action masks."""

import io
from dataclasses import replace
from inspect import signature
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from whorl.conformance import Run, Subject
from whorl.core.action_masks import flatten_mask, mask_size
from whorl.core.errors import WhorlError
from whorl.core.spec import Continuous, TupleSpec, to_env
from whorl.envs.adapters.gymnasium import GymnasiumVector, action_spec
from whorl.envs.spaces import choices_of
from whorl.state.policy import SavedPolicy, export, load_policy
from whorl.state.saved_spec import pack_spec, unpack_spec

INF = float("inf")
LEAVES: dict[str, spaces.Space] = {
    "discrete": spaces.Discrete(3),
    "discrete from -2": spaces.Discrete(4, start=-2),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-discrete matrix from 5": spaces.MultiDiscrete(
        np.array([[2, 3], [4, 2]]), dtype=np.int16, start=np.array([[5, 0], [1, 2]])
    ),
    "multi-binary": spaces.MultiBinary(3),
    "multi-binary matrix": spaces.MultiBinary([2, 2]),
    "box": spaces.Box(np.array([-0.1, 0.0], np.float32), np.array([0.3, 7.0], np.float32)),
    "box without axes": spaces.Box(-2.0, 3.0, ()),
    "float64 matrix": spaces.Box(0.1, 0.3, (2, 2), np.float64),
    "low bound only": spaces.Box(0.7, INF, (2,)),
    "high bound only": spaces.Box(-INF, -0.7, (2,), np.float64),
    "all kinds of bounds": spaces.Box(
        np.array([-1.0, -INF, 2.0, -INF], np.float32), np.array([1.0, INF, INF, -3.0], np.float32)
    ),
    "integers": spaces.Box(-3, 9, (2,), np.int32),
    "integers with a low bound": spaces.Box(2, INF, (2,), np.int64),
    "bytes": spaces.Box(0, 255, (2,), np.uint8),
}
if "dtype" in signature(spaces.Discrete).parameters:  # since Gymnasium 1.2
    LEAVES["discrete from -2, int32"] = spaces.Discrete(4, start=-2, dtype=np.int32)
SMALL = {"num_envs": 2, "num_steps": 4}


class Tree(gymnasium.Env):
    """Refuses every action that its space or its mask forbids."""

    observation_space = spaces.Box(-1, 1, (3,))

    def __init__(self, space: spaces.Space, mask: str = "") -> None:
        self.action_space, self.mask = space, mask
        if mask == "observation":
            size = mask_size(choices_of(space))
            kinds = {"x": self.observation_space, "action_mask": spaces.MultiBinary(size)}
            self.observation_space = spaces.Dict(kinds)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._look()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action} is not in {self.action_space}"
        if self.mask:
            assert obeys(self.action_space, self.allowed, action), f"{action} is masked by {self.allowed}"
        obs, info = self._look()
        return obs, float(self.np_random.normal()), False, self.np_random.random() < 0.3, info

    def _look(self) -> tuple[Any, dict[str, Any]]:
        x = self.np_random.normal(size=3).astype(np.float32)
        if not self.mask:
            return x, {}
        self.allowed = random_mask(self.action_space, self.np_random)
        if self.mask == "nested":
            return x, {"action_mask": self.allowed}
        flat = flatten_mask(choices_of(self.action_space), self.allowed)
        if self.mask == "observation":
            return {"x": x, "action_mask": flat.astype(np.int8)}, {}
        return x, {"action_mask": flat}


def random_mask(space: spaces.Space, rng: np.random.Generator) -> Any:
    """A mask in the form that `space.sample(mask)` reads, in which something is allowed everywhere."""

    def choice(n: int) -> np.ndarray:
        mask = rng.integers(2, size=n).astype(np.int8)
        mask[rng.integers(n)] = 1
        return mask

    if isinstance(space, spaces.Dict):
        return {key: random_mask(child, rng) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(random_mask(child, rng) for child in space.spaces)
    if isinstance(space, spaces.Discrete):
        return choice(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return _per_choice(space.nvec.tolist(), choice)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(3, size=space.shape).astype(np.int8)
    return None


def _per_choice(nvec: Any, choice: Any) -> Any:
    return choice(nvec) if isinstance(nvec, int) else tuple(_per_choice(n, choice) for n in nvec)


def obeys(space: spaces.Space, mask: Any, action: Any) -> bool:
    """Whether an action is one that `space.sample(mask)` could give; written apart from the code it judges."""
    if isinstance(space, spaces.Dict):
        return all(obeys(child, mask[key], action[key]) for key, child in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return all(obeys(*parts) for parts in zip(space.spaces, mask, action))
    if isinstance(space, spaces.Discrete):
        return bool(mask[int(action) - int(space.start)])
    if isinstance(space, spaces.MultiDiscrete):
        found = np.asarray(action) - space.start
        return all(bool(_at(mask, where)[found[where]]) for where in np.ndindex(*space.shape))
    return not isinstance(space, spaces.MultiBinary) or bool(((mask == 2) | (mask == action)).all())


def _at(mask: Any, where: tuple[int, ...]) -> Any:
    for index in where:
        mask = mask[index]
    return mask


def random_space(rng: np.random.Generator, depth: int) -> spaces.Space:
    """A tree of spaces, at most `depth` levels of Dict and Tuple above its leaves."""
    kind = rng.choice(["leaf", "dict", "tuple"]) if depth else "leaf"
    if kind == "leaf":
        return LEAVES[rng.choice(list(LEAVES))]
    parts = [random_space(rng, depth - 1) for _ in range(rng.integers(1, 4))]
    names = ["b", "a.x", "keys", "leaf"]  # names that a ModuleDict or a saved spec could stumble over
    return spaces.Tuple(parts) if kind == "tuple" else spaces.Dict(dict(zip(names, parts)))


def rows(action: Any, number: int) -> Any:
    """Row `number` of a batch of actions."""
    if isinstance(action, dict):
        return {key: rows(part, number) for key, part in action.items()}
    return (
        tuple(rows(part, number) for part in action)
        if isinstance(action, tuple)
        else np.asarray(action[number])
    )


def member(space: spaces.Space, action: Any) -> bool:
    """Whether `action` is in the space with exactly its dtypes."""
    if isinstance(space, spaces.Dict):
        return isinstance(action, dict) and all(member(space[key], action[key]) for key in space.spaces)
    if isinstance(space, spaces.Tuple):
        return isinstance(action, tuple) and all(map(member, space.spaces, action))
    return bool(space.contains(action) and action.dtype == space.dtype)


def trained(space: spaces.Space, mask: str = "", algorithm: str = "ppo") -> SavedPolicy:
    """A policy after one update, saved and loaded again."""
    env = GymnasiumVector(lambda: Tree(space, mask), 2, "tree")
    settings = {**SMALL, "batch_size": 8} if algorithm in ("ppo", "ppg") else SMALL
    subject = Subject(algorithm, env.spec, settings)
    run = Run(subject)
    assert run.feed(subject.rollouts(run.agent, 1, env))
    file = io.BytesIO()
    torch.save(export(run.agent, subject.configured()), file)
    file.seek(0)
    return load_policy(torch.load(file, weights_only=True))


def check_members(policy: SavedPolicy, space: spaces.Space) -> None:
    """For single observations and batches, greedy and sampled, with weights that leave the bounds."""
    for parameter in policy.agent.parameters():
        torch.nn.init.normal_(parameter, std=2.0)
    rng = np.random.default_rng(0)
    for number in range(20):
        obs = rng.normal(size=(3, 3)).astype(np.float32)
        one = policy.act(obs[0], deterministic=number % 2 == 0)
        assert member(space, one), f"{one} is not in {space}"
        batch = policy.act(obs, deterministic=number % 2 == 0)
        for index in range(3):
            assert space.contains(rows(batch, index)), f"{batch} is not in {space}"


@pytest.mark.parametrize("name", LEAVES)
def test_actions_of_a_single_space_are_members_of_it(name: str) -> None:
    check_members(trained(LEAVES[name]), LEAVES[name])


@pytest.mark.parametrize("seed", range(12))
def test_actions_of_a_random_tree_are_members_of_it(seed: int) -> None:
    space = random_space(np.random.default_rng(seed), 3)
    check_members(trained(space), space)


MASKED = spaces.Dict(
    move=spaces.Box(-1, 1, (2,)),
    pick=spaces.Tuple((spaces.Discrete(4, start=3), spaces.MultiDiscrete([3, 2]))),
    switch=spaces.MultiBinary(2),
)


@pytest.mark.parametrize("mask", ["nested", "flat", "observation"])
def test_a_masked_action_is_never_chosen(mask: str) -> None:
    policy, env = trained(MASKED, mask), Tree(MASKED, mask)
    for parameter in policy.agent.parameters():
        torch.nn.init.normal_(parameter, std=2.0)
    obs, info = env.reset(seed=0)
    for number in range(200):
        action = policy.act(obs, number % 2 == 0, action_mask=info.get("action_mask"))
        assert member(MASKED, action)
        obs, _, _, _, info = env.step(action)  # which refuses masked actions


@pytest.mark.parametrize("seed", range(6))
def test_masks_of_random_trees_hold_while_training(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    space = spaces.Tuple((spaces.Discrete(3), random_space(rng, 2)))
    trained(space, rng.choice(["nested", "flat", "observation"]))


@pytest.mark.parametrize("algorithm", ["ppg", "a2c", "impala", "reinforce"])
def test_every_policy_gradient_algorithm_trains_on_masked_trees(algorithm: str) -> None:
    policy = trained(MASKED, "nested", algorithm)
    mask = {"pick": (np.array([0, 0, 1, 0]), None), "switch": np.array([1, 0])}
    action = policy.act(np.zeros(3, np.float32), action_mask=mask)
    assert action["pick"][0] == 5 and action["switch"].tolist() == [1, 0]


def test_batches_take_batches_of_nested_masks() -> None:
    policy = trained(MASKED, "nested")
    allowed = np.eye(4)[[0, 3, 1]]
    pair = (np.array([[1, 0, 0]] * 3), np.array([[0, 1]] * 3))
    mask = {"pick": (allowed, pair), "switch": np.array([[0, 1], [1, 1], [0, 0]])}
    for make in (np.asarray, torch.as_tensor):
        action = policy.act(make(np.zeros((3, 3), np.float32)), action_mask=mask)
        assert action["pick"][0].tolist() == [3, 6, 4]
        assert action["pick"][1].tolist() == [[0, 1]] * 3
        assert action["switch"].tolist() == mask["switch"].tolist()
        assert isinstance(action["move"], type(make(np.zeros(1))))


def test_a_mask_of_the_wrong_size_is_one_sentence() -> None:
    policy = trained(MASKED, "nested")
    with pytest.raises(
        WhorlError, match=r"the action mask has 5 entries, but the discrete choices .* need 13"
    ):
        policy.act(np.zeros(3, np.float32), action_mask=np.ones(5))
    with pytest.raises(
        WhorlError, match=r"mask has parts \['jump'\]; the action space has \['move', 'pick', 'switch'\]"
    ):
        policy.act(np.zeros(3, np.float32), action_mask={"jump": np.ones(5)})


def test_flat_masks_follow_the_order_of_the_space() -> None:
    mask = {
        "switch": np.array([1, 2], np.int8),
        "pick": (np.array([0, 1, 0, 1]), (np.array([1, 0, 0]), np.array([0, 1]))),
    }
    # pick: 4, then 3 and 2; switch: (0, 1) for a bit that must be one, (1, 1) for a free one
    wanted = [0, 1, 0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1]
    assert flatten_mask(choices_of(MASKED), mask).astype(int).tolist() == wanted
    assert flatten_mask(choices_of(MASKED), np.array(wanted)).astype(int).tolist() == wanted


def test_a_half_bounded_dimension_is_shifted_by_its_bound() -> None:
    action = Continuous((3,), (2.0, -INF, -INF), (INF, 5.0, INF))
    found = to_env(action, torch.tensor([[-3.0, 3.0, 9.0], [-1.0, 1.0, -9.0], [0.5, -0.5, 0.0]]))
    # low + a + 1, at least low; high + a - 1, at most high; unbounded as it is
    assert found.tolist() == [[2.0, 5.0, 9.0], [2.0, 5.0, -9.0], [3.5, 3.5, 0.0]]


def test_a_saved_spec_keeps_tuples_types_and_starts() -> None:
    env = GymnasiumVector(lambda: Tree(spaces.Tuple(tuple(LEAVES.values()))), 1, "tree")
    found = unpack_spec(pack_spec(env.spec))
    assert found == replace(env.spec, measures=()) and isinstance(found.action, TupleSpec)
    assert (
        action_spec(spaces.Dict(leaf=spaces.Discrete(2)))
        == unpack_spec(
            {"observation": {}, "action": {"leaf": {"leaf": "Discrete", "n": 2}}, "num_envs": 1}
        ).action
    )
