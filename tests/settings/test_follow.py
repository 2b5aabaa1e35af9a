"""Values that follow what the user chose, conditions on hardware and environment, and budgets."""

from typing import Any

import pytest

import whorl
from whorl.core import hardware
from whorl.core.errors import ConfigError
from whorl.data.replay_setup import check_replay
from whorl.run.build import kind_of
from whorl.settings.conditions import WORDS, ConditionContext, layers_where
from whorl.settings.follow import divisors, largest_divisor
from whorl.settings.merge import Settings, configure
from whorl.settings.presets import load_preset, preset_names
from whorl.state.policy import build_agent

OFF_POLICY_MEMORY = ("sac", "td3", "tqc", "ddpg", "dqn", "qr_dqn", "iqn", "c51", "redq")
ON_POLICY_MEMORY = ("ppo", "a2c", "ppg", "impala", "reinforce")


def settings(algorithm: str = "ppo", env: str = "Untuned-v0", **given: Any) -> Settings:
    return configure(algorithm, env, given, kind=lambda options: ("vectors",))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(gpu: bool = False, cores: int = 2, compiler: bool = True) -> None:
        monkeypatch.setattr(hardware, "has_gpu", lambda: gpu)
        monkeypatch.setattr(hardware, "cores", lambda: cores)
        monkeypatch.setattr(hardware, "has_compiler", lambda: compiler)

    make()
    return make


# Values that follow each other


@pytest.mark.parametrize(
    ("given", "batch_size"),
    [({"num_envs": 32}, 256), ({"num_envs": 1024}, 8192), ({"num_envs": 9}, 72), ({"num_steps": 32}, 2048)],
)
def test_the_batch_size_follows_the_size_of_a_rollout(
    machine: Any, given: dict[str, int], batch_size: int
) -> None:
    found = settings(env="Quadrotor-v0", **given)
    assert found.batch_size == batch_size
    assert found.num_envs * found.num_steps % found.batch_size == 0
    assert found.num_envs * found.num_steps // found.batch_size == 8


@pytest.mark.parametrize(
    ("given", "batch_size"),
    [
        ({"num_envs": 1}, 64),
        ({"num_envs": 2, "num_steps": 16}, 32),
        ({"num_envs": 1, "num_steps": 2048}, 128),
        ({"num_envs": 1, "memory": "gru"}, 64),
    ],
)
def test_minibatches_of_a_small_rollout_keep_a_useful_size(
    machine: Any, given: dict[str, Any], batch_size: int
) -> None:
    """Advantages are normalised by minibatch: two rows would always have the advantages 1 and -1."""
    assert settings(env="Taxi-v4", **given).batch_size == batch_size


@pytest.mark.parametrize(
    ("given", "updates", "rows"),
    [
        ({}, 8 / 256, 64 * 5000),
        ({"num_envs": 1000, "num_steps": 2}, 8 / 2000, 1000 * 5000),
        ({"updates_per_iteration": 1, "buffer_size_per_env": 10}, 1 / 256, 640),
        ({"updates_per_step": 0.5, "buffer_size": 999}, 0.5, 999),
    ],
)
def test_updates_and_buffer_follow_the_number_of_environments(
    machine: Any, given: dict[str, Any], updates: float, rows: int
) -> None:
    found = settings("fast_td3", **given)
    assert (found.updates_per_step, found.buffer_size) == (updates, rows)
    wanted = ("updates_per_iteration", "updates_per_step"), ("buffer_size_per_env", "buffer_size")
    for part, whole in wanted:
        assert bool(getattr(found, part)) == (whole not in given)


def test_other_presets_keep_their_updates_per_step(machine: Any) -> None:
    assert settings("td3", num_envs=100).updates_per_step == 1
    assert settings("td3", num_envs=100).buffer_size == 1_000_000


@pytest.mark.parametrize(
    "given", [{"batch_size": 100}, {"batch_size": 100, "num_envs": 6}, {"batch_size": 3000}]
)
def test_the_rollout_follows_a_batch_size(machine: Any, given: dict[str, int]) -> None:
    found = settings(**given)
    assert found.num_envs * found.num_steps % found.batch_size == 0
    assert {name: getattr(found, name) for name in given} == given


def test_the_number_of_environments_follows_a_batch_size_and_a_rollout_length(machine: Any) -> None:
    found = settings(batch_size=96, num_steps=64)
    assert (found.batch_size, found.num_steps, found.num_envs % 3) == (96, 64, 0)


def test_what_the_user_chose_is_never_changed_and_reported_where_it_can_not_work(machine: Any) -> None:
    found = settings(batch_size=100, num_envs=4, num_steps=64)
    assert (found.batch_size, found.num_envs, found.num_steps) == (100, 4, 64)
    with pytest.raises(ConfigError, match="batch_size 100 does not divide the 256"):
        whorl.load("CartPole-v1", "ppo", batch_size=100, num_envs=4, num_steps=64).build()


def test_actors_and_environments_follow_each_other(machine: Any) -> None:
    assert settings("impala", num_envs=9).actors == 1
    assert settings("impala", num_envs=10).actors == 2
    assert settings("impala", actors=3).num_envs == 9
    assert settings("dqn", shards=3).num_envs == 9
    sharded = settings("apex_dqn", "CartPole-v1", shards=3)
    assert (sharded.num_envs, sharded.actors, sharded.shards) == (12, 2, 3), "a multiple of both"
    both = settings("impala", actors=3, num_envs=8)
    assert (both.actors, both.num_envs) == (3, 8)


@pytest.mark.parametrize("memory", ["lstm", "gru", "attention"])
@pytest.mark.parametrize("algorithm", [*OFF_POLICY_MEMORY, *ON_POLICY_MEMORY])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "Untuned-v0"])
def test_memory_is_one_setting(machine: Any, memory: str, algorithm: str, env: str) -> None:
    found = settings(algorithm, env, memory=memory)
    steps = found.num_steps
    strides = [name for name in ("sequence_stride", "chunk_length") if name in found.plain()]
    assert len(strides) == (algorithm not in ("a2c", "impala", "reinforce"))
    assert all(steps % found.plain()[name] == 0 for name in strides)
    continuous = algorithm in ("sac", "td3", "tqc", "ddpg", "redq")
    source = whorl.make("Pendulum-v1" if continuous else "CartPole-v1").source
    build_agent(found, source.spec(found.num_envs)).check(found.num_envs * steps)


@pytest.mark.parametrize(
    ("algorithm", "env"), [("sac", "Pendulum-v1"), ("dqn", "CartPole-v1"), ("ppo", "CartPole-v1")]
)
def test_memory_trains_with_no_other_flag(tmp_path: Any, algorithm: str, env: str) -> None:
    short = {} if algorithm == "ppo" else {"learning_starts": 200}
    quiet = {"runs": str(tmp_path), "quiet": True, "tensorboard": False, "eval": False, "workers": 0}
    assert whorl.train(env, algorithm, memory="gru", total_timesteps=400, **short, **quiet).steps >= 400


def test_a_chunk_follows_the_length_of_a_rollout(machine: Any) -> None:
    found = settings("ppo", memory="lstm", num_steps=50)
    assert (
        found.num_steps == 50 and 50 % found.chunk_length == 0 and found.batch_size % found.chunk_length == 0
    )


@pytest.mark.parametrize("batch_size", [1, 7, 77, 100])
def test_chunks_fit_into_a_batch(machine: Any, batch_size: int) -> None:
    found = settings("ppo", memory="lstm", batch_size=batch_size)
    assert found.batch_size == batch_size
    assert batch_size % found.chunk_length == 0 and found.num_steps % found.chunk_length == 0
    assert found.num_envs * found.num_steps % batch_size == 0
    assert found.chunk_length > 1 or batch_size == 1


def test_a_chunk_of_one_row_is_not_chosen_where_two_numbers_were_given(machine: Any) -> None:
    """No gradient would flow through time."""
    with pytest.raises(ConfigError, match=r"batch_size 77 .* chunk_length"):
        whorl.load("CartPole-v1", "ppo", memory="lstm", batch_size=77, num_steps=30).build()


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize(
    "given",
    [{"num_envs": 10_000}, {"num_steps": 20_000}, {"n_step": 20_000}, {"buffer_size": 1000}],
)
def test_a_replay_buffer_holds_a_rollout_and_a_sample_of_each_environment(
    machine: Any, memory: str, given: dict[str, int]
) -> None:
    found = settings("dqn", "CartPole-v1", memory=memory, **given)
    assert {name: getattr(found, name) for name in given} == given
    check_replay(
        found.algo, whorl.make("CartPole-v1").source.spec(found.num_envs), found.num_envs * found.num_steps
    )


def test_a_small_replay_buffer_makes_rollouts_short(machine: Any) -> None:
    found = settings("dqn", num_envs=8, buffer_size=100, n_step=5)
    assert (found.buffer_size, found.num_steps) == (100, 7), "12 rows for each environment: 7 and 5"


@pytest.mark.parametrize(("algorithm", "rows"), [("r2d2", 1000), ("ngu", 500), ("dqn", 10), ("sac", 10)])
def test_a_tiny_replay_buffer_makes_environments_few(machine: Any, algorithm: str, rows: int) -> None:
    found = settings(algorithm, "CartPole-v1", buffer_size=rows)
    spec = whorl.make("CartPole-v1").source.spec(found.num_envs)
    check_replay(found.algo, spec, found.num_envs * found.num_steps)
    assert found.buffer_size == rows and found.num_envs < settings(algorithm, "CartPole-v1").num_envs


def test_updates_of_an_iteration_follow_rollouts_that_a_small_buffer_made_short(machine: Any) -> None:
    found = settings("fast_td3", buffer_size_per_env=4, n_step=1, num_envs=64)
    assert found.num_steps == 3
    assert found.updates_per_step == found.updates_per_iteration / (64 * found.num_steps)


@pytest.mark.parametrize("algorithm", ["a2c", "impala", "reinforce", "trpo"])
def test_rollouts_that_are_not_split_keep_their_length(machine: Any, algorithm: str) -> None:
    memory = {} if algorithm == "trpo" else {"memory": "lstm"}
    found = settings(algorithm, num_steps=75, **memory)
    assert (found.num_steps, found.chunk_length) == (75, 32), "no chunk is fitted to a rollout"
    with pytest.raises(ConfigError, match=f"{algorithm} does not use chunk_length; leave it out"):
        settings(algorithm, chunk_length=25, **memory)


def test_a_limit_in_iterations_or_episodes_replaces_the_default_budget(machine: Any) -> None:
    assert settings().total_timesteps == 1_000_000
    assert settings(max_iterations=5).total_timesteps == 0
    assert settings(total_episodes=5).total_timesteps == 0
    assert settings(max_epochs=5).max_iterations == 5
    both = settings(max_iterations=5, total_timesteps=70)
    assert (both.max_iterations, both.total_timesteps) == (5, 70)
    assert settings(env="CartPole-v1", total_timesteps=50_000_000).max_iterations == 0


def test_training_without_any_limit_is_refused(machine: Any) -> None:
    with pytest.raises(ConfigError, match="never end"):
        settings(total_timesteps=0)


def test_environments_without_snapshots_are_reset_for_each_checkpoint(machine: Any) -> None:
    assert settings(checkpoint_freq=777).reset_every == 777
    assert settings(checkpoint_freq=777, reset_every=50).reset_every == 50


def test_resets_follow_another_checkpoint_freq_than_that_of_a_complete_file(machine: Any) -> None:
    def found(saved: Settings, **given: Any) -> int:
        return configure("ppo", "Untuned-v0", given, [saved.plain()]).reset_every

    assert found(settings(checkpoint_freq=777), checkpoint_freq=500) == 500
    assert found(settings(checkpoint_freq=777), checkpoint_freq=500, reset_every=777) == 777
    assert found(settings(checkpoint_freq=777, reset_every=50), checkpoint_freq=500) == 50


def test_a_saved_config_is_used_as_it_is(machine: Any) -> None:
    saved = settings(batch_size=64, num_envs=4, num_steps=16).plain()
    again = configure("ppo", "Untuned-v0", {**saved, "num_envs": 3}, presets=False)
    assert (again.num_envs, again.batch_size) == (3, 64)


def test_values_in_a_config_object_that_nobody_chose_follow_too(machine: Any) -> None:
    trainer = whorl.load("CartPole-v1", whorl.PPOConfig(gamma=0.9))
    found = trainer.settings
    assert (found.gamma, found.n_epochs) == (0.9, whorl.PPOConfig.n_epochs)
    assert found.num_envs * found.num_steps % found.batch_size == 0
    with pytest.raises(ConfigError, match="does not divide"):
        whorl.load("CartPole-v1", whorl.PPOConfig(batch_size=100), num_envs=4, num_steps=64).build()


def test_divisors() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert (largest_divisor(25, 20), largest_divisor(7, 5), largest_divisor(8, 8)) == (5, 1, 8)


# Hardware and kinds of environments


def test_the_same_command_takes_the_gpu_where_there_is_one(machine: Any) -> None:
    small = settings(env="Quadrotor-v0")
    machine(gpu=True)
    large = settings(env="Quadrotor-v0")
    assert (small.hardware, small.num_envs, small.env_device, small.compile) == ("cpu", 512, "cpu", False)
    assert (large.hardware, large.num_envs, large.env_device, large.compile) == ("gpu", 4096, "cuda", True)
    assert (large.batch_size, large.device) == (65_536, "auto")
    machine(gpu=True, compiler=False)
    assert not settings(env="Quadrotor-v0").compile


def test_hardware_can_be_chosen_and_follows_the_device(machine: Any) -> None:
    asked = settings(env="Quadrotor-v0", hardware="gpu")
    assert (asked.num_envs, asked.device) == (4096, "cuda")
    machine(gpu=True)
    asked = settings(env="Quadrotor-v0", hardware="cpu")
    assert (asked.num_envs, asked.device, asked.hardware) == (512, "cpu", "cpu")
    assert settings(env="Quadrotor-v0", device="cpu").num_envs == 512
    assert settings(env="Quadrotor-v0", device="cuda:0", learner_threads=1).num_envs == 4096


def test_what_the_user_chose_comes_over_what_depends_on_hardware(machine: Any) -> None:
    machine(gpu=True)
    found = settings(env="Quadrotor-v0", num_envs=64)
    assert (found.num_envs, found.batch_size) == (64, 1024)


def test_the_number_of_cores_counts(machine: Any) -> None:
    few = settings("impala")
    machine(cores=16)
    many = settings("impala")
    assert (few.actors, few.num_envs) == (2, 8)
    assert (many.actors, many.num_envs) == (16, 64)


def test_images_get_their_own_settings(machine: Any) -> None:
    vectors = configure("dqn", "X", {}, kind=lambda options: ("vectors",))
    images = configure("dqn", "X", {}, kind=lambda options: ("images",))
    assert (vectors.hidden_sizes, vectors.batch_size) == ((128, 128), 64)
    assert (images.hidden_sizes, images.batch_size, images.updates_per_step) == ((512,), 32, 0.25)


@pytest.mark.parametrize("algorithm", ["sac", "td3", "tqc"])
def test_continuous_actions_from_images_cost_a_cpu_minutes(machine: Any, algorithm: str) -> None:
    def cost(found: Any) -> float:
        """Rows that all updates read, which is what an image costs."""
        return found.total_timesteps * found.updates_per_step * found.batch_size

    kind = ("images", "continuous")
    found = configure(algorithm, "X", {}, kind=lambda options: kind)
    vectors = configure(algorithm, "X", {}, kind=lambda options: ("vectors", "continuous"))
    assert cost(found) == 50_000 * 0.25 * 64 and cost(vectors) == 200_000 * 256
    assert found.buffer_size >= found.total_timesteps
    own = configure("sac", "dm_control/cartpole-swingup-pixels-v0", {}, kind=lambda options: kind)
    assert (own.batch_size, own.updates_per_step) == (128, 1)
    machine(gpu=True)
    assert configure(algorithm, "X", {}, kind=lambda options: kind).total_timesteps == 1_000_000


def test_the_kind_of_an_environment_is_found_with_its_options() -> None:
    assert set(kind_of(whorl.make("CartPole-v1").source)) == {"vectors", "discrete"}
    assert set(kind_of(whorl.make("Quadrotor-v0").source)) == {"vectors", "continuous", "native"}


def test_files_may_have_conditions_too(machine: Any, tmp_path: Any) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "num_envs: 4\nwhere:\n  gpu: {num_envs: 64}\n  2 cores: {gamma: 0.9}\n  3 cores: {gamma: 0.8}\n"
    )
    found = configure("ppo", "X", {}, [path])
    assert (found.num_envs, found.gamma) == (4, 0.9)
    machine(gpu=True, cores=8)
    found = configure("ppo", "X", {}, [path])
    assert (found.num_envs, found.gamma) == (64, 0.8)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"gqu": {"gamma": 0.9}}, "gqu.*gpu"),
        (["gpu"], "mapping of conditions"),
        ({"gpu": 3}, "mapping of conditions"),
    ],
)
def test_a_condition_that_does_not_exist_is_one_sentence(machine: Any, where: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(where=where)


def test_every_preset_has_valid_settings_on_every_machine(machine: Any) -> None:
    kinds = [("vectors", "discrete"), ("vectors", "continuous", "native"), ("images", "discrete")]
    for name in preset_names():
        preset = load_preset(name)
        for layer in [preset["settings"], *preset["environments"].values()]:
            for condition in (layer or {}).get("where") or {}:
                words = [word for word in condition.split() if word != "cores" and not word.isdigit()]
                assert set(words) <= set(WORDS)
                ConditionContext(kind=lambda: ()).holds(condition)
        for gpu in (False, True):
            for cores in (2, 8, 64):
                machine(gpu=gpu, cores=cores)
                for env in ["Untuned-v0", *(env for env in preset["environments"] if "*" not in env)]:
                    for kind in kinds:
                        found = configure(name, env, {}, kind=lambda options, kind=kind: kind)
                        assert found.total_timesteps > 0 and found.max_iterations == 0
                        assert not found.actors or found.num_envs % found.actors == 0


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("kind", [("vectors", "discrete"), ("vectors", "continuous"), ("images", "discrete")])
def test_every_algorithm_ends_within_a_million_steps_and_is_evaluated_and_saved_on_the_way(
    machine: Any, name: str, kind: tuple[str, ...]
) -> None:
    found = configure(name, "Untuned-v0", {}, kind=lambda options: kind)
    assert 5_000 <= found.total_timesteps <= 1_000_000
    if hasattr(found.algo, "buffer_size"):
        assert (
            found.total_timesteps * found.updates_per_step <= 1_000_000
        )  # an hour at 280 updates per second
    else:
        assert found.total_timesteps == 1_000_000
    assert found.eval and 0 < found.eval_freq <= found.total_timesteps / 5
    assert 0 < found.checkpoint_freq <= found.total_timesteps / 2


def test_a_childs_settings_come_over_its_parents_tuned_ones(machine: Any) -> None:
    for env in ("CartPole-v1", "LunarLander-v3", "MountainCar-v0", "PongNoFrameskip-v4"):
        found = settings("r2d2", env)
        assert (found.exploration_initial_eps, found.exploration_final_eps) == (0.4, 0.4), env
    assert settings("r2d2", "MountainCar-v0").gamma == 0.997
    assert settings("rainbow", "MountainCar-v0").n_step == 3


def test_layers_come_in_the_order_of_their_conditions(machine: Any) -> None:
    layer = {"gamma": 1, "where": {"cpu": {"gamma": 2}, "memory": {"gamma": 3}, "cpu 2 cores": {"gamma": 4}}}
    assert [part["gamma"] for part in layers_where(layer, ConditionContext())] == [1, 2, 4]
    assert [part["gamma"] for part in layers_where(layer, ConditionContext(memory=True))] == [1, 2, 3, 4]
