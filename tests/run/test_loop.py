"""Counters, running means of metrics, and what happens to an update's result."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from whorl.agents.agent import Updated
from whorl.core.errors import DivergedError
from whorl.run.learner import Learner
from whorl.run.loop import Counters, Loop


@pytest.mark.parametrize(
    ("before", "steps", "passed"), [(90, 99, False), (90, 100, True), (100, 110, False), (90, 250, True)]
)
def test_an_interval_is_passed_when_its_multiple_is_reached(before: int, steps: int, passed: bool) -> None:
    assert Counters(steps_before=before, steps=steps).passed(100) == passed


def test_the_budget_that_ends_first_counts() -> None:
    counters = Counters(steps=50, episodes=30, iteration=1)
    run: Any = SimpleNamespace(total_timesteps=100, total_episodes=40, max_iterations=10)
    assert counters.spent(run) == (30, 40, "episodes")
    run.total_episodes = 0
    assert counters.spent(run) == (50, 100, "steps")


def test_a_row_has_the_means_over_the_episodes_since_the_last_one() -> None:
    counters = Counters()
    counters.count({"steps": 10, "episodes": 2, "return": 6.0, "length": 8.0}, ())
    counters.count({"steps": 10, "episodes": 1, "return": 0.0, "length": 1.0}, ())
    expected = {"steps": 20, "iteration": 2, "episodes": 3, "episode/return": 2.0, "episode/length": 3.0}
    assert counters.row() == expected
    assert (counters.steps_before, counters.steps) == (10, 20)
    counters.clear_new()
    assert counters.row() == {"steps": 20, "iteration": 2, "episodes": 3}
    counters.count({"steps": 10, "episodes": 1, "return": 5.0, "length": 4.0}, ())
    assert counters.row()["episode/return"] == 5.0


class Scripted:
    """An agent whose updates have these metrics."""

    device = torch.device("cpu")
    updates = 0
    runner = None

    def __init__(self, *losses: float) -> None:
        self.losses, self.net = list(losses), nn.Linear(1, 1)

    def learn(self, phase: str, batch: Any) -> Updated:
        found = {"loss/actor": torch.tensor(self.losses.pop(0))}
        return Updated(found if len(self.losses) % 2 else {**found, "loss/critic": torch.tensor(1.0)})

    def trained(self) -> dict[str, Any]:
        return dict(self.net.named_parameters())


def learner(*losses: float) -> tuple[Learner, Any]:
    agent: Any = Scripted(*losses)
    return Learner(agent, capture=False), agent


def test_metrics_are_means_since_they_were_last_read_and_each_has_its_own_count() -> None:
    runs, agent = learner(1.0, 3.0, 8.0, 10.0)
    for _ in range(2):
        runs.update("update", None)  # type: ignore[arg-type]
    assert runs.drain() == {"loss/actor": 2.0, "loss/critic": 1.0}
    for _ in range(2):
        runs.update("update", None)  # type: ignore[arg-type]
    assert runs.means() == runs.drain() == {"loss/actor": 9.0, "loss/critic": 1.0}
    assert runs.drain() == {}
    assert agent.updates == 4


def test_a_second_phase_is_no_update() -> None:
    runs, agent = learner(1.0)
    runs.update("auxiliary", None)  # type: ignore[arg-type]
    assert agent.updates == 0


def test_sums_of_metrics_are_state() -> None:
    one, _ = learner(1.0, 3.0)
    two, _ = learner(5.0)
    for _ in range(2):
        one.update("update", None)  # type: ignore[arg-type]
    two.load_state_dict(one.state_dict())
    two.update("update", None)  # type: ignore[arg-type]
    assert two.means()["loss/actor"] == 3.0


def test_weights_that_are_not_finite_are_named() -> None:
    runs, agent = learner()
    runs.check_finite()
    with torch.no_grad():
        agent.net.bias.fill_(torch.inf)
    with pytest.raises(DivergedError, match="the weights bias are no longer finite"):
        runs.check_finite()


def test_the_result_of_each_update_goes_back_to_the_experience() -> None:
    settled: list[Any] = []
    experience = SimpleNamespace(
        due=lambda: iter([("update", 1), ("auxiliary", 2)]), settle=lambda *given: settled.append(given)
    )
    learns = SimpleNamespace(update=lambda phase, batch: (phase, batch))
    parts: Any = SimpleNamespace(experience=experience, learner=learns)
    Loop(parts, Counters(), lambda episode: None, lambda rollout: None)._learn()
    assert settled == [(1, ("update", 1)), (2, ("auxiliary", 2))]


class Recorded:
    """A collector and an experience that note what is asked of them; rollouts are of no kind that has rows."""

    overlaps = False

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.gaps = torch.tensor([True, False])
        drained = dict.fromkeys(
            ("steps", "episodes", "return", "length", "bad_observation", "bad_reward"), 0.0
        )
        self.episode_statistics = SimpleNamespace(drain=lambda: {**drained, "steps": 8.0}, ended=[])

    def start(self, random: bool) -> None: ...

    def anneal(self, progress: float) -> None: ...

    def finish(self, cut: bool) -> str:
        self.calls.append(("finish", cut))
        return "rollout"

    def reset(self, seed: int) -> None:
        self.calls.append(("reset", seed))

    def cut(self, where: torch.Tensor) -> None:
        self.calls.append(("cut", where.tolist()))

    def add(self, rollout: str) -> None:
        self.calls.append(("add", rollout))

    def due(self) -> list[Any]:
        return []


def looped(both: Recorded, period: int) -> Loop:
    def forget(where: torch.Tensor) -> None:
        both.calls.append(("forget", where.tolist()))

    spec = SimpleNamespace(measures=())
    agent = SimpleNamespace(progress=torch.zeros(()), random_steps=0, spec=spec, forget=forget)
    run = SimpleNamespace(log_freq=10**9, eval=False, dataset="")
    parts: Any = SimpleNamespace(
        agent=agent,
        acting=SimpleNamespace(collector=both),
        experience=both,
        learner=None,
        learners=None,
        acts_with_copy=False,
        reset_period=period,
        send_weights=lambda: None,
        settings=SimpleNamespace(run=run),
    )
    return Loop(parts, Counters(), lambda episode: None, lambda rollout: None)


def test_experience_and_agent_hear_of_gaps_before_the_rows_that_follow_them() -> None:
    both = Recorded()
    loop = looped(both, 0)
    loop.iterate(0.0)
    gaps = [True, False]
    assert both.calls == [("finish", False), ("cut", gaps), ("forget", gaps), ("add", "rollout")]
    assert loop.counters.steps == 8


def test_environments_without_snapshots_are_to_be_reset_every_so_many_iterations() -> None:
    both = Recorded()
    loop = looped(both, 2)
    due = []
    for _ in range(4):
        loop.iterate(0.0)
        due.append(loop.reset_due)
    assert due == [cut for name, cut in both.calls if name == "finish"] == [False, True, False, True]
