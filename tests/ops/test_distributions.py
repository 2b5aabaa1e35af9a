"""Action distributions against closed forms, torch.distributions and published numbers."""

from math import exp, log, sqrt

import pytest
import torch
from torch import Tensor
from torch import distributions as reference

from whorl.ops import Categorical, Distribution, Joint, MultiCategorical, Normal, TanhNormal


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussians() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, other = torch.randn(2, 5, 3, generator=generator())
    log_std, other_log_std = torch.randn(2, 3, generator=generator(1))
    return mean, log_std, other, other_log_std


def test_normal_matches_the_reference() -> None:
    mean, log_std, other, other_log_std = gaussians()
    ours, theirs = Normal(mean, log_std), reference.Normal(mean, log_std.exp())
    action = torch.randn(5, 3, generator=generator(2))
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action).sum(-1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1))
    divergence = reference.kl_divergence(theirs, reference.Normal(other, other_log_std.exp())).sum(-1)
    torch.testing.assert_close(ours.kl(Normal(other, other_log_std)), divergence)
    assert ours.mode() is mean


def test_normal_by_hand() -> None:
    # mu 1, sigma 2, a 2: -((1/2)^2)/2 - ln 2 - ln(2 pi)/2 = -.125 - .693147 - .918939 = -1.737086
    d = Normal(torch.tensor([1.0]), torch.tensor([log(2)]))
    assert float(d.log_prob(torch.tensor([2.0]))) == pytest.approx(-1.737086, abs=1e-6)
    # ln 2 + (1 + ln 2 pi)/2 = .693147 + 1.418939
    assert float(d.entropy()) == pytest.approx(2.112086, abs=1e-6)
    # KL(N(1, 2) || N(0, 1)) = -ln 2 + (4 + 1)/2 - 1/2 = 1.306853
    assert float(d.kl(Normal(torch.zeros(1), torch.zeros(1)))) == pytest.approx(1.306853, abs=1e-6)


def test_normal_sample_is_the_noise_moved_and_scaled() -> None:
    mean, log_std, *_ = gaussians()
    d = Normal(mean, log_std)
    noise = d.noise(generator(3))
    action, log_prob = d.sample_with_log_prob(noise)
    torch.testing.assert_close(action, mean + log_std.exp() * noise)
    torch.testing.assert_close(log_prob, d.log_prob(action))
    assert torch.equal(noise, d.noise(generator(3)))


@pytest.mark.parametrize(
    ("mean", "std", "before", "action", "log_prob"),
    [(0.0, 1.0, 0.5, 0.462117, -0.803710), (0.3, 0.5, -1.2, -0.833655, -3.538413)],
)
def test_tanh_normal_published_numbers(
    mean: float, std: float, before: float, action: float, log_prob: float
) -> None:
    d = TanhNormal(torch.tensor([mean]), torch.tensor([log(std)]))
    found, density = d.sample_with_log_prob(torch.tensor([(before - mean) / std]))
    assert float(found) == pytest.approx(action, abs=1e-6)
    assert float(density) == pytest.approx(log_prob, abs=1e-6)
    assert float(d.log_prob(found)) == pytest.approx(log_prob, abs=1e-5)


def test_tanh_normal_stays_exact_where_the_tanh_saturates() -> None:
    d = TanhNormal(torch.zeros(1), torch.zeros(1))
    # u = 5: -12.5 - .918939 + 2 * (5 - ln 2 + softplus(-10)) = -4.805142
    assert float(d.sample_with_log_prob(torch.tensor([5.0]))[1]) == pytest.approx(-4.805142, abs=1e-5)
    # u = 10: -50 - .918939 + 2 * (10 - ln 2) = -32.305233, though tanh(10) rounds to 1
    assert float(d.sample_with_log_prob(torch.tensor([10.0]))[1]) == pytest.approx(-32.305233, abs=1e-4)
    assert d.log_prob(torch.tensor([[1.0], [-1.0]])).isfinite().all()


@pytest.mark.parametrize(("std", "entropy"), [(0.1, -0.894), (0.5, 0.500), (1.0, 0.670), (2.0, 0.00)])
def test_tanh_normal_entropy_estimate(std: float, entropy: float) -> None:
    d = TanhNormal(torch.zeros(100_000, 1), torch.tensor([log(std)]))
    estimate = d.entropy(d.noise(generator()))
    four_sigma = 4 * float(estimate.std()) / sqrt(100_000)
    assert float(estimate.mean()) == pytest.approx(entropy, abs=four_sigma + 1e-3)


def test_tanh_normal_entropy_asks_for_noise() -> None:
    with pytest.raises(ValueError, match="pass noise"):
        TanhNormal(torch.zeros(1), torch.zeros(1)).entropy()


def test_tanh_normal_divergence_is_that_of_the_gaussians() -> None:
    mean, log_std, other, other_log_std = gaussians()
    exact = TanhNormal(mean, log_std).kl(TanhNormal(other, other_log_std))
    torch.testing.assert_close(exact, Normal(mean, log_std).kl(Normal(other, other_log_std)))


def test_tanh_normal_density_integrates_to_one() -> None:
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)[1:-1]
    d = TanhNormal(torch.full((1,), 0.3, dtype=torch.float64), torch.full((1,), -0.5, dtype=torch.float64))
    assert float(d.log_prob(grid.unsqueeze(-1)).exp().sum() * 1e-4) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("mean", [-40.0, 0.0, 40.0])
@pytest.mark.parametrize("log_std", [-20.0, 2.0])
def test_tanh_normal_gradients_are_finite_at_extremes(mean: float, log_std: float) -> None:
    m, s = torch.tensor([mean], requires_grad=True), torch.tensor([log_std], requires_grad=True)
    action, log_prob = TanhNormal(m, s).sample_with_log_prob(torch.tensor([3.0]))
    (action.sum() + log_prob.sum()).backward()
    assert m.grad is not None and m.grad.isfinite().all()
    assert s.grad is not None and s.grad.isfinite().all()


def test_categorical_matches_the_reference() -> None:
    logits, other = torch.randn(2, 5, 4, generator=generator())
    ours, theirs = Categorical(logits), reference.Categorical(logits=logits)
    action = torch.tensor([0, 3, 1, 2, 3])
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    divergence = reference.kl_divergence(theirs, reference.Categorical(logits=other))
    torch.testing.assert_close(ours.kl(Categorical(other)), divergence)
    assert torch.equal(ours.mode(), logits.argmax(-1))


def test_a_masked_choice_has_exactly_no_probability_and_no_gradient() -> None:
    # Allowed logits 0 and ln 3: probabilities 1/4 and 3/4, entropy .562335
    logits = torch.tensor([0.0, 50.0, log(3), float("nan")], requires_grad=True)
    mask = torch.tensor([1, 0, 1, 0])
    d = Categorical(logits, mask)
    torch.testing.assert_close(d.probs, torch.tensor([0.25, 0.0, 0.75, 0.0]))
    assert d.probs[1] == 0 and d.probs[3] == 0
    assert d.entropy().item() == pytest.approx(0.562335, abs=1e-6)
    # KL to (1/2, 1/2) on the allowed: ln 2 - .562335 = .130812
    uniform = Categorical(torch.zeros(4), mask)
    assert d.kl(uniform).item() == pytest.approx(0.130812, abs=1e-6)
    assert int(d.mode()) == 2
    (d.entropy() + d.kl(uniform) + d.log_prob(torch.tensor(2))).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert logits.grad[1] == 0 and logits.grad[3] == 0


def test_a_row_with_nothing_allowed_stays_finite() -> None:
    d = Categorical(torch.randn(3, 4, generator=generator()), torch.zeros(3, 4))
    torch.testing.assert_close(d.probs, torch.full((3, 4), 0.25))
    assert d.entropy().isfinite().all()


@pytest.mark.parametrize("uniform", [0.0, 1.0])
def test_the_ends_of_the_uniform_range_never_pick_a_masked_choice(uniform: float) -> None:
    d = Categorical(torch.zeros(3), torch.tensor([False, True, False]))
    assert int(d.sample(torch.full((3,), uniform))) == 1
    noise = torch.tensor([1.0, 0.0, 1.0])
    assert int(d.sample(noise)) == 1


def frequencies_within_four_sigma(drawn: Tensor, probs: Tensor) -> None:
    n = drawn.numel()
    found = torch.bincount(drawn, minlength=len(probs)) / n
    assert ((found - probs).abs() <= 4 * (probs * (1 - probs) / n).sqrt()).all(), (found, probs)


def test_categorical_samples_with_its_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 5.0, -1.0])
    d = Categorical(logits.expand(100_000, 4), torch.tensor([1, 1, 0, 1]))
    drawn = d.sample(d.noise(generator()))
    assert drawn.dtype == torch.int64 and drawn.shape == (100_000,)
    total = 1 + exp(1) + exp(-1)
    frequencies_within_four_sigma(drawn, torch.tensor([1 / total, exp(1) / total, 0, exp(-1) / total]))


def test_categorical_is_finite_at_extreme_logits() -> None:
    logits = torch.tensor([1e4, -1e4, 0.0], requires_grad=True)
    d = Categorical(logits)
    (d.entropy() + d.log_prob(torch.tensor(1)) + d.kl(Categorical(torch.zeros(3)))).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


NVEC = (2, 4, 3)


def test_multi_categorical_is_the_sum_of_its_dimensions() -> None:
    logits, other = torch.randn(2, 6, 9, generator=generator())
    mask = torch.tensor([1, 1, 1, 0, 1, 1, 0, 1, 1])
    action = torch.tensor([[0, 2, 1], [1, 0, 2]] * 3)
    joint, shifted = MultiCategorical(logits, NVEC, mask), MultiCategorical(other, NVEC, mask)
    parts = [Categorical(*pair) for pair in zip(logits.split(NVEC, -1), mask.split(NVEC))]
    others = [Categorical(*pair) for pair in zip(other.split(NVEC, -1), mask.split(NVEC))]
    each = range(len(NVEC))
    torch.testing.assert_close(joint.log_prob(action), sum(parts[i].log_prob(action[:, i]) for i in each))
    torch.testing.assert_close(joint.entropy(), sum(part.entropy() for part in parts))
    torch.testing.assert_close(joint.kl(shifted), sum(parts[i].kl(others[i]) for i in each))
    assert torch.equal(joint.mode(), torch.stack([part.mode() for part in parts], -1))


def test_multi_categorical_samples_with_its_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 0.0, 9.0, 1.0, 2.0, -1.0, 0.0, 0.5])
    mask = torch.tensor([1, 1, 1, 0, 1, 1, 1, 1, 1])
    d = MultiCategorical(logits.expand(50_000, 9), NVEC, mask)
    drawn = d.sample(d.noise(generator()))
    assert drawn.dtype == torch.int64 and drawn.shape == (50_000, 3)
    for i, (part, allowed) in enumerate(zip(logits.split(NVEC), mask.split(NVEC))):
        frequencies_within_four_sigma(drawn[:, i], Categorical(part, allowed).probs)


def test_multi_categorical_padding_gets_no_gradient_and_no_nan() -> None:
    logits = torch.randn(6, 9, generator=generator(), requires_grad=True)
    d = MultiCategorical(logits, NVEC)
    (d.entropy() + d.log_prob(d.mode())).sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


def joint(seed: int) -> Joint:
    mean, logits = torch.randn(2, 5, 4, generator=generator(seed))
    inner: dict[str, Distribution] = {"turn": TanhNormal(mean, torch.zeros(4)), "jump": Categorical(logits)}
    return Joint({"move": Normal(mean, torch.zeros(4)), "hand": Joint(inner)})


def test_joint_sums_over_a_nested_tree() -> None:
    d, other = joint(0), joint(1)
    noise = d.noise(generator(2))
    action, log_prob = d.sample_with_log_prob(noise)
    assert action["hand"]["jump"].dtype == torch.int64
    move, hand = d.parts["move"], d.parts["hand"]
    assert isinstance(hand, Joint)
    torch.testing.assert_close(
        log_prob,
        move.log_prob(action["move"])
        + hand.parts["turn"].log_prob(action["hand"]["turn"])
        + hand.parts["jump"].log_prob(action["hand"]["jump"]),
        atol=1e-4,
        rtol=1e-4,
    )
    torch.testing.assert_close(d.entropy(noise), move.entropy() + hand.entropy(noise["hand"]))
    torch.testing.assert_close(d.kl(other), move.kl(other.parts["move"]) + hand.kl(other.parts["hand"]))
    assert d.mode()["hand"]["jump"].shape == (5,)


def test_shapes_and_kinds_are_checked_on_entry() -> None:
    with pytest.raises(ValueError, match=r"action has shape \(5, 1\); it needs \(5,\)"):
        Categorical(torch.zeros(5, 3)).log_prob(torch.zeros(5, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"action has shape \(5,\); its last axis must be 3"):
        Normal(torch.zeros(5, 3), torch.zeros(3)).log_prob(torch.zeros(5))
    with pytest.raises(ValueError, match=r"log_std \(2,\)"):
        Normal(torch.zeros(5, 3), torch.zeros(2))
    with pytest.raises(ValueError, match=r"needs \[\.\.\., 9\] for nvec"):
        MultiCategorical(torch.zeros(5, 8), NVEC)
    with pytest.raises(ValueError, match="from Normal to Categorical"):
        Normal(torch.zeros(3), torch.zeros(3)).kl(Categorical(torch.zeros(3)))


def test_options_that_do_not_exist_are_never_taken_even_where_none_is_allowed() -> None:
    found = MultiCategorical(torch.zeros(1, 5), (2, 3), mask=torch.zeros(1, 5))
    assert found.each.probs[0, 0].tolist() == pytest.approx([0.5, 0.5, 0.0])
