"""Gymnasium's MuJoCo tasks on a GPU: rewards and observations beside Gymnasium's own, and MuJoCo Warp beside MuJoCo.

Compiling MuJoCo Warp's kernels takes minutes, so the short tests put MuJoCo itself in its place.
"""

import importlib.util
import json
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import whorl
from whorl.core.errors import EnvError, WhorlError
from whorl.envs.adapters import warp as adapter
from whorl.envs.adapters.imported import module_of
from whorl.envs.make import find
from whorl.envs.warp import physics as warp_physics
from whorl.envs.warp.physics import Capacity, View
from whorl.envs.warp.tasks import TASKS
from whorl.envs.warp.world import MujocoWorld

mujoco = pytest.importorskip("mujoco")
torch.set_num_threads(1)
IDS = [f"{name}-v5" for name in TASKS] + ["Ant-v4", "Humanoid-v4", "Hopper-v4"]
needs_warp = pytest.mark.skipif(
    importlib.util.find_spec("mujoco_warp") is None,
    reason="mujoco-warp is not installed: pip install -e '.[warp]'",
)
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def made(id: str, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # v4 is out of date
        return gymnasium.make(id, **options)


def view_of(data: Any) -> View:
    """What MuJoCo computed for one environment."""
    return View(
        **{
            name: torch.tensor(np.array(getattr(data, name)), dtype=torch.float32).unsqueeze(0)
            for name in View.__dataclass_fields__
        }
    )


class MuJoCo:
    """MuJoCo in the place of MuJoCo Warp, one environment after another."""

    name, compile_seconds, cache, captured, lost = "MuJoCo Warp", 0.0, "nowhere", False, ""

    def __init__(
        self, model: Any, num_envs: int, device: Any, substeps: int, capacity: Capacity, *rest: Any
    ) -> None:
        self.model, self.substeps = model, substeps
        self.data = [mujoco.MjData(model) for _ in range(num_envs)]
        views = [view_of(data) for data in self.data]
        self.view = View(
            **{name: torch.cat([getattr(one, name) for one in views]) for name in View.__dataclass_fields__}
        )

    def _run(self, work: Any) -> None:
        for index, data in enumerate(self.data):
            for name in ("qpos", "qvel", "qacc_warmstart", "ctrl"):
                getattr(data, name)[:] = getattr(self.view, name)[index].numpy()
            work(data)
            for name in View.__dataclass_fields__:
                getattr(self.view, name)[index].copy_(getattr(view_of(data), name)[0])

    def step(self) -> None:
        def work(data: Any) -> None:
            mujoco.mj_step(self.model, data, nstep=self.substeps)
            mujoco.mj_rnePostConstraint(self.model, data)

        self._run(work)

    def place(self) -> None:
        def work(data: Any) -> None:
            for stage in (mujoco.mj_kinematics, mujoco.mj_comPos, mujoco.mj_comVel):
                stage(self.model, data)

        self._run(work)

    def overflow(self) -> str:
        return self.lost


@pytest.fixture
def in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warp_physics, "Physics", MuJoCo)
    monkeypatch.setattr(adapter, "find_spec", lambda name: True)


def world(id: str, num_envs: int = 2, device: str = "cpu", **options: Any) -> MujocoWorld:
    given = {"device": "cpu", **options} if device == "cpu" else options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = find(f"warp:{id}", given).vector(num_envs, device)
    assert isinstance(found, MujocoWorld)
    return found


def action_of(env: Any, canonical: np.ndarray) -> np.ndarray:
    low, high = env.action_space.low, env.action_space.high
    return ((high + low) / 2 + (high - low) / 2 * canonical).astype(np.float32)


def compare(
    env: MujocoWorld, id: str, steps: int, stop_at_contact: bool = False, **options: Any
) -> dict[str, float]:
    """Largest distances of environment 0 from Gymnasium's, started from the same state, over `steps`."""
    theirs = made(id, **options).unwrapped
    theirs.reset(seed=0)
    first = env.reset(3)
    theirs.set_state(*(env.state[name][:, 0].double().numpy(force=True) for name in ("qpos", "qvel")))
    far = {
        "first": float(np.abs(theirs._get_obs() - first[0].numpy(force=True)).max()),
        "obs": 0.0,
        "reward": 0.0,
    }
    random = np.random.default_rng(0)
    for _ in range(steps):
        canonical = random.uniform(-1, 1, theirs.action_space.shape)
        action = torch.tensor(canonical, dtype=torch.float32).expand(env.num_envs, -1)
        step = env.step(action.to(env.device))
        obs, reward, terminated, _, _ = theirs.step(action_of(theirs, canonical))
        if stop_at_contact and theirs.data.ncon:
            break
        # Forces are in the thousands of newtons.
        apart = np.abs(obs - step.obs[0].numpy(force=True)) / (1 + np.abs(obs))
        far["obs"] = max(far["obs"], float(apart.max()))
        far["reward"] = max(far["reward"], abs(float(reward) - float(step.reward[0])))
        assert bool(step.terminated[0]) == terminated
        if terminated:
            break
    return far


@pytest.mark.usefixtures("in_its_place")
@pytest.mark.parametrize("id", IDS)
def test_observations_rewards_and_ends_are_gymnasiums(id: str):
    far = compare(world(id, 1), id, 25)
    assert far["first"] < 1e-5 and far["obs"] < 2e-3 and far["reward"] < 2e-3


@pytest.mark.parametrize("id", ["Ant-v5", "Humanoid-v5", "Humanoid-v4"])
def test_rewards_follow_from_the_state_also_when_it_has_fallen(id: str):
    """Bodies on the floor, with contacts: every term of the reward is in use."""
    env = made(id)
    gym = env.unwrapped
    task = TASKS[id.rpartition("-v")[0]][0](gym, int(id[-1]), torch.device("cpu"))
    env.reset(seed=1)
    random, falls = np.random.default_rng(1), 0
    for _ in range(40):
        before = task.position(view_of(gym.data))
        obs, reward, terminated, _, _ = gym.step(
            action_of(gym, random.uniform(-1, 1, gym.action_space.shape))
        )
        view = view_of(gym.data)
        velocity = (task.position(view) - before) / task.dt
        found, ended = task.reward(view, velocity)
        np.testing.assert_allclose(task.observe(view)[0].numpy(), obs, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(float(found), reward, rtol=1e-4, atol=1e-3)
        assert bool(ended) == terminated
        falls += terminated
    assert falls or id == "Ant-v5"


@pytest.mark.parametrize("id", ["HalfCheetah-v5", "Humanoid-v5", "Reacher-v5", "Pusher-v5"])
def test_first_states_have_gymnasiums_spread(id: str):
    env = made(id)
    gym = env.unwrapped
    task = TASKS[id.rpartition("-v")[0]][0](gym, int(id[-1]), torch.device("cpu"))
    ours = torch.cat(task.start(4000, torch.Generator().manual_seed(0)), 1).numpy()
    theirs = []
    for seed in range(200):
        gym.np_random = np.random.default_rng(seed)
        gym.reset_model()
        theirs.append(np.concatenate([gym.data.qpos, gym.data.qvel]))
    spread = np.std(theirs, 0)
    np.testing.assert_allclose(ours.mean(0), np.mean(theirs, 0), atol=0.25 * spread.max() + 1e-6)
    np.testing.assert_allclose(ours.std(0), spread, rtol=0.2, atol=1e-6)


@pytest.mark.usefixtures("in_its_place")
def test_options_are_gymnasiums():
    options = {"include_cinert_in_observation": False, "ctrl_cost_weight": 1.0, "max_episode_steps": 3}
    env = world("Humanoid-v5", 1, **options)
    assert env.spec.observation.shape == (218,)
    far = compare(env, "Humanoid-v5", 2, **options)
    assert far["obs"] < 1e-3 and far["reward"] < 1e-3
    step = env.step(torch.zeros(1, 17))
    assert bool(step.truncated) and not bool(step.terminated)


@pytest.mark.usefixtures("in_its_place")
def test_an_ended_episode_is_reset_by_the_next_step():
    env = world("Hopper-v5", 3)
    env.reset(0)
    env.state["qpos"][2, 1] = 0.3  # leaning too far
    still = torch.zeros(3, 3)
    step = env.step(still)
    assert step.terminated.tolist() == [False, True, False]
    step = env.step(still)
    assert step.reset.tolist() == [False, True, False] and float(step.reward[1]) == 0.0
    assert float(env.state["qpos"][2].abs().max()) < 0.1
    assert float(env.state["warmstart"][:, 1].abs().max()) == 0.0
    assert env.steps.tolist() == [2, 0, 2]
    # Forward velocity is measured from the new start, not from where the last episode ended.
    assert float(env.step(still).reward[1]) < 3


@pytest.mark.usefixtures("in_its_place")
def test_a_snapshot_continues_bit_for_bit():
    env, other = world("Ant-v5"), world("Ant-v5")
    env.reset(0), other.reset(1)
    drawn = torch.rand(12, 2, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for action in drawn[:5]:
        env.step(action)
    env.state["qpos"][2, 0] = 2.0  # the first environment is reset later on
    assert torch.equal(other.restore(env.snapshot()), env.observe(env.state))
    for name in View.__dataclass_fields__:
        getattr(other.physics.view, name).fill_(1e3)  # nothing in the simulation's own memory counts
    work, given = other.physics.step, []

    def step() -> None:
        given.append(other.physics.view.qacc_warmstart.T.clone())
        work()

    other.physics.step = step  # type: ignore[method-assign]
    kept = env.state["warmstart"].clone()
    for action in drawn[5:]:
        a, b = env.step(action), other.step(action)
        assert torch.equal(a.obs, b.obs) and torch.equal(a.reward, b.reward)
    assert torch.equal(given[0], kept) and float(kept.abs().max()) > 0


@pytest.mark.usefixtures("in_its_place")
def test_a_diverged_state_ends_the_episode_and_is_not_seen():
    env = world("HalfCheetah-v5")
    seen = env.reset(0)
    work = env.physics.step

    def explode() -> None:
        work()
        env.physics.view.qvel[0] = torch.nan

    env.physics.step = explode  # type: ignore[method-assign]
    step = env.step(torch.zeros(2, 6))
    assert step.terminated.tolist() == [True, False]
    assert torch.equal(step.obs[0], seen[0]) and float(step.reward[0]) == 0.0
    env.physics.step = work  # type: ignore[method-assign]
    step = env.step(torch.zeros(2, 6))
    assert step.reset.tolist() == [True, False] and bool(step.obs.isfinite().all())


@pytest.mark.usefixtures("in_its_place")
def test_too_little_memory_for_contacts_is_said_once(monkeypatch: pytest.MonkeyPatch):
    env = world("Hopper-v5")
    env.reset(0)
    monkeypatch.setattr(MuJoCo, "lost", "constraints (njmax 8)")
    with pytest.warns(
        UserWarning, match=r"Hopper-v5 had more constraints \(njmax 8\) than there is memory for"
    ):
        env.snapshot()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.close()


@pytest.mark.usefixtures("in_its_place")
def test_training_says_how_long_compiling_took(tmp_path: Any):
    settings = {"num_envs": 2, "num_steps": 4, "batch_size": 8, "n_epochs": 1, "max_iterations": 1}
    quiet = {"quiet": True, "eval": False, "tensorboard": False, "device": "cpu", "runs": str(tmp_path)}
    trainer = whorl.load("warp:InvertedPendulum-v5", "ppo", settings | quiet, env_options={"device": "cpu"})
    with pytest.warns(UserWarning, match="kernels were compiled or loaded in 0 s; they are kept in nowhere"):
        trainer.build()
    trainer.close()


@pytest.mark.usefixtures("in_its_place")
def test_ids_and_options_that_do_not_exist_are_named():
    assert find("warp:Hopper").id == "warp:Hopper-v5"
    with pytest.raises(
        EnvError, match="unknown environment 'warp:Huminoid-v5'; did you mean 'warp:Humanoid-v5'"
    ):
        find("warp:Huminoid-v5")
    with pytest.raises(EnvError, match="unknown environment 'warp:Hoper'; did you mean 'warp:Hopper-v5'"):
        find("warp:Hoper")
    with pytest.raises(
        EnvError, match="unknown environment 'warp:Foo'; choose one of: warp:Ant-v4, warp:Ant-v5"
    ):
        find("warp:Foo")  # not the first id that begins and ends alike
    with pytest.raises(EnvError, match="stepped as one batch, which frame_stack can't change"):
        find("warp:Hopper-v5", {"frame_stack": 2})
    with pytest.raises(EnvError, match="njmax is 0; it must be a number from 1 on"):
        find("warp:Hopper-v5", {"njmax": 0})
    with pytest.raises(WhorlError, match="gravity"):
        find("warp:Hopper-v5", {"gravity": 1})
    with pytest.raises(EnvError, match=r"warp:Hopper-v5 needs a CUDA GPU .* use Hopper-v5, or"):
        find("warp:Hopper-v5").vector(2)
    assert module_of("warp:Hopper-v5") == ""


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adapter, "find_spec", lambda name: None)
    with pytest.raises(WhorlError, match=r"mujoco-warp is not installed; install it with: .*\[warp\]"):
        find("warp:Hopper-v5")


@pytest.mark.full
@needs_warp
@pytest.mark.parametrize(
    "id", ["Hopper-v5", "HalfCheetah-v5", "Walker2d-v5", "Humanoid-v5", "InvertedPendulum-v5"]
)
def test_mujoco_warp_moves_as_mujoco(id: str):
    far = compare(world(id), id, 12)
    assert far["first"] < 1e-5 and far["obs"] < 1e-3 and far["reward"] < 1e-3


@pytest.mark.full
@needs_warp
def test_mujoco_warp_moves_the_ant_as_mujoco_until_a_foot_touches_the_floor():
    """Then friction differs: on capsules steeper than 60 degrees its pyramid is turned."""
    far = compare(world("Ant-v5"), "Ant-v5", 12, stop_at_contact=True)
    assert far["obs"] < 1e-3 and far["reward"] < 1e-3


@pytest.mark.full
@needs_warp
def test_mujoco_warp_continues_from_a_snapshot_bit_for_bit():
    env, other = world("Hopper-v5", 4), world("Hopper-v5", 4)
    env.reset(0), other.reset(1)
    drawn = torch.rand(40, 4, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for action in drawn[:20]:
        env.step(action)
    other.restore(env.snapshot())
    for action in drawn[20:]:
        assert torch.equal(env.step(action).obs, other.step(action).obs)


@pytest.mark.full
@needs_warp
def test_mujoco_warp_tells_that_memory_was_too_small():
    env = world("HalfCheetah-v5", 2, njmax=2)
    env.reset(0)
    for _ in range(20):
        env.step(torch.ones(2, 6))
    assert env.physics.overflow() == "constraints (njmax 2)"


@pytest.mark.gpu
@gpu
@needs_warp
@pytest.mark.parametrize("id", ["Hopper-v5", "Humanoid-v5"])
def test_on_a_gpu_it_moves_as_mujoco(id: str):
    env = world(id, 64, "cuda")
    assert env.capturable
    far = compare(env, id, 12)
    assert far["first"] < 1e-4 and far["obs"] < 2e-3 and far["reward"] < 2e-3


@pytest.mark.gpu
@gpu
@needs_warp
@pytest.mark.parametrize("id", ["Hopper-v5", "Humanoid-v5"])
def test_a_recorded_step_replays_what_eager_steps_do(id: str):
    captured, replayed, eager = (world(id, 64, "cuda") for _ in range(3))
    eager.physics._graph = None
    for env in (captured, replayed, eager):
        env.reset(0)
    size = captured.spec.action.shape[0]
    action = torch.zeros(64, size, device="cuda")
    graph = torch.cuda.CUDAGraph()
    captured.step(action)
    graph.register_generator_state(captured.generator)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        step = captured.step(action)
    for env in (captured, replayed, eager):
        env.reset(5)
    resets = 0
    for number in range(30):
        action.copy_(torch.rand(64, size, generator=torch.Generator().manual_seed(number)) * 2 - 1)
        graph.replay()
        expected, inner = eager.step(action), replayed.step(action)
        assert torch.equal(step.reset, expected.reset) and torch.equal(inner.reset, expected.reset)
        # Sums of contact forces have no fixed order on a GPU, so bits differ, and contacts make differences grow.
        typical = (step.obs - expected.obs).abs().median(), (inner.obs - expected.obs).abs().median()
        assert max(map(float, typical)) < 1e-3
        resets += int(expected.reset.sum())
        for env in (captured, replayed):
            for name, tensor in env.state.items():
                tensor.copy_(eager.state[name])
            env.ended.copy_(eager.ended)
    assert resets or id == "Humanoid-v5"


@pytest.mark.gpu
@gpu
@needs_warp
def test_rollouts_are_recorded_with_the_policy_and_learned_from(tmp_path: Any):
    settings = {
        "num_envs": 64,
        "num_steps": 8,
        "batch_size": 128,
        "max_iterations": 4,
        "log_freq": 1,
        "seed": 1,
    }
    quiet = {"quiet": True, "eval": False, "tensorboard": False, "runs": str(tmp_path)}
    trainer = whorl.load("warp:Hopper-v5", "ppo", settings | quiet)
    assert trainer.settings.run.env_device.startswith("cuda")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*can't be recorded.*")
        warnings.filterwarnings("ignore", message=".*kernels were compiled.*")
        trainer.train()
    rows = [
        json.loads(line) for path in tmp_path.rglob("metrics.jsonl") for line in path.read_text().splitlines()
    ]
    assert rows and np.isfinite(rows[-1]["loss/critic"])


@pytest.mark.gpu
@gpu
@needs_warp
def test_a_deterministic_world_continues_bit_for_bit_on_a_gpu():
    env, other = (world("Hopper-v5", 64, "cuda", deterministic=True) for _ in range(2))
    env.reset(0), other.reset(1)
    drawn = torch.rand(40, 64, 3, generator=torch.Generator().manual_seed(0)).cuda() * 2 - 1
    for action in drawn[:20]:
        env.step(action)
    other.restore(env.snapshot())
    for action in drawn[20:]:
        a, b = env.step(action), other.step(action)
        assert torch.equal(a.obs, b.obs) and torch.equal(a.reward, b.reward)
