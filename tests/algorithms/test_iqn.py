"""IQN: with fixed midpoints it is QR-DQN; fractions that are drawn, targets and losses by hand."""

from typing import Any

import pytest
import torch
from replay_blocks import learn, reweighted, says, transitions
from torch import Tensor
from value_blocks import allowing, build, context, told

from whorl.algorithms.iqn import IQN
from whorl.algorithms.qr_dqn import QRDQN
from whorl.core.errors import ConfigError
from whorl.core.registry import Part
from whorl.core.spec import MASK_KEY, Array
from whorl.data.batch import Batch
from whorl.ops.losses import quantile_huber
from whorl.settings.merge import configure

SMALL = {"n_fractions": 5, "n_target_fractions": 5, "n_policy_fractions": 5, "n_cosines": 6}
QUIET: dict[str, Any] = {"online": {}, "select": {}, "target": {}}
"""noise of nets without noisy layers"""
SOFT = {"munchausen": 0.9, "munchausen_temperature": 0.5}


def at_midpoints(agent: Any, batch: Batch) -> dict[str, Any]:
    """The randomness of an update with nothing left to chance."""
    tau = agent.midpoints.expand(*batch.mask.shape, -1)
    return {**QUIET, "tau": tau, "target_tau": tau}


# Against QR-DQN


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"double": True},
        SOFT,
        {"rescale_values": True},
        {"kappa": 0.5},
        {"dueling": True},
        {"loss": Part("squared")},
    ],
    ids=str,
)
def test_with_midpoints_for_fractions_it_is_qr_dqn(settings: dict[str, Any]) -> None:
    agent = build(IQN, **SMALL, **settings)
    other = build(QRDQN, n_quantiles=5, **{key: value for key, value in settings.items() if key != "dueling"})
    with torch.no_grad():  # online and target nets that differ
        for weight in agent.target_critic.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    for net, theirs in ((agent.critic, other.critic), (agent.target_critic, other.target_critic)):

        def quantiles(rows: Any, noise: Any = None, net: Any = net) -> Tensor:
            features = net.backbone(rows)
            tau = agent.midpoints.expand(*features.shape[:-1], -1)
            return net.at(features, tau, noise).transpose(-1, -2)  # [T, B, choices, quantiles]

        theirs.forward = quantiles
    torch.testing.assert_close(agent.midpoints, other.tau)
    batch = reweighted(transitions(agent), torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0, 1.0]))
    agent.draw = lambda batch: at_midpoints(agent, batch)
    ours, wanted = agent.critic_loss(batch, agent.draw(batch)), other.critic_loss(batch, QUIET)
    for one, two in zip(ours, wanted):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)
    parameters = list(agent.critic.parameters())
    for one, two in zip(torch.autograd.grad(ours[0], parameters), torch.autograd.grad(wanted[0], parameters)):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-4)


# By hand


def linear(choices: int, masked: bool = False, **settings: Any) -> Any:
    """An agent whose quantile functions are Z_tau = base + slope * tau, read off the observation.

    [target net or online net, choices, base and slope]
    """
    said: Any = Array((2, choices, 2))
    if masked:
        said = {"said": said, MASK_KEY: Array((choices,), "int8", 0.0, 1.0)}
    agent = build(IQN, choices, said, **{**SMALL, **settings})
    for number, net in enumerate((agent.target_critic, agent.critic)):
        says(net.backbone, lambda obs: (obs["said"] if masked else obs).flatten(-3))

        def at(features: Tensor, tau: Tensor, noise: Any, number: int = number) -> Tensor:
            base, slope = features.unflatten(-1, (2, choices, 2))[..., number, :, :].unbind(-1)
            return base.unsqueeze(-2) + slope.unsqueeze(-2) * tau.unsqueeze(-1)

        net.at = at
    return agent


def fractions(tau: list[float], target_tau: list[float], rows: int = 1) -> dict[str, Any]:
    return {**QUIET, "tau": torch.tensor([[tau] * rows]), "target_tau": torch.tensor([[target_tau] * rows])}


def test_targets_and_loss_at_given_fractions_by_hand() -> None:
    agent = linear(2, n_fractions=2, n_target_fractions=3)
    # the second choice is the better one: 2 + 4/2 against 3
    batch = told([[[0.0, 0], [1, 2]]] * 2, [[[3.0, 0], [2, 4]]] * 2, [1, 1], [1.0, 1.0], [0.5, 0.0])
    noise = fractions([0.25, 0.75], [0.1, 0.5, 1.0], 2)
    # 1 + .5 * (2 + 4 tau'), and the reward alone
    wanted = torch.tensor([[2.2, 3.0, 4.0], [1.0, 1.0, 1.0]])
    torch.testing.assert_close(agent.target(batch, noise)[0], wanted)
    loss, error, q = agent.critic_loss(batch, noise)
    # predictions 1.5 and 2.5. First row: d = (.7, 1.5, 2.5; -.3, .5, 1.5), huber (.245, 1, 2; .045, .125, 1), weights
    # (.25, .25, .25; .25, .75, .75): (.25 * 3.245 + .01125 + .09375 + .75) / 3. Second: d = -.5 and -1.5, huber .125
    # and 1, weights .75 and .25.
    first, second = (0.25 * 3.245 + 0.01125 + 0.09375 + 0.75) / 3, 0.75 * 0.125 + 0.25 * 1.0
    assert float(loss) == pytest.approx((first + second) / 2, abs=1e-6)
    assert error[0].tolist() == pytest.approx([abs(2 - 9.2 / 3), 1.0], abs=1e-6)
    assert float(q) == 2.0


def test_choices_are_judged_at_midpoints_whatever_fractions_were_drawn() -> None:
    agent = linear(2, n_target_fractions=1)
    # at tau = 1 the first choice is worth 10 and the second 4.5, on average 5 and 5.5
    batch = told([[[0.0, 0.0]] * 2], [[[0.0, 10.0], [6.5, -2.0]]], [0], [0.0], [1.0])
    assert agent.target(batch, fractions([0.5], [1.0])).item() == 4.5
    with torch.no_grad():
        q = agent.mean(agent.target_critic, agent.target_critic.backbone(batch.next), {})
    torch.testing.assert_close(q[0, 0], torch.tensor([5.0, 5.5]))


def test_double_takes_the_online_nets_choice_and_the_target_nets_quantiles() -> None:
    batch = told(
        [[[0.0, 0.0]] * 2], [[[1.0, 2.0], [5.0, 4.0]]], [0], [0.0], [1.0], judged=[[[9.0, 0], [0, 0]]]
    )
    for double, wanted in ((False, 5 + 4 * 0.25), (True, 1 + 2 * 0.25)):
        assert linear(2, double=double).target(batch, fractions([0.5], [0.25])).item() == wanted


def test_munchausen_targets_by_hand() -> None:
    # Means (1, 0) of the rows and (2, 1) of what follows: pi = (.880797, .119203), .5 log pi = (-.063464, -1.063464)
    agent = linear(2, **SOFT)
    batch = told(
        [[[8.0, 8.0]] * 2] * 2,
        [[[1.0, 2.0], [1.0, 0.0]]] * 2,
        [0, 1],
        [1.0, 1.0],
        [0.5, 0.5],
        known=[[[0.0, 2.0], [-1.0, 2.0]]] * 2,
    )
    found = agent.soft_target(batch, fractions([0.5], [0.25, 1.0], 2))[0]
    entropy = 0.880797 * 0.063464 + 0.119203 * 1.063464
    following = [0.880797 * z + 0.119203 * 1.0 + entropy for z in (1.5, 3.0)]
    wanted = [[1 + bonus + 0.5 * z for z in following] for bonus in (0.9 * -0.063464, -0.9)]
    torch.testing.assert_close(found, torch.tensor(wanted), atol=2e-6, rtol=0)


@pytest.mark.parametrize(("settings", "wanted"), [({}, 7.0), ({"double": True}, 5.0), (SOFT, 7.009075)])
def test_what_is_not_allowed_is_not_in_a_target(settings: dict[str, Any], wanted: float) -> None:
    agent = linear(3, masked=True, **settings)
    # constant quantile functions, as in DQN; one choice is allowed now, so its log-probability is 0
    after, judged = [[[5.0, 0], [100, 0], [7, 0]]], [[[2.0, 0], [50, 0], [1, 0]]]
    batch = told([[[0.0, 0.0]] * 3], after, [0], [0.0], [1.0], judged=judged)
    batch, noise = allowing(batch, now=(1, 0, 0), after=(1, 0, 1)), fractions([0.5], [0.3])
    found = agent.soft_target(batch, noise) if settings is SOFT else agent.target(batch, noise)
    assert found.item() == pytest.approx(wanted, abs=1e-5)


def test_rescaled_quantiles_go_through_the_inverse() -> None:
    batch = told([[[0.0, 0.0]]], [[[51**0.5 - 1 + 0.05, 0.0]]], [0], [1.0], [0.99])
    found = linear(1, rescale_values=True).target(batch, fractions([0.5], [0.3]))
    assert found.item() == pytest.approx(6.226850, abs=2e-6)


# Fractions


def test_fractions_are_even_and_new_in_each_update_for_each_row_and_for_targets() -> None:
    agent = build(IQN, n_fractions=50, n_target_fractions=40)
    batch = transitions(agent, rows=200)
    first, second = agent.draw(batch), agent.draw(batch)
    assert first["tau"].shape == (1, 200, 50) and first["target_tau"].shape == (1, 200, 40)
    assert not first["tau"].equal(second["tau"]) and not first["target_tau"].equal(second["target_tau"])
    assert not first["tau"][..., :40].equal(first["target_tau"])
    assert not first["tau"][0, 0].equal(first["tau"][0, 1])
    for tau in (first["tau"], first["target_tau"]):
        assert 0 <= float(tau.min()) < 0.01 and 0.99 < float(tau.max()) < 1
        # a tenth of them in each tenth of the range, within four deviations
        count, total = torch.histc(tau, 10, 0, 1), tau.numel()
        assert (count - total / 10).abs().max() < 4 * (total * 0.09) ** 0.5


def test_an_update_uses_the_fractions_drawn() -> None:
    agent = build(IQN, **SMALL)
    batch = transitions(agent)
    noise = agent.draw(batch)
    agent.draw = lambda batch: noise
    loss = float(learn(agent, batch).metrics["loss/critic"])
    agent = build(IQN, **SMALL)
    features = agent.critic.backbone(batch.now)
    said = agent.critic.at(features, noise["tau"], None)[0, torch.arange(6), :, batch.action[0]]
    wanted = quantile_huber(said, noise["tau"][0], agent.target(batch, noise)[0]).mean()
    assert loss == pytest.approx(float(wanted.detach()), rel=1e-5)


@pytest.mark.parametrize("noisy", [False, True])
def test_greedy_acting_leaves_nothing_to_chance(noisy: bool) -> None:
    agent, obs = build(IQN, noisy=noisy), torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    given = context(50, greedy=True)
    before = given.generator.get_state()
    with torch.no_grad():
        first, second = (agent.act(obs, {}, given).action for _ in range(2))
    assert first.equal(second) and given.generator.get_state().equal(before)


def test_noise_is_drawn_again_for_every_pass() -> None:
    agent = build(IQN, noisy=True, dueling=True)
    noise = agent.draw(transitions(agent))
    for stream in ("advantage", "value"):
        drawn = [noise[which][stream]["last"] for which in ("online", "select", "target")]
        assert not any(a.equal(b) for a, b in zip(drawn, (*drawn[1:], drawn[0])))


@pytest.mark.parametrize("name", ["n_fractions", "n_target_fractions", "n_policy_fractions", "n_cosines"])
def test_counts_below_one_are_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0; it must be from 1 to 100,000") as e:
        configure("iqn", "CartPole-v1", {name: 0})
    assert "\n" not in str(e.value)
