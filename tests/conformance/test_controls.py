"""The suite itself: agents with one planted mistake each must fail the check that names it."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import ToyActorCritic, ToyPolicyGradient, ToyQ

from whorl import conformance, register
from whorl.agents.agent import Acted, Context, Updated, captured
from whorl.agents.component import Component
from whorl.conformance import subject
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import MASK_KEY, Stream
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.ops import masked_mean, polyak_


class EndsAtTruncation(ToyQ):
    def update(self, batch: Batch) -> Updated:
        return super().update(batch.replace(discount=batch.discount * batch.keep))


class BootstrapsPastTheEnd(ToyQ):
    def update(self, batch: Batch) -> Updated:
        return super().update(batch.replace(discount=torch.full_like(batch.discount, self.gamma)))


class AveragesMaskedRows(ToyPolicyGradient):
    @captured
    def step(self, batch: Batch) -> Updated:
        loss = -(self.actor(batch.now).log_prob(batch.action) * batch.reward).mean()
        self.minimize("actor", loss)
        return Updated({"loss/actor": loss.detach()})


class ForgetsALayer(ToyQ):
    def __init__(self, spec: Any, cfg: Any) -> None:
        super().__init__(spec, cfg)
        self.idle = torch.nn.Linear(2, 2)
        self.add_optimizer("idle", self.idle, Part("Adam"), 1e-3)


class TargetDrifts(ToyQ):
    @captured
    def step(self, batch: Batch) -> Updated:
        updated = Updated({"loss/critic": self.loss(batch).detach()})
        with torch.no_grad():
            for parameter in self.target.parameters():
                parameter.mul_(0.99)
        return updated


class KeepsACounterAside(ToyActorCritic):
    """The actor's turn is decided by a number that no checkpoint holds."""

    turn = 0

    def update(self, batch: Batch) -> Updated:
        self.turn += 1
        return self.step(batch, train_actor=self.turn > 5)


class ReadsItsLoss(ToyQ):
    @captured
    def step(self, batch: Batch) -> Updated:
        loss = self.loss(batch)
        if loss.item() > 0:
            self.minimize("q", loss)
        return Updated({"loss/critic": loss.detach()})


class DrawsFromTorch(ToyPolicyGradient):
    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        acted = super().act(obs, memory, context)
        return Acted(torch.randint_like(acted.action, 3), acted.memory, acted.extras)


class IgnoresMasks(ToyPolicyGradient):
    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        free = {**obs, MASK_KEY: torch.ones_like(obs[MASK_KEY])}
        return super().act(free, memory, context)


class ForgetsToReset(ToyPolicyGradient):
    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return super().act(
            obs, memory, Context(torch.zeros_like(context.reset), context.generator, context.greedy)
        )


class LeavesAGradient(ToyQ):
    """A metric that holds on to its graph."""

    @captured
    def step(self, batch: Batch) -> Updated:
        loss = masked_mean(self.q(batch.now).sum(-1), batch.mask)
        self.minimize("q", loss)
        polyak_(self.target, self.q, 0.1)
        return Updated({"loss/critic": loss})


class ClipsByHand(ToyQ):
    """The gradients of two biases that are added are one tensor, which is then scaled in place twice."""

    def __init__(self, spec: Any, cfg: Any) -> None:
        super().__init__(spec, cfg)
        self.low, self.high = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
        self.add_optimizer("pair", torch.nn.ParameterList([self.low, self.high]), Part("Adam"), 1e-3)

    @captured
    def step(self, batch: Batch) -> Updated:
        updated = super().step(batch)
        pair = [self.low, self.high]
        gradients = torch.autograd.grad(((self.low + self.high - 1) ** 2).sum(), pair)
        torch._foreach_mul_(gradients, 0.5)
        self.step_optimizer("pair", gradients, self.lr_pair)
        return updated


CONTROLS = [
    (EndsAtTruncation, "tells_truncation_from_termination", "none", r"V\(5\) is [123]\."),
    (
        BootstrapsPastTheEnd,
        "tells_truncation_from_termination",
        "none",
        r"terminal Walk: V\(5\) is [3-9]\..*, not 1",
    ),
    (AveragesMaskedRows, "masked_rows_have_no_influence", "none", "in masked rows changed"),
    (ForgetsALayer, "moves_what_it_trains", "none", "idle.weight has an optimizer but did not move"),
    (ClipsByHand, "moves_what_it_trains", "none", "gradients of low and high share memory"),
    (ClipsByHand, "can_be_captured", "none", "gradients of low and high share memory"),
    (TargetDrifts, "targets_move_by_their_rule_alone", "none", "target.* moved although"),
    (KeepsACounterAside, "resumes_exactly", "none", "training after a restore differs"),
    (ReadsItsLoss, "can_be_captured", "none", "Tensor.item can't be captured"),
    (DrawsFromTorch, "acts", "none", "greedy actions depend|global random state"),
    (ForgetsToReset, "replays_log_probs", "lstm", "not close"),
    (LeavesAGradient, "metric_names", "none", "carries a gradient"),
]


@pytest.mark.parametrize(
    ("agent", "check", "memory", "message"), CONTROLS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_planted_mistake_is_found(agent: type, check: str, memory: str, message: str) -> None:
    name = agent.__name__.lower()
    register("algorithm", name, agent)
    action = "continuous" if issubclass(agent, ToyActorCritic) else "discrete"
    settings = {} if issubclass(agent, ToyPolicyGradient) else {"updates_per_step": 0.1, "n_step": 1}
    cell = subject(name, "vector", memory, action, **settings)
    with pytest.raises(AssertionError, match=message):
        getattr(conformance, check)(cell)


@pytest.mark.parametrize("action", ["masked", "masked-tree"])
def test_a_masked_action_is_noticed(action: str) -> None:
    register("algorithm", "ignores masks", IgnoresMasks)
    with pytest.raises(AssertionError, match="a masked action was chosen"):
        conformance.acts(subject("ignores masks", "vector", "none", action))


def test_conform_runs_the_whole_matrix_and_says_what_an_agent_takes() -> None:
    class Tiny(ToyQ):
        """Vectors only, to be quick."""

        def __init__(self, spec: Any, cfg: Any) -> None:
            if isinstance(spec.observation, dict) or len(spec.observation.shape) > 1:
                raise ConfigError("vectors only")
            super().__init__(spec, cfg)

    class TinyPastTheEnd(Tiny, BootstrapsPastTheEnd):
        """The same with a mistake that known values show."""

    register("algorithm", "tiny", Tiny)
    assert conformance.conform("tiny", updates_per_step=0.1) == ["vector none discrete"]
    register("algorithm", "tiny past the end", TinyPastTheEnd)
    with pytest.raises(AssertionError, match="terminal Walk"):
        conformance.conform("tiny past the end", updates_per_step=0.1, n_step=1)


@dataclass(frozen=True)
class CrossedConfig:
    shift: int = 1


class Crossed(Component):
    """Rewards every environment for what its neighbour observes."""

    Config = CrossedConfig

    @classmethod
    def streams(cls, name: str, cfg: CrossedConfig) -> tuple[Stream, ...]:
        return (Stream(name),)

    def rewards(self, rollout: Batch) -> dict[str, Tensor]:
        return {self.name: rollout.obs[1:].sum(-1).roll(self.cfg.shift, 1)}


def test_conform_component_says_what_it_works_with_and_finds_rewards_in_wrong_columns() -> None:
    register("component", "crossed", Crossed)
    with pytest.raises(AssertionError, match="not close"):
        conformance.conform_component("crossed", ["a2c"])
    assert conformance.conform_component("crossed", ["a2c"], crossed={"shift": 0}) == ["a2c"]


FITTING = {"siamese_q": ("dqn", "sac"), "rnd_actions": ("sac",)}
"""components that need a part which only some algorithms have"""


@pytest.mark.parametrize("component", conformance.component_names())
def test_every_component_of_the_package_works_with_each_family_of_algorithms(component: str) -> None:
    for algorithm in FITTING.get(component, ("ppo", "a2c", "dqn", "sac")):
        assert conformance.component_subject(component, algorithm) is not None
