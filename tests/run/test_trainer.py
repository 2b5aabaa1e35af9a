"""Around the loop: what goes bad is named, what was learned is kept, what belongs to a run stays its own."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import whorl
from whorl.errors import CheckpointError, ConfigError, DivergedError
from whorl.state import checkpoint

SMALL = {
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "lanes": 2,
    "rollout_steps": 16,
    "batch_size": 32,
    "epochs": 1,
    "model_checkpoint_freq": 1,
    "max_epochs": 3,
    "workers": 0,
    "lr_schedule": "constant",
}


class Poisoned(gymnasium.Env):
    """Goes bad after `after` steps of a lane."""

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


@pytest.mark.parametrize("what", ["observation", "reward"])
def test_what_is_not_finite_stops_the_run_by_its_name_and_keeps_the_last_good_checkpoint(
    what: str, tmp_path: Path
) -> None:
    settings = {**SMALL, "runs": str(tmp_path), "max_epochs": 50, "reset_every": 1}
    with pytest.raises(DivergedError, match=f"{what} that is not finite"):
        whorl.load(lambda: Poisoned(what), "ppo", settings).train()
    run = next(tmp_path.iterdir())
    kept = checkpoint.load_newest(run, pytest.fail)
    assert all(bool(torch.isfinite(value).all()) for value in kept.policy["module"].values())


def test_a_loss_that_is_not_finite_stops_the_run_by_its_name(tmp_path: Path) -> None:
    settings = {**SMALL, "runs": str(tmp_path), "critic_lr": 1e30, "max_grad_norm": 0.0, "max_epochs": 50}
    with pytest.raises(DivergedError, match=r"(loss|value|gradient)/\w+ became"):
        whorl.load("CartPole-v1", "ppo", settings).train()


def test_training_again_goes_on_where_it_stopped(tmp_path: Path) -> None:
    settings = {**SMALL, "max_epochs": 6, "runs": str(tmp_path / "twice")}

    class Pause(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            if trainer.epoch == 3 and not trainer.paused:
                trainer.paused = True
                trainer.stop("a pause")

    trainer = whorl.load("CartPole-v1", "ppo", settings, callbacks=[Pause()])
    trainer.paused = False  # type: ignore[attr-defined]
    assert trainer.train().epochs == 3
    again = trainer.train()
    straight = whorl.load("CartPole-v1", "ppo", {**settings, "runs": str(tmp_path / "once")}).train()
    assert again.epochs == 6 and again.steps == straight.steps
    one, other = (checkpoint.load_newest(r.run_dir, pytest.fail).policy["module"] for r in (again, straight))
    assert all(torch.equal(one[key], other[key]) for key in one if key != "progress")


def test_a_warm_start_takes_weights_but_not_rates_and_any_number_of_lanes(tmp_path: Path) -> None:
    first = whorl.load("CartPole-v1", "ppo", {**SMALL, "runs": str(tmp_path), "actor_lr": 1e-2}).train()
    settings = {**SMALL, "runs": str(tmp_path), "lanes": 4, "batch_size": 64, "actor_lr": 1e-4}
    trainer = whorl.load("CartPole-v1", "ppo", settings, callbacks=[whorl.WarmStart(first.run_dir)])
    seen = {}

    class Look(whorl.Callback):
        def on_start(self, trainer: Any) -> None:
            seen.update({key: value.clone() for key, value in trainer.agent.state_dict().items()})

    trainer.callbacks.append(Look())
    trainer.train()
    saved = checkpoint.load_newest(first.run_dir, pytest.fail).policy["module"]
    assert torch.equal(seen["actor.head.logits.weight"], saved["actor.head.logits.weight"])
    assert seen["lr_actor"] == pytest.approx(1e-4)
    with pytest.raises(ConfigError, match="load_checkpoint_dir"):
        whorl.load("CartPole-v1", "ppo", {**settings, "load_model": True}).train()
    with pytest.raises(CheckpointError, match="do not fit"):
        other = {**settings, "load_model": True, "load_checkpoint_dir": str(first.run_dir)}
        whorl.load("CartPole-v1", "ppo", {**other, "actor_hidden": [8]}).train()


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
    weight = agent.actor.body.torso.weight
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
    with pytest.raises(ConfigError, match="torch sees no GPU here; use auto or cpu"):
        whorl.load("CartPole-v1", "ppo", {**SMALL, "learner_device": "cuda"}).build()
