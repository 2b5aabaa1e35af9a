"""Random network distillation: the right transition is rewarded, statistics move, the predictor learns, runs resume."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import IMAGE, NUM_ENVS, STEPS, build, feed, rollouts
from torch import Tensor

import whorl
from whorl.components.rnd import RNDConfig
from whorl.conformance import CHECKS, CheckedRunner, same, subject
from whorl.core.spec import MASK_KEY, Array, Stream
from whorl.data.batch import Batch
from whorl.state import checkpoint

SMALL = RNDConfig(hidden_sizes=(16,), features=8, batch_size=32, proportion=1.0, lr=1e-3, warmup_steps=0)


def still(obs: Tensor) -> Batch:
    """A rollout over observations [T+1, B, ...] without an end."""
    steps = obs.shape[0] - 1
    ones = torch.ones(steps, obs.shape[1])
    reset = torch.zeros(steps + 1, obs.shape[1], dtype=torch.bool)
    return Batch(obs, reset, ones.long(), ones, keep=ones, mask=ones.clone(), continues=ones > 0)


def test_the_reward_belongs_to_the_transition_into_the_new_observation() -> None:
    agent = build("ppo", rnd=SMALL)
    rnd: Any = agent.components["rnd"]
    generator = torch.Generator().manual_seed(0)
    seen = torch.randn(STEPS + 1, NUM_ENVS, 3, generator=generator)
    rnd.observe(still(seen))
    quiet = seen.clone()
    quiet[:] = seen[:1]
    novel = quiet.clone()
    novel[6, 2] = 40.0  # far outside of what the normaliser knows
    before, after = (rnd.error(obs[1:]) for obs in (quiet, novel))
    assert (after != before).nonzero().tolist() == [[5, 2]]
    assert after[5, 2] > before[5, 2]
    rewarded = agent.receive(still(novel)).reward[..., 1]
    assert rewarded.argmax() == 5 * NUM_ENVS + 2


@pytest.mark.parametrize("axis", [0, 2])
def test_of_stacked_frames_only_the_newest_counts(axis: int) -> None:
    shape = tuple(4 if number == axis else 16 for number in range(3))
    agent = build("ppo", Array(shape, "uint8", 0.0, 255.0, stack=4, axis=axis), rnd=SMALL)
    rnd: Any = agent.components["rnd"]
    generator = torch.Generator().manual_seed(0)
    obs = torch.randint(256, (3, 2, *shape), generator=generator, dtype=torch.uint8)
    rnd.networks.merge_(obs, torch.ones(3, 2))
    assert rnd.networks.observations.statistics["observation"].mean.numel() == 16 * 16
    older, newer = obs.clone(), obs.clone()
    older.narrow(2 + axis, 0, 3).random_(generator=generator)
    newer.narrow(2 + axis, 3, 1).random_(generator=generator)
    assert torch.equal(rnd.error(older), rnd.error(obs))
    assert not torch.equal(rnd.error(newer), rnd.error(obs))


def test_masked_rows_have_no_reward_and_the_stream_is_not_episodic() -> None:
    agent = build("ppo", rnd=SMALL)
    assert agent.spec.streams == (Stream("rnd", 0.99, episodic=False, weight=0.5),)
    (rollout,) = rollouts(agent)
    reward = agent.receive(rollout).reward[..., 1]
    assert (rollout.mask == 0).any()
    assert torch.equal(reward > 0, rollout.mask > 0)


def test_rewards_are_divided_by_the_deviation_of_their_discounted_sum() -> None:
    agent = build("ppo", rnd=SMALL)
    rnd: Any = agent.components["rnd"]
    rollout = still(torch.randn(STEPS + 1, NUM_ENVS, 3, generator=torch.Generator().manual_seed(0)))
    reward = agent.receive(rollout).reward[..., 1]
    error = rnd.error(rollout.obs[1:]).detach()
    sums, running = [], torch.zeros(NUM_ENVS)
    for row in error:
        running = 0.99 * running + row
        sums.append(running)
    expected = error / (torch.stack(sums).var(correction=0) + 1e-6).sqrt()
    torch.testing.assert_close(reward, expected)


@pytest.mark.parametrize("algorithm", ["a2c", "dqn"])
def test_the_warm_up_moves_statistics_of_observations_alone(algorithm: str) -> None:
    agent = build(algorithm, rnd=replace(SMALL, warmup_steps=STEPS * NUM_ENVS + 1))
    rnd: Any = agent.components["rnd"]
    random = torch.Generator().manual_seed(0)
    first, second, third = (still(torch.randn(STEPS + 1, NUM_ENVS, 3, generator=random)) for _ in range(3))
    before = {name: value.clone() for name, value in rnd.networks.state_dict().items()}
    experience = agent.experience(torch.Generator())
    assert feed(agent, experience, [first])
    for name, value in rnd.networks.state_dict().items():
        assert torch.equal(value, before[name]) != name.startswith("observations"), name
    assert not agent.receive(second).reward[..., 1].any()
    assert rnd.scale.statistics.count == 0
    reward = agent.receive(third).reward[..., 1]
    sums, running, error = [], torch.zeros(NUM_ENVS), rnd.error(third.obs[1:]).detach()
    for row in error:
        running = 0.99 * running + row
        sums.append(running)
    torch.testing.assert_close(reward, error / (torch.stack(sums).var(correction=0) + 1e-6).sqrt())
    feed(agent, experience, [third])
    assert not torch.equal(rnd.networks.predictor.last.weight, before["predictor.last.weight"])


def test_observations_are_normalised_and_clipped() -> None:
    agent = build("ppo", rnd=SMALL)
    rnd: Any = agent.components["rnd"]
    obs = 100 + 3 * torch.randn(401, NUM_ENVS, 3, generator=torch.Generator().manual_seed(0))
    rnd.observe(still(obs))
    seen = rnd.networks.observations(obs)
    assert abs(seen.mean()) < 0.05 and abs(seen.std() - 1) < 0.05
    assert rnd.networks.observations(torch.full((1, 3), 1e6)).tolist() == [[5.0] * 3]
    assert rnd.networks.observations(torch.full((1, 3), -1e6)).tolist() == [[-5.0] * 3]


def test_images_are_normalised_by_running_statistics_too() -> None:
    agent = build("dqn", IMAGE, rnd=SMALL)
    rnd: Any = agent.components["rnd"]
    agent.receive(rollouts(agent)[0])
    assert rnd.networks.observations.statistics["observation"].mean.shape == (16, 16, 3)
    assert 100 < rnd.networks.observations.statistics["observation"].mean.mean() < 155


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "dqn", "sac"])
def test_the_predictor_learns_and_the_target_stays(algorithm: str) -> None:
    agent = build(algorithm, rnd=SMALL)
    rnd: Any = agent.components["rnd"]
    target = {name: value.clone() for name, value in rnd.networks.target.state_dict().items()}
    given = rollouts(agent, 10)
    metrics = feed(agent, agent.experience(torch.Generator().manual_seed(0)), given * 4)
    assert metrics[-1]["loss/rnd"] < 0.5 * metrics[0]["loss/rnd"]
    assert metrics[-1]["rnd/reward"] > 0
    assert same(target, dict(rnd.networks.target.state_dict()))
    assert rnd.scale.statistics.count > 0 and rnd.networks.observations.statistics["observation"].count > 0


def test_only_a_proportion_of_the_rows_is_learned_from() -> None:
    agent = build("a2c", rnd=RNDConfig(proportion=0.25, batch_size=8, hidden_sizes=(16,)))
    steps: list[int] = []
    minimize = agent.minimize

    def counted(name: str, loss: Tensor, *rest: Any, **options: Any) -> Any:
        steps.append(name == "rnd")
        return minimize(name, loss, *rest, **options)

    agent.minimize = counted  # type: ignore[method-assign, assignment]
    feed(agent, agent.experience(torch.Generator()), rollouts(agent))
    assert sum(steps) == STEPS * NUM_ENVS // 4 // 8


def test_rows_that_are_no_transitions_do_not_train_the_predictor() -> None:
    def loss(poisoned: bool) -> float:
        agent = build("a2c", rnd=SMALL)
        batch = rollouts(agent)[0]
        batch.mask[3] = 0  # its successor is the first observation of another episode
        if poisoned:
            batch.obs[4] += 100.0
        component: Any = agent.components["rnd"]
        return float(component.update(agent, batch)["loss/rnd"])

    assert loss(False) == loss(True)


@pytest.mark.parametrize(
    "observation", [IMAGE, {"a": Array((2,)), "b": Array((3,)), MASK_KEY: Array((3,), "int8")}]
)
def test_it_reads_images_and_dicts(observation: Any) -> None:
    agent = build("ppo", observation, rnd=SMALL)
    metrics = feed(agent, agent.experience(torch.Generator()), rollouts(agent, 2))
    assert all(torch.isfinite(value) for value in metrics[-1].values())


@pytest.mark.parametrize("check", [name for name in CHECKS if name != "keeps_its_settings"])
@pytest.mark.parametrize(
    ("algorithm", "memory", "action"),
    [
        ("ppo", "none", "discrete"),
        ("ppo", "lstm", "continuous"),
        ("a2c", "none", "continuous"),
        ("dqn", "none", "discrete"),
        ("dqn", "gru", "discrete"),
        ("sac", "none", "continuous"),
    ],
)
def test_agents_with_rnd_pass_the_conformance_suite(
    algorithm: str, memory: str, action: str, check: str, use: Callable[..., None]
) -> None:
    use(rnd=SMALL)
    CHECKS[check](subject(algorithm, "vector", memory, action))


def test_its_step_can_be_captured() -> None:
    agent = build("ppo", rnd=SMALL)
    agent.runner = CheckedRunner()
    feed(agent, agent.experience(torch.Generator()), rollouts(agent, 2))
    assert agent.runner.calls == 4  # the agent's and the component's, twice


class Stop(whorl.Callback):
    """Ends a run after 5 iterations."""

    def on_update(self, trainer: Any, row: dict[str, Any]) -> None:
        if trainer.iteration == 5:
            trainer.stop("enough")


@pytest.mark.parametrize(
    ("algorithm", "workers"),
    [
        ("ppo", 0),
        pytest.param("ppo", 2, marks=pytest.mark.full),
        ("dqn", 0),
        pytest.param("dqn", 2, marks=pytest.mark.full),
    ],
)
def test_a_run_that_is_resumed_equals_one_that_was_not(
    algorithm: str, workers: int, use: Callable[..., None], tmp_path: Path
) -> None:
    use(rnd=SMALL)
    settings: dict[str, Any] = {"num_envs": 4, "num_steps": 32, "batch_size": 32, "max_iterations": 10}
    settings |= {"eval": False, "quiet": True, "tensorboard": False, "workers": workers}
    settings |= {"learning_starts": 100, "random_steps": 0} if algorithm == "dqn" else {}
    whole = whorl.load("CartPole-v1", algorithm, {**settings, "runs": str(tmp_path / "a")}).train()
    half = whorl.load("CartPole-v1", algorithm, {**settings, "runs": str(tmp_path / "b")}, callbacks=[Stop()])
    run = half.train().run_dir
    rest = whorl.resume(run)
    assert (rest.iterations, rest.steps) == (whole.iterations, whole.steps)
    one, two = (
        checkpoint.use_newest(path, pytest.fail, lambda found: found.state) for path in (whole.run_dir, run)
    )
    assert any(name.startswith("components.rnd.scale") for name in one["agent"]["module"])
    assert same(one["agent"], two["agent"]) and same(one["streams"], two["streams"])


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {"actors": 2, "max_lag": 0}),
        pytest.param(
            "dqn", {"actors": 2, "prioritized": True, "priority_on_add": True}, marks=pytest.mark.full
        ),
        ("dqn", {"shards": 2}),
        ("ppo", {"learners": 2}),
    ],
    ids=["actors", "actors with priorities", "shards", "learners"],
)
def test_it_trains_where_others_collect_store_or_learn(
    algorithm: str, settings: dict[str, Any], use: Callable[..., None], tmp_path: Path
) -> None:
    use(rnd=SMALL)
    given: dict[str, Any] = {
        "num_envs": 4,
        "num_steps": 16,
        "batch_size": 32,
        "max_iterations": 6,
        "eval": False,
    }
    given |= {"quiet": True, "tensorboard": False, "runs": str(tmp_path)}
    given |= {"learning_starts": 50, "random_steps": 0, "buffer_size": 1000} if algorithm == "dqn" else {}
    trainer = whorl.load("CartPole-v1", algorithm, {**given, **settings})
    trainer.train()
    rnd: Any = trainer.agent.components["rnd"]
    assert rnd.scale.statistics.count == trainer.steps
    assert trainer.agent.updates > 0 and rnd.mean_reward > 0
