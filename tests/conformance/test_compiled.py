"""With `compile`, the default of many presets on a GPU: torch's compiler traces every loss, and updates stay the same.

The traced operations run as they are, without the kernels that the compiler would make of them, which takes minutes.
"""

from functools import partial
from typing import Any

import pytest
import torch
from test_agents import plain

from whorl import conformance
from whorl.run.learner import compile_pure

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sac": ("sac", {}),
    "sac-corrected": ("sac", {"n_step": 3, "use_n_step_is": True, "clip_epsilon": 0.5}),
    "tqc-corrected": ("tqc", {"n_step": 3, "use_n_step_is": True, "v_rho": 0.9}),
    "td3": ("td3", {"n_step": 3, "prioritized": True}),
    "ddpg": ("ddpg", {}),
    "fast_td3": ("fast_td3", {}),
    "flash_sac": ("flash_sac", {"v_min": -10.0, "v_max": 10.0}),
    "ppo": ("ppo", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_traced_losses_learn_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, settings = CASES[case]
    found = plain(rule, **settings)
    eager, traced = conformance.Run(found), conformance.Run(found)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    eager.agent.by_hand.clear()
    compile_pure(traced.agent)
    compiles = getattr(traced.experience, "compile", None)
    if compiles is not None:
        compiles()
    rollouts = found.rollouts(eager.agent, 4)
    assert len(eager.feed(rollouts)) == len(traced.feed(rollouts)) > 0
    assert conformance.same(eager.agent.state(), traced.agent.state())
