"""Learners on a Ray cluster: equal to one with the joint batch, and one that dies is replaced."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from whorl.conformance import subject
from whorl.core.errors import ConfigError
from whorl.distributed.learners import Learners, check_learners

pytest.importorskip("ray")

CASE = subject("a2c", "vector", "none", "discrete", learners=2, ray="local")


@pytest.fixture
def learners() -> Iterator[Any]:
    agent = CASE.agent()
    found = Learners(agent, type(agent)(CASE.spec, agent.cfg), CASE.configured().run, [])
    yield found
    found.close()


def test_a_replica_on_ray_makes_two_of_one_and_is_replaced_where_it_dies(learners: Any) -> None:
    one, two = CASE.agent(), learners.agent
    for number, collected in enumerate(CASE.rollouts(one, 4)):
        rollout = one.discounting().apply(collected)
        if number == 2:
            os.kill(learners.replicas[0].pid, signal.SIGKILL)
        one.update(rollout)
        learners.update("update", rollout)
        for mine, theirs in zip(one.state_tensors(), two.state_tensors()):
            torch.testing.assert_close(theirs, mine, atol=1e-5, rtol=1e-5)
    assert learners.replaced == 1
    assert learners._backend.host == "127.0.0.1"


def test_replicas_that_could_not_reach_this_process_are_refused() -> None:
    run = replace(CASE.configured().run, ray="ray://10.0.0.1:10001")
    agent = CASE.agent()
    with pytest.raises(ConfigError, match="run it on a node of the cluster and set ray to auto"):
        check_learners(agent, run, agent.experience(torch.Generator()))
