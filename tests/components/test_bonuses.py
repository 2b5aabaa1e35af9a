"""Intrinsic rewards: on the right transition, by the rule of their paper, forgotten at resets, restored exactly."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from blocks import IMAGE, NUM_ENVS, STEPS, VECTOR, build, feed, rollouts
from torch import Tensor

import whorl
from whorl.agents.agent import COMPONENTS, Agent
from whorl.agents.bonus import drawn
from whorl.collect.collector import LocalCollector
from whorl.components.count import CountConfig
from whorl.components.e3b import E3BConfig
from whorl.components.episodic import Episodic, EpisodicConfig
from whorl.components.icm import ICMConfig
from whorl.components.noveld import NovelDConfig
from whorl.conformance import RandomWorld, Run, same, subject
from whorl.core.errors import ConfigError
from whorl.core.spec import Array
from whorl.data.batch import Batch
from whorl.nets.novelty import Cells
from whorl.run.trainer import Trainer

CONFIGS: dict[str, Any] = {
    "icm": ICMConfig(hidden_sizes=(16,), features=4, normalize=False),
    "count": CountConfig(),
    "noveld": NovelDConfig(hidden_sizes=(16,), features=4, normalize=False),
    "e3b": E3BConfig(hidden_sizes=(16,), features=4, normalize=False),
    "episodic": EpisodicConfig(hidden_sizes=(16,), features=4, neighbours=3, capacity=6, max_lifelong=1.0),
}


def tracked(agent: Agent, obs: Tensor, reset: Tensor) -> Batch:
    """A rollout over observations [T+1, B, ...] with resets [T+1, B], as it would have been collected."""
    steps, num_envs = len(obs) - 1, obs.shape[1]
    action = torch.ones(num_envs, dtype=torch.int64)
    with torch.no_grad():
        memory, rows = agent.begin(obs[0]), []
        for t in range(steps):
            memory, columns = agent.follow(
                memory, obs[t], action, torch.zeros(num_envs), obs[t + 1], reset[t + 1]
            )
            rows.append({name: value.clone() for name, value in columns.items()})
    mask = (~reset[1:]).float()
    extras = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    given = (obs, reset, action.expand(steps, -1), torch.zeros(steps, num_envs))
    return Batch(*given, keep=mask, mask=mask, continues=mask > 0, extras=extras)


def bonus(agent: Agent, name: str, rollout: Batch) -> Tensor:
    component: Any = agent.components[name]
    with torch.no_grad():
        return component.bonus(rollout)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_novelty_raises_the_reward_of_the_transition_into_it_and_of_none_before(name: str) -> None:
    still = torch.full((12, NUM_ENVS, 3), 0.1)
    novel = still.clone()
    novel[6, 2] = torch.tensor([2.0, -2.0, 1.0])
    reset = torch.zeros(12, NUM_ENVS, dtype=torch.bool)
    before, after = (
        bonus(agent, name, tracked(agent, obs, reset))
        for obs in (still, novel)
        for agent in [build("ppo", **{name: CONFIGS[name]})]
    )
    assert after[5, 2] > before[5, 2]
    others = [env for env in range(NUM_ENVS) if env != 2]
    if name != "count":  # which counts the visits of the whole rollout
        assert torch.equal(after[:5, 2], before[:5, 2])
        assert torch.equal(after[:, others], before[:, others])
    if name in ("count", "noveld"):
        assert after[:, 2].argmax() == 5


@pytest.mark.parametrize("name", ["noveld", "e3b", "episodic"])
def test_an_episode_starts_without_the_memory_of_the_one_before(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(9, NUM_ENVS, 3, generator=generator)
    twice = torch.cat((obs, obs))  # the same episode again
    reset = torch.zeros(18, NUM_ENVS, dtype=torch.bool)
    reset[9] = True
    agent = build("ppo", **{name: CONFIGS[name]})
    if name == "episodic":  # the scale of distances is kept across episodes: fix it
        agent.components[name].track = _fixed_scale(agent.components[name])  # type: ignore[method-assign, assignment]
    found = bonus(agent, name, tracked(agent, twice, reset))
    torch.testing.assert_close(found[9:17], found[:8])
    reset[9] = False
    assert not torch.allclose(bonus(agent, name, tracked(agent, twice, reset))[9:17], found[:8])


def _fixed_scale(component: Any) -> Any:
    track = component.track

    def fixed(memory: Any, *given: Any) -> Any:
        one = torch.ones(NUM_ENVS)
        return track({**memory, "distance": one, "distances": one * 1e12}, *given)

    return fixed


def test_visits_are_counted_and_rewarded_by_their_root() -> None:
    agent = build("ppo", count=CONFIGS["count"])
    obs = torch.zeros(4, NUM_ENVS, 3)
    obs[2, 0] = 5.0
    reset = torch.zeros(4, NUM_ENVS, dtype=torch.bool)
    reset[3, 3] = True  # not a transition
    found = bonus(agent, "count", tracked(agent, obs, reset))
    at_home = (3 * NUM_ENVS - 2) ** -0.5
    expected = torch.full((3, NUM_ENVS), at_home)
    expected[1, 0] = 1.0
    torch.testing.assert_close(found * (~reset[1:]), expected * (~reset[1:]))
    count: Any = agent.components["count"]
    assert count.visits.sum() == 3 * NUM_ENVS - 1


def test_curiosity_is_half_the_squared_error_of_the_forward_model() -> None:
    agent = build("ppo", icm=CONFIGS["icm"])
    icm: Any = agent.components["icm"]
    (rollout,) = rollouts(agent)
    agent.receive(rollout)
    found = bonus(agent, "icm", rollout)
    one, two = icm.inverse(rollout.obs[3, 1]), icm.inverse(rollout.obs[4, 1])
    coded = torch.nn.functional.one_hot(rollout.action[3, 1], 3).float()
    error = icm.forward_model(torch.cat((one, coded))) - two
    torch.testing.assert_close(found[3, 1], 0.5 * error.square().sum().detach())


def test_the_elliptical_bonus_is_exact_in_long_episodes_of_similar_features() -> None:
    agent = build("ppo", e3b=E3BConfig(hidden_sizes=(16,), features=32))
    e3b: Any = agent.components["e3b"]
    generator = torch.Generator().manual_seed(0)
    few = 10 * torch.randn(3, 32, generator=generator)
    features = torch.randn(3_000, 3, generator=generator) @ few
    features += 1e-3 * torch.randn(3_000, 32, generator=generator)
    memory, reset = e3b.initial_memory(1), torch.zeros(1, dtype=torch.bool)
    matrix = 0.1 * torch.eye(32, dtype=torch.float64)
    e3b.inverse = torch.nn.Identity()
    for value in features:
        memory, found = e3b.track(memory, None, None, value.unsqueeze(0), reset)
        expected = value.double() @ torch.linalg.solve(matrix, value.double())
        matrix += torch.outer(value.double(), value.double())
        assert float(found["e3b"]) == pytest.approx(float(expected), rel=1e-3)
    assert found["e3b"].dtype == torch.float32


@pytest.mark.parametrize("name", ["icm", "e3b", "episodic"])
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_the_inverse_model_learns_which_action_was_taken(name: str, algorithm: str) -> None:
    """Each action moves the observation by its own number; a noisy dimension tells nothing."""
    agent = build(algorithm, **{name: replace(CONFIGS[name], lr=0.01)})
    component: Any = agent.components[name]
    generator = torch.Generator().manual_seed(0)
    given = []
    for rollout in rollouts(agent, 20):
        obs = torch.randn(rollout.obs.shape, generator=generator)
        obs[1:, :, 0] = 0
        obs[1:, :, 0] = rollout.action.float() - 1
        given.append(rollout.replace(obs=obs))
    found = [
        value
        for metrics in feed(agent, agent.experience(torch.Generator()), given)
        for key, value in metrics.items()
        if key in (f"loss/{name}_inverse", f"loss/{name}")
    ]
    assert torch.stack(found[-5:]).mean() < torch.stack(found[:5]).mean() - 0.01
    assert component.needs_successor


def test_models_learn_from_consecutive_observations_whatever_the_steps_of_a_return() -> None:
    cell = subject("dqn", "vector", "none", "discrete", components=["icm"], n_step=3)
    run = Run(cell)
    for rollout in cell.rollouts(run.agent, 3):
        run.experience.add(run.agent.receive(rollout))
    rows = run.experience.ring.columns["obs"].flatten(0, 1)
    (obs, _, following, _), *_ = drawn(run.experience.sample(), 1.0, 1000, torch.Generator())
    place = (obs.unsqueeze(1) == rows).all(-1).float().argmax(1)
    assert torch.equal(following, rows[place + run.agent.spec.num_envs])


@pytest.mark.parametrize("name", CONFIGS)
def test_what_masked_rows_hold_reaches_neither_networks_nor_statistics(name: str) -> None:
    cell = subject("ppo", "vector", "none", "continuous", components=[name])
    plain, poisoned = Run(cell), Run(cell)
    given = cell.rollouts(plain.agent, 2)
    plain.feed(given)
    for rollout in cell.rollouts(poisoned.agent, 2):
        columns = [rollout.action, rollout.reward, *rollout.extras.values()]
        assert (rollout.mask == 0).any()
        for column in columns:
            column[rollout.mask == 0] = torch.nan
        poisoned.feed([rollout])
    assert same(plain.agent.state(), poisoned.agent.state())


@pytest.mark.parametrize(
    ("proportion", "size", "sizes"), [(0.25, 8, [8, 8]), (0.25, 100, [64]), (1.0, 24, [24, 24])]
)
def test_components_learn_from_their_share_of_a_batch_in_whole_minibatches(
    proportion: float, size: int, sizes: list[int]
) -> None:
    (rollout,) = rollouts(build("ppo"))
    assert rollout.mask.numel() == 64
    found = list(drawn(rollout, proportion, size, torch.Generator()))
    assert [len(mask) for *_, mask in found] == sizes
    rows = torch.cat([obs for obs, *_ in found])
    assert len(rows.unique(dim=0)) == len(rows), "no row is drawn twice"


def test_the_reward_of_icm_is_in_the_returns_of_the_critic() -> None:
    agent = build("ppo", icm=CONFIGS["icm"])
    (rollout,) = rollouts(agent)
    received = agent.receive(rollout)
    torch.testing.assert_close(received.reward[..., 1], bonus(agent, "icm", rollout) * rollout.mask)
    assert received.reward[..., 1].any()
    experience = agent.experience(torch.Generator())
    experience.add(received)
    ((_, batch),) = experience.due()
    assert torch.equal(batch.reward, received.reward), "PPO has a value and an advantage for it"


def test_icm_can_reward_the_error_of_the_inverse_model() -> None:
    agent: Any = build("ppo", icm=replace(CONFIGS["icm"], error="inverse"))
    icm, (rollout,) = agent.components["icm"], rollouts(agent)
    icm.observe(rollout)
    before, after = icm.inverse(rollout.obs[:-1]), icm.inverse(rollout.obs[1:])
    found = icm.bonus(rollout)
    torch.testing.assert_close(found, icm.inverse.loss(before, after, rollout.action))
    assert not torch.allclose(found, icm.forward_error(before, rollout.action, after))


def test_an_intrinsic_reward_is_counted_once_in_priorities() -> None:
    """The TD error of new rows, of their sample and of its update, with a critic of 0: the reward and its weight."""
    weight = 0.5
    settings: dict[str, Any] = {"prioritized": True, "priority_on_add": True, "n_step": 1, "batch_size": 16}
    settings |= {"components": ["icm"], "icm": {"weight": weight}}
    cell = subject("dqn", "vector", "none", "discrete", **settings)
    run = Run(cell)
    agent: Any = run.agent
    for net in (agent.critic, agent.target_critic):
        for value in net.parameters():
            value.detach().zero_()
    for rollout in cell.rollouts(agent, 2):
        run.experience.add(agent.receive(rollout))
    batch = run.experience.sample()
    stored = run.experience.ring.take("reward", batch.extras["index"].unsqueeze(0))
    total = stored[..., 0] + weight * stored[..., 1]
    torch.testing.assert_close(batch.reward, total)
    torch.testing.assert_close(agent.errors(batch), total.abs())
    torch.testing.assert_close(agent.learn("update", batch).priority, total.abs())


def test_noveld_rewards_the_difference_of_novelty_at_the_first_visit() -> None:
    agent = build("ppo", noveld=CONFIGS["noveld"])
    noveld: Any = agent.components["noveld"]
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(6, NUM_ENVS, 3, generator=generator)
    obs[4] = obs[2]  # again
    rollout = tracked(agent, obs, torch.zeros(6, NUM_ENVS, dtype=torch.bool))
    novelty = noveld.novelty(obs).detach()
    found = bonus(agent, "noveld", rollout)
    for t in range(5):
        expected = (novelty[t + 1] - 0.5 * novelty[t]).clamp(min=0) * (t != 3)
        torch.testing.assert_close(found[t], expected)


class Lists:
    """The episodic memory of one environment, with lists."""

    def __init__(self, cfg: EpisodicConfig) -> None:
        self.cfg, self.total, self.count = cfg, 0.0, 0
        self.held: list[Tensor] = []

    def reward(self, value: Tensor, reset: bool) -> float:
        """The reward of the transition to an observation embedded as `value`, which is then remembered."""
        cfg = self.cfg
        if reset:
            self.held = []
        near = sorted(float((value - other).square().sum()) for other in self.held[-cfg.capacity :])
        near = near[: cfg.neighbours]
        self.total, self.count = self.total + sum(near), self.count + len(near)
        mean = self.total / max(self.count, 1)
        kernel = [
            cfg.kernel_epsilon / (max(d / mean - cfg.cluster_distance, 0) + cfg.kernel_epsilon) for d in near
        ]
        self.held.append(value)
        return 1 / (sum(kernel) ** 0.5 + cfg.pseudo_count)


def test_the_episodic_memory_equals_one_of_lists_after_resets_and_when_full() -> None:
    agent = build("ppo", episodic=CONFIGS["episodic"])
    component: Any = agent.components["episodic"]
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(30, NUM_ENVS, 3, generator=generator)
    reset = torch.rand(30, NUM_ENVS, generator=generator) < 0.12
    reset[0] = True
    found = bonus(agent, "episodic", tracked(agent, obs, reset))
    value = component.inverse(obs).detach().double()
    for env in range(NUM_ENVS):
        lists = Lists(component.cfg)
        lists.reward(value[0, env], True)
        for t in range(29):
            expected = lists.reward(value[t + 1, env], bool(reset[t + 1, env]))
            if not reset[t + 1, env]:
                assert float(found[t, env]) == pytest.approx(expected, rel=1e-3)


def test_the_episodic_memory_of_actors_equals_one_of_lists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Actors embed with the networks of the learner at the time; what they have remembered stays as it was."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    observe = Episodic.observe

    def kept(component: Episodic, rollout: Batch) -> None:
        with torch.no_grad():
            value = component.inverse(rollout.obs).double()
        seen.append((rollout.extras["episodic"].clone(), rollout.reset.clone(), value))
        observe(component, rollout)

    monkeypatch.setattr(Episodic, "observe", kept)
    own = {"capacity": 12, "hidden_sizes": [8], "features": 4, "max_lifelong": 1.0, "lr": 0.01}
    given: dict[str, Any] = {"num_envs": 4, "num_steps": 16, "batch_size": 32, "max_iterations": 4}
    given |= {"actors": 2, "max_lag": 0, "components": ["episodic"], "episodic": own}
    quiet = {"eval": False, "quiet": True, "tensorboard": False, "runs": str(tmp_path)}
    whorl.load("CartPole-v1", "ppo", {**given, **quiet}).train()
    cfg = EpisodicConfig(**{**own, "hidden_sizes": (8,)})
    lists = [Lists(cfg) for _ in range(4)]
    resets = 0
    for number, (found, reset, value) in enumerate(seen):
        for env, memory in enumerate(lists):
            if number == 0:
                memory.reward(value[0, env], True)
            for t in range(len(found)):
                ended = bool(reset[t + 1, env])
                expected = memory.reward(value[t + 1, env], ended)
                resets += ended
                if not ended:
                    assert float(found[t, env]) == pytest.approx(expected, rel=1e-2), (number, t, env)
    assert len(seen) == 4 and resets > 4


@pytest.mark.parametrize("workers", [0, 2])
def test_a_reset_of_all_environments_keeps_the_mean_distance_and_clears_the_episode(
    workers: int, tmp_path: Path
) -> None:
    """As `reset_every` resets environments without snapshots."""
    given: dict[str, Any] = {"num_envs": 4, "num_steps": 16, "batch_size": 32, "workers": workers}
    given |= {"components": ["episodic"], "episodic": {"capacity": 12, "hidden_sizes": [8], "features": 4}}
    quiet = {"eval": False, "quiet": True, "tensorboard": False, "runs": str(tmp_path)}
    with whorl.load("CartPole-v1", "ppo", {**given, **quiet}) as trainer:
        trainer.step()
        before, after = (_memories(trainer, reset) for reset in (False, True))
        assert before["distance"].min() > 0 and before["count"].max() > 1
        assert after["count"].tolist() == [1] * 4
        for name in ("distance", "distances"):
            assert torch.equal(after[name], before[name])


def _memories(trainer: Trainer, reset: bool) -> dict[str, Tensor]:
    """The episodic memories of all environments, after all were reset or as they are."""
    if reset:
        trainer.parts.reset(1)
    found = trainer.parts.acting.collector.state_dict()
    parts = [part["memory"][COMPONENTS]["episodic"] for part in found.get("workers", [found])]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def test_lifelong_novelty_multiplies_within_its_bounds() -> None:
    config = EpisodicConfig(hidden_sizes=(16,), features=4, max_lifelong=5.0)
    plain = EpisodicConfig(hidden_sizes=(16,), features=4, max_lifelong=1.0)
    one, two = build("ppo", episodic=config), build("ppo", episodic=plain)
    obs = torch.randn(12, NUM_ENVS, 3, generator=torch.Generator().manual_seed(0))
    reset = torch.zeros(12, NUM_ENVS, dtype=torch.bool)
    for agent in (one, two):
        errors: Any = agent.components["episodic"].errors
        errors.mean.fill_(0.1)
        errors.var.fill_(0.01)
    first, second = tracked(one, obs, reset), tracked(two, obs, reset)
    factor = (1 + (first.extras["episodic_error"] - 0.1) / 0.1).clamp(1, 5)
    torch.testing.assert_close(first.extras["episodic"], second.extras["episodic"] * factor)
    assert factor.max() > 1
    rewarded: Any = one.components["episodic"]
    rewarded.observe(first)
    assert rewarded.errors.mean != 0.1, "the statistics move"


def test_lifelong_novelty_is_that_of_recent_errors() -> None:
    """The error of a network that learns falls; what it has not learned is novel beside what it has."""
    config = replace(CONFIGS["episodic"], max_lifelong=5.0, lifelong_window=4)
    component: Any = build("ppo", episodic=config).components["episodic"]
    for errors in ([9.0, 7.0, 9.0, 7.0], [1.0, 3.0, 1.0, 3.0], [4.0, 4.0]):
        component.errors.merge_(torch.tensor(errors), torch.ones(len(errors)))
    # The last whole block and what came since, 1, 3, 1, 3, 4, 4: mean 8 / 3, mean of squares 52 / 6, variance 14 / 9
    assert component.errors.mean.item() == pytest.approx(8 / 3)
    assert component.errors.var.item() == pytest.approx(14 / 9)
    factor = component.lifelong(torch.tensor([2.0, 4.0, 99.0])).tolist()
    assert factor == pytest.approx([1.0, 1 + (4 - 8 / 3) / (14 / 9) ** 0.5, 5.0])
    component.errors.merge_(
        torch.tensor([4.0, 4.0, 77.0]), torch.tensor([1.0, 1.0, 0.0])
    )  # the second block is whole
    component.errors.merge_(torch.tensor([2.0, 2.0]), torch.ones(2))
    assert component.errors.mean.item() == pytest.approx(20 / 6)


@pytest.mark.parametrize("name", ["noveld", "e3b", "episodic"])
def test_memories_continue_exactly_from_a_checkpoint(name: str) -> None:
    agent = build("ppo", **{name: CONFIGS[name]})

    def collector() -> LocalCollector:
        world: Any = RandomWorld(agent.spec)
        made = LocalCollector(world, agent, STEPS, torch.Generator().manual_seed(1))
        made.reset(0)
        return made

    one, two = collector(), collector()
    one.collect()
    saved = {key: torch.utils._pytree.tree_map(_copied, value) for key, value in one.state_dict().items()}
    two.collect()
    two.load_state_dict(saved)
    memory = one.memory[COMPONENTS][name]
    assert all(torch.equal(value, two.memory[COMPONENTS][name][key]) for key, value in memory.items())


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


@pytest.mark.parametrize("name", CONFIGS)
def test_images_are_rewarded_too(name: str) -> None:
    agent = build("ppo", IMAGE, **{name: CONFIGS[name]})
    (rollout,) = rollouts(agent)
    reward = agent.receive(rollout).reward[..., 1]
    assert (reward > 0).any() and reward.isfinite().all()


def test_a_discount_of_its_own_is_refused_where_it_would_have_no_effect() -> None:
    with pytest.raises(
        ConfigError, match=r"count.gamma is 0.5, but DQN .*; leave count.gamma out, or use ppo"
    ):
        build("dqn", count=CountConfig(gamma=0.5))
    build("dqn", count=CountConfig(gamma=0.5, normalize=True))
    build("ppo", count=CountConfig(gamma=0.5))


def test_each_number_of_a_vector_has_cells_of_its_own_bounds() -> None:
    """MountainCar: positions from -1.2 to 0.6, velocities from -0.07 to 0.07."""
    with whorl.load("MountainCar-v0", "dqn", components=["count"], eval=False, quiet=True) as trainer:
        trainer.build()
        count: Any = trainer.agent.components["count"]
    grid = torch.cartesian_prod(torch.linspace(-1.19, 0.59, 20), torch.linspace(-0.069, 0.069, 20))
    assert len(count.cells(grid).unique()) == 400


def test_cells_tell_observations_apart() -> None:
    cells = Cells(Array((2,), low=0.0, high=1.0), 10, 1 << 20)
    same = cells(torch.tensor([[0.11, 0.99], [0.19, 0.91], [0.21, 0.91]]))
    assert same[0] == same[1] != same[2]
    uneven = Cells(Array((2,), low=-1.0, high=1e9, lows=(-1.0, 0.0), highs=(1.0, 1e9)), 10, 1 << 20)
    same = uneven(torch.tensor([[0.1, 3.01], [0.19, 3.19], [0.21, 3.01], [0.1, 3.21]]))
    assert same[0] == same[1] and len(same.unique()) == 3, "0.2 wide where bounds are 2 apart, or say nothing"
    exact = Cells(VECTOR, 20, 1 << 30)
    drawn = torch.randint(-50, 50, (1000, 3), generator=torch.Generator().manual_seed(0)).float()
    assert len(exact(drawn).unique()) == len(drawn.unique(dim=0))
    small, large = Cells(IMAGE, 1, 1 << 30), Cells(Array((84, 84, 4), "uint8", stack=4, axis=2), 1, 1 << 30)
    images = torch.zeros(2, 16, 16, 3, dtype=torch.uint8)
    images[1, 3, 3, 0] = 1
    assert len(small(images).unique()) == 2
    frames = torch.zeros(3, 84, 84, 4, dtype=torch.uint8)
    frames[1, 0, 0, 3] = 9  # one dark pixel
    frames[2, :40, :40, 3] = 200
    assert len(large(frames).unique()) == 2
    frames[1, :, :, 0] = 255  # an older frame
    assert len(large(frames).unique()) == 2
