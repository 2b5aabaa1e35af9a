"""Classes, functions and methods of Stable-Baselines3, and what takes their place here: errors name it."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from whorl.settings.presets import preset_names

Kind = TypeVar("Kind")

_ENVS = "parallel environments are a setting: whorl.load(env, 'ppo', num_envs=8)"
_RESTORE = "a trained policy is restored from its run: policy = whorl.restore(run), policy.predict(obs)"

NAMES: Mapping[str, str] = {
    **dict.fromkeys(("make_vec_env", "DummyVecEnv", "SubprocVecEnv"), _ENVS),
    "make_atari_env": "the environment of an Atari id has the wrappers: whorl.load('ALE/Pong-v5', 'ppo', num_envs=8)",
    "VecNormalize": "set normalize_obs and normalize_reward; statistics are saved with the policy",
    "VecFrameStack": "set env_options={'frame_stack': 4}",
    "Monitor": "returns and lengths of episodes are recorded without it",
    "evaluate_policy": "call whorl.evaluate(run)",
    "check_env": "call whorl.check(env)",
    "BaseCallback": "derive from whorl.Callback",
    "EvalCallback": "evaluations are part of training: set eval_freq and n_eval_episodes",
    "CheckpointCallback": "checkpoints are part of training: set checkpoint_freq",
    "StopTrainingOnRewardThreshold": "pass callbacks=[whorl.StopAtReturn(mean_return)]",
    "CallbackList": "pass a list: callbacks=[...]",
    "HerReplayBuffer": "set her='future'",
    "RecurrentPPO": "memory is a setting: whorl.load(env, 'ppo', memory='lstm')",
    "export": "call whorl.restore(run).export('policy.onnx')",
    "Trainer": "whorl.load makes one; its class, for annotations, is whorl.run.trainer.Trainer",
    "MaskablePPO": "masks of the environment are obeyed by themselves: whorl.load(env, 'ppo')",
}
"""what the module does not have"""

TRAINER: Mapping[str, str] = {
    "learn": "call train(100_000)",
    **dict.fromkeys(("predict", "policy"), _RESTORE),
    "load": "call whorl.resume(run) to train on, or whorl.restore(run) for the policy",
    "set_env": "name it when you continue: whorl.resume(run, env=env)",
    "get_env": "make one with whorl.make(id)",
    "save_replay_buffer": "the replay buffer is part of every checkpoint",
    "set_logger": "pass loggers=[...] to whorl.load",
}

RESULT: Mapping[str, str] = {
    **dict.fromkeys(("predict", "policy", "act"), "call whorl.restore(result), which gives the policy"),
    **dict.fromkeys(
        ("save", "load"), "the run is saved in run_dir; call whorl.restore(result) for the policy"
    ),
    "learn": "call whorl.resume(result, total_timesteps=...) to train on",
}

POLICY: Mapping[str, str] = {
    "save": "it is saved in its run; policy.export(path) writes ONNX, TorchScript or safetensors",
    "learn": "call whorl.resume(run) to train on",
    "load": "call whorl.restore(run)",
    "to": "name the device when it is loaded: whorl.restore(run, device='cuda')",
    **dict.fromkeys(
        ("get_distribution", "evaluate_actions"), "it has probabilities(obs) and log_prob(obs, action)"
    ),
    "predict_values": "it has value(obs)",
    "forward": "call act(obs) or predict(obs)",
    **dict.fromkeys(
        ("parameters", "state_dict", "eval", "policy"), "its networks are torch modules in policy.agent"
    ),
}

CALLBACK: Mapping[str, str] = {
    "model": "each method gets the trainer",
    "logger": "set metrics[name] in on_update(trainer, metrics)",
    "num_timesteps": "trainer.steps counts environment steps",
    "n_calls": "trainer.steps counts environment steps",
    "training_env": "on_step(trainer, step) gets what the environments gave",
    "locals": "on_step(trainer, step) and on_rollout(trainer, rollout) get the data",
    "globals": "each method gets the trainer",
}


class Missing:
    """An attribute that a class does not have, though users look for it: the error says what takes its place.

    No `__getattr__`, which would also be called, a second time, for a property whose own code fails.
    """

    def __init__(self, name: str, remedy: str) -> None:
        self.name, self.remedy = name, remedy

    def __get__(self, owner: Any, kind: type) -> Any:
        of = f"{kind.__name__!r} object" if owner is not None else f"type object {kind.__name__!r}"
        raise AttributeError(f"{of} has no attribute {self.name!r}; {self.remedy}", name=self.name)


def explaining(names: Mapping[str, str]) -> Callable[[type[Kind]], type[Kind]]:
    """A class whose errors for these attributes, which it does not have, say what takes their place."""

    def decorate(kind: type[Kind]) -> type[Kind]:
        for name, remedy in names.items():
            setattr(kind, name, Missing(name, remedy))
        return kind

    return decorate


def instead_of(name: str) -> str | None:
    """The replacement for a class or function of Stable-Baselines3; None for any other name."""
    algorithms = {one.replace("_", ""): one for one in preset_names()}
    plain = name.lower().replace("_", "")
    if name not in NAMES and name[:1].isupper() and plain in algorithms:
        return f"algorithms go by name: whorl.load(env, {algorithms[plain]!r})"
    return NAMES.get(name)
