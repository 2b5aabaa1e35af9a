"""The Python API: the examples that users of CO-GYM know, and the whole way from make to evaluate."""

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml

import whorl
from whorl.core import registry
from whorl.core.errors import CheckpointError, ConfigError, EnvError
from whorl.core.spec import Array, Continuous, Spec, differences
from whorl.settings.presets import rules
from whorl.state import checkpoint

pytestmark = pytest.mark.usefixtures("own_registry")

SMALL = {
    "n_workers": 2,
    "workers": 0,
    "max_rollout": 16,
    "batch_size": 32,
    "max_iterations": 2,
    "n_eval_episodes": 2,
    "quiet": True,
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go into runs/ of the working directory, as they do for users."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    return whorl.train("CartPole-v1", "PPO", **SMALL, runs=str(folder)).run_dir


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished run that a test may write to."""
    return Path(shutil.copytree(finished, tmp_path / "runs" / finished.name))


class Corridor(gymnasium.Env):
    """Walk right to the end, within 50 steps."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 5) -> None:
        self.length = length
        self.place = self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place = max(0, self.place + (1 if action else -1))
        self.steps += 1
        over = self.place == self.length
        return self._obs(), float(over) - 0.1, over, self.steps == 50, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.place / self.length], np.float32)


# Seed 000's README, with the import renamed and the id spelled right


def test_the_first_example_of_seed_000() -> None:
    env = whorl.make(env_id="Quadrotor-v0")
    algorithm = "PPO"
    trainer = whorl.load(env, algorithm=algorithm, config=SMALL)
    assert trainer.train().iterations == 2


def test_the_example_with_a_configuration() -> None:
    env = whorl.make(env_id="Quadrotor-v0")
    my_config = {"n_workers": 32, "policy_hidden_dims": [128, 128]}
    trainer = whorl.load(env, algorithm="PPO", config=my_config)
    assert trainer.config.n_workers == 32
    assert trainer.config.policy_hidden_dims == (128, 128)
    trainer = whorl.load(env, algorithm="PPO", config={**my_config, **SMALL})
    trainer.train()
    assert trainer.agent.actor.backbone.size == 128


def test_the_example_that_loads_a_model() -> None:
    env = whorl.make(env_id="Quadrotor-v0")
    first = whorl.load(env, algorithm="PPO", config=SMALL).train()
    name = f"{first.run_dir.name}/checkpoint_1"
    assert (first.run_dir / "checkpoint_1" / "observation_normalizing_values.yaml").exists()
    my_config = {
        **SMALL,
        "load_model": True,
        "load_checkpoint_dir": name,
        "max_iterations": 1,
        "actor_lr": 0.0,
    }
    trainer = whorl.load(env, algorithm="PPO", config=my_config)
    second = trainer.train()
    assert second.iterations == 1 and second.run_dir != first.run_dir
    before, after = (checkpoint.load(r.run_dir / "checkpoint_1").state["agent"] for r in (first, second))
    assert after["module"].keys() == before["module"].keys()


def test_weights_that_do_not_fit_are_told() -> None:
    first = whorl.train("CartPole-v1", "PPO", **SMALL)
    config = {
        **SMALL,
        "load_model": True,
        "load_checkpoint_dir": str(first.run_dir),
        "policy_hidden_dims": [8],
    }
    with pytest.raises(CheckpointError, match=r"took \d+ of \d+ tensors; not taken: actor"):
        whorl.load("CartPole-v1", "PPO", {**config, "load_strict": True}).train()
    with pytest.warns(UserWarning, match=r"took \d+ of \d+ tensors; not taken: actor"):
        whorl.load("CartPole-v1", "PPO", config).train()


def test_load_model_without_a_checkpoint_is_told() -> None:
    with pytest.raises(ConfigError, match="load_checkpoint_dir is empty"):
        whorl.load("CartPole-v1", "PPO", {**SMALL, "load_model": True}).train()


# The whole way


def test_train_resume_restore_evaluate(run: Path) -> None:
    result = whorl.resume(run, max_iterations=3)
    assert (result.iterations, result.run_dir) == (3, run)
    policy = whorl.restore(run)
    assert whorl.evaluate(policy, episodes=3).returns == whorl.evaluate(run, episodes=3).returns
    best = whorl.evaluate(run, episodes=2, best=True)
    assert len(best.returns) == 2 and best.mean_length > 0


def test_runs_are_found_by_name_in_the_runs_folder(run: Path) -> None:
    assert whorl.evaluate(run.name, episodes=1).returns
    with pytest.raises(CheckpointError, match="did you mean"):
        whorl.restore(run.name[:-1] + "x")


@pytest.mark.parametrize("name", ["PPO", "ppo", "Ppo"])
def test_algorithms_are_named_in_any_case(name: str) -> None:
    assert whorl.load("CartPole-v1", name).settings.algorithm == "ppo"


def test_algorithms_are_listed_with_a_line_each() -> None:
    import whorl.algorithms.ppo  # hides the function behind the package, which must not matter

    found = whorl.algorithms()
    assert {"ppo", "ppg"} <= found.keys()
    assert all(found.values())


def test_resume_refuses_what_the_state_depends_on(run: Path) -> None:
    with pytest.raises(ConfigError, match="can't change 'num_envs', which is 2 in the saved run"):
        whorl.resume(run, n_workers=4)
    with pytest.raises(ConfigError, match="can't change 'gamma'"):
        whorl.resume(run, gamma=0.5)
    with pytest.raises(CheckpointError, match="holds only a policy"):
        whorl.resume(run / "best")


def test_evaluating_with_a_seed_that_no_generator_takes_is_told(run: Path) -> None:
    with pytest.raises(ConfigError, match="seed is -1; it must be at least 0"):
        whorl.evaluate(run, seed=-1)


def test_evaluating_no_episodes_is_told(run: Path) -> None:
    with pytest.raises(ConfigError, match="episodes is 0; it must lie between 1 and"):
        whorl.evaluate(run, episodes=0)


# Settings as config objects and keywords


def test_settings_are_given_as_keywords_or_config_objects() -> None:
    keywords = whorl.load("CartPole-v1", "ppo", gamma=0.5, num_envs=3).settings
    assert (keywords.gamma, keywords.num_envs, keywords.num_steps) == (0.5, 3, 32)  # tuned: 32 steps
    typed = whorl.load("CartPole-v1", whorl.PPOConfig(gamma=0.5), num_envs=3).settings
    assert (typed.algorithm, typed.gamma, typed.num_envs, typed.num_steps) == ("ppo", 0.5, 3, 32)
    # A config object is complete, but for the minibatch, which follows the number of environments.
    assert replace(typed.algo, batch_size=512) == whorl.PPOConfig(gamma=0.5, batch_size=512)
    both = whorl.load("CartPole-v1", whorl.PPOConfig(), whorl.RunConfig(num_envs=3), tag="x").settings
    automatic = {"hardware": "auto", "reset_every": 0}
    assert replace(both.run, **automatic) == whorl.RunConfig(num_envs=3, tag="x")


def test_config_objects_and_keywords_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"gamma is 2\.0; it must be from 0 to 1"):
        whorl.load("CartPole-v1", whorl.PPOConfig(gamma=2.0))
    with pytest.raises(ConfigError, match="ppo has no setting 'gama'; did you mean 'gamma'"):
        whorl.load("CartPole-v1", "ppo", gama=0.5)
    with pytest.raises(ConfigError, match="value_coef is used only with shared_trunk"):
        whorl.train("CartPole-v1", vf_coef=0.25)
    with pytest.raises(ConfigError, match="RunConfig is not the Config of an algorithm"):
        whorl.load("CartPole-v1", whorl.RunConfig())


@pytest.mark.parametrize("name", [name for name in whorl.__all__ if name.endswith("Config")])
def test_every_config_class_is_public(name: str) -> None:
    assert getattr(whorl, name).__name__ == name


def test_every_update_rule_has_a_public_config_class() -> None:
    assert {cls.Config.__name__ for cls in rules().values()} <= set(whorl.__all__)  # type: ignore[attr-defined]


# Policies


def test_a_policy_acts_on_one_observation_and_on_a_batch(run: Path) -> None:
    policy = whorl.restore(run)
    one = np.array([0.1, -0.2, 0.05, 0.3], np.float32)
    many = np.stack([one, -one, one])
    single, batch = policy.act(one), policy.act(many)
    assert np.ndim(single) == 0 and batch.shape == (3,)
    assert single == batch[0] == batch[2]
    assert gymnasium.spaces.Discrete(2).contains(int(single))


def test_a_policy_answers_tensors_with_tensors(run: Path) -> None:
    policy = whorl.restore(run)
    action = policy.act(torch.zeros(5, 4))
    assert isinstance(action, torch.Tensor) and action.shape == (5,)


def test_a_policy_samples_only_when_asked_and_repeats_by_seed(run: Path) -> None:
    policy = whorl.restore(run)
    obs = np.zeros((64, 4), np.float32)
    assert len(set(policy.act(obs).tolist())) == 1
    policy.seed(3)
    first = policy.act(obs, deterministic=False)
    policy.seed(3)
    assert (policy.act(obs, deterministic=False) == first).all()
    assert len(set(first.tolist())) == 2


def test_a_recurrent_policy_forgets_on_reset() -> None:
    config = {**SMALL, "memory": "gru", "chunk": 16, "memory_size": 8}
    policy = whorl.restore(whorl.train("Pendulum-v1", "ppo", **config).run_dir)
    obs = np.array([1.0, 0.0, 0.5], np.float32)
    first, second = policy.act(obs), policy.act(obs)
    policy.reset()
    assert first.shape == (1,) and (first != second).any()
    assert (policy.act(obs) == first).all()


def test_actions_are_in_the_environments_own_range() -> None:
    policy = whorl.restore(whorl.train("Pendulum-v1", "ppo", **SMALL, log_std_init=2.0).run_dir)
    actions = policy.act(np.zeros((100, 3), np.float32), deterministic=False)
    assert actions.shape == (100, 1)
    assert np.abs(actions).max() == pytest.approx(2.0)


# Environments of every form


@pytest.mark.parametrize("form", ["object", "factory", "made"])
def test_an_environment_comes_as_an_object_or_a_factory(form: str) -> None:
    env: Any = {"object": Corridor(), "factory": Corridor, "made": whorl.make(Corridor)}[form]
    result = whorl.load(env, "ppo", SMALL).train()
    assert "Corridor" in result.run_dir.name
    with pytest.raises(CheckpointError, match="pass it as env=Corridor, or name its module"):
        whorl.evaluate(result.run_dir, episodes=1)
    assert len(whorl.evaluate(result.run_dir, episodes=2, env=Corridor).returns) == 2


def test_a_registered_environment_is_known_by_its_name_everywhere() -> None:
    whorl.register("environment", "Corridor-v0", Corridor)
    result = whorl.load("Corridor-v0", "ppo", SMALL, env_options={"length": 3}).train()
    assert min(whorl.evaluate(result.run_dir, episodes=5).lengths) >= 3
    assert whorl.make("Corridor-v0", length=7).unwrapped.length == 7
    assert whorl.resume(result.run_dir, max_iterations=3).iterations == 3
    assert whorl.check("Corridor-v0") == whorl.check(Corridor)


def test_options_of_an_environment_come_from_a_file_too(tmp_path: Path) -> None:
    whorl.register("environment", "Corridor-v0", Corridor)
    (tmp_path / "mine.yaml").write_text("env_options: {length: 3}")
    trainer = whorl.load("Corridor-v0", "ppo", SMALL, files=["mine.yaml"])
    assert trainer.config.env_options == {"length": 3}
    assert trainer.source.factory().length == 3
    made = whorl.load(whorl.make("Corridor-v0", length=4), "ppo", SMALL)
    assert made.config.env_options == {"length": 4}
    with pytest.raises(ConfigError, match="already made"):
        whorl.load(Corridor(), "ppo", SMALL, files=["mine.yaml"])


def test_a_native_world_made_by_gymnasium_stays_one() -> None:
    trainer = whorl.load(gymnasium.make("Quadrotor-v0"), "ppo", SMALL)
    assert trainer.source.world is not None
    assert trainer.train().iterations == 2


def test_a_misspelt_environment_names_the_nearest() -> None:
    with pytest.raises(EnvError, match="did you mean 'Quadrotor-v0'"):
        whorl.make("Quadrotr-v0")


def test_something_that_is_no_environment_is_told() -> None:
    with pytest.raises(EnvError, match="is not an environment"):
        whorl.load(3, "ppo")
    with pytest.raises(EnvError, match=r"it must return a gymnasium\.Env"):
        whorl.load(dict, "ppo")


class Level(Corridor):
    """A corridor that must be told its length."""

    def __init__(self, length: int, wide: bool = False) -> None:
        super().__init__(length)
        self.wide = wide


def test_a_class_takes_options_wherever_an_id_does(tmp_path: Path) -> None:
    made = whorl.make(Level, length=3, wide=True)
    assert (made.unwrapped.length, made.unwrapped.wide) == (3, True)
    assert whorl.load(made, "ppo", SMALL).source.factory().length == 3
    (tmp_path / "mine.yaml").write_text("env_options: {length: 4}")
    assert whorl.load(Level, "ppo", SMALL, files=["mine.yaml"]).source.factory().length == 4
    assert whorl.load(Level, "ppo", {**SMALL, "env_options": {"length": 6}}).source.factory().length == 6
    dotted = whorl.load(Level, "ppo", SMALL, **{"env_options.length": 7})  # type: ignore[arg-type]
    assert dotted.source.factory().length == 7
    result = whorl.train(Level, "ppo", SMALL, env_options={"length": 3})
    assert min(whorl.evaluate(result.run_dir, 2, env=Level).lengths) >= 3, "the run's options apply"
    assert min(whorl.evaluate(result.run_dir, 2, env=Level, env_options={"length": 9}).lengths) >= 9
    assert len(whorl.evaluate(result.run_dir, 2, env=lambda: Level(3)).returns) == 2, (
        "a function without options"
    )
    assert whorl.resume(result.run_dir, env=Level, max_iterations=3).iterations == 3
    assert whorl.check(Level, env_options={"length": 3}) == whorl.check(lambda: Level(3)) == []


def test_options_that_a_class_lacks_or_needs_are_named() -> None:
    with pytest.raises(EnvError, match=r"Level needs 'length'; give it as an option, env_options="):
        whorl.train(Level, "ppo", SMALL)
    with pytest.raises(EnvError, match="Level takes no option 'lenght'; did you mean 'length'"):
        whorl.make(Level, lenght=2)
    with pytest.raises(EnvError, match="length can't change an environment that is already made"):
        whorl.make(Level(2), length=3)
    whorl.register("environment", "Level-v0", Level)
    with pytest.raises(
        EnvError, match="missing 1 required positional argument: 'length'; give it in env_options"
    ):
        whorl.train("Level-v0", "ppo", SMALL)


def test_evaluation_takes_other_options_than_training() -> None:
    whorl.register("environment", "Corridor-v0", Corridor)
    result = whorl.train("Corridor-v0", "ppo", SMALL, env_options={"length": 3})
    assert min(whorl.evaluate(result.run_dir, 2, env_options={"length": 9}).lengths) >= 9
    assert whorl.check("Corridor-v0", env_options={"length": 3}) == []


def test_a_batch_of_environments_is_trained_on_but_not_made() -> None:
    vector = gymnasium.vector.SyncVectorEnv([Corridor, Corridor])
    with pytest.raises(EnvError, match="is a batch of environments; pass it to"):
        whorl.make(vector)


# One way to pass settings


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda run: whorl.load("CartPole-v1", "ppo", gama=0.9),
            "ppo has no setting 'gama'; did you mean 'gamma'",
        ),
        (lambda run: whorl.train("CartPole-v1", gama=0.9), "ppo has no setting 'gama'; did you mean 'gamma'"),
        (lambda run: whorl.resume(run, gama=0.9), "ppo has no setting 'gama'; did you mean 'gamma'"),
        (
            lambda run: whorl.evaluate(run, epsiodes=2),
            "evaluate has no setting 'epsiodes'; did you mean 'episodes'",
        ),
        (
            lambda run: whorl.evaluate(run, n_eval_episodes=2),
            "evaluate has no setting 'n_eval_episodes'; here it is",
        ),
        (
            lambda run: whorl.evaluate(run, gamma=2),
            r"evaluate has no setting 'gamma'; it takes run, episodes, env",
        ),
        (
            lambda run: whorl.restore(run, devise="cpu"),
            "restore has no setting 'devise'; did you mean 'device'",
        ),
        (
            lambda run: whorl.check("CartPole-v1", env_option={}),
            "check has no setting .* did you mean 'env_options'",
        ),
    ],
)
def test_an_unknown_keyword_gets_the_nearest_name(call: Any, words: str, finished: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        call(finished)


def test_resume_takes_files_config_and_keywords_in_this_order(run: Path, tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("max_iterations: 3\nlog_freq: 7")
    seen: list[str] = []

    class Notes(whorl.Callback):
        def on_start(self, trainer: Any) -> None:
            seen.append(f"{trainer.settings.log_freq} {trainer.settings.max_iterations}")

    result = whorl.resume(
        run, {"max_iterations": 4, "log_freq": 8}, files=["more.yaml"], callbacks=[Notes()], max_iterations=5
    )
    assert seen == ["8 5"] and result.iterations == 5
    with pytest.raises(ConfigError, match="can't change 'env_options'"):
        whorl.resume(run, env_options={"sutton_barto_reward": True})


# Spaces that changed


class Other(Corridor):
    """The corridor with other spaces."""

    def __init__(self, obs: int = 1, actions: int = 2) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(0, 1, (obs,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(actions)

    def _obs(self) -> np.ndarray:
        return np.zeros(self.observation_space.shape, np.float32)


def test_spaces_that_changed_are_compared_first() -> None:
    run = whorl.train(Other, "ppo", SMALL).run_dir
    words = r"Other has other spaces than the environment of the run: "
    four = words + r"action was Discrete\(2\) and is Discrete\(4\)$"
    with pytest.raises(EnvError, match=four):
        whorl.evaluate(run, 1, env=Other, env_options={"actions": 4})
    with pytest.raises(EnvError, match=four):
        whorl.evaluate(whorl.restore(run), 1, env=lambda: Other(actions=4))
    both = (
        words
        + r"observation was Box\(\(1,\), float32\) and is Box\(\(3,\), float32\); action was Discrete\(2\)"
    )
    with pytest.raises(EnvError, match=both):
        whorl.resume(run, env=lambda: Other(3, 4), max_iterations=3)
    with pytest.raises(EnvError, match=r"Acrobot-v1 has other spaces .*action was"):
        whorl.evaluate(run, 1, env="Acrobot-v1")
    assert whorl.resume(run, env=Other, max_iterations=3).iterations == 3


def test_keys_that_came_went_or_moved_are_listed() -> None:
    def spec(**parts: Any) -> Spec:
        return Spec(parts, Continuous((1,), (0.0,), (1.0,)), 1)

    a, b = Array((2,)), Array((3,), "uint8")
    assert differences(spec(a=a, b=b), spec(a=a, b=b)) == []
    assert differences(spec(a=a), spec(b=b)) == [
        "observation 'a' was Box((2,), float32) and is missing",
        "observation 'b' was missing and is Box((3,), uint8)",
    ]
    assert "in another order" in differences(spec(a=a, b=b), spec(b=b, a=a))[0]
    bound = Spec(a, Continuous((1,), (0.0,), (2.0,)), 1)
    assert differences(Spec(a, Continuous((1,), (0.0,), (1.0,)), 1), bound) == [
        "action was Box(0, 1, (1,), float32) and is Box(0, 2, (1,), float32)"
    ]


# Recording


class Dark(Corridor):
    """Takes a render_mode, but draws nothing."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode


class Lit(Dark):
    """Draws a grey square."""

    def render(self) -> Any:
        return np.full((8, 8, 3), 99, np.uint8)


def test_a_video_needs_a_render_mode_and_frames(tmp_path: Path) -> None:
    whorl.register("environment", "Corridor-v0", Corridor)
    run = whorl.train("Corridor-v0", "ppo", SMALL).run_dir
    with pytest.raises(
        EnvError, match="Corridor-v0 can't be recorded, because its __init__ takes no render_mode"
    ):
        whorl.evaluate(run, 1, video="x.gif")
    for env in (Corridor, Corridor(), Dark, whorl.make(Corridor)):
        with pytest.raises(
            EnvError, match=r"renders no frames, so there is nothing to record; it must be made with"
        ):
            whorl.evaluate(run, 1, env=env, video="x.gif")
    for number, lit in enumerate((Lit, Lit("rgb_array"), whorl.make(Lit), lambda: Lit("rgb_array"))):
        whorl.evaluate(run, 1, env=lit, video=f"{number}.gif")
        assert (tmp_path / f"{number}.gif").stat().st_size > 0


# Modules in the current folder

MODULE = """
import gymnasium
from test_api import Corridor
gymnasium.register("Here-v0", entry_point=Corridor, max_episode_steps=20)
"""


def test_a_module_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    (tmp_path / "in_this_folder.py").write_text(MODULE)
    assert whorl.make("in_this_folder:Corridor").unwrapped.length == 5
    assert whorl.make("in_this_folder:Here-v0").spec is not None
    with pytest.raises(
        EnvError, match=r"No module named 'elsewhere'; install it, run this in the folder that holds"
    ):
        whorl.make("elsewhere:Here-v0")
    (tmp_path / "broken_module.py").write_text("1 / 0")
    with pytest.raises(EnvError, match="importing broken_module raised ZeroDivisionError: division by zero"):
        whorl.make("broken_module:Here-v0")


# What a saved run may name


def test_a_network_that_was_registered_for_training_is_asked_for() -> None:
    whorl.register("network", "small", lambda inputs: torch.nn.Sequential(torch.nn.Linear(inputs, 8)))
    run = whorl.train("CartPole-v1", "ppo", SMALL, actor_network="small").run_dir
    del registry._registered["network"]["small"]
    with pytest.raises(ConfigError, match=r"no network is called 'small'; .*register it first, whorl\.reg"):
        whorl.restore(run)


def tampered(run: Path, **changes: Any) -> Path:
    """The run with other words in its config and policy, its checksums made to match."""
    found = checkpoint.load(run / "checkpoint_1")
    config = {**found.config, **changes}
    metadata = {
        k: v for k, v in found.metadata.items() if k not in ("files", "format", "k", "date", "torch", "whorl")
    }
    checkpoint.save(run, 1, found.state, {**found.policy, "config": config}, config, metadata, None)
    return run


ESCAPES = [
    "os.system",
    "builtins.eval",
    "torch.hub.load",
    "whorl.api.torch.hub.load",
    "whorl.log.writers.open",
]


@pytest.mark.parametrize("key", ["actor_network", "encoder", "optimizer", "critic_loss"])
@pytest.mark.parametrize("name", ESCAPES)
def test_a_tampered_run_runs_nothing(run: Path, key: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.system", lambda *a, **k: pytest.fail("it ran"))
    tampered(run, **{key: {"class": name}})
    with pytest.raises(ConfigError, match=key.rpartition("_")[2]):
        whorl.restore(run)
    with pytest.raises(ConfigError):
        whorl.resume(run, max_iterations=3)


def test_a_tampered_layer_runs_nothing(run: Path) -> None:
    tampered(run, actor_network={"class": "layers", "layers": [{"class": "os.system", "command": "true"}]})
    with pytest.raises(ConfigError, match=r"trust=\['os\.system'\]"):
        whorl.restore(run)


def test_a_tampered_algorithm_runs_nothing(run: Path) -> None:
    for name in ("os.system", "whorl.cli.main", "whorl.nets.backbone.Flat"):
        tampered(run, algorithm=name)
        with pytest.raises(ConfigError):
            whorl.restore(run)


def test_a_tampered_environment_imports_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_module.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    tampered(run, env="evil_module:CartPole-v1")
    for call in (whorl.evaluate, whorl.resume):
        with pytest.raises(ConfigError, match=r"trust=\['evil_module'\]"):
            call(run)
    assert "evil_module" not in sys.modules


EVIL = """
from whorl.log.writers import Logger
class Foo(Logger):
    def __init__(self, run_dir, settings): (run_dir / "logged").touch()
"""


def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A module that can be imported, and that nobody trusts."""
    name = re.sub(r"\W", "_", request.node.name)
    (tmp_path / f"{name}.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def without_checkpoint(run: Path) -> Path:
    """The run as it was before its first checkpoint."""
    for found in run.iterdir():
        if found.name != "config.yaml":
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    return run


def rewritten(path: Path, **changes: Any) -> None:
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


@pytest.mark.parametrize("name", [*ESCAPES, "{}.Foo"])
@pytest.mark.parametrize("key", ["encoder", "loggers"])
def test_a_tampered_run_without_a_checkpoint_imports_nothing(
    run: Path,
    key: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    module = evil(tmp_path, monkeypatch, request)
    monkeypatch.setattr("os.system", lambda *a, **k: pytest.fail("it ran"))
    path = name.format(module)
    rewritten(
        without_checkpoint(run) / "config.yaml", **{key: {"class": path} if key == "encoder" else [path]}
    )
    with pytest.raises(ConfigError, match="part" if "whorl" in name else re.escape(f"trust=[{path!r}]")):
        whorl.resume(run)
    assert module not in sys.modules


@pytest.mark.parametrize("saved", [True, False], ids=["checkpoint", "config"])
def test_a_tampered_logger_imports_nothing_until_it_is_trusted(
    run: Path, saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    module = evil(tmp_path, monkeypatch, request)
    if saved:
        tampered(run, loggers=[f"{module}.Foo"])
    else:
        rewritten(without_checkpoint(run) / "config.yaml", loggers=[f"{module}.Foo"])
    with pytest.raises(ConfigError, match=rf"trust=\['{module}\.Foo'\]"):
        whorl.resume(run, max_iterations=3)
    assert module not in sys.modules
    whorl.resume(run, max_iterations=3, trust=[module])
    assert (run / "logged").exists()


def test_what_the_caller_asks_for_is_trusted(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    tampered(run, loggers=["os.system"])
    whorl.resume(run, {"loggers": []}, max_iterations=3)
    module = evil(tmp_path, monkeypatch, request)
    whorl.resume(run, {"loggers": [f"{module}.Foo"]}, max_iterations=4)
    assert (run / "logged").exists()


def test_code_hidden_in_yaml_is_not_run(run: Path) -> None:
    text = yaml.safe_dump(checkpoint.load(run / "checkpoint_1").config)
    (run / "checkpoint_1" / "config.yaml").write_text(
        text + "tag: !!python/object/apply:os.system ['true']\n"
    )
    with pytest.raises(CheckpointError), pytest.warns(UserWarning, match="damaged"):
        whorl.restore(run)
