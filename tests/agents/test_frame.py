"""What agents share: target networks, optimizer steps, the hooks of components."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whorl.agents.agent import Agent, Updated, captured
from whorl.agents.families import OffPolicyConfig
from whorl.agents.targets import TargetNetworks
from whorl.algorithms.dqn import DQN
from whorl.conformance import capture_safe
from whorl.core.registry import Part
from whorl.core.spec import Array, Discrete, Spec
from whorl.data.batch import Batch
from whorl.nets.q_network import QNetwork

SPEC = Spec(Array((3,)), Discrete(2), 2)


def network(**settings: Any) -> tuple[QNetwork, TargetNetworks, QNetwork]:
    cfg = DQN.Config(hidden_sizes=(4,), memory_size=3, **settings)
    online = QNetwork("net", SPEC, cfg)
    targets = TargetNetworks(cfg)
    return online, targets, targets.add(online)


def shift(net: nn.Module, by: float) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += by


def distance(online: nn.Module, target: nn.Module) -> set[float]:
    pairs = zip(online.parameters(), target.parameters(), strict=True)
    return {round(x, 4) for a, b in pairs for x in (a - b).flatten().tolist()}


def test_a_target_is_a_copy_without_gradients_that_moves_by_tau_in_place() -> None:
    online, targets, target = network(tau=0.25)
    assert distance(online, target) == {0.0}
    assert not any(parameter.requires_grad for parameter in target.parameters())
    places = [parameter.data_ptr() for parameter in target.parameters()]
    shift(online, 1.0)
    targets.update_(move=False)
    assert distance(online, target) == {1.0}
    targets.update_(move=True)
    assert distance(online, target) == {0.75}
    assert places == [parameter.data_ptr() for parameter in target.parameters()]


def test_targets_move_in_every_interval_th_update() -> None:
    _, targets, _ = network(target_update_interval=3)
    assert [targets.due(updates) for updates in range(6)] == [False, False, True, False, False, True]


@pytest.mark.parametrize(("own", "expected"), [(True, 1.0), (False, 0.0)])
def test_without_target_memory_the_online_memory_is_copied_after_every_update(
    own: bool, expected: float
) -> None:
    online, targets, target = network(memory="gru", target_memory=own)
    shift(online, 1.0)
    targets.update_(move=False)
    assert distance(online.backbone.memories, target.backbone.memories) == {expected}
    assert distance(online.advantage, target.advantage) == {1.0}


class Halver(Agent):
    """Minimises 1/2 w^2."""

    Config = OffPolicyConfig

    def __init__(self, spec: Spec, cfg: OffPolicyConfig) -> None:
        super().__init__(spec, cfg)
        self.observations = nn.Identity()
        self.net = nn.Linear(1, 1, bias=False)
        self.add_optimizer("net", self.net, Part("SGD"), 0.5)

    @captured
    def update(self, batch: Batch) -> Updated:
        self.minimize("net", 0.5 * self.net.weight.square().sum())
        return Updated({"loss/net": self.net.weight.detach().sum()})


class Pair(Agent):
    """Two parameters with an optimizer; small ones are packed, more than 2^18 are not."""

    Config = OffPolicyConfig

    def __init__(self, part: Part, size: int) -> None:
        super().__init__(SPEC, OffPolicyConfig())
        self.net = nn.Linear(1, size)
        self.add_optimizer("net", self.net, part, 0.1)
        self.prepare("cpu", lambda name: torch.Generator())

    def step(self, gate: Tensor | None = None) -> None:
        self.minimize("net", self.net.weight.square().sum() + self.net.bias.square().sum(), gate=gate)

    def tensors(self) -> list[Tensor]:
        state = [value for entry in self.optimizer_state()["net"] for value in entry.values()]
        return [tensor.detach().clone() for tensor in (*self.net.parameters(), *state)]


class Pull(nn.Module):
    """A component that counts its steps; its weight is trained by the agent's optimizer."""

    acts = False

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([3.0]))
        self.register_buffer("steps", torch.zeros(()))

    def loss(self, batch: Batch) -> Tensor:
        return self.weight.sum() * batch.reward.mean()

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        self.steps += 1
        return {"pull/steps": self.steps.clone()}


def halver(component: Pull | None = None) -> Any:
    agent = Halver(SPEC, OffPolicyConfig())
    if component is not None:
        agent.components["pull"] = component
        agent.join_optimizer("net", component, component.loss)
    agent.prepare("cpu", lambda name: torch.Generator())
    with torch.no_grad():
        agent.net.weight.fill_(8.0)
    return agent


def batch() -> Batch:
    ones = torch.ones(1, 2)
    return Batch(torch.zeros(2, 2, 3), torch.zeros(2, 2).bool(), ones.long(), 4 * ones, ones, ones, ones)


def test_the_norm_of_gradients_is_measured_before_they_are_clipped() -> None:
    agent = halver()
    weight = agent.net.weight
    value = weight.detach()
    assert agent.minimize("net", 0.5 * weight.square().sum()) is None
    assert float(value) == 4  # 8 - .5 * 8
    assert float(agent.minimize("net", 0.5 * weight.square().sum(), measure=True)) == 4
    assert float(agent.minimize("net", 0.5 * weight.square().sum(), 1.0)) == 2
    assert float(value) == pytest.approx(1.5, abs=1e-5)  # 2 - .5 * 1
    agent.minimize("net", 0.5 * weight.square().sum(), gate=torch.zeros(()))
    assert float(value) == pytest.approx(1.5, abs=1e-5)
    agent.minimize("net", 0.5 * weight.square().sum(), 10.0)
    assert float(value) == pytest.approx(0.75, abs=1e-5)  # a gradient below the norm is left as it is


PARTS = [
    Part("Adam"),
    Part("AdamW", {"weight_decay": 0.1}),
    Part("Adam", {"amsgrad": True}),
    Part("RMSprop"),
    Part("SGD", {"momentum": 0.9}),
]


@pytest.mark.parametrize("size", [2, 2**18])
@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_step_behind_a_gate_can_be_captured(part: Part, size: int) -> None:
    agent, gate = Pair(part, size), torch.ones(())
    with capture_safe():
        agent.step(gate=gate)


@pytest.mark.parametrize("size", [2, 2**18])
@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_closed_gate_leaves_parameters_and_optimizer_as_they_are(part: Part, size: int) -> None:
    torch.manual_seed(1)
    agent = Pair(part, size)
    agent.step()
    before = agent.tensors()
    agent.step(gate=torch.zeros(()))
    assert all(map(torch.equal, agent.tensors(), before))
    torch.manual_seed(1)
    other = Pair(part, size)
    other.step()
    other.step()
    agent.step(gate=torch.ones(()))
    assert all(map(torch.equal, agent.tensors(), other.tensors()))
    assert not torch.equal(agent.tensors()[0], before[0])


def test_gradients_behind_a_closed_gate_are_exported_with_a_rate_of_0() -> None:
    agent, rates = Pair(Part("Adam"), 2), []
    agent.export_gradients(lambda name, gradients, rate: rates.append(float(rate)))
    for gate in (None, torch.zeros(()), torch.ones(())):
        agent.step(gate)
    assert rates == pytest.approx([0.1, 0, 0.1])


def test_a_component_joins_an_optimizer_and_learns_after_the_agent() -> None:
    component = Pull()
    agent = halver(component)
    updated = agent.learn("update", batch())
    assert float(agent.net.weight.detach()) == 4
    assert float(component.weight.detach()) == 1  # 3 - .5 * 4, the mean reward
    assert updated.metrics.keys() == {"loss/net", "pull/steps"}
    assert float(updated.metrics["pull/steps"]) == 1


def test_components_are_part_of_the_state() -> None:
    component, other = Pull(), Pull()
    agent, twin = halver(component), halver(other)
    agent.learn("update", batch())
    agent.updates = 7
    twin.load_state(agent.state())
    assert twin.updates == 7
    assert float(other.steps) == 1 and float(other.weight.detach()) == 1
    assert {id(component.weight), id(component.steps)} <= {id(tensor) for tensor in agent.state_tensors()}


def test_a_vector_is_no_learning_rate() -> None:
    agent = halver(Pull())
    state = agent.state()
    state["module"]["lr_net"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match=r"lr_net is one number, but has the shape \(1,\) in the state"):
        agent.load_state(state)
