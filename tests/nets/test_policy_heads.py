"""Policy heads on trees of actions: products of parts, with the action mask split among them."""

from typing import Any

import torch

from whorl.agents.families import OnPolicyConfig
from whorl.core.registry import Part
from whorl.core.spec import (
    Continuous,
    Discrete,
    MultiDiscrete,
    TupleSpec,
    as_nested,
    flat_action_size,
    flatten_action,
)
from whorl.nets.policy import JointHead, policy_head
from whorl.ops.distributions import Joint

ACTION: dict[str, Any] = {
    "pick": Discrete(3),
    "arm": TupleSpec({"0": Continuous((2,), (-1.0,) * 2, (1.0,) * 2), "1": MultiDiscrete((2, 3))}),
    "keys": Discrete(2),  # a name that a ModuleDict refuses
}


def test_each_part_gets_its_columns_of_the_mask() -> None:
    head = policy_head(ACTION, 4, OnPolicyConfig())
    assert isinstance(head, JointHead)
    features = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    # pick: only 1; arm: 0 of two, 1 or 2 of three; keys: only 0
    mask = torch.tensor([0, 1, 0, 1, 0, 0, 1, 1, 1, 0]).expand(5, 10)
    policy = head(features, mask)
    arm = policy.parts["arm"]
    assert isinstance(arm, Joint)
    assert policy.parts["pick"].probs[0].tolist() == [0.0, 1.0, 0.0]
    assert arm.parts["1"].each.probs[:, 0, 0].tolist() == [1.0] * 5
    assert arm.parts["1"].each.probs[:, 1, 0].tolist() == [0.0] * 5
    assert policy.parts["keys"].probs[0].tolist() == [1.0, 0.0]


def test_a_tanh_head_keeps_means_within_the_bounds_of_the_actions() -> None:
    box = Continuous((2,), (-1.0,) * 2, (1.0,) * 2)
    head = policy_head(box, 4, OnPolicyConfig(actor_head=Part("tanh")))
    features = 1e4 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    means = head(features, None).mode().detach()
    assert 0.99 < float(means.abs().max()) <= 1
    linear = head.mean[0].requires_grad_(False)
    torch.testing.assert_close(means, torch.tanh(features @ linear.weight.T + linear.bias))


def test_the_log_probability_of_a_tree_is_the_sum_over_its_parts() -> None:
    head = policy_head(ACTION, 4, OnPolicyConfig())
    features = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    policy = head(features, None)
    action = policy.sample(policy.noise(torch.Generator().manual_seed(1)))
    alone = {name: part(features, None) for name, part in head.parts.items()}
    wanted = sum(part.log_prob(action[name]) for name, part in alone.items())
    torch.testing.assert_close(policy.log_prob(action), wanted)
    torch.testing.assert_close(policy.entropy(), sum(part.entropy() for part in alone.values()))


def test_a_tree_of_actions_becomes_one_vector_with_one_hot_choices() -> None:
    action = {
        "pick": torch.tensor([2, 0]),
        "arm": {"0": torch.tensor([[0.5, -1.0], [0.0, 0.25]]), "1": torch.tensor([[1, 0], [0, 2]])},
        "keys": torch.tensor([1, 1]),
    }
    assert flat_action_size(ACTION) == 12
    assert flatten_action(ACTION, action).tolist() == [
        [0, 0, 1, 0.5, -1.0, 0, 1, 1, 0, 0, 0, 1],
        [1, 0, 0, 0.0, 0.25, 1, 0, 0, 0, 1, 0, 1],
    ]
    assert isinstance(as_nested(ACTION, action)["arm"], tuple)
