"""MuJoCo Playground's environments as one batch, beside their own `reset` and `step`.

Most tests step a small environment in JAX with the same interface, because Playground's compile for ten seconds.
"""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import whorl
from whorl.core.errors import EnvError, WhorlError
from whorl.core.spec import Array, Continuous
from whorl.envs.adapters import playground as adapter
from whorl.envs.adapters.imported import module_of
from whorl.envs.make import find
from whorl.envs.mjx import playground
from whorl.envs.mjx.arrays import modules, to_torch
from whorl.envs.mjx.playground import PlaygroundEnv

torch.set_num_threads(1)


def installed(*names: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in names)


needs_jax = pytest.mark.skipif(
    not installed("jax", "mujoco") or not installed("mujoco.mjx"),
    reason="mujoco-mjx is not installed: pip install -e '.[mjx]'",
)
needs_playground = pytest.mark.skipif(
    not installed("mujoco_playground"), reason="playground is not installed: pip install -e '.[playground]'"
)
CPU = torch.device("cpu")
LENGTH = 6


@dataclass
class Place:
    qpos: Any
    qvel: Any


@dataclass
class State:
    data: Any
    obs: Any
    reward: Any
    done: Any
    metrics: Any
    info: Any

    def replace(self, **changes: Any) -> "State":
        return replace(self, **changes)


class Rail:
    """A cart on a rail that is pushed, with noise; the episode ends where the rail does, 1 m from its middle."""

    action_size = 1

    def __init__(self) -> None:
        self._jax = modules()[0]
        for kind, fields in ((Place, ("qpos", "qvel")), (State, tuple(State.__dataclass_fields__))):
            try:
                self._jax.tree_util.register_dataclass(kind, fields, ())
            except ValueError:  # by an earlier test
                continue

    def reset(self, key: Any) -> State:
        key, drawn = self._jax.random.split(key)
        place = Place(self._jax.random.uniform(drawn, (1,), minval=-0.2, maxval=0.2), 0.0 * drawn[:1])
        return State(place, self.observe(place), 0.0, 0.0, {"speed": 0.0}, {"key": key, "steps": 0})

    def step(self, state: State, action: Any) -> State:
        key, drawn = self._jax.random.split(state.info["key"])
        qvel = state.data.qvel + action + 0.01 * self._jax.random.normal(drawn, (1,))
        place = Place(state.data.qpos + 0.5 * qvel, qvel)
        done = (abs(place.qpos[0]) > 1).astype(float)
        info = {"key": key, "steps": state.info["steps"] + 1}
        return State(place, self.observe(place), place.qpos[0], done, {"speed": qvel[0]}, info)

    def observe(self, place: Place) -> dict[str, Any]:
        both = self._jax.numpy.concatenate([place.qpos, place.qvel])
        return {"state": place.qpos, "privileged_state": both}


def rail(num_envs: int = 3, repeat: int = 1, **settings: Any) -> PlaygroundEnv:
    config = SimpleNamespace(episode_length=LENGTH, action_repeat=repeat)
    return PlaygroundEnv("playground:Rail", Rail(), config, num_envs, CPU, **settings)


def pushes(count: int, num_envs: int, size: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, num_envs, size, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def own_states(env: Any, seed: int, num_envs: int) -> list[Any]:
    """The first state of each environment, by the environment's own `reset`."""
    random = modules()[0].random
    return [env.reset(key) for key in random.split(random.PRNGKey(seed), num_envs + 1)[1:]]


def close(found: Any, expected: Any) -> bool:
    return bool(np.allclose(found.numpy(), np.asarray(expected), atol=1e-6))


@needs_jax
def test_observations_may_have_keys_and_actions_are_between_minus_one_and_one():
    spec = rail(4).spec
    assert spec.observation == {"state": Array((1,)), "privileged_state": Array((2,))}
    assert spec.action == Continuous((1,), (-1.0,), (1.0,)) and spec.num_envs == 4


@needs_jax
def test_steps_are_the_environments_own_and_each_episode_begins_anew():
    env, own = rail(), Rail()
    states = own_states(own, 3, 3)
    obs = env.reset(3)
    assert all(close(obs["state"][index], state.obs["state"]) for index, state in enumerate(states))
    firsts = [obs["state"].clone()]
    ended, counts, kinds = [False] * 3, [0] * 3, set()
    for action in pushes(40, 3) * 0.4:
        step = env.step(action)
        for index in range(3):
            assert bool(step.reset[index]) == ended[index]
            if ended[index]:
                assert not step.terminated[index] and not step.truncated[index] and step.reward[index] == 0
                firsts.append(step.obs["state"][index].clone())
                jax = modules()[0]
                states[index] = jax.tree.map(
                    lambda x, index=index: x[index], env._state[1]
                )  # as it was drawn
                assert int(states[index].info["steps"]) == 0 and float(states[index].data.qvel[0]) == 0
                ended[index], counts[index] = False, 0
                continue
            states[index] = own.step(states[index], action[index].numpy())
            counts[index] += 1
            for key in ("state", "privileged_state"):
                assert close(step.obs[key][index], states[index].obs[key])
            assert close(step.reward[index], states[index].reward)
            terminated, last = bool(states[index].done), counts[index] == LENGTH
            assert bool(step.terminated[index]) == terminated
            assert bool(step.truncated[index]) == (last and not terminated)
            ended[index] = terminated or last
            kinds |= {"terminated"} if terminated else {"truncated"} if last else set()
    assert kinds == {"terminated", "truncated"}
    values = torch.cat([first.flatten() for first in firsts]).tolist()
    assert len(set(values)) == len(values)


@needs_jax
def test_a_time_limit_counts_repeated_actions_and_truncates():
    env = rail(2, repeat=4)  # 6 steps of the environment: two actions
    env.reset(0)
    steps = [env.step(torch.zeros(2, 1)) for _ in range(3)]
    assert [step.truncated.tolist() for step in steps] == [[False] * 2, [True] * 2, [False] * 2]
    assert not any(step.terminated.any() for step in steps) and steps[2].reset.all()


@needs_jax
def test_rewards_of_a_repeated_action_are_summed_up_to_the_end_of_the_episode():
    env, own = rail(2, repeat=5), Rail()
    states = own_states(own, 1, 2)
    env.reset(1)
    action = torch.tensor([[1.0], [0.05]])
    rewards: list[float] = [0.0, 0.0]
    lengths: list[int] = []
    for index in range(2):
        lengths.append(0)
        while lengths[index] < 5 and not states[index].done:
            states[index] = own.step(states[index], action[index].numpy())
            rewards[index] += float(states[index].reward)
            lengths[index] += 1
    step = env.step(action)
    assert lengths[0] < 5 == lengths[1]
    np.testing.assert_allclose(step.reward.numpy(), rewards, atol=1e-5)
    assert step.terminated.tolist() == [True, False]
    assert close(step.obs["state"][0], states[0].obs["state"])  # where it ended, not beyond


@needs_jax
def test_a_diverged_state_ends_the_episode_and_is_not_seen():
    env = rail(2)
    seen = env.reset(0)
    key, state = env._state
    broken = state.data.qvel.at[0].set(np.nan)
    env._state = key, state.replace(data=Place(state.data.qpos, broken))
    step = env.step(torch.zeros(2, 1))
    assert step.terminated.tolist() == [True, False] and float(step.reward[0]) == 0
    assert torch.equal(step.obs["privileged_state"][0], seen["privileged_state"][0])
    step = env.step(torch.zeros(2, 1))
    assert step.reset.tolist() == [True, False] and bool(step.obs["privileged_state"].isfinite().all())


@needs_jax
def test_actions_beyond_the_bounds_count_as_the_bound():
    env, other = rail(2), rail(2)
    env.reset(0), other.reset(0)
    a, b = env.step(torch.full((2, 1), 7.0)), other.step(torch.ones(2, 1))
    assert torch.equal(a.obs["state"], b.obs["state"])


@needs_jax
def test_the_seed_decides():
    env, other = rail(), rail()
    assert torch.equal(env.reset(5)["state"], other.reset(5)["state"])
    for action in pushes(25, 3):
        a, b = env.step(action), other.step(action)
        assert torch.equal(a.obs["privileged_state"], b.obs["privileged_state"])
        assert torch.equal(a.reward, b.reward) and torch.equal(a.reset, b.reset)
    assert not torch.equal(env.reset(5)["state"], other.reset(6)["state"])
    assert torch.equal(env.reset(5)["state"], other.reset(5)["state"])


@needs_jax
def test_a_snapshot_continues_bit_for_bit_with_the_same_random_numbers():
    env, other = rail(), rail()
    env.reset(0), other.reset(1)
    drawn = pushes(40, 3)
    for action in drawn[:10]:
        env.step(action)
    snapshot = env.snapshot()
    steps = [env.step(action) for action in drawn[10:]]
    assert torch.equal(other.restore(snapshot)["state"], to_torch(rail_obs(other)))
    for action, step in zip(drawn[10:], steps):
        again = other.step(action)
        assert torch.equal(again.obs["privileged_state"], step.obs["privileged_state"])
        assert torch.equal(again.reward, step.reward) and torch.equal(again.reset, step.reset)
        assert torch.equal(again.truncated, step.truncated)
    assert sum(int(step.reset.sum()) for step in steps) > 3  # so new episodes are continued, too
    env.restore(snapshot)  # it was not written to
    assert torch.equal(env.step(drawn[10]).obs["state"], steps[0].obs["state"])
    with pytest.raises(
        EnvError, match=r"the snapshot has 3 environments of playground:Rail, .* has 2; use 3"
    ):
        rail(2).restore(snapshot)


def rail_obs(env: PlaygroundEnv) -> Any:
    return env._state[1].obs["state"]


@needs_jax
def test_results_are_not_overwritten_and_state_is_not_shared():
    env = rail()
    first = env.reset(0)["state"]
    kept = first.clone()
    step = env.step(torch.ones(3, 1))
    assert torch.equal(first, kept)
    step.obs["state"].fill_(9)
    step.reward.fill_(9)
    assert not bool((to_torch(rail_obs(env)) == 9).any())


@needs_jax
def test_a_step_before_the_first_reset_is_refused():
    with pytest.raises(EnvError, match=r"playground:Rail has no state yet; call reset\(seed\)"):
        rail().step(torch.zeros(3, 1))


@needs_jax
def test_memory_does_not_grow():
    jax, env = modules()[0], rail()
    env.reset(0)
    counts = []
    for action in pushes(30, 3):
        env.step(action)
        counts.append(len(jax.live_arrays()))
    assert max(counts[5:]) == min(counts[5:])


@needs_jax
def test_a_model_on_another_device_is_computed_with():
    """Playground puts models on JAX's first device, which need not be the one that steps."""
    program = """
import jax
from whorl.envs.mjx.arrays import Compiled
first, second = jax.devices("cpu")
weight = jax.device_put(jax.numpy.arange(3.0), first)
work = Compiled(lambda x: x * weight, (jax.ShapeDtypeStruct((3,), "float32"),), second)
print(work(jax.device_put(jax.numpy.ones(3), second)).devices() == {second}, work.seconds > 0)
"""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    found = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **flags}, text=True, capture_output=True
    )
    assert found.stdout.split() == ["True", "True"], found.stderr


@needs_jax
def test_what_was_compiled_is_kept_for_the_next_start(tmp_path: Path):
    program = """
import sys, jax
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
from whorl.envs.mjx.arrays import Compiled, cache_folder, modules
modules()
Compiled(lambda x: (x @ x.T).sum(), (jax.ShapeDtypeStruct((3, 3), "float32"),), jax.devices("cpu")[0])
print(cache_folder())
"""
    home = {**os.environ, "HOME": str(tmp_path)}
    home.pop("JAX_COMPILATION_CACHE_DIR", None)
    found = subprocess.run(
        [sys.executable, "-c", program], env=home, text=True, capture_output=True, check=True
    )
    folder = Path(found.stdout.strip())
    assert folder == tmp_path / ".cache/whorl/jax" and list(folder.glob("jit*"))


@cache
def cart_pole(num_envs: int = 3, **options: Any) -> PlaygroundEnv:
    found = find("playground:CartpoleBalance", options).vector(num_envs)
    assert isinstance(found, PlaygroundEnv)
    return found


def step_by_step(env: PlaygroundEnv, seed: int, steps: int) -> None:
    """Compare with Playground's own `env.step`, one environment after another, from Playground's own `reset`."""
    jax, own = modules()[0], env._env
    states = jax.jit(jax.vmap(own.reset))(
        jax.random.split(jax.random.PRNGKey(seed), env.spec.num_envs + 1)[1:]
    )
    np.testing.assert_allclose(env.reset(seed).numpy(), np.asarray(states.obs), atol=1e-6)
    advance = jax.jit(jax.vmap(own.step))
    for action in pushes(steps, env.spec.num_envs, env.spec.action.shape[0]):
        states = advance(states, action.numpy())
        step = env.step(action)
        np.testing.assert_allclose(step.obs.numpy(), np.asarray(states.obs), rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(step.reward.numpy(), np.asarray(states.reward), atol=1e-3)
        assert not (step.terminated | step.truncated | step.reset).any() and not np.asarray(states.done).any()


@needs_playground
def test_steps_of_the_cart_pole_are_playgrounds():
    step_by_step(cart_pole(), 4, 50)


@pytest.mark.full
@needs_playground
@pytest.mark.parametrize("name", ["CheetahRun", "WalkerWalk", "HopperHop", "ReacherEasy", "HumanoidStand"])
def test_steps_of_the_suite_are_playgrounds(name: str):
    env = find(f"playground:{name}").vector(2)
    assert isinstance(env, PlaygroundEnv)
    step_by_step(env, 0, 15)


@needs_playground
def test_the_time_limit_is_playgrounds_episode_length_and_may_be_changed():
    assert cart_pole().max_steps == 1000
    env = find("playground:CartpoleBalance", {"episode_length": 7, "action_repeat": 2})
    assert env.adapter.frame_rate(env.id, env.options) == 50.0  # of 0.01 s, twice
    vector = env.vector(1)
    assert isinstance(vector, PlaygroundEnv) and vector.max_steps == 4


@needs_playground
def test_a_cart_pole_continues_bit_for_bit_in_another_process(tmp_path: Path):
    env = cart_pole()
    env.reset(0)
    drawn = pushes(40, 3)
    for action in drawn[:10]:
        env.step(action)
    env.steps[1] = 990  # so a new episode begins soon
    torch.save({"snapshot": env.snapshot(), "drawn": drawn[10:]}, tmp_path / "saved.pt")
    expected = [env.step(action) for action in drawn[10:]]
    assert any(step.reset.any() for step in expected)
    program = """
import sys, torch
from whorl.envs.make import find
torch.set_num_threads(1)
saved = torch.load(sys.argv[1])
env = find("playground:CartpoleBalance").vector(3)
env.restore(saved["snapshot"])
steps = [env.step(action) for action in saved["drawn"]]
torch.save([(step.obs, step.reward, step.reset) for step in steps], sys.argv[2])
"""
    subprocess.run(
        [sys.executable, "-c", program, tmp_path / "saved.pt", tmp_path / "found.pt"], check=True, timeout=300
    )
    for (obs, reward, reset), step in zip(torch.load(tmp_path / "found.pt"), expected, strict=True):
        assert torch.equal(obs, step.obs) and torch.equal(reward, step.reward)
        assert torch.equal(reset, step.reset)


@needs_playground
def test_a_frame_shows_the_environment():
    env = cart_pole()
    env.reset(0)
    try:
        frame = env.render(1)
    except EnvError as error:
        pytest.skip(str(error))
    assert frame.shape == (480, 640, 3) and frame.dtype == np.uint8 and frame.std() > 0
    for _ in range(30):
        env.step(torch.ones(3, 1))
    assert not np.array_equal(env.render(1), frame)


@needs_playground
def test_training_says_how_long_compiling_took_and_learns(tmp_path: Path):
    settings = {"num_envs": 3, "num_steps": 16, "batch_size": 48, "max_iterations": 2, "log_freq": 1}
    quiet = {"quiet": True, "eval": False, "tensorboard": False, "device": "cpu", "runs": str(tmp_path)}
    trainer = whorl.load("playground:CartpoleBalance", "ppo", settings | quiet)
    with pytest.warns(UserWarning, match=r"MJX's kernels were compiled or loaded in \d+ s; they are kept in"):
        trainer.train()
    rows = [
        json.loads(line) for path in tmp_path.rglob("metrics.jsonl") for line in path.read_text().splitlines()
    ]
    assert rows and np.isfinite(rows[-1]["loss/critic"])


@needs_playground
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"episode_lenght": 5}, "has no option 'episode_lenght'; did you mean 'episode_length'?"),
        ({"vision_config.use_texture": True}, "did you mean 'vision_config.use_textures'?"),
        ({"vision_config": {"nope": 1}}, "playground:CartpoleBalance has no option 'vision_config.nope'"),
        ({"episode_length": "ten"}, "is 'ten'; it must be of the kind of its default, 1000"),
        ({"episode_length": True}, "is True; it must be of the kind of its default, 1000"),
        (
            {"episode_length": 0},
            "episode_length of playground:CartpoleBalance is 0; it must be a number from 1 on",
        ),
        ({"impl": "warp"}, "impl is 'warp'; it must be 'jax' here"),
        ({"vision": True}, "vision is True; it must be False here"),
        ({"deterministic": 1}, "deterministic is 1; it must be true or false"),
        ({"frame_stack": 2}, "stepped as one batch, which frame_stack can't change"),
        ({"hit_reward": 2}, "stepped as one batch, which hit_reward can't change"),
    ],
)
def test_options_that_do_not_exist_are_named(options: dict[str, Any], says: str):
    with pytest.raises(EnvError, match=says.replace("?", r"\?")):
        find("playground:CartpoleBalance", options)


@needs_playground
def test_nested_options_are_entries_of_the_configuration():
    config = playground.load("CartpoleBalance", {"vision_config": {"nworld": 2}, "ctrl_dt": 0.02})[1]
    assert (config.vision_config.nworld, config.ctrl_dt, config.impl) == (2, 0.02, "jax")
    assert playground.load("CartpoleBalance", {})[1].ctrl_dt == 0.01  # defaults are not changed


@needs_playground
def test_ids_are_those_of_the_registry():
    with pytest.raises(
        EnvError, match="unknown environment 'playground:CheetaRun'; did you mean 'playground:CheetahRun'"
    ):
        find("playground:CheetaRun")
    with pytest.raises(
        EnvError, match=r"unknown environment 'playground:Foo'; choose one of: .* and 4. more"
    ):
        find("playground:Foo")
    with pytest.raises(
        EnvError, match=r"playground:CheetahRun is a batch of environments; pass it to whorl\.load"
    ):
        whorl.make("playground:CheetahRun")


@needs_playground
def test_robots_that_could_not_be_downloaded_are_named(monkeypatch: pytest.MonkeyPatch):
    def fail(*given: Any) -> None:
        raise subprocess.CalledProcessError(128, ["git", "clone"])

    monkeypatch.setattr(playground.registry(), "load", fail)
    playground._load.cache_clear()
    with pytest.raises(
        EnvError, match=r"playground:Go1Getup needs the robots of MuJoCo Menagerie, .*: git clone http"
    ):
        find("playground:Go1Getup")


class Config(dict):
    """What is used of Playground's configurations."""

    impl = ""
    __getattr__ = dict.__getitem__

    def to_dict(self) -> dict[str, Any]:
        return dict(self)

    def update_from_flattened_dict(self, changes: dict[str, Any]) -> None:
        for key, value in changes.items():
            if type(value) is not type(self[key]):
                raise TypeError
            self[key] = value


@pytest.fixture
def in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry with one name, and no JAX."""
    registry = SimpleNamespace(
        ALL_ENVS=("CheetahRun",),
        get_default_config=lambda name: Config(episode_length=1000, action_repeat=1, vision=False),
        load=lambda name, config: SimpleNamespace(name=name, dt=0.01),
    )
    monkeypatch.setattr(playground, "registry", lambda: registry)
    monkeypatch.setattr(adapter, "find_spec", lambda name: True)
    playground._load.cache_clear()


@pytest.mark.usefixtures("in_its_place")
def test_ids_and_options_are_checked_before_anything_is_compiled():
    source = find("playground:CheetahRun", {"episode_length": 100, "action_repeat": 2})
    assert source.id == "playground:CheetahRun" and source.batched and source.adapter is not None
    assert source.adapter.frame_rate(source.id, source.options) == 50.0
    env, config = playground.load("CheetahRun", {"episode_length": 100})
    assert (env.name, config["episode_length"], config.impl) == ("CheetahRun", 100, "jax")
    for options, says in (
        ({"episode_lengt": 3}, "no option 'episode_lengt'; did you mean 'episode_length'"),
        ({"action_repeat": 0}, "action_repeat of playground:CheetahRun is 0; it must be a number from 1 on"),
        ({"episode_length": 1.5}, "is 1.5; it must be of the kind of its default, 1000"),
        ({"vision": True}, "vision is True; it must be False here"),
    ):
        with pytest.raises(EnvError, match=says):
            find("playground:CheetahRun", options)
    with pytest.raises(EnvError, match="unknown environment 'playground:CheetaRun'; did you mean"):
        find("playground:CheetaRun")


def test_ids_import_no_module_of_the_user():
    assert module_of("playground:CheetahRun") == ""


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adapter, "find_spec", lambda name: None)
    with pytest.raises(WhorlError, match=r"playground is not installed; install it with: .*\[playground\]"):
        find("playground:CheetahRun")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@needs_jax
def test_on_a_gpu_steps_are_those_of_the_cpu():
    config = SimpleNamespace(episode_length=LENGTH, action_repeat=1)
    env, other = PlaygroundEnv("playground:Rail", Rail(), config, 64, torch.device("cuda"), True), rail(64)
    assert env.reset(0)["state"].is_cuda
    other.reset(0)
    for action in pushes(200, 64):
        a, b = env.step(action.cuda()), other.step(action)
        np.testing.assert_allclose(a.obs["state"].numpy(force=True), b.obs["state"].numpy(), atol=1e-4)
        assert torch.equal(a.reset.cpu(), b.reset)
