"""What every agent must satisfy, as plain functions that also run on agents of your own.

`conform("my_algorithm")` runs every check on every kind of environment that a registered algorithm takes, and
`conform_component("my_component")` does so for a registered component on several algorithms.

- `subjects`: an algorithm with small settings on a kind of environment (`Subject`), and its learning loop (`Run`)
- `checks`: the checks (`CHECKS`), each a function of a subject that raises an `AssertionError` saying what is wrong
- `capture`: finds on a CPU most of what a CUDA graph does not allow (`capture_safe`)
- `environments`: toy environments
"""

from collections.abc import Iterable
from itertools import product
from typing import Any

from whorl.conformance.capture import CheckedRunner, NotCapturable, capture_safe
from whorl.conformance.checks import (
    CHECKS,
    acts,
    builds,
    can_be_captured,
    captured_equals_eager,
    gives_aligned_rewards,
    keeps_its_settings,
    masked_rows_have_no_influence,
    metric_names,
    moves_what_it_trains,
    prepared,
    replays_log_probs,
    resumes_exactly,
    targets_move_by_their_rule_alone,
    tells_truncation_from_termination,
)
from whorl.conformance.environments import RandomWorld, Walk
from whorl.conformance.subjects import (
    ACTIONS,
    MEMORIES,
    NUM_ENVS,
    OBSERVATIONS,
    Run,
    Subject,
    component_names,
    copied,
    same,
    settings_of,
    subject,
)
from whorl.core.errors import ConfigError

__all__ = [
    "ACTIONS",
    "CHECKS",
    "MEMORIES",
    "NUM_ENVS",
    "OBSERVATIONS",
    "CheckedRunner",
    "NotCapturable",
    "RandomWorld",
    "Run",
    "Subject",
    "Walk",
    "acts",
    "builds",
    "can_be_captured",
    "capture_safe",
    "captured_equals_eager",
    "component_names",
    "component_subject",
    "conform",
    "conform_component",
    "copied",
    "gives_aligned_rewards",
    "keeps_its_settings",
    "masked_rows_have_no_influence",
    "metric_names",
    "moves_what_it_trains",
    "prepared",
    "replays_log_probs",
    "resumes_exactly",
    "same",
    "settings_of",
    "subject",
    "targets_move_by_their_rule_alone",
    "tells_truncation_from_termination",
]


def conform(algorithm: str, **settings: Any) -> list[str]:
    """Run every check on every kind of environment that `algorithm` takes; returns those kinds.

    An agent declines a kind by raising `ConfigError` when it is built. Feed-forward agents with vector observations are
    also checked against known values.
    """
    taken = []
    for observation, memory, action in product(OBSERVATIONS, MEMORIES, ACTIONS):
        try:
            cell = subject(algorithm, observation, memory, action, **settings)
            cell.agent()
        except ConfigError:
            continue
        for check in CHECKS.values():
            check(cell)
        if (observation, memory) == ("vector", "none") and not cell.spec.masked:
            tells_truncation_from_termination(cell)
        taken.append(f"{observation} {memory} {action}")
    assert taken, f"{algorithm} takes no kind of environment"
    return taken


def conform_component(
    component: str, algorithms: Iterable[str] = ("ppo", "a2c", "dqn", "sac"), **settings: Any
) -> list[str]:
    """Run every check on `algorithms` with a component; returns those that it works with.

    A component declines an algorithm or a kind of observation by raising `ConfigError` when the agent is built.
    """
    taken = []
    for algorithm in algorithms:
        cell = component_subject(component, algorithm, **settings)
        if cell is None:
            continue
        for check in (*CHECKS.values(), gives_aligned_rewards):
            check(cell)
        taken.append(algorithm)
    assert taken, f"{component} works with none of {', '.join(algorithms)}"
    return taken


def component_subject(component: str, algorithm: str, **settings: Any) -> Subject | None:
    """An algorithm with a component on the first kind of environment that both take; None if there is none."""
    for observation, action in product(("vector", "image"), ("discrete", "continuous")):
        try:
            cell = subject(algorithm, observation, "none", action, components=[component], **settings)
            cell.agent()
            return cell
        except ConfigError:
            continue
    return None
