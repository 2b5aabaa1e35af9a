"""n-step targets of SAC and TQC corrected by V-trace, refreshed probabilities, clipped critics, SAC without replay."""

from math import log
from typing import Any

import pytest
import torch
from replay_blocks import ONE, batch_of, build, says
from torch import Tensor

from whorl import conformance
from whorl.algorithms.sac import SAC
from whorl.algorithms.tqc import TQC
from whorl.conformance import Run, Subject, same
from whorl.core.errors import ConfigError
from whorl.core.spec import MASK_KEY, Array, Discrete, Spec
from whorl.data.batch import LOG_PROB, STEPS, Batch
from whorl.data.replay import weighted
from whorl.explore.noise import random_log_prob
from whorl.ops.distributions import TanhNormal
from whorl.ops.returns import n_step_return, n_step_vtrace, vtrace

SCALAR = Array((1,))


def block(seed: int = 0, rows: int = 7, columns: int = 4) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    keep = (uniform(rows, columns) > 0.2).float()
    discount = 0.9 * torch.where(keep > 0, torch.ones_like(keep), (uniform(rows, columns) > 0.5).float())
    return {
        "reward": uniform(rows, columns) - 0.5,
        "discount": discount,
        "value": uniform(rows + 1, columns) * 4,
        "keep": keep,
        "ratio": uniform(rows, columns) * 2,
    }


def test_with_ratios_of_one_it_is_the_n_step_return() -> None:
    given = block()
    given["ratio"] = torch.ones_like(given["ratio"])
    without = {key: value for key, value in given.items() if key != "ratio"}
    for n in (1, 2, 3, 20):
        torch.testing.assert_close(n_step_vtrace(**given, n=n)[:-1], n_step_return(**without, n=n))


def test_over_all_steps_it_is_v_trace() -> None:
    given = block(1)
    found = n_step_vtrace(**given, n=7, rho_clip=0.8, c_clip=1.3, lam=0.7)
    torch.testing.assert_close(found[:-1], vtrace(**given, rho_clip=0.8, c_clip=1.3, lam=0.7)[0])
    assert found[-1].equal(given["value"][-1])


@pytest.mark.parametrize("n", [1, 2, 4])
def test_off_policy_it_is_the_sum_of_weighted_td_errors(n: int) -> None:
    """v_t = V_t + sum_k (prod_{i<k} discount_i lam c_i) rho_k delta_k over the steps of the episode, one by one."""
    given, rho_clip, c_clip, lam = block(2), 0.9, 0.7, 0.8
    reward, discount, value, keep, ratio = (given[key].tolist() for key in given)
    found = n_step_vtrace(**given, n=n, rho_clip=rho_clip, c_clip=c_clip, lam=lam)
    for t in range(7):
        for b in range(4):
            total, weight = value[t][b], 1.0
            for k in range(t, min(t + n, 7)):
                delta = reward[k][b] + discount[k][b] * value[k + 1][b] - value[k][b]
                total += weight * min(rho_clip, ratio[k][b]) * delta
                weight *= discount[k][b] * lam * min(c_clip, ratio[k][b])
                if not keep[k][b]:
                    break
            assert float(found[t, b]) == pytest.approx(total, abs=1e-5)


def test_nothing_that_a_row_behind_the_end_holds_reaches_a_target() -> None:
    given = block(3)
    given["keep"][2] = 0.0
    clean = n_step_vtrace(**given, n=5)
    given["reward"][3], given["ratio"][3] = torch.nan, torch.nan
    assert n_step_vtrace(**given, n=5)[:3].equal(clean[:3])


# Targets


STDS = [1.0, 0.5, 0.8, 1.2]


def window(cls: Any, n: int = 3, **settings: Any) -> tuple[Any, Batch]:
    """One sample of n steps. V'(s) = Q'(s, a') = s with a known policy tanh N(0, std_t), noise .5."""
    few = {"n_critics": 1, "n_quantiles": 1, "top_quantiles_to_drop": 0} if cls is TQC else {}
    agent = build(cls, ONE, SCALAR, **{"alpha": 0.2, "n_step": n, "use_n_step_is": True, **few, **settings})
    quantiles = 1 if cls is TQC else 0

    def policy(obs: Tensor) -> TanhNormal:
        # The state names its policy: obs is 1 + t
        std = torch.tensor(STDS)[(obs[..., 0].round().long() - 1).clamp(0, 3)].unsqueeze(-1)
        return TanhNormal(torch.zeros_like(obs), std.log())

    def critic(obs: Tensor, action: Tensor) -> Tensor:
        value = obs[..., 0].expand(agent.critic.members, *obs.shape[:-1])
        return value.unsqueeze(-1) if quantiles else value

    says(agent.actor, policy)
    says(agent.target_critic, critic)
    says(agent.critic, critic)
    obs = torch.arange(1.0, n + 2).reshape(n + 1, 1, 1)
    action = torch.tensor([0.1, -0.4, 0.6])[:n].reshape(n, 1, 1)
    batch = batch_of(obs[[0, n]], action[:1], [0.0], [0.9**n])
    steps = {
        "action": action,
        "reward": torch.tensor([1.0, 2.0, 3.0])[:n].reshape(n, 1),
        "discount": torch.full((n, 1), 0.9),
        "keep": torch.ones(n, 1),
        LOG_PROB: torch.tensor([-0.3, -1.1, -0.2])[:n].reshape(n, 1),
    }
    reset = torch.zeros(n + 1, 1, dtype=torch.bool)
    return agent, batch.replace(
        obs=obs, reset=reset, ahead=torch.tensor([[n]]), extras={**batch.extras, STEPS: steps}
    )


def log_density(action: float, std: float) -> float:
    return float(TanhNormal(torch.zeros(1), torch.tensor([log(std)])).log_prob(torch.tensor([action])))


def soft_values(alpha: float) -> list[float]:
    """V(s_t) = s_t - alpha log pi(a') for a' = tanh(.5 std_t)"""
    found = []
    for t, std in enumerate(STDS):
        drawn = TanhNormal(torch.zeros(1), torch.tensor([log(std)])).sample_with_log_prob(torch.tensor([0.5]))
        found.append(1 + t - alpha * float(drawn[1]))
    return found


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("cls", [SAC, TQC])
def test_the_target_of_a_sample_by_hand(cls: Any, on_policy: bool) -> None:
    clips = {} if on_policy else {"v_rho": 1.1, "v_c": 0.9, "v_lambda": 0.8}
    agent, batch = window(cls, **clips)
    steps = batch.extras[STEPS]
    density = [log_density(float(a), std) for a, std in zip(steps["action"].flatten(), STDS)]
    if on_policy:
        steps[LOG_PROB] = torch.tensor(density).reshape(3, 1)
    noise = {**agent.draw(batch), "next_action": torch.full((3, 1, 1), 0.5)}
    error = agent.critic_loss(batch, noise)[1]
    value, alpha = soft_values(0.2), 0.2
    cost = [alpha * x for x in density]
    if on_policy:  # the soft n-step return
        target = 1 + 0.9 * ((2 - cost[1]) + 0.9 * ((3 - cost[2]) + 0.9 * value[3]))
    else:
        ratio = [2.718281828 ** (density[t] - float(steps[LOG_PROB][t])) for t in range(3)]
        delta = [1 + t - cost[t] + 0.9 * value[t + 1] - value[t] for t in range(3)]
        later = min(1.1, ratio[2]) * delta[2]
        shift = min(1.1, ratio[1]) * delta[1] + 0.9 * 0.8 * min(0.9, ratio[1]) * later
        target = 1 + 0.9 * (value[1] + shift)
    assert float(error) == pytest.approx(abs(1 - target), abs=2e-5)  # Q(s_0, a_0) = 1


def test_a_sample_that_ends_early_bootstraps_from_where_it_ends() -> None:
    agent, batch = window(SAC, alpha=0.0, tune_alpha=False)
    batch.extras[STEPS]["keep"][0] = 0.0  # cut by a time limit after the first step
    noise = {**agent.draw(batch), "next_action": torch.full((3, 1, 1), 0.5)}
    assert float(agent.critic_loss(batch, noise)[1]) == pytest.approx(abs(1 - (1 + 0.9 * 2)), abs=1e-6)


def test_rewards_of_the_steps_are_scaled_too() -> None:
    agent, batch = window(SAC, alpha=0.0, tune_alpha=False, reward_scale=10.0)
    steps = batch.extras[STEPS]
    steps[LOG_PROB] = torch.tensor(
        [log_density(float(a), std) for a, std in zip(steps["action"].flatten(), STDS)]
    )[:, None]
    noise = {**agent.draw(batch), "next_action": torch.full((3, 1, 1), 0.5)}
    target = 10 + 0.9 * (20 + 0.9 * (30 + 0.9 * 4))
    assert float(agent.critic_loss(batch, noise)[1]) == pytest.approx(target - 1, rel=1e-6)


# Samples of the buffer


def small(name: str, memory: str = "none", action: str = "continuous", **settings: Any) -> Subject:
    given = {"use_n_step_is": True, "n_step": 3, "updates_per_step": 0.1, **settings}
    return conformance.subject(name, "vector", memory, action, **given)


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_without_entropy_fresh_samples_have_the_targets_of_plain_n_step_returns(memory: str) -> None:
    """On policy, rho = c = 1: what the correction computes from single steps is what the buffer folds."""
    cell = small("sac", memory, "mixed", alpha=0.0, tune_alpha=False)
    run = Run(cell)
    agent: Any = run.agent
    for rollout in cell.rollouts(agent, 4):
        run.experience.add(agent.receive(rollout))
    batch = agent.prepare_batch(run.experience.sample())
    other: Any = small("sac", memory, "mixed", alpha=0.0, tune_alpha=False, use_n_step_is=False).agent()
    other.load_state_dict(agent.state_dict())
    # At the mode: no noise that differs between the two.
    noise = {**agent.draw(batch), "next_action": torch.zeros(*agent.returns.shape(batch), 2)}
    simple = {**noise, "next_action": torch.zeros(*batch.shape, 2)}
    mine, theirs = (a.critic_loss(batch, n)[1] for a, n in ((agent, noise), (other, simple)))
    torch.testing.assert_close(mine * batch.mask, theirs * batch.mask, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "memory"), [("sac", "none"), ("tqc", "none"), ("sac", "gru")])
def test_refreshed_probabilities_are_those_of_the_policy_after_the_update(name: str, memory: str) -> None:
    cell = small(name, memory, "mixed", refresh_probabilities=True)
    run = Run(cell)
    agent: Any = run.agent
    for rollout in cell.rollouts(agent, 4):
        run.experience.add(agent.receive(rollout))
    ring, view = run.experience.ring, run.experience.view
    column = ring.columns["extras"][LOG_PROB]
    before = column.clone()
    batch = run.experience.sample()
    updated = agent.learn("update", batch)
    run.experience.settle(batch, updated)
    with torch.no_grad():
        again = agent.actor(batch.replace(obs=agent.observations(batch.obs)).before)
        expected = again.log_prob(batch.extras[STEPS]["action"])
    cells = view.rows(ring, batch.extras["start"])
    found, real = ring.take("extras", cells)[LOG_PROB], ring.take("mask", cells)
    assert real.any() and not found.equal(before.flatten()[cells])
    if memory == "none":  # a state is a window's own: of several that hold a row the last one counts
        torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-5)
    else:
        torch.testing.assert_close(found[:, -1][real[:, -1]], expected[:, -1][real[:, -1]])
    touched = torch.zeros(column.numel(), dtype=torch.bool)
    touched[cells[real]] = True
    assert column.flatten()[~touched].equal(before.flatten()[~touched]), "other rows keep what acting stored"


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_refreshing_with_the_policy_that_acted_changes_nothing(memory: str) -> None:
    """Rows behind the end of an episode are among those of a sample; they keep their probability, too."""
    cell = small("sac", memory, "mixed", refresh_probabilities=True, batch_size=64)
    run = Run(cell)
    agent: Any = run.agent
    for rollout in cell.rollouts(agent, 4):
        run.experience.add(agent.receive(rollout))
    ring, batch = run.experience.ring, run.experience.sample()
    with torch.no_grad():
        found = agent.refreshed(batch)[LOG_PROB]
    cells = run.experience.view.rows(ring, batch.extras["start"])
    stored, real = ring.take("extras", cells)[LOG_PROB], ring.take("mask", cells)
    if memory == "none":
        assert (ring.take("keep", cells)[:-1] == 0).any(), "no sample holds the end of an episode"
        torch.testing.assert_close(found[real], stored[real], atol=1e-4, rtol=1e-4)
    else:  # behind the end of an episode a window has the stored state of its first row
        torch.testing.assert_close(found[0][real[0]], stored[0][real[0]], atol=1e-4, rtol=1e-4)


def test_rewards_of_a_rollout_are_scaled_once() -> None:
    cell = small("sac", use_replay_buffer=False, reward_scale=3.0)
    run = Run(cell)
    agent: Any = run.agent
    (rollout,) = cell.rollouts(agent, 1)
    run.experience.add(agent.receive(rollout))
    ((_, batch),) = run.experience.due()
    ready = agent.prepare_batch(batch)
    shape = agent.returns.shape(ready)
    value = torch.zeros(shape)
    reward, _, _ = agent.returns.corrected(
        ready, value, value, agent.actor(agent.returns.rows(ready)), agent.temperature
    )
    real = batch.mask > 0
    torch.testing.assert_close(reward[real], 3.0 * batch.reward[real])


def test_uniform_actions_of_the_warm_up_have_their_own_probability() -> None:
    spec = Spec({"x": SCALAR, MASK_KEY: Array((3,), "int8", 0.0, 1.0)}, {"a": ONE, "b": Discrete(3)}, 2)
    obs = {"x": torch.zeros(2, 1), MASK_KEY: torch.tensor([[1, 1, 1], [0, 1, 1]])}
    assert random_log_prob(spec, obs).tolist() == pytest.approx([-log(2) - log(3), -2 * log(2)])
    assert random_log_prob(Spec(SCALAR, Discrete(4), 2), torch.zeros(2, 1)).tolist() == pytest.approx(
        [-log(4)] * 2
    )


# Clipping


def test_the_larger_of_the_clipped_and_the_unclipped_error_counts() -> None:
    agent = build(
        SAC, ONE, SCALAR, clip_epsilon=0.5, alpha=0.0, tune_alpha=False, ensemble_q_num=1, ensemble_q_sample=1
    )
    says(agent.actor, lambda obs: TanhNormal(torch.zeros_like(obs), torch.zeros_like(obs)))
    says(agent.critic, lambda obs, action: torch.tensor([[[3.0, 3.0, 0.2]]]))
    says(agent.target_critic, lambda obs, action: torch.tensor([[[1.0, 1.0, 0.0]]]))
    batch = batch_of(torch.zeros(2, 3, 1), torch.zeros(1, 3, 1), [4.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    loss, error, _ = agent.critic_loss(batch, agent.draw(batch))
    # clipped to 1.5, 1.5 and .2: max(1, 6.25), max(4, .25), max(.64, .64)
    assert float(loss) == pytest.approx((6.25 + 4 + 0.64) / 3)
    assert error.tolist() == [[1.0, 2.0, pytest.approx(0.8)]], "priorities are of the values themselves"


def test_quantiles_are_clipped_too() -> None:
    few = {"n_critics": 1, "n_quantiles": 1, "top_quantiles_to_drop": 0}
    agent = build(TQC, ONE, SCALAR, clip_epsilon=0.5, alpha=0.0, tune_alpha=False, **few)
    says(agent.actor, lambda obs: TanhNormal(torch.zeros_like(obs), torch.zeros_like(obs)))
    says(agent.critic, lambda obs, action: torch.tensor([[[[3.0], [3.0]]]]))
    says(agent.target_critic, lambda obs, action: torch.tensor([[[[1.0], [1.0]]]]))
    batch = batch_of(torch.zeros(2, 2, 1), torch.zeros(1, 2, 1), [4.0, 1.0], [0.0, 0.0])
    # tau .5: half of the Huber loss of max(1, 2.5) and of max(2, .5)
    assert float(agent.critic_loss(batch, agent.draw(batch))[0]) == pytest.approx((0.5 * 2 + 0.5 * 1.5) / 2)


# Without replay


def test_a_rollout_is_learned_from_once_and_whole() -> None:
    cell = small("sac", action="mixed", use_replay_buffer=False, use_n_step_is=False)
    run = Run(cell)
    updated = run.feed(cell.rollouts(run.agent, 3))
    assert len(updated) == 3 and not run.agent.off_policy and run.agent.tolerates_stale_data


def test_not_even_nan_in_a_masked_row_of_a_rollout_has_influence() -> None:
    conformance.masked_rows_have_no_influence(
        small("sac", action="mixed", use_replay_buffer=False), float("nan")
    )


def test_targets_of_a_rollout_are_v_trace_over_n_steps_of_it() -> None:
    cell = small("sac", use_replay_buffer=False, alpha=0.0, tune_alpha=False)
    agent: Any = cell.agent()
    rollout = cell.rollouts(agent, 2)[1]
    experience = agent.experience(torch.Generator())
    experience.add(rollout)
    ((_, batch),) = experience.due()
    rows, noise = batch.after, {**agent.draw(batch), "next_action": torch.zeros(*batch.shape, 2)}
    error = agent.critic_loss(batch, noise)[1]
    with torch.no_grad():
        policy = agent.actor(rows)
        value = agent.target_critic(rows, policy.mode()).amin(0)
        ratio = (agent.actor(batch.now).log_prob(batch.action) - batch.extras[LOG_PROB]).exp()
        given = (batch.reward[1:], batch.discount[1:], value, batch.keep[1:], ratio[1:])
        later = torch.where(batch.keep > 0, n_step_vtrace(*given, 2), value)
        q = agent.critic(batch.now, batch.action)
    expected = (q - (batch.reward + batch.discount * later)).abs().mean(0)
    torch.testing.assert_close(error * batch.mask, expected * batch.mask, atol=1e-5, rtol=1e-5)


# Settings


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"refresh_probabilities": True}, "without use_n_step_is and a replay buffer none are stored"),
        (
            {"use_n_step_is": True, "n_step": 2, "discrete_dqn_like": True},
            "with discrete_dqn_like choices are greedy; leave",
        ),
    ],
)
def test_settings_that_do_not_fit_are_one_sentence(settings: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        build(SAC, {"a": ONE, "b": Discrete(2)}, **settings)
    assert "\n" not in str(error.value)


def test_settings_of_the_buffer_without_it_are_one_sentence() -> None:
    with pytest.raises(
        ConfigError, match="prioritized is about the replay buffer, but use_replay_buffer is false"
    ):
        small("sac", use_replay_buffer=False, prioritized=True).agent()


def test_nothing_is_stored_without_correction() -> None:
    assert not build(SAC, n_step=3).columns()
    assert not build(SAC, n_step=1, use_n_step_is=True).columns()  # one step needs no correction
    assert set(build(SAC, n_step=3, use_n_step_is=True).columns()) == {LOG_PROB}


def test_samples_with_steps_learn_the_same_otherwise() -> None:
    """The rest of a batch is what it is without the steps."""
    found = []
    for corrected in (True, False):
        cell = small("sac", use_n_step_is=corrected)
        run = Run(cell)
        for rollout in small("sac").rollouts(small("sac").agent(), 4):
            run.experience.add(rollout)
        found.append(weighted(run.experience.sample(), {}))
    for name in ("reward", "discount", "keep", "mask", "action"):
        assert same(getattr(found[0], name), getattr(found[1], name))
    assert same(found[0].next.selected, found[1].next.selected) and same(
        found[0].now.selected, found[1].now.selected
    )
