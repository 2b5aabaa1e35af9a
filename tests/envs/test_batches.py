"""Batched environments that the user gives: Gymnasium's VectorEnv, EnvPool, and a simulator of tensors."""

import inspect
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from torch import Tensor

import whorl
from whorl.core.errors import ConfigError, EnvError
from whorl.core.spec import Array, Continuous, Spec
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.adapters.vectorized import BatchedVector
from whorl.envs.make import Batch, find
from whorl.envs.native import Quadrotor
from whorl.envs.vector import Step, VectorEnv

torch.set_num_threads(1)
FAST: dict[str, Any] = {
    "num_steps": 16,
    "total_timesteps": 128,
    "batch_size": 32,
    "n_epochs": 1,
    "device": "cpu",
}


class Points(VectorEnv):
    """Points on a line that are pushed left and right and should stay near 0; a simulator of 30 lines."""

    def __init__(self, num_envs: int = 6, limit: int = 10, device: str = "cpu") -> None:
        self.spec = Spec(Array((1,)), Continuous((1,), (-1.0,), (1.0,)), num_envs)
        self.limit = limit
        self.generator = torch.Generator(device)
        self.place = torch.zeros(num_envs, 1, device=device)
        self.steps = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.ended = torch.zeros(num_envs, dtype=torch.bool, device=device)

    def _start(self) -> Tensor:
        return 2 * torch.rand(self.place.shape, generator=self.generator, device=self.place.device) - 1

    def reset(self, seed: int) -> Tensor:
        self.generator.manual_seed(seed)
        self.place.copy_(self._start())
        self.steps.zero_()
        self.ended.zero_()
        return self.place.clone()

    def step(self, action: Tensor) -> Step:
        reset = self.ended.clone()
        moved = self.place + 0.3 * action.clamp(-1, 1)
        self.place.copy_(torch.where(reset.unsqueeze(1), self._start(), moved))
        self.steps.add_(1).masked_fill_(reset, 0)
        terminated = (self.place.abs() > 2)[:, 0] & ~reset
        truncated = (self.steps >= self.limit) & ~terminated
        self.ended.copy_(terminated | truncated)
        reward = (1 - self.place.abs()[:, 0]).masked_fill(reset, 0.0)
        return Step(self.place.clone(), reward, terminated, truncated, reset)


class Closing(Points):
    closed = False

    def close(self) -> None:
        self.closed = True


class Odd(gymnasium.Env):
    """Spaces of every kind, masks in info, lost lives, and episodes of `length` steps that are truncated."""

    observation_space = spaces.Dict(
        a=spaces.Discrete(5, start=2),
        b=spaces.Tuple((spaces.MultiDiscrete([3, 4]), spaces.Box(-1, 1, (2, 3), np.float64))),
        c=spaces.Box(0, 255, (4, 4), np.uint8),
    )
    action_space = spaces.Discrete(3, start=1)

    def __init__(self, length: int = 4) -> None:
        self.length = length
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.count += 1
        info = {} if self.count == self.length else self._info()
        return self._obs(), float(action), False, self.count == self.length, info

    def _obs(self) -> Any:
        draw = self.np_random
        return {
            "a": 2 + self.count,
            "b": (draw.integers(3, size=2), draw.random((2, 3))),
            "c": draw.integers(255, size=(4, 4)).astype(np.uint8),
        }

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.array([True, self.count == 1, True]), "soft_end": self.count == 2}


class OddLayout(Odd):
    soft_ends = True


def sync(mode: str = "NEXT_STEP", num_envs: int = 3) -> SyncVectorEnv:
    if mode == "NEXT_STEP":  # the default, and in Gymnasium 1.0 the only one
        return SyncVectorEnv([Odd] * num_envs)
    return SyncVectorEnv([Odd] * num_envs, autoreset_mode=gymnasium.vector.AutoresetMode[mode])


def test_a_vector_env_gives_what_its_environments_give_one_by_one():
    """Observations of all kinds, masks, lost lives, ends and resets."""
    batch, single = find(sync).vector(3), GymnasiumVector(OddLayout, 3, "Odd")
    assert isinstance(batch, BatchedVector)
    assert batch.spec == single.spec and batch.spec.masked
    first = batch.reset(5)
    single.reset(0)
    # Gymnasium seeds the environments of a vector with consecutive numbers.
    for env_index, env in enumerate(single.stepper.envs):
        single.stepper._write(
            single._buffers.obs, env_index, env.reset(seed=5 + env_index)[0], env_index, True
        )
    assert _equal(first, single._step.obs)
    generator = torch.Generator().manual_seed(0)
    resets = 0
    for _ in range(12):
        action = torch.randint(3, (3,), generator=generator)
        a, b = batch.step(action), single.step(action)
        assert _equal(a.obs, b.obs)
        for name in ("reward", "terminated", "truncated", "reset", "soft"):
            assert torch.equal(getattr(a, name), getattr(b, name)), name
        resets += int(a.reset.sum())
    assert resets == 6


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return a.dtype == b.dtype and torch.equal(a, b)


def test_actions_of_a_tree_reach_a_vector_env_as_a_batch():
    class Two(gymnasium.Env):
        observation_space = spaces.Box(0, 10, (1,), np.float32)
        action_space = spaces.Dict(
            push=spaces.Box(0, 4, (2,), np.float32),
            pick=spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))),
        )

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert self.action_space.contains(action)
            number, bits = action["pick"]
            return (
                np.zeros(1, np.float32),
                float(action["push"].sum() + 10 * number + 100 * bits[1]),
                False,
                False,
                {},
            )

    vector = find(partial(SyncVectorEnv, [Two, Two])).vector(2)
    vector.reset(0)
    step = vector.step(
        {
            "push": torch.tensor([[-1.0, 1.0], [0.0, 9.0]]),
            "pick": {"0": torch.tensor([2, 1]), "1": torch.tensor([[1, 0], [0, 1]])},
        }
    )
    assert step.reward.tolist() == [24.0, 116.0]


@pytest.mark.skipif(not hasattr(gymnasium.vector, "AutoresetMode"), reason="since Gymnasium 1.1")
@pytest.mark.parametrize("mode", ["SAME_STEP", "DISABLED"])
def test_other_autoreset_modes_are_refused(mode: str):
    with pytest.raises(EnvError, match=f"autoreset mode {mode}.*NEXT_STEP"):
        find(partial(sync, mode))


def test_truncation_keeps_the_true_final_observation():
    """The row after an end is the final observation, and the next one opens an episode."""
    env = find(partial(gymnasium.make_vec, "Pendulum-v1", 2, "sync", max_episode_steps=3)).vector(2)
    env.reset(0)
    steps = [env.step(torch.zeros(2, 1)) for _ in range(5)]
    assert [step.truncated.tolist() for step in steps] == [[False] * 2] * 2 + [[True] * 2] + [[False] * 2] * 2
    assert [step.reset[0].item() for step in steps] == [False, False, False, True, False]
    assert steps[3].reward.tolist() == [0.0, 0.0]
    # cos and sin move on by the angular velocity, up to the final observation, and jump after it
    angle = [torch.atan2(step.obs[:, 1], step.obs[:, 0]) for step in steps]
    moved = torch.remainder(angle[2] - angle[1] - 0.05 * steps[2].obs[:, 2] + 1, 2 * torch.pi) - 1
    assert moved.abs().max() < 1e-4


def test_a_vector_env_instance_trains_without_evaluation_and_stays_open(tmp_path: Path):
    env = gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode="sync")
    with pytest.warns(UserWarning, match="evaluation is off.*pass a function"):
        trainer = whorl.load(env, "ppo", {**FAST, "runs": str(tmp_path)})
    assert trainer.settings.run.num_envs == 4 and not trainer.settings.run.eval
    assert trainer.train().steps >= 128
    assert env.reset(seed=0)[0].shape == (4, 4)


def test_a_factory_of_batches_is_evaluated_on_a_second_copy(tmp_path: Path):
    made: list[Closing] = []

    def factory() -> Closing:
        made.append(Closing())
        return made[-1]

    result = whorl.train(factory, "sac", runs=str(tmp_path), eval_freq=1, learning_starts=16, **_sac())
    assert result.steps >= 64
    assert len(made) == 2, "one to train on, one to evaluate on"
    assert all(env.closed for env in made)
    run = next(tmp_path.iterdir())
    assert whorl.evaluate(run, 4, env=factory).mean_length == 10
    with pytest.raises(whorl.core.errors.CheckpointError, match="pass it as env="):
        whorl.evaluate(run, 4)
    assert whorl.resume(run, env=factory, total_timesteps=128).steps >= 128


def _sac() -> dict[str, Any]:
    return {"num_steps": 4, "total_timesteps": 64, "batch_size": 16, "device": "cpu"}


def test_settings_that_do_not_fit_get_one_sentence():
    with pytest.raises(
        ConfigError, match="num_envs is 4, but Points has 6 environments; leave num_envs out or set it to 6"
    ):
        whorl.load(Points, "ppo", {"n_envs": 4})
    with pytest.raises(
        ConfigError, match="evaluation needs a second copy of Points, but one instance was given"
    ):
        whorl.load(Points(), "ppo", {"eval": True})
    with pytest.raises(
        ConfigError, match=r"num_envs is 6, but Points has 6 environments for each actor; .* set it to 12"
    ):
        whorl.load(Points, "impala", {"actors": 2})
    with pytest.raises(ConfigError, match="actors need their own copies of Points"):
        whorl.load(Points(), "impala", {"actors": 2, "num_envs": 12, "eval": False})
    with pytest.raises(EnvError, match="Points is a batch of environments, which keep can't change"):
        find(Points, {"keep": [0]})
    with pytest.raises(EnvError, match=r"Points is a batch of environments; pass it to whorl\.load"):
        whorl.make(Points)


def test_an_instance_is_stepped_once_and_no_second_time():
    source = find(Points())
    assert source.workers(-1, 6) == 0
    source.vector(6)
    with pytest.raises(EnvError, match="only one instance of Points was given"):
        source.vector(6)


def test_a_batch_says_whether_its_step_can_be_captured():
    class Wrong(Points):
        capturable = True

    assert not Points.capturable and not find(sync).vector(3).capturable
    assert Quadrotor.capturable and not find("CartPole-v1").vector(2).capturable
    with pytest.raises(EnvError, match=r"Wrong.capturable is true, but it has no state_tensors\(\)"):
        find(Wrong)
    assert find(Quadrotor(num_envs=4)).vector(4).capturable


class CapturablePoints(Points):
    capturable = True

    def __init__(self) -> None:
        super().__init__(num_envs=64, device="cuda")

    def state_tensors(self) -> list[Tensor]:
        return [self.place, self.steps, self.ended]


@pytest.mark.gpu
def test_rollouts_of_a_capturable_simulator_are_captured(tmp_path: Path):
    config = {**FAST, "device": "cuda", "env_device": "cuda", "total_timesteps": 4096, "runs": str(tmp_path)}
    trainer = whorl.load(CapturablePoints, "ppo", config).build()
    assert trainer.parts.acting.env.capturable and trainer.parts.acting.collector.capture
    assert trainer.train().steps >= 4096


def test_a_native_instance_can_be_given_too():
    source = find(Quadrotor(num_envs=4))
    assert source.id == "Quadrotor-v0" and source.num_envs == 4 and not source.named
    vector = source.vector(4)
    assert vector.reset(0).shape == (4, 45) and vector.snapshots


def test_a_batch_of_actors_comes_from_the_factory(tmp_path: Path):
    config = {**FAST, "runs": str(tmp_path), "actors": 2, "num_envs": 12, "eval": False}
    config.pop("n_epochs")
    config.pop("batch_size")
    assert whorl.load(Points, "impala", config).train().steps >= 128


class Pool(gymnasium.Env):
    """What EnvPool's environments show of themselves where they are not Gymnasium's VectorEnv."""

    observation_space = spaces.Box(-1, 1, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.config = {"num_envs": 4}
        self.all_env_ids = np.arange(4)

    def reset(self) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        self.count = 0
        return np.zeros((4, 2)), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        end = np.full(4, self.count % 3 == 0)
        return np.full((4, 2), self.count / 10), action.astype(np.float64), end, ~end & False, {}


def test_envpool_is_a_batch_although_it_is_a_gymnasium_env():
    source = find(Pool)
    vector = source.vector(4)
    assert isinstance(vector, BatchedVector) and source.num_envs == 4
    assert vector.reset(3).dtype == torch.float32
    steps = [vector.step(torch.tensor([0, 1, 0, 1])) for _ in range(4)]
    assert [step.reset[0].item() for step in steps] == [False, False, False, True]
    assert steps[0].reward.tolist() == [0.0, 1.0, 0.0, 1.0]


def test_attributes_of_a_given_instance_are_found_without_getattr() -> None:
    """As isinstance with a protocol looks for them from Python 3.12 on."""
    given = find("CatchPoint-v0").vector(2)
    borrowed = Batch(given).vector()
    assert borrowed is not given
    for name in (name for name in dir(given) if not name.startswith("_")):
        inspect.getattr_static(borrowed, name)
    assert borrowed.spec is given.spec
    borrowed.close()
