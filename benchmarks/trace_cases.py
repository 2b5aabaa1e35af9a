"""The runs that `traces.py` compares, and the process that trains them inside one checkout.

`python benchmarks/trace_cases.py` reads names of cases from standard input and answers each with one line of JSON. It
uses only the public API, with the setting names of commit 4a0ae69 (later versions accept them as aliases), so that the
same file runs in checkouts before and after modules move and settings are renamed.
"""

import hashlib
import importlib.util
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from checkouts import import_whorl
from gymnasium import spaces

PRESETS = "settings of all presets"
"""the case that trains nothing: it lists what every preset sets on every environment of `TUNED`"""
TUNED = (
    *("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "LunarLander-v3", "MountainCar-v0", "Quadrotor-v0"),
    *("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v4", "Ant-v5", "Humanoid-v4", "Humanoid-v5"),
    *("ALE/Pong-v5", "PongNoFrameskip-v4", "MinAtar/Breakout-v1", "TMaze-v0", "TMazeLong-v0"),
    *("RepeatPrevious-v0", "PendulumP-v0", "PendulumV-v0", "PendulumVA-v0", "QuadInvPendulum-v0"),
    *("CarHeavenHellPriest-v0", "WaterMazeHidden-v0", "WaterMazeSimpleHidden-v0"),
)
"""environments that presets have settings for, and one that none has"""
RECORDED = "recorded"
"""dataset of a case that is recorded with random actions before it trains"""
PLAYED = 12
"""steps that the trained policy is asked for after training"""


class Toy(gymnasium.Env):
    """A cheap environment for observations and actions that no registered one has: the target is a random walk.

    Args:
        observation: image (uint8 [12, 12, 2]) or dict (an image and a vector).
        action: discrete, masked (discrete with a mask in `info`), continuous, many (MultiDiscrete) or tuple.
    """

    def __init__(self, observation: str, action: str) -> None:
        image = spaces.Box(0, 255, (12, 12, 2), np.uint8)
        vector = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.shown, self.kind = observation, action
        self.observation_space = (
            image if observation == "image" else spaces.Dict({"image": image, "vector": vector})
        )
        box, choice = spaces.Box(-2.0, 2.0, (2,), np.float32), spaces.Discrete(4)
        self.action_space = {
            "discrete": choice,
            "masked": choice,
            "continuous": box,
            "many": spaces.MultiDiscrete([3, 2]),
            "tuple": spaces.Tuple((choice, box)),
        }[action]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.place = 0, self.np_random.standard_normal(3).astype(np.float32)
        return self._observe(), self._info()

    def step(self, action: Any) -> Any:
        parts = action if isinstance(action, tuple) else (action,)
        push = np.concatenate([np.ravel(part) for part in parts]).astype(np.float32).mean()
        self.time += 1
        self.place = self.place * np.float32(0.9) + self.np_random.standard_normal(3).astype(np.float32) / 4
        reward = float(-abs(push - self.place[0]))
        return self._observe(), reward, bool(self.place[1] > 1.2), self.time >= 20, self._info()

    def _observe(self) -> Any:
        image = np.zeros((12, 12, 2), np.uint8)
        row, column = (np.clip(self.place[:2], -2, 2) * 2.5 + 6).astype(int)
        image[row, column, 0] = 255
        image[:, self.time % 12, 1] = 128
        return image if self.shown == "image" else {"image": image, "vector": self.place.copy()}

    def _info(self) -> dict[str, Any]:
        if self.kind != "masked":
            return {}
        mask = np.ones(4, np.int8)
        mask[self.time % 4] = 0
        return {"action_mask": mask}


@dataclass(frozen=True)
class Case:
    """One run.

    `env` is an id or a pair of `Toy`'s arguments. With `resume` the run stops after half of its epochs and is resumed
    from its checkpoint. `needs` is a package without which the case is skipped.
    """

    name: str
    env: Any
    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False
    needs: str = ""

    @property
    def skipped(self) -> bool:
        return bool(self.needs) and importlib.util.find_spec(self.needs) is None


RUN = {
    "seed": 3,
    "lanes": 4,
    "workers": 0,
    "learner_device": "cpu",
    "eval_episodes": 2,
    "eval_freq": 10_000,
    "log_freq": 1,
    "model_checkpoint_freq": 10_000,
    "tensorboard": False,
    "quiet": True,
    "gamma": 0.97,
}
ROLLOUTS = {"rollout_steps": 32, "max_epochs": 40}
"""on-policy, one update per rollout"""
NETS = {"actor_hidden": [16, 16], "critic_hidden": [16, 16]}
PASSES = {**ROLLOUTS, **NETS, "max_epochs": 25, "epochs": 3, "batch_size": 32}
REPLAY = {
    "rollout_steps": 8,
    "max_epochs": 50,
    "capacity": 1000,
    "batch_size": 16,
    "learn_after": 64,
    "ratio": 0.2,
    "total_steps": 0,
}
CONTROL = {**REPLAY, **NETS, "random_steps": 100, "ratio": 0.2}
# So fast that online and target net soon choose differently, which `double` needs to make a difference.
VALUES = {**REPLAY, "hidden": [16], "lr": 5e-3, "target_every": 20, "epsilon_share": 0.5}
MEMORY = {"memory": "lstm", "memory_size": 8, "last_action": True, "last_reward": True}
SEQUENCES = {**MEMORY, "sequence": 8, "burn_in": 2, "stride": 4, "batch_size": 8}
ATTENTION = {"memory": "attention", "memory_size": 8, "memory_heads": 2, "memory_window": 6}
PRIORITIES = {"prioritized": True, "priority_beta_steps": 1000, "n_step": 3}
SMALL_IMAGES = {"encoder": {"class": "images", "kind": "small", "features": 16}}

BASES = {
    "a2c": {**ROLLOUTS, **NETS, "rollout_steps": 8, "max_epochs": 100},
    "ppo": PASSES,
    "ppg": {**PASSES, "aux_every": 4, "aux_epochs": 2, "aux_batch_factor": 1.0},
    "reinforce": {**ROLLOUTS, **NETS, "lookahead": 8},
    "trpo": {**ROLLOUTS, **NETS, "max_epochs": 25, "batch_size": 32},
    "impala": {**ROLLOUTS, **NETS, "rollout_steps": 8, "max_epochs": 100, "actors": 0},
    "pqn": {
        **ROLLOUTS,
        "max_epochs": 25,
        "hidden": [16],
        "batch_size": 32,
        "epochs": 3,
        "epsilon_share": 0.5,
    },
    "dqn": VALUES,
    "qr_dqn": {**VALUES, "n_quantiles": 8},
    "c51": {**VALUES, "n_atoms": 11},
    "iqn": {
        **VALUES,
        "n_fractions": 4,
        "n_target_fractions": 5,
        "n_policy_fractions": 6,
        "n_cosines": 8,
        "max_epochs": 40,
    },
    "ddpg": CONTROL,
    "td3": CONTROL,
    "sac": CONTROL,
    "tqc": {**CONTROL, "n_critics": 3, "n_quantiles": 5, "n_drop_atoms": 1},
    "crossq": {**CONTROL, "renorm_warmup": 100},
    "flash_sac": {**REPLAY, "random_steps": 100, "actor_width": 8, "critic_width": 8, "n_atoms": 11},
    "option_critic": {**CONTROL, "num_options": 3},
    "bc": {
        key: value
        for key, value in CONTROL.items()
        if key not in ("critic_hidden", "random_steps", "learn_after")
    },
    "iql": {key: value for key, value in CONTROL.items() if key != "random_steps"},
}
"""settings of every update rule, small enough for a case to take a second or two"""
INHERITED = {
    "a3c": "a2c",
    "actor_critic": "a2c",
    "reinforce_baseline": "reinforce",
    **dict.fromkeys(
        (
            *("double_dqn", "dueling_dqn", "noisy_dqn", "prioritized_dqn", "apex_dqn", "drqn", "r2d2"),
            *("ngu", "agent57"),
        ),
        "dqn",
    ),
    **dict.fromkeys(("rainbow", "c51_dqn"), "c51"),
    "btr": "iqn",
    **dict.fromkeys(("ddpg_lillicrap", "rdpg"), "ddpg"),
    **dict.fromkeys(("rtd3", "fast_td3", "td3_bc"), "td3"),
    "cql": "sac",
    **dict.fromkeys(("redq", "droq", "rsac", "rsac_share"), "sac"),
}
"""presets by the update rule that they use"""
CARTPOLE, PENDULUM, MAZE, VELOCITY = "CartPole-v1", "Pendulum-v1", "TMaze-v0", "PendulumV-v0"
BREAKOUT = "MinAtar/Breakout-v1"
VALUE_RULES = ("dqn", "qr_dqn", "c51", "iqn")
CONTROL_RULES = ("ddpg", "td3", "sac", "tqc")


def case(name: str, env: Any, algorithm: str, resume: bool = False, needs: str = "", **settings: Any) -> Case:
    """A case with the small settings of its update rule under its own."""
    base = BASES[INHERITED.get(algorithm, algorithm)]
    if "sequence" in settings:  # an update takes several times as long
        base = {**base, "max_epochs": 30}
    run = {
        key: value for key, value in RUN.items() if algorithm != "bc" or key != "gamma"
    }  # which bc does not use
    return Case(
        name,
        env,
        algorithm,
        {**run, **base, **settings},
        resume,
        needs,
    )


def cases() -> list[Case]:
    """Every case, in the order in which they are run: the long ones first."""
    found = [
        *_processes(),
        Case(PRESETS, "", ""),
        *_on_policy(),
        *_memories(),
        *_values(),
        *_control(),
        *_replay(),
        *_datasets(),
        *_observations(),
        *_presets(),
    ]
    names = [one.name for one in found]
    assert len(names) == len(set(names)), "two cases have the same name"
    return found


def _on_policy() -> Iterator[Case]:
    normalized = {
        "normalize_obs": True,
        "normalize_reward": True,
        "clip_obs": True,
        "obs_clip_range": 2.0,
        "clip_reward": True,
        "reward_clip_range": 1.5,
    }
    plain = {"normalize_obs": False, "normalize_reward": False}
    for rule in ("a2c", "ppo", "ppg", "reinforce", "impala"):
        yield case(f"{rule} discrete", CARTPOLE, rule, **plain)
        yield case(f"{rule} continuous, normalized", PENDULUM, rule, **normalized)
    linear = {"lr_schedule": "linear"}
    yield case(
        "a2c linear, advantages normalized", CARTPOLE, "a2c", **linear, normalize_advantage=True, lam=0.9
    )
    yield case("ppo linear", CARTPOLE, "ppo", **linear, entropy_coef=0.01, normalize_advantage="minibatch")
    yield case("ppo kl", PENDULUM, "ppo", lr_schedule="kl", target_kl=0.002, final_kl=0.5)
    yield case("ppo kl_cut", PENDULUM, "ppo", kl_cut=0.001, actor_lr=1e-3, clip=0.1, epochs=5)
    yield case("ppo clip_value", CARTPOLE, "ppo", clip_value=True, value_clip=0.1, normalize_advantage="none")
    yield case("ppo value_target return, huber", PENDULUM, "ppo", value_target="return", critic_loss="huber")
    yield case("ppo AdamW, bounds", PENDULUM, "ppo", optimizer={"class": "AdamW"}, log_std_bound=[-1.0, 0.1])
    yield case("ppo two threads", CARTPOLE, "ppo", lanes=8, rollout_steps=128, batch_size=1024, max_epochs=10)
    yield case(
        "ppo quadrotor", "Quadrotor-v0", "ppo", lanes=16, rollout_steps=16, batch_size=64, max_epochs=20
    )
    yield case("ppo resumed", CARTPOLE, "ppo", resume=True, **linear)
    yield case("trpo discrete", CARTPOLE, "trpo", **plain)
    yield case("trpo continuous", PENDULUM, "trpo", max_kl=0.02, cg_iterations=5, backtracks=4, **normalized)
    for rule in ("a2c", "ppo", "impala"):
        yield case(f"{rule} shared trunk", CARTPOLE, rule, shared_trunk=True, value_coef=0.3)
    yield case("ppg clip_value", CARTPOLE, "ppg", clip_value=True, entropy_coef=0.01)
    yield case("reinforce baseline", CARTPOLE, "reinforce", baseline=True, critic_lr=1e-3)
    yield case("impala clips", CARTPOLE, "impala", rho_clip=0.9, c_clip=0.8, lam=0.9, **linear)
    yield case("pqn", CARTPOLE, "pqn", normalize_reward=True, **linear)
    yield case(
        "pqn noisy dueling", CARTPOLE, "pqn", noisy=True, exploration="none", dueling=True, normalize_obs=True
    )


def _memories() -> Iterator[Case]:
    chunks = {"chunk": 8}
    for rule in ("a2c", "ppo", "ppg", "reinforce", "impala"):
        yield case(f"{rule} lstm", MAZE, rule, **MEMORY, **(chunks if rule in ("ppo", "ppg") else {}))
    yield case("ppo gru", VELOCITY, "ppo", **(MEMORY | {"memory": "gru"}), **chunks, memory_layers=2)
    yield case("ppo attention", MAZE, "ppo", **ATTENTION, **chunks)
    yield case("a2c attention", MAZE, "a2c", **ATTENTION, last_action=True)
    yield case("ppo lstm workers", CARTPOLE, "ppo", **MEMORY, **chunks, workers=2, max_epochs=10)
    for rule in VALUE_RULES:
        yield case(f"{rule} lstm", MAZE, rule, **SEQUENCES)
    for rule in CONTROL_RULES:
        yield case(f"{rule} lstm", VELOCITY, rule, **SEQUENCES)
    yield case("dqn gru", MAZE, "dqn", **SEQUENCES | {"memory": "gru"}, n_step=3, double=True)
    yield case("dqn attention", MAZE, "dqn", **SEQUENCES | ATTENTION)
    yield case("sac gru", VELOCITY, "sac", **SEQUENCES | {"memory": "gru"}, target_memory=False)
    yield case("sac attention", VELOCITY, "sac", **SEQUENCES | ATTENTION, max_epochs=40)
    yield case("sac lstm discrete", MAZE, "sac", **SEQUENCES)
    for rule in CONTROL_RULES:
        yield case(f"{rule} share_memory", VELOCITY, rule, **SEQUENCES, share_memory=True)
    yield case("dqn whole_episodes", MAZE, "dqn", **SEQUENCES | {"burn_in": 0}, whole_episodes=True)
    yield case(
        "sac whole_episodes",
        VELOCITY,
        "sac",
        **SEQUENCES | {"burn_in": 0, "sequence": 12},
        whole_episodes=True,
    )
    yield case("dqn refresh_memory", MAZE, "dqn", **SEQUENCES, **PRIORITIES, refresh_memory=True)
    yield case("sac refresh_memory", VELOCITY, "sac", **SEQUENCES, refresh_memory=True)
    yield case("dqn empty memory", MAZE, "dqn", **SEQUENCES, stored_memory=False, target_memory=False)
    yield case("td3 lstm prioritized", VELOCITY, "td3", **SEQUENCES, **PRIORITIES, priority_on_add=True)
    yield case("dqn lstm resumed", MAZE, "dqn", resume=True, **SEQUENCES, **PRIORITIES)
    yield case("sac hold_policy", PENDULUM, "sac", **SEQUENCES, hold_policy=True)


def _values() -> Iterator[Case]:
    for rule in VALUE_RULES:
        yield case(f"{rule}", CARTPOLE, rule)
        yield case(
            f"{rule} double dueling noisy",
            CARTPOLE,
            rule,
            double=True,
            dueling=True,
            noisy=True,
            exploration="none",
        )
        yield case(f"{rule} prioritized 3 steps", CARTPOLE, rule, **PRIORITIES)
        yield case(f"{rule} priority_on_add", CARTPOLE, rule, **PRIORITIES, priority_on_add=True)
        if rule != "c51":
            yield case(f"{rule} munchausen", CARTPOLE, rule, munchausen=0.9)
        yield case(
            f"{rule} rescale", CARTPOLE, rule, rescale_values=True, clip_reward=True, reward_clip_range=0.5
        )
    yield case(
        "dqn squared, boltzmann", CARTPOLE, "dqn", loss="squared", exploration="boltzmann", layer_norm=True
    )
    yield case(
        "dqn ladder, linear", CARTPOLE, "dqn", epsilon_ladder=3, lr_schedule="linear", tau=0.1, target_every=1
    )
    yield case(
        "dqn normalize_obs",
        CARTPOLE,
        "dqn",
        normalize_obs=True,
        clip_obs=True,
        reward_scale=0.5,
        weight_decay=0.01,
    )


def _control() -> Iterator[Case]:
    yield case("option_critic", PENDULUM, "option_critic")
    yield case("option_critic discrete, prioritized", CARTPOLE, "option_critic", prioritized=True)
    for rule in (*CONTROL_RULES, "crossq", "flash_sac"):
        yield case(f"{rule}", PENDULUM, rule)
        yield case(f"{rule} prioritized 3 steps", PENDULUM, rule, **PRIORITIES, priority_clip=[0.01, 1.0])
        yield case(f"{rule} priority_on_add", PENDULUM, rule, **PRIORITIES, priority_on_add=True)
        yield case(
            f"{rule} normalized, clipped gradients",
            PENDULUM,
            rule,
            normalize_obs=True,
            max_grad_norm=1.0,
            weight_decay=0.01,
            lr_schedule="linear",
            reward_scale=0.1,
            q_regularization=0.01,
        )
    for rule in CONTROL_RULES:
        yield case(f"{rule} noisy", PENDULUM, rule, noisy=True)
    yield case("sac discrete", CARTPOLE, "sac", n_step=2)
    yield case("sac discrete prioritized", CARTPOLE, "sac", **PRIORITIES, priority_on_add=True)
    yield case(
        "sac ensemble", PENDULUM, "sac", ensemble_q_num=4, ensemble_q_sample=2, actor_q="mean", actor_every=2
    )
    yield case(
        "sac sampled critics", PENDULUM, "sac", ensemble_q_num=3, actor_q="sample", target_entropy=-0.5
    )
    yield case(
        "sac fixed alpha, residual", PENDULUM, "sac", tune_alpha=False, alpha=0.2, critic_network="residual"
    )
    yield case(
        "sac dropout", PENDULUM, "sac", critic_network={"class": "mlp", "layer_norm": True, "dropout": 0.05}
    )
    yield case("td3 ou noise", PENDULUM, "td3", noise="ou", noise_scale=[0.1, 0.3], noise_final=0.2)
    distribution = {"n_atoms": 21, "v_min": -40.0, "v_max": 0.0}
    yield case("td3 distribution", PENDULUM, "td3", **distribution, n_step=3)
    yield case(
        "td3 drawn scales, no target actor",
        PENDULUM,
        "td3",
        **distribution,
        noise_scale=[0.1, 0.3],
        noise_redraw=True,
        target_actor=False,
        actor_q="min",
    )
    yield case("sac distribution", PENDULUM, "sac", **distribution, ensemble_q_num=3, ensemble_q_sample=2)
    yield case("ddpg epsilon, second layer", PENDULUM, "ddpg", action_joins="second", epsilon=0.1)
    yield case("sac two threads", PENDULUM, "sac", batch_size=1024, learn_after=400, max_epochs=25)


def _replay() -> Iterator[Case]:
    yield case("dqn resumed", CARTPOLE, "dqn", resume=True, **PRIORITIES)
    yield case("sac resumed", PENDULUM, "sac", resume=True, n_step=3, normalize_obs=True)
    yield case("sac many updates a step", PENDULUM, "sac", ratio=2.5, max_epochs=12)
    yield case("dqn full ring", CARTPOLE, "dqn", capacity=200, n_step=4, max_epochs=60)


def _datasets() -> Iterator[Case]:
    offline = {"needs": "minari", "dataset": RECORDED, "max_epochs": 4}
    for rule in ("bc", "td3_bc", "iql", "cql"):
        yield case(f"{rule} offline", PENDULUM, rule, **offline)
    for rule in ("bc", "iql", "cql"):
        yield case(f"{rule} offline, discrete", CARTPOLE, rule, **offline)
    yield case("bc offline lstm", CARTPOLE, "bc", **offline, **SEQUENCES)
    yield case("iql offline resumed", PENDULUM, "iql", resume=True, **offline, n_step=3, prioritized=True)
    yield case("iql offline, then online", CARTPOLE, "iql", **offline | {"max_epochs": 12}, offline_steps=64)
    shown = {"needs": "minari", "demonstrations": RECORDED}
    yield case("sac demonstrations", PENDULUM, "sac", **shown, n_step=3)
    yield case("dqn demonstrations lstm", CARTPOLE, "dqn", **shown, **SEQUENCES, **PRIORITIES)
    yield case("td3 bc_alpha online", PENDULUM, "td3", bc_alpha=2.5)
    yield case("sac cql_weight online", PENDULUM, "sac", cql_weight=1.0, cql_actions=4)


def _observations() -> Iterator[Case]:
    images = {**SMALL_IMAGES, "max_epochs": 12}
    pixels = {"needs": "minatar", **images}
    for rule in ("ppo", "dqn", "pqn", "impala"):
        yield case(f"{rule} images", BREAKOUT, rule, **pixels)
    yield case("iqn images, augmented", BREAKOUT, "iqn", **pixels, augment=1, n_step=3)
    yield case(
        "sac images, augmented", ("image", "continuous"), "sac", **images | {"max_epochs": 25}, augment=1
    )
    yield case("dqn images lstm", ("image", "discrete"), "dqn", **SEQUENCES, **images | {"max_epochs": 25})
    for rule in ("ppo", "a2c"):
        yield case(f"{rule} dict", ("dict", "discrete"), rule, **images, normalize_obs=True)
        yield case(f"{rule} masked", ("dict", "masked"), rule, **images)
    yield case(
        "dqn masked", ("dict", "masked"), "dqn", **images | {"max_epochs": 25}, **PRIORITIES, double=True
    )
    yield case("sac masked", ("dict", "masked"), "sac", **images | {"max_epochs": 25})
    yield case(
        "sac dict", ("dict", "continuous"), "sac", **images | {"max_epochs": 25}, normalize_obs=True, n_step=3
    )
    yield case("td3 dict", ("dict", "continuous"), "td3", **images | {"max_epochs": 25}, augment=1)
    yield case("ppo MultiDiscrete", ("dict", "many"), "ppo", **images)
    yield case("ppo Tuple action", ("dict", "tuple"), "ppo", **images)
    # An evaluation would play whole games.
    game = {
        "eval": False,
        "clip_reward": True,
        "env_options": {"screen": 36, "life_loss": True},
        "max_epochs": 20,
    }
    yield case("dqn atari", "ALE/Breakout-v5", "dqn", needs="ale_py", **game, n_step=3)
    yield case("ppo minigrid", "MiniGrid-Empty-5x5-v0", "ppo", needs="minigrid", max_epochs=10)
    yield case("sac mujoco", "HalfCheetah-v5", "sac", needs="mujoco")
    yield case("ppo dm_control", "dm_control/cartpole-swingup-v0", "ppo", needs="dm_control", max_epochs=10)
    yield case("ppo box2d", "LunarLander-v3", "ppo", needs="Box2D", max_epochs=10)
    yield case(
        "ppo pybullet",
        "HalfCheetahBulletEnv-v0",
        "ppo",
        needs="pybullet_envs_gymnasium",
        max_epochs=5,
        eval=False,
    )
    yield case("ppo concatenated observations", "PendulumVConcat10-v0", "ppo")
    hidden = {"env_options": {"keep": [0, 2], "last_action": True, "last_reward": True}}
    yield case("ppo hidden observations", CARTPOLE, "ppo", **hidden)
    yield case("dqn frame_stack", CARTPOLE, "dqn", env_options={"frame_stack": 3}, n_step=3)
    yield case("dqn frame_stack images", BREAKOUT, "dqn", **pixels, env_options={"frame_stack": 2}, augment=1)


def _presets() -> Iterator[Case]:
    memory = {"memory_size": 8, "sequence": 8, "burn_in": 2, "stride": 4, "batch_size": 8}
    for preset in ("double_dqn", "dueling_dqn", "noisy_dqn", "prioritized_dqn", "rainbow", "c51_dqn"):
        yield case(f"preset {preset}", CARTPOLE, preset)
    for preset in ("drqn", "r2d2"):
        yield case(f"preset {preset}", MAZE, preset, **memory)
    for preset in ("ngu", "agent57"):
        yield case(f"preset {preset}", MAZE, preset, **memory, num_policies=4)
        yield case(f"{preset} relabel", MAZE, preset, **memory, num_policies=4, relabel=0.5)
    for preset in ("rdpg", "rtd3", "rsac", "rsac_share"):
        yield case(f"preset {preset}", VELOCITY, preset, **memory)
    for preset in ("ddpg_lillicrap", "redq", "droq"):
        yield case(f"preset {preset}", PENDULUM, preset)
    for preset in ("actor_critic", "reinforce_baseline"):
        yield case(f"preset {preset}", CARTPOLE, preset)
    wide = {"class": "auto", "kind": "impala", "width": 1, "spectral_norm": True, "pool": 0}
    yield case("preset btr", BREAKOUT, "btr", needs="minatar", encoder=wide, max_epochs=10)
    yield case("preset apex_dqn", CARTPOLE, "apex_dqn", actors=2, max_lag=0, max_epochs=30)


def _processes() -> Iterator[Case]:
    workers = {"workers": 2, "max_epochs": 15}
    yield case("ppo workers", PENDULUM, "ppo", **workers, normalize_obs=True)
    yield case("ppo workers, central", PENDULUM, "ppo", **workers, acting="central")
    yield case("dqn workers", CARTPOLE, "dqn", **workers | {"max_epochs": 30}, **PRIORITIES)
    yield case("sac workers", PENDULUM, "sac", **workers | {"max_epochs": 30}, **SEQUENCES)
    yield case(
        "sac workers, hold_policy",
        PENDULUM,
        "sac",
        **workers | {"max_epochs": 60},
        **SEQUENCES,
        hold_policy=True,
    )
    yield case(
        "td3 workers resumed", PENDULUM, "td3", resume=True, **workers | {"max_epochs": 30}, noise="ou"
    )
    actors = {"actors": 2, "max_lag": 0}
    yield case("ppo actors", CARTPOLE, "ppo", **actors, max_epochs=15)
    yield case("ppo one actor", PENDULUM, "ppo", actors=1, max_lag=0, max_epochs=15, **MEMORY, chunk=8)
    yield case("impala actors", CARTPOLE, "impala", **actors, max_epochs=30)
    yield case("dqn actors", CARTPOLE, "dqn", **actors, max_epochs=30)
    yield case(
        "dqn actors, priority_on_add",
        CARTPOLE,
        "dqn",
        **actors,
        **PRIORITIES,
        priority_on_add=True,
        max_epochs=30,
    )
    yield case("sac actors", PENDULUM, "sac", **actors, max_epochs=30)
    yield case(
        "a2c actor_gradients averaged", CARTPOLE, "a2c", actors=2, actor_gradients="averaged", max_epochs=40
    )
    yield case("a2c one actor's gradients", CARTPOLE, "a2c", actors=1, actor_gradients="apart", max_epochs=40)
    yield case("dqn shards", CARTPOLE, "dqn", shards=2, max_epochs=30, **PRIORITIES)
    yield case("sac shards lstm", VELOCITY, "sac", shards=2, max_epochs=30, **SEQUENCES)
    yield case("dqn shards resumed", CARTPOLE, "dqn", resume=True, shards=2, max_epochs=30)
    yield case("dqn actors, shards", CARTPOLE, "dqn", **actors, shards=2, max_epochs=30, **PRIORITIES)
    learners = {"learners": 2, "max_epochs": 12}
    yield case("ppo learners", CARTPOLE, "ppo", **learners)
    yield case("dqn learners", CARTPOLE, "dqn", **learners | {"max_epochs": 25}, **PRIORITIES)
    yield case("sac learners", PENDULUM, "sac", **learners | {"max_epochs": 25}, normalize_obs=True)
    yield case("sac learners resumed", PENDULUM, "sac", resume=True, **learners | {"max_epochs": 25})
    ray = {"needs": "ray", "ray": "local", "max_epochs": 10}
    yield case("ppo ray actors", CARTPOLE, "ppo", **ray, **actors)
    yield case("dqn ray actors, shards", CARTPOLE, "dqn", **ray | {"max_epochs": 25}, **actors, shards=2)
    yield case("sac ray learners", PENDULUM, "sac", **ray | {"max_epochs": 20}, learners=2)


def settings_of_presets() -> dict[str, Any]:
    """What every preset sets on every environment of `TUNED`."""
    import whorl

    found = {}
    for algorithm in whorl.algorithms():
        for env in TUNED:
            found[f"{algorithm} {env}"] = flat(whorl.load(env, algorithm).config.plain())
    return {"settings": found}


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their bare names, whatever groups they are written in; parts and options stay whole."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        group = isinstance(value, Mapping) and "class" not in value and name != "env_options"
        found.update(flat(value) if group else {name: value})
    return found


def trace(one: Case) -> dict[str, Any]:
    """Train a case; returns what is compared: hashes of tensors, metrics by column, counters, actions."""
    import whorl

    if one.name == PRESETS:
        return settings_of_presets()
    torch.manual_seed(0)
    np.random.seed(0)
    env = one.env if isinstance(one.env, str) else partial(Toy, *one.env)
    with tempfile.TemporaryDirectory(prefix="whorl-trace-") as runs:
        settings = {**one.settings, "runs": runs}
        for name in ("dataset", "demonstrations"):
            if settings.get(name) == RECORDED:
                settings[name] = _recorded(env, Path(runs))
        if not one.resume:
            result = whorl.load(env, one.algorithm, settings).train()
        else:
            epochs = settings["max_epochs"]
            half = whorl.load(env, one.algorithm, {**settings, "max_epochs": epochs // 2}).train()
            result = whorl.resume(half.run_dir, env=None if isinstance(env, str) else env, max_epochs=epochs)
        folder = Path(result.run_dir)
        return {
            "tensors": _hashes(_agent_state(folder)),
            "metrics": _columns(folder / "metrics.jsonl"),
            "counters": {
                "steps": result.steps,
                "episodes": result.episodes,
                # its name up to version 0.1
                "iterations": result.iterations if hasattr(result, "iterations") else result.epochs,
            },
            "actions": _played(whorl.restore(folder), env, one.settings.get("env_options", {})),
        }


def _recorded(env: Any, folder: Path) -> str:
    """A dataset of two episodes with random actions."""
    import whorl

    small = {**RUN, **PASSES, "max_epochs": 1, "runs": str(folder / "teacher"), "eval": False}
    teacher = whorl.load(env, "ppo", small).train().run_dir
    return str(whorl.record(teacher, 2, output=folder / "dataset", epsilon=1.0).folder)


def _agent_state(run: Path) -> Any:
    """What the newest checkpoint holds of the agent: not replay, whose columns may change their format."""
    newest = max(run.glob("checkpoint_*"), key=lambda folder: int(folder.name.rpartition("_")[2]))
    return torch.load(newest / "checkpoint.pt", weights_only=True)["agent"]


def _hashes(value: Any, path: str = "") -> dict[str, str]:
    """The hash of every tensor, array and number in nested containers, by path."""
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    elif isinstance(value, (torch.Tensor, np.ndarray)):
        return {path: content(value)}
    elif isinstance(value, (int, float)):
        return {path: repr(value)}
    else:
        return {}
    return {
        k: v for key, part in parts for k, v in _hashes(part, f"{path}.{key}" if path else str(key)).items()
    }


def content(value: Any) -> str:
    """SHA-256 of type, shape and bytes."""
    tensor = torch.as_tensor(value).detach().cpu().contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    head = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    return hashlib.sha256(head + data).hexdigest()[:24]


def _columns(path: Path) -> dict[str, list[Any]]:
    """Metrics by column, None in rows that lack one."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _played(policy: Any, env: Any, options: Mapping[str, Any]) -> list[str]:
    """Hashes of the actions that the trained policy takes in an episode with a fixed seed, by mode and by sample."""
    import whorl

    made, found = whorl.make(env, **options), []
    for deterministic in (True, False):
        policy.reset()
        policy.seed(1)
        (obs, info), reward = made.reset(seed=5), None
        for _ in range(PLAYED):
            action = policy.act(obs, deterministic, info.get("action_mask"), reward)
            found.append(json.dumps(list(_hashes(_nested(action)).values())))
            taken = action if not isinstance(action, dict) else tuple(action.values())
            obs, reward, terminated, truncated, info = made.step(taken)
            if terminated or truncated:
                break
    made.close()
    return found


def _nested(action: Any) -> Any:
    """Dicts by number and tuples are the same action."""
    if isinstance(action, dict):
        return [_nested(part) for part in action.values()]
    return [_nested(part) for part in action] if isinstance(action, tuple) else np.asarray(action)


def main() -> None:
    import_whorl()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Whatever else prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    known = {one.name: one for one in cases()}
    for line in sys.stdin:
        try:
            found = trace(known[line.strip()])
        except BaseException as error:
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
