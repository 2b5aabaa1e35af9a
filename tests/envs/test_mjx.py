"""Gymnasium's MuJoCo tasks by MJX, beside Gymnasium's own. Each compiles for ten seconds, so most are long tests."""

import importlib.util
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whorl
from tests.envs.test_warp import action_of, compare, made, view_of
from whorl.core.errors import EnvError, WhorlError
from whorl.envs.adapters import mjx as adapter
from whorl.envs.adapters import warp as warp_adapter
from whorl.envs.adapters.imported import module_of
from whorl.envs.make import find
from whorl.envs.warp.world import MujocoWorld

torch.set_num_threads(1)
CPU = {"device": "cpu"}
needs_mjx = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None or importlib.util.find_spec("mujoco.mjx") is None,
    reason="mujoco-mjx is not installed: pip install -e '.[mjx]'",
)
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@cache
def world(id: str, num_envs: int = 2, device: str = "cpu", **options: Any) -> MujocoWorld:
    found = find(f"mjx:{id}", {**CPU, **options} if device == "cpu" else options).vector(num_envs, device)
    assert isinstance(found, MujocoWorld)
    return found


def step_errors(env: MujocoWorld, id: str, steps: int) -> dict[str, list[float]]:
    """Distances from Gymnasium after each of `steps`, which all start from Gymnasium's state."""
    theirs = made(id).unwrapped
    theirs.reset(seed=0)
    env.reset(0)
    random = np.random.default_rng(0)
    found: dict[str, list[float]] = {"obs": [], "reward": []}
    for _ in range(steps):
        for name, value in {
            "qpos": theirs.data.qpos,
            "qvel": theirs.data.qvel,
            "warmstart": theirs.data.qacc_warmstart,
        }.items():
            env.state[name].copy_(torch.tensor(np.array(value)).unsqueeze(1))
        env.state["position"].fill_(float(env.task.position(view_of(theirs.data))))
        env.ended.zero_()
        canonical = random.uniform(-1, 1, theirs.action_space.shape)
        step = env.step(
            torch.tensor(canonical, dtype=torch.float32, device=env.device).expand(env.num_envs, -1)
        )
        obs, reward, terminated, _, _ = theirs.step(action_of(theirs, canonical))
        assert bool(step.terminated[0]) == terminated
        apart = np.abs(obs - step.obs[0].numpy(force=True)) / (1 + np.abs(obs))
        found["obs"].append(float(apart.max()))
        found["reward"].append(abs(float(reward) - float(step.reward[0])))
    return found


@needs_mjx
@pytest.mark.parametrize(
    "id",
    [
        *("InvertedPendulum-v5", "HalfCheetah-v5", "Hopper-v5"),
        *(
            pytest.param(id, marks=pytest.mark.full)
            for id in ("Walker2d-v5", "Swimmer-v5", "Reacher-v5", "InvertedDoublePendulum-v5", "Hopper-v4")
        ),
    ],
)
def test_each_step_is_gymnasiums(id: str):
    found = step_errors(world(id), id, 60)
    assert max(found["obs"]) < 1e-3 and max(found["reward"]) < 1e-4


@needs_mjx
def test_steps_of_the_ant_are_gymnasiums_unless_a_foot_touches_the_floor():
    """Then friction differs, as with MuJoCo Warp: on capsules steeper than 60 degrees its pyramid is turned."""
    found = step_errors(world("Ant-v5"), "Ant-v5", 30)
    assert np.median(found["obs"]) < 1e-4
    far = compare(world("Ant-v5"), "Ant-v5", 12, stop_at_contact=True)
    assert far["first"] < 1e-5 and far["obs"] < 1e-3 and far["reward"] < 1e-3


@pytest.mark.full
@needs_mjx
@pytest.mark.parametrize("id", ["Humanoid-v5", "HumanoidStandup-v5"])
def test_humanoids_move_as_gymnasiums(id: str):
    """Their solver is Newton's method here and PGS there."""
    far = compare(world(id), id, 5)
    assert far["first"] < 1e-5 and far["obs"] < 1e-2 and far["reward"] < 1e-2


@needs_mjx
def test_several_steps_stay_gymnasiums():
    far = compare(world("Hopper-v5"), "Hopper-v5", 25)
    assert far["first"] < 1e-5 and far["obs"] < 1e-3 and far["reward"] < 1e-3


@needs_mjx
def test_an_ended_episode_is_reset_by_the_next_step():
    env = world("Hopper-v5")
    env.reset(0)
    env.state["qpos"][2, 1] = 0.3  # leaning too far
    still = torch.zeros(2, 3)
    assert env.step(still).terminated.tolist() == [False, True]
    step = env.step(still)
    assert step.reset.tolist() == [False, True] and float(step.reward[1]) == 0.0
    assert float(env.state["qpos"][2].abs().max()) < 0.1 and env.steps.tolist() == [2, 0]


@needs_mjx
def test_a_time_limit_truncates_and_does_not_terminate():
    env = world("InvertedPendulum-v5", max_episode_steps=3)
    env.reset(0)
    steps = [env.step(torch.zeros(2, 1)) for _ in range(4)]
    assert [step.truncated.tolist() for step in steps] == [[False] * 2] * 2 + [[True] * 2] + [[False] * 2]
    assert not any(step.terminated.any() for step in steps) and steps[3].reset.all()


@needs_mjx
def test_results_are_not_overwritten_by_the_next_step():
    env = world("Hopper-v5")
    first = env.reset(0)
    kept = first.clone()
    env.step(torch.ones(2, 3))
    assert torch.equal(first, kept)


@needs_mjx
def test_a_snapshot_continues_bit_for_bit_in_another_process(tmp_path: Path):
    env = world("Hopper-v5")
    env.reset(0)
    drawn = torch.rand(60, 2, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for action in drawn[:20]:
        env.step(action)
    torch.save({"snapshot": env.snapshot(), "drawn": drawn[20:]}, tmp_path / "saved.pt")
    expected = [env.step(action) for action in drawn[20:]]
    assert any(step.reset.any() for step in expected)  # so resets are continued, too
    program = """
import sys, torch
from whorl.envs.make import find
torch.set_num_threads(1)
saved = torch.load(sys.argv[1])
env = find("mjx:Hopper-v5", {"device": "cpu"}).vector(2)
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


@needs_mjx
def test_tensors_and_arrays_share_memory():
    from whorl.envs.mjx.arrays import modules, to_jax, to_torch

    tensor = torch.arange(6.0).reshape(2, 3)
    array = to_jax(tensor)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    made = modules()[0].numpy.ones((2, 3)) * 2
    assert to_torch(made).data_ptr() == made.unsafe_buffer_pointer()


@needs_mjx
def test_training_says_how_long_compiling_took_and_learns(tmp_path: Path):
    settings = {"num_envs": 4, "num_steps": 16, "batch_size": 32, "max_iterations": 3, "log_freq": 1}
    quiet = {"quiet": True, "eval": False, "tensorboard": False, "device": "cpu", "runs": str(tmp_path)}
    trainer = whorl.load("mjx:InvertedPendulum-v5", "ppo", settings | quiet, env_options=CPU)
    with pytest.warns(UserWarning, match=r"MJX's kernels were compiled or loaded in \d+ s; they are kept in"):
        trainer.train()
    rows = [
        json.loads(line) for path in tmp_path.rglob("metrics.jsonl") for line in path.read_text().splitlines()
    ]
    assert rows and np.isfinite(rows[-1]["loss/critic"])


@needs_mjx
def test_options_that_do_not_exist_are_named():
    with pytest.raises(EnvError, match="iterations is 0; it must be a number from 1 on"):
        find("mjx:Hopper-v5", {"iterations": 0})
    with pytest.raises(WhorlError, match="gravity"):
        find("mjx:Hopper-v5", {"gravity": 1})
    with pytest.raises(EnvError, match=r"mjx:Hopper-v5 needs a CUDA GPU .* use Hopper-v5, or"):
        find("mjx:Hopper-v5").vector(2)
    with pytest.raises(EnvError, match=r"mjx:Hopper-v5 is a batch .* or make one of them as Hopper-v5"):
        whorl.make("mjx:Hopper-v5")


def test_ids_are_those_of_gymnasium(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adapter, "find_spec", lambda name: True)
    assert find("mjx:Hopper").id == "mjx:Hopper-v5" and module_of("mjx:Hopper-v5") == ""
    with pytest.raises(
        EnvError, match="unknown environment 'mjx:Huminoid-v5'; did you mean 'mjx:Humanoid-v5'"
    ):
        find("mjx:Huminoid-v5")
    with pytest.raises(EnvError, match="unknown environment 'mjx:Pusher-v5'"):
        find("mjx:Pusher-v5")  # MJX takes seconds for a step of it


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adapter, "find_spec", lambda name: None)
    with pytest.raises(WhorlError, match=r"mujoco-mjx is not installed; install it with: .*\[mjx\]"):
        find("mjx:Hopper-v5")


def test_mjx_is_named_where_mujoco_warp_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warp_adapter, "find_spec", lambda name: None)
    with pytest.raises(WhorlError, match=r"\[warp\]'; or, .* use mjx:Hopper-v5: pip install .*\[mjx\]"):
        find("warp:Hopper-v5")


@pytest.mark.gpu
@gpu
@needs_mjx
@pytest.mark.parametrize("id", ["Hopper-v5", "HalfCheetah-v5"])
def test_on_a_gpu_each_step_is_gymnasiums(id: str):
    found = step_errors(world(id, 64, "cuda"), id, 30)
    assert max(found["obs"]) < 2e-3 and max(found["reward"]) < 2e-3


@pytest.mark.gpu
@gpu
@needs_mjx
def test_a_deterministic_world_continues_bit_for_bit_on_a_gpu():
    env = world("Hopper-v5", 64, "cuda", deterministic=True)
    drawn = torch.rand(40, 64, 3, generator=torch.Generator().manual_seed(0)).cuda() * 2 - 1
    env.reset(0)
    for action in drawn[:20]:
        env.step(action)
    snapshot = env.snapshot()
    expected = [env.step(action) for action in drawn[20:]]
    env.restore(snapshot)
    for action, step in zip(drawn[20:], expected):
        again = env.step(action)
        assert torch.equal(again.obs, step.obs) and torch.equal(again.reward, step.reward)
