"""Option-critic: values on arrival, the gradient of terminations, and who acts and who learns."""

from typing import Any

import pytest
import torch
from replay_blocks import ONE, build, transitions
from torch import Tensor

from whorl.agents.agent import Context
from whorl.algorithms.option_critic import OPTION, OptionCritic
from whorl.conformance import subject
from whorl.core import tree
from whorl.core.errors import WhorlError
from whorl.core.spec import Discrete
from whorl.data.batch import LAST
from whorl.nets.dilated import Dilated
from whorl.state.policy import export, load_policy


def made(**settings: Any) -> Any:
    return build(OptionCritic, **{"action": ONE, "num_options": 3, "option_epsilon": 0.3, **settings})


def batch_of(agent: Any, option: list[int], **changes: Any) -> Any:
    """Transitions of these options; row 0 ends in a terminal state."""
    batch = transitions(agent, len(option))
    chosen = torch.tensor([option])
    extras = {
        **batch.extras,
        OPTION: chosen,
        "share": torch.ones(1, len(option)),
        "weight": torch.ones(1, len(option)),
    }
    discount = torch.full((1, len(option)), 0.9)
    discount[:, 0] = 0.0
    return batch.replace(extras=extras, discount=discount, **changes)


def fixed(net: Any, values: Tensor) -> None:
    """From now on a network answers `values` [T, B, ...] for any rows."""
    net.forward = lambda rows, *_, **__: values


def test_the_value_of_options_is_that_of_an_epsilon_greedy_choice() -> None:
    agent = made()
    # 0.7 * 4 + 0.3 * (1 + 4 + 1) / 3
    torch.testing.assert_close(agent.over_options(torch.tensor([1.0, 4.0, 1.0])), torch.tensor(3.4))


def test_the_value_on_arrival_goes_on_or_chooses_again() -> None:
    agent = made()
    fixed(agent.target_values, torch.tensor([[[1.0, 4.0, 1.0], [1.0, 4.0, 1.0]]]))
    beta = torch.tensor([[[0.25, 0.5, 0.5], [0.5, 0.75, 0.5]]])
    fixed(agent.termination, beta.logit())
    noise = {"target_values": {}, "next_termination": {}}
    found = agent.arrival(None, torch.tensor([[0, 1]]), noise)
    torch.testing.assert_close(found, torch.tensor([[0.75 * 1 + 0.25 * 3.4, 0.25 * 4 + 0.75 * 3.4]]))


def test_the_gradient_of_terminations_is_the_advantage_of_going_on() -> None:
    """d loss / d logit = beta (1 - beta) (Q - V + cost) / rows of the option that acted; 0 after a terminal state."""
    agent = made(deliberation_cost=0.5)
    beta = torch.tensor([[[0.5, 0.5, 0.5], [0.2, 0.5, 0.5], [0.5, 0.5, 0.9]]])
    logit = beta.logit().requires_grad_(True)
    fixed(agent.termination, logit)
    fixed(agent.option_values, torch.tensor([1.0, 4.0, 1.0]).expand(1, 3, 3))
    loss, mean = agent.termination_loss(batch_of(agent, [1, 0, 2]), agent.draw(batch_of(agent, [1, 0, 2])))
    loss.backward()
    advantage = 1 - 3.4 + 0.5
    expected = torch.zeros(1, 3, 3)
    expected[0, 1, 0] = 0.2 * 0.8 * advantage / 3
    expected[0, 2, 2] = 0.9 * 0.1 * advantage / 3
    torch.testing.assert_close(logit.grad, expected)
    torch.testing.assert_close(mean, torch.tensor((0.5 + 0.2 + 0.9) / 3))


def test_targets_bootstrap_from_arrival_unless_the_state_is_terminal() -> None:
    agent = made(ensemble_q_num=1)
    batch = batch_of(agent, [0, 0, 2])
    agent.arrival = lambda *_: torch.full((1, 3), 10.0)
    fixed(agent.critic, torch.tensor([1.0, 2.0, 3.0]).expand(1, 1, 3, 3))  # Q of each option
    noise = agent.draw(batch)
    error, mean = agent.critic_loss(batch, noise)[1:3]
    target = batch.reward + torch.tensor([[0.0, 9.0, 9.0]])
    torch.testing.assert_close(error, (torch.tensor([[1.0, 1.0, 3.0]]) - target).abs())
    torch.testing.assert_close(mean, torch.tensor(5 / 3))


@pytest.mark.parametrize("action", [ONE, Discrete(4)])
def test_option_values_learn_the_soft_value_of_their_policy(action: Any) -> None:
    agent = made(action=action, alpha=0.5, tune_alpha=False)
    with torch.no_grad():
        agent.temperature.log_alpha.copy_(torch.tensor([0.1, 0.5, 2.0]).log())
    batch = batch_of(agent, [0, 1, 2])
    noise = agent.draw(batch)
    agent.taken = lambda *_: (
        agent.arrival(batch.next, batch.extras[OPTION], noise) * batch.discount + batch.reward
    )
    loss, *_ = agent.critic_loss(batch, noise)
    policy = agent.policy(agent.options(batch.now), batch.extras[OPTION])
    with torch.no_grad():
        if isinstance(action, Discrete):
            values = agent.target_critic(batch.now).amin(0)  # [1, 3, 3, 4]
            own = torch.stack([values[0, row, row] for row in range(3)])
            q, log_prob = (policy.probs * own).sum(-1), (policy.probs * policy.log_probs).sum(-1)
        else:
            taken, log_prob = policy.sample_with_log_prob(noise["value_action"])
            values = agent.target_critic(batch.now, taken).amin(0)
            q = torch.stack([values[0, row, row] for row in range(3)]).unsqueeze(0)
        soft = q - torch.tensor([0.1, 0.5, 2.0]) * log_prob
        own = agent.option_values(batch.now)[0].diagonal()
    torch.testing.assert_close(loss, (own - soft).square().mean())


def test_only_the_option_that_acted_learns() -> None:
    agent = made()
    batch = batch_of(agent, [1, 1, 1])
    noise = agent.draw(batch)
    agent.actor_loss(batch, noise)[0].backward()
    gradient = agent.options.head.last.weight.grad.unflatten(0, (3, 2)).abs().sum((1, 2))
    assert gradient[1] > 0 and not gradient[0] and not gradient[2]
    before = agent.temperature.log_alpha.detach().clone()
    agent.improve_actor(batch, noise)
    moved = agent.temperature.log_alpha != before
    assert moved.tolist() == [False, True, False]


def test_an_option_acts_until_it_ends() -> None:
    agent, context = made(option_epsilon=0.0), Context(torch.zeros(4, dtype=torch.bool), torch.Generator())
    values, held = torch.tensor([0.0, 0.0, 1.0]).expand(4, 3), torch.tensor([0, 1, 0, 1])
    never, always = torch.zeros(4, 3), torch.ones(4, 3)
    assert agent.next_option(values, never, held, context).tolist() == [0, 1, 0, 1]
    assert agent.next_option(values, always, held, context).tolist() == [2, 2, 2, 2]
    context.reset[1] = True
    assert agent.next_option(values, never, held, context).tolist() == [0, 2, 0, 1]
    context.greedy = True
    likely = torch.tensor([[0.6, 0.0, 0.0]]).expand(4, 3)
    assert agent.next_option(values, likely, held, context).tolist() == [2, 2, 2, 1]


def test_a_random_option_is_chosen_with_probability_epsilon() -> None:
    agent = made(option_epsilon=0.3)
    context = Context(torch.ones(30_000, dtype=torch.bool), torch.Generator().manual_seed(0))
    values = torch.tensor([0.0, 0.0, 1.0]).expand(30_000, 3)
    found = agent.next_option(values, values, torch.zeros(30_000, dtype=torch.int64), context)
    torch.testing.assert_close(found.bincount() / 30_000, torch.tensor([0.1, 0.1, 0.8]), atol=0.01, rtol=0)


def test_the_picture_has_a_line_for_each_environment_and_a_colour_for_each_option() -> None:
    cell = subject("option_critic", "vector", "none", "continuous")
    agent: Any = cell.agent()
    for rollout in cell.rollouts(agent, 2):
        agent.receive(rollout)
    image = agent.pictures()["option/over_time"]
    assert image.shape == (4 * 8, 200 * 3, 3) and image.dtype == torch.uint8
    shown = image[::8, ::3]
    option, real = rollout.extras[OPTION], rollout.mask > 0
    for row, env_index in ((15, 0), (10, 3)):
        line = shown[env_index]
        same = (line == line[-16 + row]).all(-1)[-16:]
        wanted = (option[:, env_index] == option[row, env_index]) & real[:, env_index]
        if real[row, env_index]:
            assert torch.equal(same, wanted)
    assert not shown[:, :100].any()  # before the first step


def test_a_saved_policy_keeps_its_option_and_tells_values_but_no_q_values() -> None:
    cell = subject("option_critic", "vector", "none", "continuous")
    agent: Any = cell.agent()
    policy = load_policy(export(agent, cell.configured()))
    rollout = cell.rollouts(agent, 1)[0]
    memory = agent.initial_memory(4)
    reset = torch.ones(4, dtype=torch.bool)
    for row in range(4):
        acted = agent.act(rollout.obs[row], memory, Context(reset, torch.Generator(), greedy=True))
        memory, reset = acted.memory, torch.zeros(4, dtype=torch.bool)
        scaled = torch.as_tensor(policy.act(rollout.obs[row].numpy()))
        torch.testing.assert_close(scaled, acted.action * torch.tensor([1.0, 2.5]) + torch.tensor([0.0, 2.5]))
    assert policy.value(rollout.obs[0].numpy()).shape == (4,)
    with pytest.raises(WhorlError, match="has no q_values"):
        policy.q_values(rollout.obs[0].numpy(), scaled.numpy())


# Dilated memory


def test_the_memory_of_option_values_alone_is_dilated_and_acts_as_it_learns() -> None:
    cell = subject("option_critic", "vector", "lstm", "continuous", option_dilation=3)
    agent: Any = cell.agent()
    assert isinstance(agent.option_values.backbone.memories[0], Dilated)
    assert not any(
        isinstance(net.backbone.memories[0], Dilated) for net in (agent.options, agent.termination)
    )
    assert agent.initial_memory(4)["option_values"]["h"].shape[:2] == (4, 3)
    rollout = cell.rollouts(agent, 1)[0]
    memory, seen = agent.initial_memory(4), []
    with torch.no_grad():
        for row in range(len(rollout.reset)):
            last = {LAST: tree.index(rollout.last, row)} if rollout.last else {}
            values, state = agent.option_values.step(rollout.obs[row], {**memory, **last}, rollout.reset[row])
            memory = {**memory, **state}
            seen.append(values)
        learned = agent.option_values(rollout.replace(memory={}).all)
    torch.testing.assert_close(torch.stack(seen), learned, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, "option_dilation is 3, but memory is none; choose lstm, gru or rnn"),
        ({"memory": "attention"}, "option_dilation is 3, but memory is attention; choose lstm, gru or rnn"),
        (
            {"memory": "gru", "share_memory": True},
            "with share_memory option values have no memory of their own",
        ),
    ],
)
def test_dilation_needs_recurrent_option_values(settings: dict[str, Any], wanted: str) -> None:
    with pytest.raises(WhorlError, match=wanted):
        made(option_dilation=3, **settings)
