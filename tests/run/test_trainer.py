"""Around the loop: what goes bad is named, what was learned is kept, what belongs to a run stays its own."""

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import whorl
from whorl.core import process
from whorl.core.errors import CheckpointError, ConfigError, DivergedError, WhorlError
from whorl.nets.normalize import ReturnScale
from whorl.run import trainer as trainer_module
from whorl.run.build import choose_device
from whorl.run.checkpointing import Checkpointing
from whorl.state import checkpoint

SMALL = {
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "num_envs": 2,
    "num_steps": 16,
    "batch_size": 32,
    "n_epochs": 1,
    "checkpoint_freq": 1,
    "max_iterations": 3,
    "workers": 0,
    "lr_schedule": "constant",
}


class Poisoned(gymnasium.Env):
    """Goes bad after `after` steps of a environment."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, what: str, after: int = 40) -> None:
        self.what, self.after, self.steps = what, after, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        bad = self.steps > self.after
        obs = np.full(3, np.nan if bad and self.what == "observation" else 0.5, np.float32)
        reward = float("inf") if bad and self.what == "reward" else 1.0
        return obs, reward, self.steps % 10 == 0, False, {}


@pytest.mark.parametrize("what", ["an observation", "a reward"])
def test_what_is_not_finite_stops_the_run_by_its_name_and_keeps_the_last_good_checkpoint(
    what: str, tmp_path: Path
) -> None:
    settings = {**SMALL, "runs": str(tmp_path), "max_iterations": 50, "reset_every": 1}
    with pytest.raises(
        DivergedError, match=rf"environment [01] gave {what} that is not finite at about step \d+;"
    ):
        whorl.load(lambda: Poisoned(what.split()[1]), "ppo", settings).train()
    run = next(tmp_path.iterdir())
    kept = checkpoint.use_newest(run, pytest.fail, lambda loaded: loaded)
    assert all(bool(torch.isfinite(value).all()) for value in kept.policy["module"].values())


def test_a_loss_that_is_not_finite_stops_the_run_by_its_name(tmp_path: Path) -> None:
    steep = {"critic_lr": 100, "optimizer": "SGD", "max_grad_norm": 0.0}
    settings = {**SMALL, **steep, "runs": str(tmp_path), "max_iterations": 50}
    with pytest.raises(DivergedError, match=r"(loss|value|gradient)/\w+ became"):
        whorl.load("CartPole-v1", "ppo", settings).train()


def test_training_again_goes_on_where_it_stopped(tmp_path: Path) -> None:
    settings = {**SMALL, "max_iterations": 6, "runs": str(tmp_path / "twice")}

    class Pause(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            if trainer.iteration == 3 and not trainer.paused:
                trainer.paused = True
                trainer.stop("a pause")

    trainer = whorl.load("CartPole-v1", "ppo", settings, callbacks=[Pause()])
    trainer.paused = False  # type: ignore[attr-defined]
    assert trainer.train().iterations == 3
    again = trainer.train()
    straight = whorl.load("CartPole-v1", "ppo", {**settings, "runs": str(tmp_path / "once")}).train()
    assert again.iterations == 6 and again.steps == straight.steps
    one, other = (
        checkpoint.use_newest(r.run_dir, pytest.fail, lambda loaded: loaded).policy["module"]
        for r in (again, straight)
    )
    assert all(torch.equal(one[key], other[key]) for key in one if key != "progress")


def test_a_time_limit_saves_and_stops_and_each_call_has_its_own(tmp_path: Path) -> None:
    settings = {**SMALL, "max_iterations": 3, "runs": str(tmp_path)}
    first = whorl.train("CartPole-v1", "ppo", {**settings, "max_seconds": 1e-3})
    assert first.iterations == 1 and first.reason == "0.001 s are over"
    again = whorl.resume(first.run_dir)
    assert again.iterations == 2
    assert whorl.resume(first.run_dir, max_seconds=0).iterations == 3


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of trainers, which stands still unless a test moves it."""
    found = SimpleNamespace(now=0.0)
    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(perf_counter=lambda: found.now))
    return found


@pytest.mark.parametrize(
    "slow",
    [(trainer_module, "build"), (checkpoint, "bring_rows"), (trainer_module, "Reporting")],
    ids=["building", "restoring", "loggers"],
)
def test_the_time_limit_counts_what_comes_before_the_first_step(
    slow: tuple[Any, str], clock: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = whorl.train("CartPole-v1", "ppo", {**SMALL, "max_iterations": 1, "runs": str(tmp_path)})
    usual = getattr(*slow)

    def slowly(*given: Any) -> Any:
        clock.now += 40.0
        return usual(*given)

    monkeypatch.setattr(*slow, slowly)
    limited = whorl.resume(first.run_dir, max_iterations=5, max_seconds=30)
    assert (limited.iterations, limited.reason) == (2, "30 s are over")
    assert whorl.resume(first.run_dir, max_seconds=50).iterations == 5


def test_the_time_limit_counts_no_pause_between_steps(clock: SimpleNamespace, tmp_path: Path) -> None:
    with whorl.load("CartPole-v1", "ppo", {**SMALL, "max_seconds": 60.0, "runs": str(tmp_path)}) as trainer:
        for _ in range(2):
            trainer.step()
            clock.now += 1000.0
        assert not trainer.finished


def test_what_raises_before_the_first_step_leaves_no_folder_and_can_be_repeated(tmp_path: Path) -> None:
    class Refuses(whorl.Callback):
        def on_start(self, trainer: Any) -> None:
            raise WhorlError("not today")

    trainer = whorl.load("CartPole-v1", "ppo", {**SMALL, "runs": str(tmp_path)}, callbacks=[Refuses()])
    with pytest.raises(WhorlError, match="not today"):
        trainer.train()
    assert not list(tmp_path.iterdir())
    trainer.callbacks.pop()
    assert trainer.train().iterations == 3


def test_a_warm_start_takes_weights_but_not_rates_and_any_number_of_envs(tmp_path: Path) -> None:
    first = whorl.load("CartPole-v1", "ppo", {**SMALL, "runs": str(tmp_path), "actor_lr": 1e-2}).train()
    settings = {**SMALL, "runs": str(tmp_path), "num_envs": 4, "batch_size": 64, "actor_lr": 1e-4}
    trainer = whorl.load("CartPole-v1", "ppo", settings, callbacks=[whorl.WarmStart(first.run_dir)])
    seen = {}

    class Look(whorl.Callback):
        def on_start(self, trainer: Any) -> None:
            seen.update({key: value.clone() for key, value in trainer.agent.state_dict().items()})

    trainer.callbacks.append(Look())
    trainer.train()
    saved = checkpoint.use_newest(first.run_dir, pytest.fail, lambda loaded: loaded).policy["module"]
    assert torch.equal(seen["actor.head.logits.weight"], saved["actor.head.logits.weight"])
    assert seen["lr_actor"] == pytest.approx(1e-4)
    with pytest.raises(ConfigError, match="load_checkpoint_dir"):
        whorl.load("CartPole-v1", "ppo", {**settings, "load_model": True}).train()
    with pytest.raises(CheckpointError, match="not taken: actor"):
        other = {
            **settings,
            "load_model": True,
            "load_checkpoint_dir": str(first.run_dir),
            "load_strict": True,
        }
        whorl.load("CartPole-v1", "ppo", {**other, "actor_hidden_sizes": [8]}).train()


def test_a_warm_start_keeps_returns_of_running_episodes_also_those_of_components(tmp_path: Path) -> None:
    given = {**SMALL, "runs": str(tmp_path), "components": ["rnd"], "normalize_reward": True}
    first = whorl.load("CartPole-v1", "ppo", given).train()
    with whorl.load("CartPole-v1", "ppo", {**given, "num_envs": 4, "batch_size": 64}).build() as trainer:
        trainer.load_weights(first.run_dir, strict=True)  # all that is not of one run fits
    with whorl.load("CartPole-v1", "ppo", given).build() as trainer:
        scales = [module for module in trainer.agent.modules() if isinstance(module, ReturnScale)]
        assert len(scales) == 2
        for scale in scales:
            scale.running.fill_(-7)
        trainer.load_weights(first.run_dir)
        assert all(bool((scale.running == -7).all()) for scale in scales)


class Einsum(nn.Module):
    """A layer whose gradient lies transposed in memory."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 8 * inputs).reshape(8, inputs))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return torch.einsum("...i,oi->...o", value, self.weight)


def test_a_gradient_in_another_memory_layout_is_applied_where_it_belongs() -> None:
    whorl.register("network", "einsum", Einsum)
    settings = {**SMALL, "actor_network": {"class": "einsum"}, "max_grad_norm": 0.0}
    agent = whorl.load("CartPole-v1", "ppo", settings).build().agent
    weight = agent.actor.backbone.torso.weight
    before = weight.detach().clone()
    slope = torch.arange(32.0).reshape(4, 8).T + 1  # strides (1, 8) against the parameter's (4, 1)
    agent.minimize("actor", (weight * slope).sum())
    moved = weight.detach() - before
    # Adam's first step is -rate * sign(gradient): all alike; its first moment must be the gradient, element by element.
    moment = agent._optimizers["actor"].state[weight]["exp_avg"]
    assert torch.allclose(moment, 0.1 * slope)
    assert torch.allclose(moved, torch.full_like(moved, -agent.cfg.actor_lr), rtol=1e-3)


def test_a_missing_gpu_is_one_sentence() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    with pytest.raises(ConfigError, match="torch finds no GPU; use auto or cpu"):
        whorl.load("CartPole-v1", "ppo", {**SMALL, "device": "cuda"}).build()


# What a diverged net is called


class Drift(gymnasium.Env):
    """Follows its action, so that one that is no number ends in an observation that is none."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, strict: bool = False) -> None:
        self.strict, self.steps = strict, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert not self.strict or np.isfinite(action).all(), "this is no action"
        self.steps += 1
        return np.array([action[0], 0.5], np.float32), 1.0, False, self.steps % 10 == 0, {}


class Spoil(whorl.Callback):
    """Writes `value` over the policy's last bias after so many epochs, as a net that diverges would."""

    def __init__(self, value: float, epoch: int = 2) -> None:
        self.value, self.iteration = value, epoch

    def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
        if trainer.iteration == self.iteration:
            with torch.no_grad():
                trainer.agent.actor.head.mean.bias.fill_(self.value)


def spoiled(tmp_path: Path, value: float, **settings: Any) -> None:
    strict = settings.pop("strict", False)
    given = {**SMALL, "runs": str(tmp_path), "log_freq": 5000, "checkpoint_freq": 10_000, **settings}
    whorl.load(lambda: Drift(strict), "ppo", {**given, "max_iterations": 9}, callbacks=[Spoil(value)]).train()


def test_a_diverged_net_that_acts_before_its_losses_are_looked_at_is_not_blamed_on_the_environment(
    tmp_path: Path,
) -> None:
    with pytest.raises(DivergedError, match=r"the weights actor.head.mean.bias are no longer finite; lower"):
        spoiled(tmp_path, float("nan"))


def test_nor_where_the_environment_refuses_such_actions(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"the weights actor.head.mean.bias are no longer finite"):
        spoiled(tmp_path, float("nan"), strict=True)
    with pytest.raises(Exception, match="this is no action"):
        # what is not the net's doing stays what it was
        class Refuses(Drift):
            def step(self, action: Any) -> Any:
                raise AssertionError("this is no action")

        whorl.load(lambda: Refuses(), "ppo", {**SMALL, "runs": str(tmp_path)}).train()


class Overflow(nn.Module):
    """Finite weights, and a sum that is not."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, inputs), 3e38))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return (value + 1) @ self.weight.T


def test_an_action_that_is_not_finite_is_the_policys_where_its_observation_is(tmp_path: Path) -> None:
    whorl.register("network", "overflow", Overflow)
    settings = {**SMALL, "runs": str(tmp_path), "actor_network": {"class": "overflow"}}
    with pytest.raises(DivergedError, match="the policy gave an action that is not finite at about step 0"):
        whorl.load(Drift, "ppo", settings).train()


def test_a_checkpoint_never_holds_weights_that_are_not_finite(tmp_path: Path) -> None:
    # the losses of the second epoch are finite: its weights went bad after them
    with pytest.raises(DivergedError, match=r"the weights actor.head.mean.bias are no longer finite"):
        spoiled(tmp_path, float("nan"), checkpoint_freq=1, reset_every=1)
    kept = checkpoint.use_newest(next(tmp_path.iterdir()), pytest.fail, lambda loaded: loaded)
    assert kept.metadata["iterations"] == 1
    assert all(bool(torch.isfinite(value).all()) for value in kept.policy["module"].values())


def test_a_diverged_policy_is_not_evaluated_nor_kept_as_the_best(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"the weights actor.head.mean.bias are no longer finite"):
        spoiled(tmp_path, float("nan"), eval=True, eval_freq=60, n_eval_episodes=1)
    assert not (next(tmp_path.iterdir()) / checkpoint.BEST).exists()


# The last row


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_last_window_is_written_though_it_is_not_full(tmp_path: Path) -> None:
    run = whorl.load("CartPole-v1", "ppo", {**SMALL, "runs": str(tmp_path), "log_freq": 55}).train().run_dir
    first, last = rows(run)
    assert (first["iteration"], last["iteration"]) == (2, 3)
    assert first.keys() - {"episode/return", "episode/length"} <= last.keys() and "loss/actor" in last


@pytest.mark.parametrize("freq", [1, 10_000])
def test_a_run_that_goes_on_writes_that_window_whole(freq: int, tmp_path: Path) -> None:
    settings = {**SMALL, "log_freq": 100, "checkpoint_freq": freq}
    whole = whorl.load(
        "CartPole-v1", "ppo", {**settings, "max_iterations": 6, "runs": str(tmp_path / "a")}
    ).train()
    half = whorl.load(
        "CartPole-v1", "ppo", {**settings, "max_iterations": 3, "runs": str(tmp_path / "b")}
    ).train()
    assert [row["iteration"] for row in rows(half.run_dir)] == [3]
    whorl.resume(half.run_dir)  # nothing is left to do: the row stays
    assert [row["iteration"] for row in rows(half.run_dir)] == [3]
    whorl.resume(half.run_dir, max_iterations=6)
    one, other = (
        [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows(run)]
        for run in (whole.run_dir, half.run_dir)
    )
    assert [row["iteration"] for row in one] == [4, 6]
    assert one == other


def test_a_row_with_an_evaluation_holds_what_was_learned_until_then(tmp_path: Path) -> None:
    settings = {
        **SMALL,
        "log_freq": 5000,
        "eval": True,
        "eval_freq": 55,
        "n_eval_episodes": 1,
        "runs": str(tmp_path),
    }
    first, last = rows(whorl.load("CartPole-v1", "ppo", settings).train().run_dir)
    assert (first["iteration"], last["iteration"]) == (2, 3)
    assert {"evaluation/return", "loss/actor"} <= first.keys() & last.keys()


# Small sentences


def test_training_again_without_checkpoints_is_told(tmp_path: Path) -> None:
    trainer = whorl.load("CartPole-v1", "ppo", {**SMALL, "runs": str(tmp_path), "save_model": False})
    trainer.train()
    with pytest.raises(
        CheckpointError, match="was trained with save_model false, so there is no checkpoint to continue from"
    ):
        trainer.train()


def test_envs_that_are_reset_after_every_row_have_nothing_to_learn_from(tmp_path: Path) -> None:
    settings = {"quiet": True, "tensorboard": False, "runs": str(tmp_path), "buffer_size": 100, "workers": 0}
    trainer = whorl.load(Drift, "sac", {**settings, "num_envs": 2, "num_steps": 1, "reset_every": 2})
    with pytest.raises(
        ConfigError, match=r"reset_every is 2: 2 environments would be reset .* use more than 2"
    ):
        trainer.train()


@pytest.mark.parametrize("most", [1 << 30, 1 << 25])
def test_freed_memory_is_kept_as_far_as_the_c_library_goes(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: dict[int, int] = {}

    def mallopt(knob: int, value: int) -> int:
        if value > most:
            return 0
        taken[knob] = value
        return 1

    monkeypatch.setattr(process.platform, "libc_ver", lambda: ("glibc", "2.31"))
    monkeypatch.setattr(process.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    process.keep_freed_memory()
    assert taken == {-1: most, -3: most}


class Rooms(gymnasium.Env):
    """Episodes of three steps that have seen 2 rooms, then 4, then 2, ..."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    measures = ("rooms",)
    episodes = 0

    def reset(self, **given: Any) -> Any:
        self.steps, self.episodes = 0, self.episodes + 1
        return np.zeros(2, np.float32), {"rooms": 1}

    def step(self, action: int) -> Any:
        self.steps += 1
        info = {"rooms": 2 + 2 * (self.episodes % 2)}
        return np.zeros(2, np.float32), 1.0, self.steps == 3, False, info


@pytest.mark.parametrize("workers", [0, 2])
def test_what_an_environment_measures_is_averaged_over_the_episodes_of_a_row(
    tmp_path: Path, workers: int
) -> None:
    """Sixteen rows a environment are four episodes of three steps and a reset each: 4, 2, 4, 2 rooms, 3 in the mean."""
    settings = {
        "runs": str(tmp_path),
        "num_envs": 4,
        "num_steps": 16,
        "batch_size": 64,
        "max_iterations": 2,
        "log_freq": 1,
    }
    quiet = {"quiet": True, "tensorboard": False, "eval": False, "save_model": False, "workers": workers}
    result = whorl.load(lambda: Rooms(), "ppo", {**settings, **quiet}).train()
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["episode/rooms"] for row in rows] == [3.0, 3.0]


def test_what_a_native_environment_measures_is_averaged_too(tmp_path: Path) -> None:
    """Episodes of one step visit one cell, where it leads into a wall, or two, of the 17 of a maze of 7 by 7."""
    settings = {"num_envs": 8, "num_steps": 16, "batch_size": 64, "max_iterations": 1, "runs": str(tmp_path)}
    quiet = {"quiet": True, "tensorboard": False, "eval": False, "save_model": False}
    options = {"env_options": {"size": 7, "max_steps": 1}}
    result = whorl.load("DiscoMaze-v0", "ppo", {**settings, **quiet, **options}).train()
    row = json.loads((result.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert 1 < row["episode/cells_visited"] < 2
    assert row["episode/coverage"] == pytest.approx(row["episode/cells_visited"] / 17)


class Paying(gymnasium.Env):
    """Pays 1 for every step of endless episodes: with gamma 0.99 the return is 100."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0, False, False, {}


def test_targets_outside_c51s_atoms_are_one_warning_with_the_remedy(tmp_path: Path) -> None:
    replay = {"learning_starts": 0, "updates_per_step": 1, "learning_rate": 0.01, "hidden_sizes": [8]}
    settings = {**SMALL, **replay, "runs": str(tmp_path), "log_freq": 1, "max_iterations": 8}
    with pytest.warns(UserWarning, match="set v_min and v_max to the lowest and highest") as told:
        whorl.load(Paying, "c51", {k: v for k, v in settings.items() if k != "n_epochs"}).train()
    assert len([found for found in told if "v_min" in str(found.message)]) == 1
    settings = {**settings, "v_min": 0.0, "v_max": 100.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whorl.load(Paying, "c51", {k: v for k, v in settings.items() if k != "n_epochs"}).train()


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_gpu_has_its_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise environments on the same GPU count as elsewhere, and a copy of the policy acts there.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device(name) == torch.device("cuda", 0)


def test_a_resumed_run_is_restored_with_the_options_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = whorl.load("CartPole-v1", "ppo", {**SMALL, "threads": 2, "runs": str(tmp_path)}).train()
    found, load = [], Checkpointing.load_state

    def load_state(self: Checkpointing, state: dict[str, Any]) -> None:
        found.append(torch.get_num_threads())
        load(self, state)

    monkeypatch.setattr(Checkpointing, "load_state", load_state)
    before = torch.get_num_threads()
    whorl.resume(result.run_dir, max_iterations=4)
    assert found == [2] and torch.get_num_threads() == before != 2
