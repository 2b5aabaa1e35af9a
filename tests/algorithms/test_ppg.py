"""PPG: two phases that touch what they should, a history that survives a checkpoint."""

from dataclasses import replace

import pytest
import torch
from on_policy_blocks import (
    ACTIONS,
    ENTROPY_STEP,
    TREE,
    Chain,
    Walk,
    build,
    entropy_step,
    learned_values,
    poison,
    rollout,
    same,
    weights,
)
from torch import Tensor

from whorl.algorithms.ppg import PPG
from whorl.data.batch import Batch
from whorl.data.rollouts import Rollouts, minibatches

SMALL = {"n_epochs": 1, "batch_size": 16, "aux_every": 3, "chunk_length": 4}


def history(agent: PPG) -> Batch:
    """Run policy phases until the auxiliary one is due; its batch."""
    experience = agent.experience(torch.Generator())
    for seed in range(agent.cfg.aux_every):
        experience.add(rollout(agent, seed=seed))
        for phase, batch in experience.due():
            if phase == "auxiliary":
                return batch
            experience.settle(batch, agent.update(batch))
    raise AssertionError("the auxiliary phase never came")


@pytest.mark.parametrize("memory", ["none", "lstm", "gru"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_the_divergence_is_exactly_zero_when_the_auxiliary_phase_begins(kind: str, memory: str) -> None:
    agent = build(PPG, ACTIONS[kind], TREE, memory=memory, aux_epochs=0, normalize_obs=True, **SMALL)
    batch = history(agent)
    agent.auxiliary(batch)
    batch = batch.replace(obs=agent.observations(batch.obs))
    columns = {"target": batch.extras["target"], "mask": batch.mask}
    for rows, data in minibatches(batch, columns, 16, torch.Generator().manual_seed(0)):
        assert agent.auxiliary_loss(rows, data)[2].item() == 0


def test_the_policy_phase_leaves_the_auxiliary_head_alone() -> None:
    agent = build(PPG, **SMALL)
    head = weights(agent.auxiliary_value)
    agent.update(rollout(agent))
    assert same(head, weights(agent.auxiliary_value))
    batch = rollout(agent)
    data = {"action": batch.action, **batch.extras, "advantage": batch.reward, "mask": batch.mask}
    loss, _ = agent.actor_loss(batch.now, data)
    gradients = torch.autograd.grad(loss, list(agent.auxiliary_value.parameters()), allow_unused=True)
    assert all(g is None for g in gradients)


def test_an_auxiliary_phase_of_no_epochs_changes_nothing() -> None:
    agent = build(PPG, aux_epochs=0, **SMALL)
    batch = history(agent)
    nets = (agent.actor, agent.critic, agent.auxiliary_value)
    before = [weights(net) for net in nets]
    assert agent.auxiliary(batch).metrics == {}
    assert all(same(old, weights(net)) for old, net in zip(before, nets))


def test_cloning_holds_the_policy_while_the_value_error_falls() -> None:
    def phase(bc_coef: float) -> tuple[float, float, float]:
        agent = build(PPG, bc_coef=bc_coef, aux_lr=1e-2, aux_epochs=20, max_grad_norm=0.0, **SMALL)
        # A policy that decides: at the start of training all actions are as good as equal and nothing can be lost.
        agent.actor.head.logits.weight.data.normal_()
        batch = history(agent)
        data = {"target": batch.extras["target"], "mask": batch.mask}
        before = agent.auxiliary_loss(batch.now, data)[1].item()
        agent.auxiliary(batch)
        _, after, kl = (part.item() for part in agent.auxiliary_loss(batch.now, data))
        return before, after, kl

    before, after, held = phase(1.0)
    _, _, free = phase(0.0)
    assert after < 0.7 * before
    assert held < 0.01
    assert free > 3 * held


@pytest.mark.parametrize("memory", ["none", "lstm", "gru"])
@pytest.mark.parametrize("kind", ACTIONS)
def test_both_phases_work_for_every_kind_of_action_and_memory(kind: str, memory: str) -> None:
    agent = build(PPG, ACTIONS[kind], TREE, memory=memory, normalize_reward=True, **SMALL)
    before = weights(agent)
    trained = [p.requires_grad for p in agent.parameters()]
    metrics = agent.auxiliary(history(agent)).metrics
    assert set(metrics) == {"loss/auxiliary", "policy/auxiliary_kl", "loss/auxiliary_critic"}
    assert all(torch.isfinite(value) for value in metrics.values())
    moved = [not a.equal(b) for a, b in zip(before, weights(agent))]
    assert all(m for m, t in zip(moved, trained) if t)


@pytest.mark.parametrize("kind", ACTIONS)
def test_masked_rows_have_exactly_no_influence(kind: str) -> None:
    def after(poisoned: bool) -> list[Tensor]:
        agent = build(PPG, ACTIONS[kind], **{**SMALL, "aux_every": 1})
        batch = rollout(agent)
        if poisoned:
            poison(batch)
        experience = agent.experience(torch.Generator())
        experience.add(batch)
        for phase, part in experience.due():
            experience.settle(part, getattr(agent, phase)(part))
        return weights(agent)

    assert same(after(False), after(True))


@pytest.mark.parametrize(
    ("factor", "size"), [(1.0, 16), (1.2, 16), (1.4, 24), (2.0, 24), (2.3, 48), (100.0, 48)]
)
def test_the_auxiliary_minibatch_is_the_nearest_size_that_divides_the_history(
    factor: float, size: int
) -> None:
    agent = build(PPG, aux_batch_factor=factor, **SMALL)
    # 3 rollouts of 8 rows and 2 environments: 48 rows, whose divisors near here are 12, 16, 24 and 48.
    assert agent.auxiliary_batch_size(history(agent)) == size


def test_targets_are_kept_in_the_unit_of_the_environment() -> None:
    agent = build(PPG, normalize_reward=True, **SMALL)
    batch = rollout(agent)
    updated = agent.update(batch.replace(reward=batch.reward * 100))
    unit = float(agent.reward_unit())
    assert unit > 10
    assert float(updated.kept["target"].abs().max()) > unit / 2


def test_the_history_survives_a_checkpoint() -> None:
    agent = build(PPG, **SMALL)
    first: Rollouts = agent.experience(torch.Generator())
    for seed in range(2):
        first.add(rollout(agent, seed=seed))
        for _, batch in first.due():
            first.settle(batch, agent.update(batch))
    second: Rollouts = agent.experience(torch.Generator())
    second.load_state_dict(first.state_dict())
    last = rollout(agent, seed=2)
    updated = agent.update(last)
    joined = []
    for experience in (first, second):
        experience.settle(last, updated)
        joined += [batch for phase, batch in experience.due() if phase == "auxiliary"]
    assert len(joined) == 2
    assert joined[0].obs.equal(joined[1].obs)
    assert joined[0].extras["target"].equal(joined[1].extras["target"])


def test_without_aux_every_there_is_no_auxiliary_phase() -> None:
    agent = build(PPG, **SMALL)
    agent.cfg = replace(agent.cfg, aux_every=0)
    experience = agent.experience(torch.Generator())
    for seed in range(3):
        experience.add(rollout(agent, seed=seed))
        for phase, batch in experience.due():
            assert phase == "update"
            experience.settle(batch, agent.update(batch))


def test_the_critic_bootstraps_through_truncation_but_not_through_termination() -> None:
    settings = {"n_epochs": 4, "batch_size": 27}
    value = learned_values(PPG, Walk, 120, **settings)
    assert value[5] == pytest.approx(10.0, abs=0.1)
    assert value[0] == pytest.approx(5.905, abs=0.1)
    chain = learned_values(PPG, Chain, 60, **settings)
    assert chain[:3] == pytest.approx([0.81, 0.9, 1.0], abs=0.01)


def test_the_entropy_bonus_makes_the_policy_more_even() -> None:
    assert entropy_step(PPG, **SMALL) == ENTROPY_STEP


def test_the_divergence_is_from_the_old_policy_to_the_new_one() -> None:
    agent = build(PPG, **SMALL)
    for actor, probabilities in ((agent.old_actor, (0.7, 0.2, 0.1)), (agent.actor, (0.2, 0.3, 0.5))):
        with torch.no_grad():
            actor.head.logits.weight.zero_()
            actor.head.logits.bias.copy_(torch.tensor(probabilities).log())
    batch = rollout(agent)
    with torch.no_grad():
        found = agent.auxiliary_loss(batch.now, {"target": batch.reward, "mask": batch.mask})
    # .7 * log(.7 / .2) + .2 * log(.2 / .3) + .1 * log(.1 / .5); the other way round it is .5371
    assert float(found[2]) == pytest.approx(0.63490, abs=1e-5)
    assert float(found[0]) == pytest.approx(float(found[1]) + 0.63490, abs=1e-5)


def test_the_auxiliary_phase_fits_the_critic_to_targets_in_the_present_unit() -> None:
    agent = build(PPG, normalize_reward=True, aux_epochs=1, **{**SMALL, "aux_every": 1})
    batch = history(agent)
    agent.rewards.statistics.var.fill_(25.0)
    seen: list[Tensor] = []
    distil = agent.distil

    def noted(part: Batch) -> object:
        seen.append(part.extras["target"])
        return distil(part)

    agent.distil = noted
    before = weights(agent.critic)
    agent.auxiliary(batch)
    found = torch.cat([part.flatten() for part in seen]).sort().values
    torch.testing.assert_close(found, batch.extras["target"].flatten().sort().values / 5)
    assert not any(a.equal(b) for a, b in zip(before, weights(agent.critic)))
