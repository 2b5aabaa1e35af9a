"""The mistakes that `mutants.py` plants: what a reviewer would look for, one line of the package each.

An entry says what the mistake is, the text that is replaced, which must occur exactly once in its file, and the new
text. The test files that ought to notice it are named per file of the package, or with the entry. A test checks that
all entries still apply: where the code has changed, change the entry with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One mistake."""

    file: str
    bug: str
    old: str
    new: str
    tests: tuple[str, ...]
    """files, or single tests in the form FILE::TEST, from the root of the repository"""
    survives: str = ""
    """why no test notices it, if none can"""

    @property
    def name(self) -> str:
        return f"{self.file.removeprefix('whorl/')}: {self.bug}"

    def apply(self, text: str) -> str:
        """The text of the file with the mistake."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(
                f"{self.name}: {self.old!r} occurs {count} times in {self.file}; change it to a text that occurs once"
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Bug:
    what: str
    old: str
    new: str
    tests: str = ""
    survives: str = ""


def planted(file: str, tests: str, *bugs: Bug) -> Iterator[Mutation]:
    """The mistakes of one file of the package, with the tests of all that name none themselves."""
    for bug in bugs:
        names = tuple(f"tests/{name}" for name in (bug.tests or tests).split())
        yield Mutation(f"whorl/{file}", bug.what, bug.old, bug.new, names, bug.survives)


def single(file: str, *tests: str) -> str:
    """Some tests of a file whose others take long."""
    return " ".join(f"{file}::{test}" for test in tests)


PARAMETERS_OF = "algorithms/test_parameters_of.py"
FIRST_MEMORIES = single(
    "run/test_load_model.py", "test_memories_of_the_first_observations_are_made_with_the_loaded_weights"
)
RESUMED_MEMORIES = single(
    "run/test_resume.py",
    "test_killed_at_random_moments_and_resumed_equals_uninterrupted",
)
MEAN_RETURN = single(
    "run/test_callbacks.py",
    "test_the_mean_return_is_of_the_last_hundred_episodes_or_the_few_more_of_one_rollout",
)
JOINT = single("distributed/test_learners.py", "test_two_learners_are_one_with_the_joint_batch")
METRICS = single("algorithms/test_recurrent_agents.py", "test_metrics_leave_out_rows_that_are_no_transitions")
WEIGHT = single("components/test_rnd.py", "test_masked_rows_have_no_reward_and_the_stream_is_not_episodic")
SHARDS = single(
    "distributed/test_replay_shards.py",
    "test_errors_find_the_rows_of_their_shard_and_beta_follows_the_steps_of_all_shards",
    "test_updates_are_due_as_often_as_without_shards",
    "test_one_shard_draws_what_a_ring_beside_the_learner_would",
    "test_a_resumed_run_equals_one_that_was_never_stopped",
)
LEARNERS = single(
    "distributed/test_learners.py",
    "test_a_replica_in_a_process_makes_two_of_one",
    "test_what_is_written_outside_of_an_update_reaches_the_replica",
    "test_two_learners_are_one_with_the_joint_batch",
    "test_learners_that_draw_apart_stay_equal_to_the_last_bit",
)

MUTATIONS: list[Mutation] = [
    *planted(
        "ops/returns.py",
        "ops/test_returns.py",
        Bug("GAE ignores lambda", "(discount * keep).mul_(lam)", "(discount * keep)"),
        Bug("GAE runs past the end of an episode", "(discount * keep).mul_(lam)", "(discount * 1).mul_(lam)"),
        Bug("GAE adds the value", ".sub_(value[:-1])", ".add_(value[:-1])"),
        Bug(
            "GAE bootstraps from the same row",
            "torch.addcmul(reward, discount, value[1:])",
            "torch.addcmul(reward, discount, value[:-1])",
        ),
        Bug(
            "a nan in a masked row spreads",
            "finite = torch.nan_to_num(term, nan=0.0, posinf=0.0, neginf=0.0)",
            "finite = term",
        ),
        Bug("reverse scan starts at zero", "carry = last\n", "carry = torch.zeros_like(last)\n"),
        Bug(
            "lambda return loses the share of the value",
            "discount * (1 - weight) * value[1:]",
            "discount * value[1:]",
        ),
        Bug(
            "discounted return with another lambda",
            "bootstrap_value, keep, 1.0)",
            "bootstrap_value, keep, 0.95)",
        ),
        Bug(
            "n-step return with n + 1 rewards",
            "range(min(n, reward.shape[0]) - 1)",
            "range(min(n, reward.shape[0]))",
        ),
        Bug(
            "n-step return crosses episodes",
            "torch.where(continues, torch.cat((target[1:], value[-1:])), value[1:])",
            "torch.cat((target[1:], value[-1:]))",
        ),
        Bug("V-trace does not clip rho", "rho = ratio.clamp(max=rho_clip)", "rho = ratio"),
        Bug(
            "V-trace swaps its clips",
            "ratio.clamp(max=c_clip)).masked_fill(ends, 0.0)",
            "ratio.clamp(max=rho_clip)).masked_fill(ends, 0.0)",
        ),
        Bug(
            "V-trace ignores lambda",
            "discount * lam * ratio.clamp(max=c_clip)",
            "discount * ratio.clamp(max=c_clip)",
        ),
        Bug("V-trace crosses episodes", ".clamp(max=c_clip)).masked_fill(ends, 0.0)", ".clamp(max=c_clip))"),
        Bug("V-trace advantage without rho", "return target, rho * (reward", "return target, (reward"),
        Bug(
            "V-trace advantage from the value, not from the target",
            "successor = torch.where(ends, value[1:], torch.cat((target[1:], value[-1:])))",
            "successor = value[1:]",
        ),
        Bug(
            "Retrace takes the trace of the same row",
            "torch.cat((trace[1:], torch.zeros_like(trace[:1])))",
            "trace",
        ),
        Bug("Retrace does not clip", "trace = lam * ratio.clamp(max=c_clip)", "trace = lam * ratio"),
        Bug(
            "Retrace crosses episodes",
            "(discount * following).masked_fill(keep == 0, 0.0)",
            "discount * following",
        ),
    ),
    *planted(
        "ops/losses.py",
        "ops/test_losses.py",
        Bug(
            "masked rows are in the mean",
            "return blank(value, mask).sum() / _count(value, mask)",
            "return value.mean()",
        ),
        Bug(
            "masked rows are counted",
            "collectives.total((mask > 0).sum())",
            "collectives.total((mask > -1).sum())",
        ),
        Bug("an ensemble is counted once", ".clamp(min=1) * shared", ".clamp(min=1)"),
        Bug(
            "row weight is the plain mask",
            "return mask / collectives.mean(mask.mean())",
            "return mask * collectives.mean(mask.mean())",
        ),
        Bug(
            "advantages are divided by their variance",
            "_joint_mean(centred.square(), mask).sqrt()",
            "_joint_mean(centred.square(), mask)",
        ),
        Bug(
            "advantages are not centred",
            "centred = blank(value - _joint_mean(value, mask), mask)",
            "centred = blank(value, mask)",
        ),
        Bug(
            "PPO takes the maximum",
            "torch.minimum(ratio * advantage, advantage + clip",
            "torch.maximum(ratio * advantage, advantage + clip",
        ),
        Bug("PPO clips the wrong side of bad actions", "clip * advantage.abs()", "clip * advantage"),
        Bug("the ratio overflows", "log_ratio.clamp(max=MAX_LOG_RATIO).exp()", "log_ratio.exp()"),
        Bug(
            "value clipping takes the minimum",
            "torch.maximum(loss(value, target), loss(near, target))",
            "torch.minimum(loss(value, target), loss(near, target))",
        ),
        Bug(
            "value clipping around zero",
            "near = old_value + _within(value - old_value, clip)",
            "near = old_value + _within(value, clip)",
        ),
        Bug(
            "Huber loss of any threshold 1", 'reduction="none", delta=delta)', 'reduction="none", delta=1.0)'
        ),
        Bug(
            "quantile weights are reversed",
            "(tau.unsqueeze(-1) - (other < value).to(tau.dtype)).abs()",
            "(tau.unsqueeze(-1) - (other > value).to(tau.dtype)).abs()",
        ),
        Bug(
            "quantile loss is averaged over the predicted quantiles",
            "(weight * loss(value, other)).mean(-1).sum(-1)",
            "(weight * loss(value, other)).mean(-1).mean(-1)",
        ),
        Bug(
            "quantile loss: mean and sum swapped",
            "(weight * loss(value, other)).mean(-1).sum(-1)",
            "(weight * loss(value, other)).mean(-2).sum(-1)",
        ),
        Bug(
            "sorted quantile loss: slope reversed",
            "slope = ((1 - tau) * slope_under - tau * slope_over)",
            "slope = (tau * slope_under - (1 - tau) * slope_over)",
        ),
        Bug(
            "sorted quantile loss: tau reversed",
            "(((1 - tau) * under + tau * over) / count)",
            "((tau * under + (1 - tau) * over) / count)",
        ),
        Bug(
            "sorted quantile loss: Huber offset",
            "kappa * (far_left * (x - kappa / 2) - sum_left)",
            "kappa * (far_left * (x - kappa) - sum_left)",
        ),
        Bug(
            "explained variance of the value",
            "left = _masked_variance(target - value, mask)",
            "left = _masked_variance(value, mask)",
        ),
    ),
    *planted(
        "ops/distributions.py",
        "ops/test_distributions.py",
        Bug(
            "Gaussian sample without its deviation",
            "torch.addcmul(self.mean, self.log_std.exp(), noise)",
            "self.mean + noise",
        ),
        Bug(
            "Gaussian log-probability without the deviation",
            "-self._sum(0.5 * noise.square() + self.log_std)",
            "-self._sum(0.5 * noise.square())",
        ),
        Bug(
            "Gaussian log-probability scaled the wrong way",
            "(action - self.mean) * (-self.log_std).exp()",
            "(action - self.mean) * self.log_std.exp()",
        ),
        Bug(
            "Gaussian entropy of one dimension",
            "0.5 * self._size * (log(2 * pi) + 1)",
            "0.5 * (log(2 * pi) + 1)",
        ),
        Bug(
            "Gaussian KL reversed",
            "log_scale = self.log_std - other.log_std",
            "log_scale = other.log_std - self.log_std",
        ),
        Bug(
            "tanh correction added",
            "self.before.log_prob(before) - _log_tanh_slope(before",
            "self.before.log_prob(before) + _log_tanh_slope(before",
        ),
        Bug(
            "tanh correction missing in samples",
            "return self._action(before), log_prob - _log_tanh_slope(before, self.before.counted)",
            "return self._action(before), log_prob",
        ),
        Bug("tanh correction halved", "return 2 * (each if counted", "return (each if counted"),
        Bug(
            "what a choice does not use has a density",
            "return (each if self.counted is None else each * self.counted).sum(-1)",
            "return each.sum(-1)",
            tests=PARAMETERS_OF,
        ),
        Bug(
            "what a choice does not use is sampled",
            "return before.tanh() if counted is None else before.tanh() * counted",
            "return before.tanh()",
            tests=PARAMETERS_OF,
        ),
        Bug(
            "entropy estimate of the wrong sign",
            "return -self.sample_with_log_prob(noise)[1]",
            "return self.sample_with_log_prob(noise)[1]",
        ),
        Bug(
            "masked choices keep their logits",
            "torch.where(mask > 0, logits, _masked_logit(logits.dtype))",
            "logits",
        ),
        Bug(
            "Gumbel noise subtracted",
            "(self.log_probs + gumbel(noise))",
            "(self.log_probs - gumbel(noise))",
        ),
        Bug(
            "categorical entropy of the wrong sign",
            "return -(self.probs * self.log_probs).sum(-1)",
            "return (self.probs * self.log_probs).sum(-1)",
        ),
        Bug(
            "categorical KL reversed",
            "(self.probs * (self.log_probs - other.log_probs)).sum(-1)",
            "(other.probs * (other.log_probs - self.log_probs)).sum(-1)",
        ),
        Bug(
            "several choices: mean of log-probabilities",
            "return self.each.log_prob(action).sum(-1)",
            "return self.each.log_prob(action).mean(-1)",
        ),
        Bug(
            "joint log-probability of the first part",
            "    for part in parts[1:]:\n        total = total + part\n",
            "    for part in parts[1:]:\n        total = total + 0 * part\n",
        ),
    ),
    *planted(
        "ops/transforms.py",
        "ops/test_transforms.py",
        Bug(
            "value rescaling without its linear part",
            "((size + 1).sqrt() + 1) + epsilon * value",
            "((size + 1).sqrt() + 1)",
        ),
        Bug("inverse of value rescaling is not one", "return m * (m.abs() + 2)", "return m * (m.abs() + 1)"),
        Bug("C51 projection does not clip locations", ".clamp_(0, 1)", ""),
        Bug("C51 projection shifted by an atom", "low = atoms[:-1]", "low = atoms[1:]"),
    ),
    *planted(
        "ops/values.py",
        "ops/test_values.py",
        Bug(
            "masked actions are the best",
            "q.masked_fill(~allowed, -torch.inf)",
            "q.masked_fill(allowed, -torch.inf)",
        ),
        Bug("soft policy ignores its temperature", "logits = q / temperature", "logits = q"),
        Bug(
            "soft policy's log without the temperature", "(temperature * log_pi).clamp(min=lowest)", "log_pi"
        ),
        Bug(
            "bootstrap discounts the reward",
            "return reward + discount * value\n",
            "return discount * (reward + value)\n",
        ),
        Bug(
            "rescaled bootstrap without the inverse",
            "value_rescale(reward + discount * value_rescale_inverse(value))",
            "value_rescale(reward + discount * value)",
        ),
    ),
    *planted(
        "ops/targets.py",
        "ops/test_targets.py",
        Bug(
            "target networks move by 1 - tau",
            "torch._foreach_lerp_(into, source, tau)",
            "torch._foreach_lerp_(into, source, 1 - tau)",
        ),
        Bug(
            "hard update copies the other way",
            "    if into:\n        torch._foreach_copy_(into, source)\n    into, source",
            "    if into:\n        torch._foreach_copy_(source, into)\n    into, source",
        ),
        Bug(
            "buffers of targets are never copied",
            "        if self._buffers[0]:\n            torch._foreach_copy_(*self._buffers)\n",
            "",
        ),
    ),
    *planted(
        "ops/schedules.py",
        "ops/test_schedules.py",
        Bug(
            "linear schedule ends at 1 - end", "1 - (1 - end) * progress if end", "1 - end * progress if end"
        ),
        Bug(
            "cosine schedule over a whole period", "torch.cos(pi * progress)", "torch.cos(2 * pi * progress)"
        ),
        Bug("warm-up never ends", "(progress / fraction).clamp(max=1)", "progress"),
    ),
    *planted(
        "ops/augment.py",
        "ops/test_augment.py",
        Bug("shifts go one way only", ".long().clamp(max=2 * pad) - pad", ".long().clamp(max=2 * pad)"),
        Bug(
            "shifts swap height and width",
            "offset[..., 1:]).clamp(0, width - 1)",
            "offset[..., :1]).clamp(0, width - 1)",
        ),
    ),
    *planted(
        "nets/backbone.py",
        "algorithms/test_privileged.py",
        Bug(
            "critics do not read privileged observations",
            "known = self.beside(rows.selected)",
            "known = 0 * self.beside(rows.selected)",
        ),
    ),
    *planted(
        "nets/actor.py",
        "algorithms/test_privileged.py",
        Bug(
            "policies read privileged observations",
            "public = split_observation(spec.observation, cfg.privileged_obs)[0]",
            "public = spec.observation",
        ),
    ),
    *planted(
        "nets/latent.py",
        "components/test_prediction.py",
        Bug(
            "the balance is swapped",
            "return balance * to_prior + (1 - balance) * to_posterior",
            "return (1 - balance) * to_prior + balance * to_posterior",
        ),
        Bug("free nats are never read", "fixed.kl(prior).clamp(min=free_nats)", "fixed.kl(prior)"),
        Bug("latents cross episodes", "torch.where(reset[row].unsqueeze(-1), initial, h)", "h * 1.0"),
        Bug(
            "imagination samples from the posterior's state",
            "_gaussian(self.prior(h)).mean), -1))",
            "z), -1))",
        ),
    ),
    *planted(
        "components/prediction.py",
        "components/test_prediction.py",
        Bug("rewards of masked rows count", "- reward).square() * real", "- reward).square()"),
        Bug("the last rows are never learned", "torch.randint(left + 1,", "torch.randint(1,"),
    ),
    *planted(
        "explore/acting.py",
        "components/test_rnd_actions.py",
        Bug(
            "the least novel action is taken",
            "chooser.score(obs, actions).argmax(0)",
            "chooser.score(obs, actions).argmin(0)",
        ),
    ),
    *planted(
        "algorithms/option_critic.py",
        "algorithms/test_option_critic.py",
        Bug(
            "options in use by one learner alone",
            "collectives.mean((self.one_hot(option) * batch.share.unsqueeze(-1)).mean((0, 1)))",
            "(self.one_hot(option) * batch.share.unsqueeze(-1)).mean((0, 1))",
            JOINT,
        ),
        Bug(
            "options that are worse do not end",
            "beta * (advantage + self.cfg",
            "-beta * (advantage + self.cfg",
        ),
        Bug("the cost of a change is never read", "advantage + self.cfg.deliberation_cost", "advantage"),
        Bug(
            "terminations learn from terminal states",
            "batch.share * (batch.discount > 0)",
            "batch.share * 1.0",
        ),
        Bug(
            "the value on arrival ends where it goes on",
            "(1 - beta) * pick(values, option) + beta * self.over_options(values)",
            "beta * pick(values, option) + (1 - beta) * self.over_options(values)",
        ),
        Bug(
            "the choice of options is greedy in values",
            "epsilon = self.cfg.option_epsilon\n",
            "epsilon = 0.0\n",
        ),
        Bug("options never end", "context.reset | (chance[0] < ends)", "context.reset"),
        Bug("options last beyond episodes", "context.reset | (ends > 0.5)", "(ends > 0.5)"),
        Bug("option values are not soft", "soft = q - self.temperature()[option] * log_prob", "soft = q"),
    ),
    *planted(
        "ops/gradients.py",
        "ops/test_gradients.py",
        Bug("opposing gradients are added", "agree[number] > 0", "agree[number] < 0"),
        Bug("each parameter decides alone", "if products and not separately:", "if False:"),
        Bug(
            "heads of the further loss are not trained",
            "if number in agree else added",
            "if number in agree else 0",
        ),
    ),
    *planted(
        "nets/normalize.py",
        "nets/test_running_statistics.py",
        Bug(
            "a gap ends all returns",
            "self.running.masked_fill_(where.to(self.running.device), 0.0)",
            "self.running.zero_()",
            "algorithms/test_ppo.py",
        ),
        Bug("variance without the term between blocks", " + delta.square() * share * (1 - share)", ""),
        Bug(
            "recent blocks without the variance between them",
            "since.var * share + between",
            "since.var * share",
            "components/test_bonuses.py::test_lifelong_novelty_is_that_of_recent_errors",
        ),
        Bug(
            "statistics count masked rows",
            "total = collectives.total(weight.sum())",
            "total = collectives.total(torch.ones_like(weight).sum())",
        ),
        Bug(
            "mean moves by the old share",
            "self.mean.add_(delta * share)",
            "self.mean.add_(delta * (1 - share))",
        ),
        Bug("count is never updated", "self.count.copy_(both)", "pass"),
        Bug("cached scale is never updated", "self.scale.copy_((self.var + EPSILON).rsqrt())", "pass"),
        Bug(
            "mean is added to observations",
            "return (value - self.mean) * self.scale",
            "return (value + self.mean) * self.scale",
        ),
        Bug(
            "observation clip ignored",
            "return value.clamp(-self.clip, self.clip) if self.clip > 0 else value",
            "return value",
        ),
        Bug("return scale not cut at episode ends", "running = running * keep[row]", "running = running * 1"),
        Bug(
            "return scale undiscounted",
            "running = running * decay[row] + reward[row]",
            "running = running + reward[row]",
        ),
        Bug(
            "return scale forgets between rollouts", "self.running.copy_(collectives.whole(running))", "pass"
        ),
        Bug(
            "rewards divided by their variance",
            "(self.statistics.var + EPSILON).rsqrt()",
            "(self.statistics.var + EPSILON).reciprocal()",
        ),
        Bug(
            "reward clip ignored",
            "return reward.clamp(-self.clip, self.clip) if self.clip > 0 else reward",
            "return reward",
        ),
    ),
    *planted(
        "algorithms/ppo.py",
        "algorithms/test_ppo.py",
        Bug(
            "entropy bonus of the wrong sign",
            "loss = loss - self.cfg.ent_coef",
            "loss = loss + self.cfg.ent_coef",
        ),
        Bug(
            "the ratio is upside down",
            'policy.log_prob(data["action"]) - data["log_prob"]',
            'data["log_prob"] - policy.log_prob(data["action"])',
        ),
        Bug("the objective is minimised", "loss = -(clipped_surrogate", "loss = (clipped_surrogate"),
        Bug(
            "advantages are never normalised",
            'if cfg.normalize_advantage == "rollout":',
            'if cfg.normalize_advantage == "never":',
        ),
        Bug("value targets without the value", "target = advantage + value[:-1]", "target = advantage"),
        Bug("value clipping is never read", "if self.cfg.clip_value:", "if False:"),
        Bug(
            "the rate grows with the divergence",
            "torch.where(kl < target / 2, 1.2, 1.0)",
            "torch.where(kl > target / 2, 1.2, 1.0)",
        ),
        Bug("the target divergence is not annealed", "(1 - (1 - cfg.final_kl) * self.progress)", "1"),
        Bug(
            "the divergence has the wrong sign",
            "((past - log_ratio) * weight).mean()",
            "((log_ratio - past) * weight).mean()",
        ),
        Bug("kl_cut is never applied", "gate = gate * (kl < cfg.kl_cut)", "gate = gate * (kl < 1e9)"),
        Bug(
            "masked rows are in the actor's loss",
            '"weight": weight,',
            '"weight": torch.ones_like(batch.mask),',
        ),
        Bug(
            "masked rows are in the critic's loss",
            '"value_weight": per_stream(weight, target)',
            '"value_weight": torch.ones_like(target)',
        ),
        Bug(
            "the critic's loss of a shared trunk has no weight",
            "loss + self.cfg.value_coef * critic_loss",
            "loss + critic_loss",
            "algorithms/test_shared_trunk.py",
        ),
        Bug(
            "the clipping range is fixed",
            "clipped_surrogate(log_ratio, advantage, self.cfg.clip_range)",
            "clipped_surrogate(log_ratio, advantage, 0.2)",
        ),
        Bug(
            "clipped rows are counted by the log ratio",
            "clipped = (past.abs() > self.cfg.clip_range)",
            "clipped = (past > self.cfg.clip_range)",
        ),
        Bug(
            "masked rows overflow",
            "        log_ratio = blank(log_ratio, weight)  # exp may overflow on masked rows\n",
            "",
        ),
    ),
    *planted(
        "algorithms/a2c.py",
        "algorithms/test_a2c.py",
        Bug(
            "entropy bonus of the wrong sign",
            "return loss - self.cfg.ent_coef * entropy, entropy",
            "return loss + self.cfg.ent_coef * entropy, entropy",
        ),
        Bug(
            "the policy gradient is descended",
            "loss = -masked_mean(policy.log_prob",
            "loss = masked_mean(policy.log_prob",
        ),
        Bug(
            "targets carry the critic's gradient",
            "self.estimate(batch, value.detach())",
            "self.estimate(batch, value)",
        ),
        Bug("normalize_advantage is never read", "if self.cfg.normalize_advantage:", "if False:"),
        Bug(
            "the critic is fitted to its successor",
            "self.value_loss(value[:-1], target)",
            "self.value_loss(value[1:], target)",
        ),
        Bug(
            "the critic's loss of a shared trunk has no weight",
            "loss + self.cfg.value_coef * critic_loss",
            "loss + critic_loss",
            "algorithms/test_shared_trunk.py",
        ),
        Bug(
            "the policy of a shared trunk reads the next row",
            "self.actor.of(features[:-1], batch.now)",
            "self.actor.of(features[1:], batch.now)",
            "algorithms/test_shared_trunk.py",
        ),
    ),
    *planted(
        "algorithms/impala.py",
        "algorithms/test_impala.py",
        Bug(
            "entropy bonus of the wrong sign",
            "loss - cfg.ent_coef * entropy",
            "loss + cfg.ent_coef * entropy",
        ),
        Bug(
            "lambda is never read",
            "cfg.rho_clip, cfg.c_clip, cfg.gae_lambda",
            "cfg.rho_clip, cfg.c_clip, 1.0",
        ),
        Bug(
            "clips are swapped",
            "cfg.rho_clip, cfg.c_clip, cfg.gae_lambda",
            "cfg.c_clip, cfg.rho_clip, cfg.gae_lambda",
        ),
        Bug(
            "the ratio is upside down",
            "(blank(log_prob, batch.mask) - log_mu)",
            "(log_mu - blank(log_prob, batch.mask))",
        ),
        Bug(
            "the critic's loss of a shared trunk has no weight",
            "loss + self.cfg.value_coef * critic_loss",
            "loss + critic_loss",
            "algorithms/test_shared_trunk.py",
        ),
        Bug(
            "the policy of a shared trunk reads the next row",
            "self.actor.of(features[:-1], batch.now)",
            "self.actor.of(features[1:], batch.now)",
            "algorithms/test_shared_trunk.py",
        ),
    ),
    *planted(
        "nets/q_network.py",
        "nets/test_layers_by_path.py",
        Bug(
            "layers of a stream stay quiet",
            "layer(value, noise[str(number)]) if noise and",
            "layer(value) if noise and",
        ),
        Bug("the trunk is left out", "cfg.trunk_network, without", 'Part("mlp"), without'),
        Bug(
            "noise of the value stream alone is dropped",
            "return {name: noise for name, noise in found.items() if noise}",
            'return found if found["advantage"] else {}',
        ),
    ),
    *planted(
        "data/compressed.py",
        "data/test_compress.py",
        Bug(
            "rows of the next environment are read",
            "for cell in cells.tolist()]",
            "for cell in (cells + 1).tolist()]",
        ),
        Bug("columns of slots are swapped", "return every[slots]", "return every[slots].flip(0)"),
    ),
    *planted(
        "nets/noisy.py",
        "nets/test_layers_by_path.py",
        Bug(
            "independent noise of the bias is a weight's",
            "self.bias_scale, noise[:, -1]",
            "self.bias_scale, noise[:, 0]",
        ),
    ),
    *planted(
        "run/checkpointing.py",
        "run/test_load_model.py::test_a_run_from_a_run_from_a_run_counts_the_steps_of_all",
        Bug("runs before the last one are forgotten", " + float(before.get(name, 0))", ""),
    ),
    *planted(
        "collect/waiting.py",
        "collect/test_waiting.py::test_environments_of_a_second_actor_have_numbers_of_their_own",
        Bug("waiting actors number alike", "env_index=self._numbers", "env_index=self._all"),
    ),
    *planted(
        "algorithms/trpo.py",
        "algorithms/test_trpo.py",
        Bug("fused attention has no second derivative", "    @sdpa_kernel(SDPBackend.MATH)", "    #"),
        Bug("the objective is descended", "length * direction, lengths", "-length * direction, lengths"),
        Bug("a step of half the bound", "(2 * cfg.max_kl / direction", "(cfg.max_kl / direction"),
        Bug("no damping", "+ cfg.cg_damping * vector", "+ 0 * vector"),
        Bug("the bound is not checked", "& (kl <= max_kl)", ""),
        Bug("a worse policy is taken", "& (gain > 0)", ""),
        Bug("the shortest length wins", "searching = searching & ~fits", "pass"),
        Bug("the last trial stays", "    write_(parameters, chosen)", "    pass"),
        Bug("conjugate directions forget the past", "after / size.clamp(min=1e-20)", "0 * after"),
        Bug(
            "the ratio has no old policy",
            "(policy.log_prob(batch.action) - log_prob)",
            "policy.log_prob(batch.action)",
        ),
        Bug(
            "masked rows are in the divergence",
            "masked_mean(old.kl(policy).expand_as(batch.mask), batch.mask)",
            "old.kl(policy).mean()",
        ),
        Bug("value targets without the value", "target = advantage + value[:-1]", "target = advantage"),
        Bug("advantages are never normalised", "if self.cfg.normalize_advantage:", "if False:"),
    ),
    *planted(
        "algorithms/ppg.py",
        "algorithms/test_ppg.py",
        Bug(
            "entropy bonus of the wrong sign",
            "return loss - self.cfg.ent_coef * entropy",
            "return loss + self.cfg.ent_coef * entropy",
        ),
        Bug(
            "KL of the auxiliary phase reversed",
            "old.kl(self.actor.head(features, allowed))",
            "self.actor.head(features, allowed).kl(old)",
        ),
        Bug("the old policy is never copied", "hard_update_(self.old_actor, self.actor)", "pass"),
        Bug("bc_coef is never read", "error + self.cfg.bc_coef * kl", "error + kl"),
        Bug(
            "targets are kept in scaled units",
            'kept={"target": target * self.reward_unit()}',
            'kept={"target": target}',
        ),
        Bug(
            "targets are not scaled back",
            'batch.extras["target"] / self.reward_unit()',
            'batch.extras["target"]',
        ),
        Bug(
            "the auxiliary phase leaves the critic out",
            '        self.minimize("critic", loss, self.cfg.max_grad_norm)\n',
            "        pass\n",
        ),
    ),
    *planted(
        "algorithms/reinforce.py",
        "algorithms/test_reinforce.py",
        Bug(
            "entropy bonus of the wrong sign",
            "return loss - self.cfg.ent_coef * entropy, entropy",
            "return loss + self.cfg.ent_coef * entropy, entropy",
        ),
        Bug(
            "the baseline is added", "self.sum_streams(returns - value)", "self.sum_streams(returns + value)"
        ),
        Bug(
            "lookahead is never read",
            "learned[mask.shape[0] - self.cfg.lookahead :] = 0",
            "learned[mask.shape[0] :] = 0",
        ),
        Bug("normalize_returns is never read", "if self.cfg.normalize_returns:", "if False:"),
    ),
    *planted(
        "algorithms/pqn.py",
        "algorithms/test_pqn.py",
        Bug("lambda is never read", "batch.keep, self.cfg.q_lambda)", "batch.keep, 0.65)"),
        Bug("masked actions are bootstrapped from", "best(q, allowed(batch.all, self.spec))", "best(q)"),
        Bug(
            "masked rows are learned from",
            '"weight": row_weight(batch.mask),',
            '"weight": torch.ones_like(batch.mask),',
        ),
        Bug("one pass only", "for _ in range(cfg.n_epochs):", "for _ in range(1):"),
    ),
    *planted(
        "algorithms/dqn.py",
        "algorithms/test_dqn.py",
        Bug(
            "targets from the online network",
            'next_q = self.target_critic(batch.next, noise["target"])',
            'next_q = self.critic(batch.next, noise["target"])',
        ),
        Bug(
            "double selects with the target network",
            'self.critic(batch.next, noise["select"]).squeeze(-1) if self.cfg.double',
            "next_q if self.cfg.double",
        ),
        Bug(
            "importance weights are left out",
            "return (loss * batch.weight).mean(), error.detach().abs()",
            "return (loss * batch.share).mean(), error.detach().abs()",
        ),
        Bug(
            "masked actions are bootstrapped from",
            "best(select, allowed(batch.next, self.spec))",
            "best(select)",
        ),
        Bug("Munchausen's bonus is not clipped", ".clamp(cfg.munchausen_low, 0)", ""),
        Bug(
            "Munchausen's soft value without entropy",
            "(prob * (q - log_pi)).chunk(2)[1]",
            "(prob * q).chunk(2)[1]",
        ),
        Bug(
            "Munchausen's bonus of the next state",
            "pick(log_pi.chunk(2)[0], batch.action)",
            "pick(log_pi.chunk(2)[1], batch.action)",
        ),
        Bug("the chosen loss is never read", "value_loss(Part.of(cfg.loss))", 'value_loss(Part("huber"))'),
        Bug(
            "rescale_values is never read",
            "batch.discount, value, self.cfg.rescale_values)",
            "batch.discount, value, False)",
        ),
    ),
    *planted(
        "algorithms/c51.py",
        "algorithms/test_c51.py",
        Bug(
            "targets carry no discount",
            "bootstrap(batch.reward, batch.discount, atoms",
            "bootstrap(batch.reward, torch.ones_like(batch.discount), atoms",
        ),
        Bug(
            "priorities are cross-entropies",
            "cross_entropy(log_prob.detach(), target) + torch.special.xlogy(target, target).sum(-1)",
            "cross_entropy(log_prob.detach(), target)",
        ),
        Bug("another loss is never used", "self.loss(log_prob, target)", "cross_entropy(log_prob, target)"),
        Bug(
            "double is never read",
            'self.critic(batch.next, noise["select"]) if self.cfg.double else logits',
            "logits",
        ),
        Bug(
            "importance weights are left out",
            "return (loss * batch.weight).mean(), divergence",
            "return (loss * batch.share).mean(), divergence",
            "algorithms/test_c51.py algorithms/test_dqn.py",
        ),
    ),
    *planted(
        "algorithms/qr_dqn.py",
        "algorithms/test_qr_dqn.py",
        Bug(
            "quantiles at the edges of their bins",
            "(torch.arange(cfg.n_quantiles) + 0.5)",
            "(torch.arange(cfg.n_quantiles) + 1.0)",
        ),
        Bug("targets are not sorted", "theta.sort(-1).values", "theta"),
        Bug("kappa is never read", "theta.sort(-1).values, self.cfg.kappa)", "theta.sort(-1).values, 1.0)"),
        Bug(
            "importance weights are left out",
            "return (loss * batch.weight).mean(), (mean",
            "return (loss * batch.share).mean(), (mean",
            "algorithms/test_qr_dqn.py algorithms/test_dqn.py",
        ),
        Bug(
            "targets from the online network",
            'theta = self.target_critic(batch.next, noise["target"])',
            'theta = self.critic(batch.next, noise["target"])',
        ),
        Bug("priorities of the signed error", "(mean - theta.mean(-1)).abs()", "(mean - theta.mean(-1))"),
        Bug("another loss is never used", "if self.loss is None:", "if True:"),
    ),
    *planted(
        "algorithms/iqn.py",
        "algorithms/test_iqn.py",
        Bug(
            "fractions of the policy at the edges",
            "(torch.arange(cfg.n_policy_fractions) + 0.5)",
            "(torch.arange(cfg.n_policy_fractions) + 1.0)",
        ),
        Bug(
            "the loss uses the target's fractions",
            'quantile_huber(quantile, noise["tau"], target',
            'quantile_huber(quantile, noise["target_tau"], target',
        ),
        Bug("kappa is never read", "target, self.cfg.kappa)", "target, 1.0)"),
        Bug("another loss is never used", "if self.loss is None:", "if True:"),
        Bug(
            "targets from the online network",
            "features = self.target_critic.backbone(batch.next)",
            "features = self.critic.backbone(batch.next)",
        ),
        Bug("Munchausen's soft value without entropy", "(z - log_next.unsqueeze(-2))", "z"),
    ),
    *planted(
        "algorithms/ddpg.py",
        "algorithms/test_ddpg.py",
        Bug(
            "the actor minimises its value",
            "return -(self.critic(batch.now, action)[0] * batch.share).mean()",
            "return (self.critic(batch.now, action)[0] * batch.share).mean()",
        ),
        Bug(
            "targets from the online actor",
            'action = self.target_actor(batch.next, noise["target_actor"])',
            'action = self.actor(batch.next, noise["target_actor"])',
        ),
        Bug(
            "targets from the online critic",
            'value = self.target_critic(batch.next, action, noise["target_critic"])[0]',
            'value = self.critic(batch.next, action, noise["target_critic"])[0]',
        ),
        Bug(
            "importance weights are left out",
            "loss = (error.square() * batch.weight).mean()",
            "loss = (error.square() * batch.share).mean()",
            "algorithms/test_ddpg.py algorithms/test_replay_agents.py",
        ),
        Bug(
            "the target actor has no pair",
            "self.targets.add(self.actor, self.actor.target(self.target_critic.backbone))",
            "self.actor.target(self.target_critic.backbone)",
        ),
    ),
    *planted(
        "datasets/rows.py",
        "datasets/test_minari.py",
        Bug(
            "a time limit ends the return",
            "continues=~self.terminated[here] & mask",
            "continues=~self.ended[here] & mask",
        ),
        Bug(
            "the row of the final observation belongs to no episode",
            "first[every], reset[at, env_index], mask[here] = at, True, True",
            "first[here], reset[at, env_index], mask[here] = at, True, True",
        ),
        Bug(
            "episodes that just stop run on",
            "        ended[at + count - 1, env_index] = True",
            "        pass",
        ),
        Bug("episodes touch each other", "heights[column] += count + 1", "heights[column] += count"),
        Bug(
            "a frame stack reaches into the episode before",
            "torch.maximum(row - age, self.first[start:stop])",
            "(row - age).clamp(min=0).expand(-1, self.spec.num_envs)",
        ),
        Bug(
            "the memory knows the reward of its own row",
            '"reward": self.reward[rows - 1]}',
            '"reward": self.reward[rows]}',
        ),
        Bug("actions leave their bounds", "    return action.clamp(low, high)", "    return action"),
    ),
    *planted(
        "run/dataset.py",
        "run/test_offline.py",
        Bug(
            "padding is in the statistics",
            "_observe(agent, rollout, column, length - before)",
            "_observe(agent, rollout, column, 10**9)",
        ),
        Bug("offline steps are never over", "min(size, max(0, run.offline_steps - steps))", "size"),
    ),
    *planted(
        "run/record.py",
        "datasets/test_minari.py",
        Bug("the policy is asked with old memory", "policy.reset(np.array(", "(np.array("),
        Bug("an episode is longer than allowed", "len(episode.rewards) + 1 >= self.max_steps", "False"),
        Bug(
            "epsilon is a probability of the policy",
            "chance[number] < behavior.epsilon",
            "chance[number] > behavior.epsilon",
        ),
    ),
    *planted(
        "algorithms/bc.py",
        "algorithms/test_bc.py",
        Bug(
            "masked rows count",
            "log_prob(batch.action) * batch.share).mean()",
            "log_prob(batch.action)).mean()",
        ),
    ),
    *planted(
        "algorithms/iql.py",
        "algorithms/test_iql.py",
        Bug(
            "the maximum of the targets", 'noise["target_critic"]).amin(0)', 'noise["target_critic"]).amax(0)'
        ),
        Bug("the value of the state itself", "self.state_value(batch.next)", "self.state_value(batch.now)"),
        Bug("weights are not clipped", ".exp().clamp(max=cfg.advantage_clip)", ".exp()"),
        Bug("the value is not in the loss", "return loss + value_loss, error", "return loss, error"),
        Bug(
            "a value per reward stream",
            'Value("value", replace(spec, streams=()), cfg)',
            'Value("value", spec, cfg)',
        ),
        Bug(
            "the memory of V is not kept",
            "return [*super().networks(), self.state_value]",
            "return super().networks()",
            "algorithms/test_recurrent_agents.py",
        ),
    ),
    *planted(
        "algorithms/td3.py",
        "algorithms/test_td3.py",
        Bug("the maximum of the twins", "batch.discount * after.amin(0)", "batch.discount * after.amax(0)"),
        Bug("lambda is part of the slope", "(q.detach().abs() * batch.share)", "(q.abs() * batch.share)"),
        Bug(
            "each learner has a lambda of its own",
            "collectives.mean((q.detach().abs() * batch.share).mean())",
            "(q.detach().abs() * batch.share).mean()",
            JOINT,
        ),
        Bug(
            "masked rows are in the mean of Q",
            "(q.detach() * batch.share).mean()",
            "q.detach().mean()",
            METRICS,
        ),
        Bug(
            "the distance is a sum",
            "distance = (action - batch.action).square().mean(-1)",
            "distance = (action - batch.action).square().sum(-1)",
        ),
        Bug(
            "smoothing is not clipped",
            '(noise["smoothing"] * cfg.target_noise).clamp(-bound, bound)',
            'noise["smoothing"] * cfg.target_noise',
        ),
        Bug("target actions leave their range", "+ smoothing).clamp(-1, 1)", "+ smoothing)"),
        Bug(
            "the actor moves one update early",
            "train_actor = (self.updates + 1) % self.cfg.policy_delay == 0",
            "train_actor = self.updates % self.cfg.policy_delay == 0",
        ),
        Bug(
            "the actor follows the mean of the twins",
            "q = self.atoms.mean(self.critic.first(batch.now, action))",
            "q = self.q_of(batch.now, action).mean(0)",
        ),
    ),
    *planted(
        "algorithms/td3.py",
        "algorithms/test_td3.py",
        Bug(
            "target actions of the slow actor",
            "if cfg.target_actor else self.actor",
            "if True else self.actor",
        ),
        Bug("actor_q is never read", 'if self.cfg.actor_q == "first":', "if True:"),
    ),
    *planted(
        "core/cuda_graphs.py",
        "run/test_together.py",
        Bug(
            "others work while one is alone",
            "self._changed.wait_for(lambda: not self._alone and not self._working)",
            "self._changed.wait_for(lambda: not self._alone)",
            "run/test_together.py::test_one_that_wants_to_be_alone_waits_until_the_others_have_left",
        ),
        Bug(
            "waiting counts as work",
            "self._working -= works\n",
            "pass\n",
            "run/test_together.py::test_a_thread_outside_records_when_nobody_works",
        ),
    ),
    *planted(
        "cli/flags.py",
        "test_cli.py",
        Bug("a range without its end", "range(first, last + 1)", "range(first, last)"),
    ),
    *planted(
        "nets/atoms.py",
        "nets/test_atoms.py",
        Bug("the highest distribution", ".argmin(0, keepdim=True)", ".argmax(0, keepdim=True)"),
        Bug("atoms are not discounted", "+ discount.unsqueeze(-1) * self.grid.atoms", "+ self.grid.atoms"),
        Bug(
            "actions by the mode of the distribution",
            "return (logits.softmax(-1) * self.atoms).sum(-1)",
            "return self.atoms[logits.argmax(-1)]",
        ),
        Bug(
            "priorities are cross entropies",
            "loss.detach() + torch.special.xlogy(target, target).sum(-1)",
            "loss.detach()",
        ),
        Bug("nothing is outside", "(prob * beyond).sum(-1)", "(0 * prob).sum(-1)"),
    ),
    *planted(
        "nets/bounded.py",
        "nets/test_bounded.py",
        Bug("features are not normalised", "self.rms(value), self.weights[-1]", "value, self.weights[-1]"),
        Bug("no residual path", "value = value + inner", "value = inner"),
        Bug("shifts are not bounded", "self.shift.mul_(factor)", "pass"),
        Bug(
            "the norm of inputs instead of units",
            "weight.square().sum(1, keepdim=True)",
            "weight.square().sum(2, keepdim=True)",
        ),
        Bug(
            "statistics follow at once",
            "self.mean.lerp_(moments[0], MOMENTUM)",
            "self.mean.copy_(moments[0])",
        ),
    ),
    *planted(
        "nets/normalize.py",
        "nets/test_bounded.py",
        Bug(
            "the largest return is ignored", "return torch.minimum(super().scale(), ", "return torch.maximum("
        ),
        Bug("negative returns are not counted", "seen.abs().amax()", "seen.amax()"),
    ),
    *planted(
        "algorithms/flash_sac.py",
        "algorithms/test_flash_sac.py",
        Bug("critics keep their norms", "        self.critic.project_()\n", ""),
        Bug("the actor keeps its norm", "            self.actor.project_()\n", ""),
        Bug("the target adds log pi", "bonus = -self.temperature()", "bonus = self.temperature()"),
        Bug(
            "each half has its statistics",
            "answers, moments = self.critic.learn(both)",
            "answers, moments = self.critic.learn(both[:1])",
        ),
        Bug("the actor learns by one half", "self.actor.learn(features)", "self.actor.learn(features[:-1])"),
        Bug("rewards are not scaled", "reward=self.rewards(batch.reward)", "reward=batch.reward"),
        Bug(
            "returns of rewards that are not scaled",
            "self.observations.scaled(self.discounting",
            "(self.discounting",
        ),
        Bug("returns of rewards that are not clipped", "clipped(rollout, reward_limit(self.cfg))", "rollout"),
        Bug("target critics stand still", "if move_targets:", "if False:"),
    ),
    *planted(
        "ops/transforms.py",
        "ops/test_transforms.py",
        Bug("mass on an atom is above it", "contiguous(), right=True)", "contiguous() + 1e-3, right=True)"),
        Bug("no mass above the gap", "passed = whole - mass_below[..., 1:] + part", "passed = part"),
    ),
    *planted(
        "settings/follow.py",
        "settings/test_follow.py",
        Bug(
            "updates of one environment",
            '"updates_per_iteration", 1 / rows',
            '"updates_per_iteration", 1',
        ),
        Bug(
            "the preset wins over the user",
            "if whole in given and part not in given and part in now:",
            "if False:",
        ),
    ),
    *planted(
        "algorithms/sac.py",
        "algorithms/test_cql.py",
        Bug(
            "uniform actions have no density",
            "-log(2) * self.actions.parts.size",
            "0.0 * self.actions.parts.size",
        ),
        Bug("a sum in place of a mean", ".logsumexp(-1) - log(q.shape[-1])", ".logsumexp(-1)"),
        Bug(
            "forbidden actions are in the sum",
            "            if self.actions.masked:\n",
            "            if False:\n",
        ),
        Bug("a row without actions is nan", "[MASK_KEY] == 0, MASKED_LOGIT)", "[MASK_KEY] == 0, -torch.inf)"),
        Bug(
            "the data is not raised",
            "(self.log_sum_exp(batch, values, noise) - q).sum(0)",
            "self.log_sum_exp(batch, values, noise).sum(0)",
        ),
        Bug("the term has no weight", "loss + weight * gap", "loss + gap"),
        Bug(
            "the weight falls where it should rise",
            "-self.cql_multiplier() * excess",
            "self.cql_multiplier() * excess",
        ),
        Bug(
            "the target is that of all critics together",
            'found["q/conservative_gap"] / self.cfg.ensemble_q_num',
            'found["q/conservative_gap"]',
        ),
        Bug(
            "the tuned weight is never read",
            "self.cql_multiplier().detach() if self.cfg.cql_target_gap else self.cfg.cql_weight",
            "self.cfg.cql_weight",
        ),
    ),
    *planted(
        "algorithms/sac.py",
        "algorithms/test_sac.py",
        Bug("the moved distribution loses the entropy", "bonus = self.entropy_bonus(drawn)", "bonus = 0.0"),
        Bug(
            "the target adds log pi",
            "soft = value + self.entropy_bonus(drawn)",
            "soft = value - self.entropy_bonus(drawn)",
        ),
        Bug("backup_entropy is never read", "if self.cfg.backup_entropy else 0.0", "if True else 0.0"),
        Bug(
            "the temperature moves the wrong way",
            "ByHand((-too_low,))",
            "ByHand((too_low,))",
        ),
        Bug(
            "the target entropy has the wrong sign",
            "too_low = log_prob + target",
            "too_low = log_prob - target",
        ),
        Bug(
            "the actor minimises its value",
            "loss = ((self.temperature.cost(log_prob) - q) * batch.share).mean()",
            "loss = ((self.temperature.cost(log_prob) + q) * batch.share).mean()",
        ),
        Bug("the same subset for all", 'noise[f"{which}_subset"].topk', 'noise["target_subset"].topk'),
        Bug(
            "the maximum over the subset",
            "return self.subset(values, noise, which).amin(0)",
            "return self.subset(values, noise, which).amax(0)",
        ),
        Bug("actor_q is never read", 'if self.cfg.actor_q == "mean":', "if False:"),
        Bug(
            "importance weights are left out",
            "loss = (squares.sum(0) * batch.weight).mean()",
            "loss = (squares.sum(0) * batch.share).mean()",
            "algorithms/test_sac.py algorithms/test_replay_agents.py",
        ),
        Bug(
            "q_regularization is never read",
            "if self.cfg.q_regularization:",
            "if False:",
            "algorithms/test_replay_agents.py",
        ),
    ),
    *planted(
        "algorithms/tqc.py",
        "algorithms/test_tqc.py",
        Bug(
            "drops as many in all as per critic",
            "pooled.shape[-1] - len(quantile) * drop",
            "pooled.shape[-1] - drop",
        ),
        Bug(
            "drops the smallest quantiles",
            "return pooled[..., : pooled.shape[-1] - len(quantile) * drop]",
            "return pooled[..., len(quantile) * drop :]",
        ),
        Bug(
            "the target adds log pi",
            "soft = kept - self.temperature.cost(",
            "soft = kept + self.temperature.cost(",
        ),
        Bug(
            "quantiles at the edges of their bins",
            "(torch.arange(cfg.n_quantiles) + 0.5)",
            "(torch.arange(cfg.n_quantiles) + 1.0)",
        ),
        Bug(
            "quantiles of all critics in one ladder",
            "midpoints.repeat(cfg.n_critics)",
            "midpoints.repeat_interleave(cfg.n_critics)",
        ),
    ),
    *planted(
        "agents/correction.py",
        "algorithms/test_correction.py",
        Bug(
            "the first step is weighted, too",
            "ratio = importance(whole[:-1], steps[LOG_PROB][1:])",
            "ratio = importance(whole[:-1], steps[LOG_PROB][:-1])",
        ),
        Bug("steps between have no entropy", "given = (reward[1:] - cost,", "given = (reward[1:],"),
        Bug("corrections cross the end of an episode", ".masked_fill(keep[:count] == 0, 0.0)", ""),
        Bug(
            "rewards of the steps keep their scale",
            "self.observations.scaled(reward)",
            "reward",
        ),
        Bug("one step too many", "cfg.n_step - 1,", "cfg.n_step,"),
    ),
    *planted(
        "data/ring.py",
        "algorithms/test_correction.py",
        Bug("masked rows are refreshed", '(known & self.take("mask", cells))', "known"),
    ),
    *planted(
        "data/trajectories.py",
        "algorithms/test_correction.py",
        Bug(
            "masked rows of a rollout are read",
            "held = tree.where(batch.mask > 0, held, tree.map(torch.zeros_like, held))",
            "held = dict(held)",
        ),
    ),
    *planted(
        "data/replay.py",
        "run/test_offline.py",
        Bug(
            "updates are due for the rows of a dataset",
            "self.drawn, self.dataset = self._due_by_now(), hash",
            "self.dataset = hash",
        ),
        Bug("granted batches are forgotten", "return self.granted + int(", "return int("),
        Bug(
            "own samples are a whole batch",
            "count * self.batch_size - self._demonstrated, self.generator",
            "count * self.batch_size, self.generator",
        ),
        Bug("changed demonstrations pass", "        if shown != self._demonstrations:", "        if False:"),
        Bug(
            "demonstrations have priorities",
            "own = slice(0, batch.shape[1] - self._demonstrated)",
            "own = slice(0, batch.shape[1])",
        ),
    ),
    *planted(
        "data/replay.py",
        "run/test_mixed_runs.py",
        Bug(
            "refreshed probabilities are not saved",
            "tree.map(dense, self._changing())",
            "tree.map(torch.zeros_like, self._changing())",
        ),
    ),
    *planted(
        "ops/drawn.py",
        "algorithms/test_mixed_actions.py algorithms/test_sac.py",
        Bug(
            "discrete values without their probabilities",
            "(self.probs * values).sum(-1)",
            "values.mean(-1)",
        ),
        Bug(
            "the density of every choice counts alike",
            "self.mean(self.log_density) if each else self.log_density",
            "self.log_density.mean(-1) if each else self.log_density",
        ),
    ),
    *planted(
        "ops/mixed.py",
        "algorithms/test_mixed_actions.py",
        Bug(
            "combinations in another order",
            "total.unsqueeze(-1) + part.unsqueeze(-2)",
            "total.unsqueeze(-2) + part.unsqueeze(-1)",
        ),
        Bug(
            "the density of a whole action is that of its choices",
            "return found.sum(0) if self.choices",
            "return found[0] if self.choices",
        ),
    ),
    *planted(
        "nets/soft_actions.py",
        "algorithms/test_mixed_actions.py",
        Bug(
            "the least of each option is summed",
            "return drawn.mean(reduce(values)) if self.joint else reduce(drawn.mean(values))",
            "return drawn.mean(reduce(values))",
        ),
        Bug(
            "the sum has one choice",
            "found.select(axis, 0) if self.joint else",
            "found.select(axis, 0) if True else",
        ),
        Bug("masks do not lower the target entropy", "by_row = self.masked and", "by_row = False and"),
        Bug(
            "critics read what a stored choice does not use",
            "continuous = continuous * self.used[self.parts.combination(choices)]",
            "pass",
            tests=PARAMETERS_OF,
        ),
        Bug(
            "the target entropy counts each choice alike",
            "count = drawn.mean(self.used.sum(-1)).detach()",
            "count = self.used.sum(-1).mean()",
            tests=PARAMETERS_OF,
        ),
        Bug(
            "greedy choices take what is masked",
            "torch.where(uniform > 0, value, -torch.inf)",
            "value",
        ),
        Bug("only the greedy choice learns", "(1 - epsilon) * greedy + epsilon * uniform", "greedy"),
    ),
    *planted(
        "nets/temperature.py",
        "algorithms/test_mixed_actions.py",
        Bug("the first temperature for all", "alpha.reshape(-1, *[1]", "alpha[:1].reshape(-1, *[1]"),
    ),
    *planted(
        "algorithms/crossq.py",
        "algorithms/test_crossq.py",
        Bug("running statistics of the critics never move", "        self.critic.merge_(moments)\n", ""),
        Bug("running statistics of the actor never move", "            self.actor.merge_(moments)\n", ""),
        Bug(
            "the maximum of the critics in the target",
            "after.amin(0) - self.temperature()",
            "after.amax(0) - self.temperature()",
        ),
        Bug(
            "the critics learn with running statistics",
            "values, moments = self.critic.learn(both)",
            "values, moments = self.critic(both), self.critic.learn(both)[1]",
        ),
        Bug(
            "the actor moves in every update",
            "train_actor=(self.updates + 1) % self.cfg.policy_delay == 0",
            "train_actor=True",
        ),
    ),
    *planted(
        "data/hindsight.py",
        "data/test_hindsight.py",
        Bug(
            "a goal may be the row's own",
            "return slot + 1 + (uniform * after).long()",
            "return slot + (uniform * after).long()",
        ),
        Bug(
            "a goal may be of the next episode",
            "return slot + 1 + (uniform * after).long()",
            "return slot + 1 + (uniform * (after + 1)).long()",
        ),
        Bug("the final goal is of the next episode", "return slot + after\n", "return slot + after + 1\n"),
        Bug(
            "a cut does not end an episode",
            'begins = ~ring.columns["mask"].index_select(0, (row - 1) % self.slots)',
            'begins = ring.columns["reset"].index_select(0, row % self.slots)',
        ),
        Bug("overwritten rows are goals", "torch.maximum(first, self.oldest)", "first"),
        Bug("what was achieved before the step", "after = (cell + self.num_envs) %", "after = cell %"),
        Bug(
            "returns go on behind the new goal",
            "torch.where(self._chosen, stored & ~now, stored)",
            "torch.where(self._chosen, stored, stored)",
        ),
        Bug("the old goal still ends the episode", "(stored | before) & ~now", "stored & ~now"),
        Bug("another share of new goals", "self.ratio = goals / (goals + 1)", "self.ratio = 1 / (goals + 1)"),
        Bug(
            "loaded rows keep the ends of those before them",
            "            table.zero_()\n",
            "            pass\n",
        ),
    ),
    *planted(
        "data/views.py",
        "data/test_replay.py data/test_sequences.py data/test_discounting.py",
        Bug(
            "n-step reward without discounts",
            "torch.where(here, weight * reward, 0.0).sum(0, keepdim=True)",
            "torch.where(here, reward, 0.0).sum(0, keepdim=True)",
        ),
        Bug("n-step discount one power too low", "discount=discount[-1:],", "discount=weight[-1:],"),
        Bug(
            "n-step returns cross episodes",
            "counts = torch.cat((mask, keep[:-1])).cumprod(0).bool()",
            "counts = torch.cat((mask, torch.ones_like(keep[:-1]))).cumprod(0).bool()",
        ),
        Bug(
            "n-step bootstraps one row late",
            "after = ring.cells(slot + counts.sum(0), env_index)",
            "after = ring.cells(slot + self.n_step, env_index)",
        ),
        Bug(
            "the successor wraps at the wrong place",
            "(start + ring.num_envs) % (ring.slots * ring.num_envs)",
            "(start + ring.num_envs).clamp(max=ring.slots * ring.num_envs - 1)",
        ),
        Bug(
            "rows that are no transitions are drawn",
            'return ring.take("mask", start) & ring.has_stack(start)',
            "return ring.has_stack(start)",
        ),
        Bug("burn-in rows are learned from", "mask[: self.burn_in].zero_()", "pass"),
        Bug(
            "whole episodes run into the next",
            "ends = ~real[: count - 1] if self.whole else",
            "ends = ~real[: count - 1] if False else",
        ),
        Bug(
            "stored memory of the next stride",
            "slot // ring.stride * ring.num_envs + env_index",
            "(slot // ring.stride + 1) % (ring.slots // ring.stride) * ring.num_envs + env_index",
        ),
        Bug(
            "sequences need one row less",
            "return self.burn_in + self.length + self.n_step - 1",
            "return self.burn_in + self.length + self.n_step - 2",
        ),
        Bug(
            "sequence n-step discounts keep running",
            "weight = torch.where(here, weight * discount[row], weight)",
            "weight = weight * discount[row]",
        ),
        Bug(
            "sequence n-step bootstraps from the next row",
            "ahead = ahead + counts",
            "ahead = ahead + (step == 0)",
        ),
        Bug(
            "sequence n-step returns cross episodes", "counts = counts & keep[row]", "counts = counts & True"
        ),
        Bug(
            "masked rewards reach the batch",
            "stored = torch.where(tree.expand(real, stored), stored, 0.0)",
            "stored = stored * 1.0",
        ),
    ),
    *planted(
        "data/ring.py",
        "data/test_replay.py data/test_sequences.py data/test_stacks.py",
        Bug("rows beyond the end are lost", "into[: len(value) - first] = value[first:]", "pass"),
        Bug("gaps are not closed", 'self.columns["mask"][newest].logical_and_(~gap)', "pass"),
        Bug("returns cross a gap", 'self.columns["keep"][before].logical_and_(~gap)', "pass"),
        Bug(
            "returns go into a row that is no step",
            "logical_and_(~gap & real.to(self.device))",
            "logical_and_(~gap)",
            "collect/test_waiting.py",
        ),
        Bug("a cut lasts for ever", "self._cut.zero_()", "pass"),
        Bug(
            "frame stacks cross episodes",
            '(~self.take("reset", seen[0])).long()',
            '(self.take("reset", seen[0]) | True).long()',
        ),
        Bug("the oldest frame is stored", "leaf.shape[leaf.axis] - width, width)", "0, width)"),
        Bug(
            "frame stacks newest first",
            "seen.insert(0, self.cells(slot, env_index))",
            "seen.append(self.cells(slot, env_index))",
        ),
        Bug(
            "stacks of overwritten rows are drawn",
            "self.rows + steps - self.slots + self.history)",
            "self.rows + steps - self.slots)",
        ),
        Bug(
            "refreshed memory one stride late",
            "number = torch.arange(1, count + 1",
            "number = torch.arange(0, count",
            "data/test_sequences.py algorithms/test_recurrent_agents.py",
        ),
        Bug(
            "where the last rollout ended is not restored",
            '        tree.restore_(self._next_reset, state["next_reset"])\n',
            "",
            "data/test_replay.py data/test_sequences.py data/test_stacks.py state/test_segments.py",
        ),
    ),
    *planted(
        "data/replay.py",
        "data/test_replay.py data/test_samplers.py data/test_sequences.py",
        Bug(
            "learning_starts is never read", "max(0, self.steps - self.learning_starts)", "max(0, self.steps)"
        ),
        Bug(
            "fractions of updates are lost",
            "self.updates_per_step = Fraction(str(updates_per_step))",
            "self.updates_per_step = max(1, int(updates_per_step))",
        ),
        Bug(
            "masked rows are counted as steps",
            "self.steps += int(rollout.mask.sum())",
            "self.steps += rollout.mask.numel()",
        ),
        Bug(
            "overwritten rows are still drawn",
            "        self.sampler.release(gone, self.view.allowed(ring, gone))\n",
            "",
        ),
        Bug(
            "importance weights are not applied",
            'weight = share * extras["weight"] if "weight" in extras else share',
            "weight = share",
        ),
        Bug(
            "rewards are clipped on one side",
            "reward=rollout.reward.clamp(-limit, limit)",
            "reward=rollout.reward.clamp(max=limit)",
        ),
        Bug(
            "beta does not grow where no rows are added",
            "        self.sampler.anneal(self.steps, progress)\n",
            "",
            single(
                "data/test_replay.py",
                "test_the_exponent_of_importance_weights_follows_the_budget_also_where_no_rows_are_added",
            ),
        ),
        Bug(
            "beta does not see the steps that were added",
            "        self.sampler.anneal(self.steps, self._progress)\n",
            "",
            "data/test_replay.py::test_the_exponent_of_importance_weights_grows_with_the_steps_added",
        ),
        Bug(
            "the count of batches is not restored",
            'self.steps, self.drawn = int(state["steps"]), int(state["drawn"])',
            'self.steps, self.drawn = int(state["steps"]), 0',
        ),
        Bug("the sampler is not restored", '        self.sampler.load_state_dict(state["sampler"])\n', ""),
        Bug(
            "shares of a sequence ignore its mask",
            "row_weight(batch.mask) if batch.shape[0] > 1 else batch.mask",
            "torch.ones_like(batch.mask)",
        ),
        Bug(
            "initial priorities are left out",
            "elif self.initial_priority is not None and len(new):",
            "elif False:",
            "data/test_replay.py data/test_samplers.py data/test_sequences.py algorithms/test_replay_agents.py",
        ),
    ),
    *planted(
        "data/samplers.py",
        "data/test_samplers.py data/test_replay.py",
        Bug(
            "beta does not end at 1",
            "self.cfg.beta + (1 - self.cfg.beta) * share",
            "self.cfg.beta + self.cfg.beta * share",
        ),
        Bug(
            "beta grows past 1",
            "min(1.0, steps / horizon)",
            "steps / horizon",
        ),
        Bug(
            "sequence priority of the mean alone",
            "eta * size.amax(0) + (1 - eta)",
            "(1 - eta) * size.amax(0) + eta",
        ),
        Bug(
            "sequence priority counts masked rows",
            "count = (mask > 0).sum(0).clamp(min=1)",
            "count = len(mask)",
        ),
        Bug(
            "uniform sampling of the oldest rows",
            ".long().add_(self.first).remainder_(self.size)",
            ".long().remainder_(self.size)",
        ),
        Bug("released rows stay in the queue", "        self.count.sub_(gone)\n", ""),
    ),
    *planted(
        "data/sum_tree.py",
        "data/test_sum_tree.py data/test_samplers.py",
        Bug(
            "priorities without their exponent (host)",
            "priority = np.power(size, self.alpha, out=size)",
            "priority = size",
        ),
        Bug(
            "priorities without their exponent (device)",
            "priority = error.add_(self.epsilon).pow_(self.alpha)",
            "priority = error.add_(self.epsilon)",
        ),
        Bug(
            "weights the wrong way up",
            "weight = np.minimum.reduce(priority) / priority",
            "weight = priority / np.maximum.reduce(priority)",
        ),
        Bug("weights without beta", "np.power(weight, beta.item(), out=weight)", "pass"),
        Bug(
            "priority clip is never read (host)",
            "            np.clip(size, *self.clip, out=size)\n",
            "            pass\n",
        ),
        Bug("rows that are gone come back", "        priority *= self._leaves.take(index) > 0\n", ""),
        Bug(
            "the largest priority is never updated",
            "        np.maximum(self._largest, np.maximum.reduce(priority), out=self._largest)\n",
            "",
        ),
        Bug(
            "sums are not refreshed",
            "        np.maximum.at(self._leaves, index, priority)\n        self._refresh(index)",
            "        np.maximum.at(self._leaves, index, priority)",
        ),
        Bug(
            "strata are drawn from their ends",
            "self.find(held.ends - held.uniform * (1 / count))",
            "self.find(held.ends)",
        ),
    ),
    *planted(
        "data/discounting.py",
        "data/test_discounting.py",
        Bug(
            "gamma after a terminal state",
            "return continues * self._of(self.gamma, env_index)",
            "return torch.ones_like(continues) * self._of(self.gamma, env_index)",
        ),
        Bug("stream weights are never read", "environment + stream.weight * reward", "environment + reward"),
        Bug(
            "streams share the environment's gamma",
            "[self.gamma, *(stream.gamma for stream in self.streams)]",
            "[self.gamma, *(self.gamma for stream in self.streams)]",
        ),
        Bug("intrinsic streams end with the episode", "keep if episodic else torch.ones_like(keep)", "keep"),
    ),
    *planted(
        "data/rollouts.py",
        "data/test_rollouts.py algorithms/test_ppo.py algorithms/test_ppg.py",
        Bug(
            "minibatches keep their order",
            "order = shuffled(chunks * num_envs, generator, batch.mask.device)",
            "order = torch.arange(chunks * num_envs)",
        ),
        Bug(
            "chunks start from other memories",
            "leaf.flatten(0, 1).index_select(0, order).split(count)",
            "leaf.flatten(0, 1).split(count)",
        ),
        Bug(
            "chunks mix time and environments",
            ".transpose(0, 1)\n        return parts",
            "\n        return parts",
        ),
        Bug(
            "half of a rollout is never learned from",
            "for number in range(chunks * num_envs // count):",
            "for number in range(max(1, chunks * num_envs // count // 2)):",
        ),
    ),
    *planted(
        "data/batch.py",
        "data/test_sequences.py algorithms/test_recurrent_agents.py algorithms/test_dqn.py",
        Bug(
            "repeated observations count in statistics",
            "(real | final).to(self.mask.dtype)",
            "torch.ones_like(self.mask)",
            "collect/test_waiting.py",
        ),
        Bug(
            "final observations do not count in statistics",
            "(real | final).to(self.mask.dtype)",
            "real.to(self.mask.dtype)",
            "collect/test_waiting.py",
        ),
        Bug(
            "next rows are the current ones",
            "self._rows(1, self.shape[0] + 1, self.ahead)",
            "self._rows(0, self.shape[0], self.ahead)",
        ),
        Bug(
            "n-step rows are not looked up",
            "return self._rows(1, self.shape[0] + 1, self.ahead)",
            "return self._rows(1, self.shape[0] + 1)",
        ),
    ),
    *planted(
        "data/initial_priorities.py",
        "distributed/test_payload.py",
        Bug(
            "errors belong to the oldest starts",
            "found[-(len(new) // self.num_envs) :]",
            "found[: len(new) // self.num_envs]",
        ),
        Bug("rewards are not clipped", "cfg.reward_clip_range if cfg.clip_reward else 0.0", "0.0"),
    ),
    *planted(
        "data/gradients.py",
        "distributed/test_payload.py",
        Bug("gradients are added, not averaged", "share = 1 / len(parts)", "share = 1.0"),
        Bug(
            "only the first gradient counts",
            "found = tree.map(torch.add, found, part.found)",
            "found = tree.map(lambda a, b: a + a, found, part.found)",
        ),
    ),
    *planted(
        "agents/agent.py",
        "agents/test_frame.py",
        Bug(
            "learning rates are taken from another run",
            'name.startswith(("progress", "lr_"))',
            'name.startswith("progress")',
            "run/test_trainer.py::test_a_warm_start_takes_weights_but_not_rates_and_any_number_of_envs",
        ),
        Bug(
            "running returns of components are taken from another run",
            'name.endswith(".running")',
            'name == "rewards.running"',
            "run/test_trainer.py::test_a_warm_start_keeps_returns_of_running_episodes_also_those_of_components",
        ),
        Bug(
            "reward statistics never updated",
            "        agent.rewards.merge_(rollout.reward, rollout.keep, rollout.mask, self.cfg.gamma)\n",
            "",
            "algorithms/test_ppo.py",
        ),
        Bug(
            "observation statistics never updated",
            "        agent.observations.merge_(tree.index(rollout.obs, slice(0, -1)), rollout.observed)\n",
            "        pass\n",
            "algorithms/test_ppo.py",
        ),
        Bug(
            "rewards are not scaled",
            "reward=agent.rewards(rollout.reward)",
            "reward=rollout.reward",
            "algorithms/test_ppo.py",
        ),
        Bug(
            "actions of masked rows reach the gradient",
            "obs=agent.observations(rollout.obs), action=action,",
            "obs=agent.observations(rollout.obs),",
            "algorithms/test_ppo.py",
        ),
        Bug(
            "stream weights are never read",
            "total = total + stream.weight * other",
            "total = total + other",
            "algorithms/test_reward_streams.py",
        ),
        Bug(
            "returns of dropped episodes go on",
            "                module.forget_(where)\n",
            "                pass\n",
            "algorithms/test_ppo.py",
        ),
        Bug(
            "the count of updates is not restored",
            '        self.updates = int(state["updates"])\n',
            "",
            "agents/test_frame.py",
        ),
        Bug(
            "optimizer state is not restored",
            '        self.load_optimizer_state(state["optimizers"])\n',
            "",
            "agents/test_frame.py conformance/test_training.py",
        ),
        Bug("components never learn", 'if phase != "update" or not self.components:', "if True:"),
        Bug(
            "components do not see resets",
            "component.track(held, obs, action, next_obs, reset)",
            "component.track(held, obs, action, next_obs, torch.zeros_like(reset))",
            "components/test_component.py",
        ),
    ),
    *planted(
        "ops/by_hand.py",
        "algorithms/test_ppo.py",
        Bug(
            "the entropy's derivative has the wrong sign",
            "slope += probs * (log_probs",
            "slope -= probs * (log_probs",
        ),
        Bug("the Gaussian's spread moves the wrong way", "squares.sub_(1.0)", "squares.sub_(-1.0)"),
        Bug("clipped rows move the policy", "(gain <= bound)", "(gain <= gain)"),
        Bug("clamped ratios move the policy", ".logical_and_(log_ratio <= MAX_LOG_RATIO)", ""),
    ),
    *planted(
        "nets/by_hand.py",
        "algorithms/test_ppo.py",
        Bug(
            "activations have no derivative",
            "self.slope(self._mm(slope, self._weights[number]), values[number])",
            "self._mm(slope, self._weights[number])",
        ),
        Bug("tanh is a sigmoid", "torch.add(MINUS_ONE, doubled, alpha=2, out=doubled)", "doubled"),
        Bug("tanh of half the sum", "beta=2, alpha=2", "beta=1, alpha=1"),
    ),
    *planted(
        "nets/by_hand.py",
        "ops/test_products.py",
        Bug("tanh of half a large sum", "found if alpha == 1 else found.mul_(alpha)", "found"),
    ),
    *planted(
        "ops/products.py",
        "ops/test_products.py",
        Bug(
            "the bias is left out",
            "ordered.mT, bias, ",
            "ordered.mT, None, ",
        ),
        Bug(
            "gradients of weights have the layout of another matrix",
            "multiply(value.mT, slope) if ordered else multiply(slope.mT, value).mT",
            "multiply(value.mT, slope)",
        ),
        Bug(
            "gradients that nobody asks for are computed",
            "return leaf or torch._C._will_engine_execute_node(node)",
            "return True",
        ),
        Bug(
            "gradients of gradients are missing",
            "torch.mm if torch.is_grad_enabled() else product",
            "product",
        ),
        Bug("double precision is lost", "        and value.dtype is torch.float32\n", ""),
        Bug(
            "recorded graphs hold oneDNN's products",
            "        and not torch._C._len_torch_dispatch_stack()",
            "        #",
        ),
    ),
    *planted(
        "agents/packed.py",
        "agents/test_packed.py",
        Bug("a parameter of two optimizers is packed", "own.isdisjoint(id(p) for p in others)", "True"),
    ),
    *planted(
        "agents/optimizers.py",
        "agents/test_packed.py",
        Bug("RMSprop forgets too fast", "value=1 - alpha)", "value=alpha)"),
        Bug("RMSprop with momentum is packed", "any(group[key] for key in RMSPROP_EXTRAS)", "False"),
        Bug(
            "spectral norms stand still",
            "_iterating(step, spectral) if spectral else step",
            "step",
            "algorithms/test_rainbow.py",
        ),
    ),
    *planted(
        "ops/by_hand.py",
        "algorithms/test_dqn.py",
        Bug("large errors are not clipped", "slope = error.clamp(-delta, delta)", "slope = error.clone()"),
        Bug("the Huber loss ignores weights", "slope.mul_(weight).div_(count)", "slope.div_(count)"),
    ),
    *planted(
        "agents/by_hand.py",
        "algorithms/test_dqn.py",
        Bug(
            "double selects with the target network by hand",
            "select = self._online.forward(after) if self._agent.cfg.double else next_q",
            "select = next_q",
        ),
        Bug(
            "targets from the online network by hand",
            "next_q = self._target.forward(after)",
            "next_q = self._online.forward(after)",
        ),
    ),
    *planted(
        "ops/by_hand.py",
        "algorithms/test_a2c.py",
        Bug(
            "the policy gradient descends",
            "(advantage * weight).div_(-count)",
            "(advantage * weight).div_(count)",
        ),
    ),
    *planted(
        "agents/by_hand.py",
        "algorithms/test_a2c.py",
        Bug(
            "the last row is learned from",
            "value[: len(target)].flatten()",
            "value[-len(target) :].flatten()",
        ),
    ),
    *planted(
        "nets/dilated.py",
        "nets/test_memory.py",
        Bug("the newest state advances", "leaf[:, 0], held", "leaf[:, -1], held"),
        Bug("earlier episodes are in the mean", "torch.where(same, h[at], 0.0)", "h[at]"),
        Bug("states of earlier episodes go on", "!= episode[:rows]", "< episode[:rows]"),
    ),
    *planted(
        "explore/rollout_actor.py",
        "collect/test_rollout_actor.py",
        Bug(
            "noise is not scaled",
            "torch.addcmul(output, self.std, noise, out=action)",
            "torch.add(output, noise, out=action)",
        ),
        Bug(
            "observations are not normalised",
            "value, activation = self.observations(obs)",
            "value, activation = obs",
        ),
        Bug("an agent's own act is passed over", 'not getattr(type(agent).act, "by_policy", False)', "False"),
    ),
    *planted(
        "agents/optimizers.py",
        "agents/test_frame.py",
        Bug(
            "gradients are clipped to twice the norm",
            "reciprocal_().mul_(max_norm).clamp_(max=1.0)",
            "reciprocal_().mul_(2 * max_norm).clamp_(max=1.0)",
        ),
        Bug(
            "small gradients are scaled up",
            ".mul_(max_norm).clamp_(max=1.0)",
            ".mul_(max_norm)",
        ),
        Bug("the gate is never read", "(gradients, rate, gate)", "(gradients, rate, None)"),
        Bug(
            "steps behind a closed gate are counted",
            "packed.steps.add_(1 if gate is None else gate)",
            "packed.steps.add_(1)",
        ),
        Bug("state behind a closed gate moves", "torch.where(gate > 0, tensor, old)", "tensor"),
        Bug("joined losses are left out", "free.append(added)", "free.append(0 * added)"),
        Bug(
            "gradients are compared with those of other joined losses",
            "loss if gated else sum(free, loss)",
            "sum(free, loss)",
            "components/test_auxiliary.py",
        ),
        Bug(
            "learning rates are not annealed",
            'getattr(self, f"lr_{name}").copy_(rate * factor)',
            'getattr(self, f"lr_{name}").copy_(rate)',
            "ops/test_schedules.py",
        ),
        Bug(
            "the rate of a gradient from elsewhere is lost",
            'getattr(self, f"lr_{name}").copy_(rate)\n        self._steppers',
            "self._steppers",
            "distributed/test_payload.py",
        ),
    ),
    *planted(
        "agents/targets.py",
        "agents/test_frame.py",
        Bug(
            "targets move one update early",
            "(updates + 1) % self.interval == 0",
            "updates % self.interval == 0",
        ),
        Bug("targets always copy", "follow(self.tau)", "follow(1.0)"),
        Bug("target_memory is never read", "if not self.own_memory:", "if False:"),
        Bug("targets are trained", "copy.deepcopy(online).requires_grad_(False)", "copy.deepcopy(online)"),
    ),
    *planted(
        "agents/steps.py",
        "algorithms/test_replay_agents.py",
        Bug("targets never move", "    agent.targets.update_(move_targets)\n", ""),
        Bug("the actor is never trained", "if train_actor:", "if False:"),
        Bug(
            "priorities are never returned",
            "return Updated(metrics, priority=error)",
            "return Updated(metrics)",
        ),
    ),
    *planted(
        "agents/experience.py",
        "algorithms/test_replay_agents.py",
        Bug(
            "normalize_obs of replay agents is never read",
            "    if agent.cfg.normalize_obs:\n        obs = ",
            "    if False:\n        obs = ",
        ),
        Bug(
            "refresh_memory is never read",
            "(MEMORIES,) if self.cfg.refresh_memory and agent.stores_memory else ()",
            "()",
            "algorithms/test_recurrent_agents.py",
        ),
    ),
    *planted(
        "collect/waiting.py",
        "collect/test_waiting.py",
        Bug("returns cross missing rows", "batch.keep[:-1].mul_(batch.mask[1:])", "pass"),
        Bug(
            "memory goes on while waiting",
            "self._memory = tree.where(self._waits, self._memory, after)",
            "self._memory = after",
        ),
        Bug(
            "a later action is stored",
            "self._held = tree.where(self._waits, self._held, fresh)",
            "self._held = fresh",
        ),
        Bug(
            "the memory is that of a later action",
            '{**acted.memory, **self._held["memory"]}',
            "acted.memory",
        ),
        Bug("padding counts as steps", "        store.length = row\n", ""),
        Bug(
            "the first row of an episode is forgotten",
            "opens & (number == steps)",
            "False & (number == steps)",
        ),
    ),
    *planted(
        "envs/adapters/turns.py",
        "multi/test_turns.py",
        Bug("agents of the last game are in this one", "        self.agents = []\n", ""),
        Bug("who is gone acts again", "            self.agents.remove(agent)\n", ""),
        Bug("no mask outside of an observation", "info.get(MASK_KEY)", "None"),
    ),
    *planted(
        "envs/adapters/pettingzoo.py",
        "multi/test_turns.py",
        Bug("late agents have no mask", "(*agents, *infos) if", "agents if"),
    ),
    *planted(
        "envs/adapters/parallel.py",
        "multi/test_turns.py",
        Bug(
            "waiting for a turn is an answer",
            "if isinstance(env, Turns) and agent not in obs:",
            "if False:",
        ),
        Bug(
            "turns are lost in a snapshot",
            "                env.agents = list(live)\n",
            "                pass\n",
        ),
        Bug("a game that is over allows no action", "if self._mask is not None and not", "if False and not"),
        Bug("copies end never", "torch.tensor([not live for live", "torch.tensor([False for live"),
    ),
    *planted(
        "envs/adapters/parallel.py",
        "multi/test_pettingzoo.py",
        Bug(
            "actions of the first copy",
            "return copy * len(self.place) + self.place[agent]",
            "return self.place[agent]",
        ),
        Bug("copies share their seed", "env_seed(seed, copy)", "env_seed(seed, 0)"),
        Bug("an agent that appears continues an episode", "        self.out.reset[row] = True\n", ""),
        Bug("agents that ended still act", " if agent not in ended)", ")"),
        Bug("a snapshot of other agents", 'self._live = [list(live) for live in snapshot["live"]]', "pass"),
    ),
    *planted(
        "run/behaviors/parts.py",
        "multi/test_behaviors.py",
        Bug(
            "behaviours begin with the same weights", "seed=seed_of(own.run.seed, name)", "seed=own.run.seed"
        ),
    ),
    *planted(
        "run/behaviors/checkpointing.py",
        "multi/test_behaviors.py",
        Bug("the environment is not restored", 'shared.restore(state["env"])', "shared.reset(0)"),
        Bug(
            "the counters of the run are not restored",
            'self.counters.load_state_dict(state["counters"])',
            "pass",
        ),
    ),
    *planted(
        "run/behaviors/loop.py",
        "multi/test_behaviors.py",
        Bug("returns cross a reset of all", "finish(cut and number == total)", "finish(False)"),
        Bug("rollouts of one length", "if number % member.collector.steps == 0:", "if number == total:"),
    ),
    *planted(
        "run/behaviors/evaluate.py",
        "multi/test_behaviors.py",
        Bug("an evaluation counts rows that wait", "~waits & ~step.reset", "~step.reset"),
    ),
    *planted(
        "envs/unity/agents.py",
        "unity/test_unity_agents.py",
        Bug(
            "all but the first behaviour are idle",
            "                if one.behavior.owns(key):\n",
            "                if False:\n",
            "unity/test_unity_agents.py::test_each_behaviour_of_a_scene_gets_the_actions_of_its_own_policy",
        ),
        Bug(
            "time limits are terminal",
            "self.out.terminated[row] = not info.max_step_reached",
            "self.out.terminated[row] = True",
        ),
        Bug("the final observation is skipped", "elif self.answered[row]:", "elif False:"),
        Bug("first observations keep a reward", "        self.out.reward[row] = 0.0\n", ""),
        Bug("the player goes on without an action", "row is None or self.state[row] == ACTING", "True"),
        Bug("group rewards are lost", "info.reward + info.group_reward", "info.reward"),
        Bug(
            "actions of waiting agents are replaced",
            "ready = self.state == READY",
            "ready = self.state != EMPTY",
        ),
        Bug("dead agents keep their rows", "next(iter(unowned or gone), None)", "next(iter(unowned), None)"),
    ),
    *planted(
        "envs/unity/behaviors.py",
        "unity/test_unity_agents.py unity/test_unity_messages.py",
        Bug("masks say what is forbidden", "return ~np.array(mask, bool)", "return np.array(mask, bool)"),
        Bug("idle agents ignore masks", "int(part.argmax())", "0"),
    ),
    *planted(
        "envs/unity/sensors.py",
        "unity/test_unity_sensors.py",
        Bug(
            "channels stay first",
            "np.moveaxis(data, 0, 2) if self.first else data",
            "data.reshape(self.shape)",
        ),
        Bug(
            "dropped channels are counted", "range(max(mapping) + 1)", "range(min(mapping), max(mapping) + 1)"
        ),
    ),
    *planted(
        "envs/unity/side_channels.py",
        "unity/test_unity_messages.py",
        Bug("UUIDs in network order", "channel.bytes_le", "channel.bytes"),
        Bug("distributions without their seed", 'struct.pack("<ii", 1, seed)', 'struct.pack("<i", 1)'),
    ),
    *planted(
        "envs/adapters/minigrid.py",
        "envs/test_minigrid.py",
        Bug("left and right are swapped", "if mirrored:", "if False:"),
        Bug("walls hide nothing", "if cell is None or cell.see_behind():", "if True:"),
        Bug("what is carried is not seen", "line[size // 2] = env.carrying", "line[size // 2] = None"),
        Bug("light goes to the right alone", "            seen |= 1 << column - 1\n", ""),
        Bug("the grid ends without a wall", "return 2, 5, 0", "return 1, 0, 0"),
        Bug(
            "a task's own view is replaced",
            "if all(getattr(type(env), name",
            "if any(getattr(type(env), name",
        ),
    ),
    *planted(
        "envs/adapters/unity.py",
        "unity/test_unity_players.py",
        Bug(
            "a new player repeats the lost one",
            "number + self.options.players * len(self._failures[number])",
            "number",
        ),
        Bug(
            "players share their seed", "env_seed(self._seed, number + ", "env_seed(self._seed, 0 * number + "
        ),
        Bug(
            "lost episodes go on",
            "            agents.clear()\n            self.players",
            "            self.players",
        ),
        Bug("agents are counted once per episode", "for info in infos[key].value if info.done}", "if False}"),
    ),
    *planted(
        "run/resume.py",
        "test_api.py",
        Bug(
            "loggers of a saved run are imported",
            "            if name in import_paths(saved):\n                require_part(name)\n",
            "            pass\n",
        ),
    ),
    *planted(
        "population/load.py",
        "population/test_trust.py",
        Bug(
            "learners of a population import anything",
            "            require_part(name)\n        source",
            "            pass\n        source",
        ),
    ),
    *planted(
        "collect/collector.py",
        "collect/test_episodes.py",
        Bug(
            "truncation is termination",
            'terminal = tensors["terminated"] | tensors["soft"]',
            'terminal = tensors["terminated"] | tensors["truncated"] | tensors["soft"]',
        ),
        Bug(
            "termination is truncation",
            'terminal = tensors["terminated"] | tensors["soft"]',
            'terminal = tensors["soft"]',
        ),
        Bug(
            "returns cross truncations", '(~(terminal | tensors["truncated"])).float()', "(~terminal).float()"
        ),
        Bug(
            "a lost life does not end the return",
            'terminal = tensors["terminated"] | tensors["soft"]',
            'terminal = tensors["terminated"]',
            "collect/test_episodes.py",
        ),
        Bug(
            "the row of a final observation is learned from",
            "real = ~self.reset[1:]",
            "real = self.reset[1:] | True",
        ),
        Bug(
            "rewards of rows that are no transitions count",
            'reward=tensors["reward"] * mask',
            'reward=tensors["reward"] * 1',
        ),
        Bug(
            "a cut does not end returns",
            "            batch.keep[-1] = 0\n",
            "",
            "collect/test_episodes.py",
        ),
        Bug(
            "memory is stored one row late",
            "if store.memories and t % store.stride == 0:",
            "if store.memories and t % store.stride == store.stride - 1:",
            "algorithms/test_recurrent_agents.py run/test_memory_runs.py conformance/test_agents.py",
        ),
        Bug(
            "the open observation is not restored",
            'for name in ("obs", "reset", "memory"):',
            'for name in ("reset", "memory"):',
            "conformance/test_training.py run/test_stepping.py",
        ),
        Bug(
            "recurrent states are not restored",
            'for name in ("obs", "reset", "memory"):',
            'for name in ("obs", "reset"):',
            "components/test_component.py",
        ),
    ),
    *planted(
        "collect/episodes.py",
        "collect/test_episodes.py",
        Bug(
            "a lost life ends the episode",
            "(batch.keep == 0) & (batch.mask > 0) & ~soft",
            "(batch.keep == 0) & (batch.mask > 0)",
        ),
        Bug(
            "returns leave out earlier rollouts",
            "torch.where(any_ended, self.open + until, 0.0).sum(1)",
            "torch.where(any_ended, until, 0.0).sum(1)",
        ),
        Bug(
            "open episodes count twice",
            "torch.where(any_ended, earned[:, -1] - until, self.open + earned[:, -1])",
            "torch.where(any_ended, earned[:, -1], self.open + earned[:, -1])",
        ),
        Bug(
            "sums are never emptied",
            "        self.sums.zero_()\n        return found",
            "        return found",
        ),
        Bug(
            "bad rewards go unnoticed",
            "~torch.isfinite(batch.reward).all()]",
            "torch.zeros((), dtype=torch.bool)]",
        ),
    ),
    *planted(
        "explore/epsilon_greedy.py",
        "explore/test_choice.py",
        Bug("epsilon never ends", "(progress / share).clamp(max=1)", "(progress * share).clamp(max=1)"),
        Bug("epsilon grows", "return first + (last - first) * done", "return last + (first - last) * done"),
        Bug("greedy with probability epsilon", "drawn[:, 0] < epsilon", "drawn[:, 0] > epsilon"),
        Bug(
            "random actions ignore the mask",
            "best(drawn[:, 1:], allowed), best(q, allowed))",
            "best(drawn[:, 1:]), best(q, allowed))",
        ),
        Bug(
            "the ladder is upside down",
            "torch.linspace(0, 1, spec.num_envs)",
            "torch.linspace(1, 0, spec.num_envs)",
        ),
        Bug("eval_epsilon is never read", "epsilon = self.cfg.eval_epsilon\n", "epsilon = 0.0\n"),
        Bug(
            "Boltzmann multiplies by the temperature",
            "best(q / temperature + gumbel, allowed)",
            "best(q * temperature + gumbel, allowed)",
        ),
    ),
    *planted(
        "explore/noise.py",
        "explore/test_noise.py",
        Bug("noise of a fixed scale", "noise = scale * torch.randn", "noise = 0.1 * torch.randn"),
        Bug("added noise forgets the row before", "self.kept * next(before) + drawn", "drawn"),
        Bug(
            "OU noise drifts",
            "before * (1 - cfg.noise_theta) + noise",
            "before * (1 + cfg.noise_theta) + noise",
        ),
        Bug(
            "OU noise crosses episodes",
            'torch.where(context.reset.unsqueeze(-1), 0.0, memory[MEMORY]["x"])',
            'memory[MEMORY]["x"]',
        ),
        Bug(
            "scales drawn in each step",
            "torch.where(context.reset.unsqueeze(-1) | (before == 0), drawn, before)",
            "drawn",
        ),
        Bug("noise is never held", "noise = torch.where(renew.unsqueeze(-1), fresh, held)", "noise = fresh"),
        Bug("held across episodes", "renew = (left == 0) | context.reset", "renew = left == 0"),
        Bug("noise does not fall", "action = (action + left * noise)", "action = (action + noise)"),
        Bug("actions leave their range", "+ left * noise).clamp(-1, 1)", "+ left * noise)"),
        Bug(
            "random actions on one side",
            "generator=generator, device=device) * 2 - 1",
            "generator=generator, device=device)",
        ),
    ),
    *planted(
        "explore/acting.py",
        "algorithms/test_replay_agents.py algorithms/test_dqn.py",
        Bug(
            "random steps are the policy's (values)",
            "    if context.random:\n        after = critic.advance",
            "    if False:\n        after = critic.advance",
        ),
        Bug(
            "evaluation samples",
            "policy.mode() if context.greedy else",
            "policy.mode() if False else",
            "algorithms/test_sac.py algorithms/test_ppo.py algorithms/test_replay_agents.py",
        ),
        Bug(
            "evaluation is noisy",
            "noise = {} if context.greedy else critic.draw(context.generator)",
            "noise = critic.draw(context.generator)",
            "algorithms/test_rainbow.py algorithms/test_dqn.py",
        ),
        Bug(
            "noise in evaluation",
            "    if context.greedy:\n        return Acted(action, after)\n",
            "",
            "algorithms/test_ddpg.py algorithms/test_td3.py algorithms/test_replay_agents.py",
        ),
    ),
    *planted(
        "components/rnd.py",
        "components/test_rnd.py",
        Bug(
            "the reward of the observation before",
            "in_parts(self.error, tree.index(rollout.obs, slice(1, None)))",
            "in_parts(self.error, tree.index(rollout.obs, slice(0, -1)))",
        ),
        Bug("the stream is episodic", "    episodic = False\n", "    episodic = True\n"),
        Bug(
            "observation statistics never updated",
            "        self.networks.merge_(tree.index(rollout.obs, slice(1, None)), rollout.mask)\n",
            "        pass\n",
        ),
        Bug(
            "masked rows train the predictor",
            "masked_mean(self.error(following), mask)",
            "self.error(following).mean()",
            "components/test_rnd.py::test_rows_that_are_no_transitions_do_not_train_the_predictor",
        ),
    ),
    *planted(
        "components/rnd.py",
        single("components/test_rnd.py", "test_the_warm_up_moves_statistics_of_observations_alone"),
        Bug("the warm-up is in the deviation", "rollout.replace(mask=rollout.mask * warm)", "rollout"),
        Bug("the warm-up is rewarded", "torch.where(warm > 0, reward, 0.0)", "reward"),
        Bug("the predictor learns in the warm-up", ", gate=self.warm)", ")"),
    ),
    *planted(
        "agents/bonus.py",
        "components/test_rnd.py components/test_bonuses.py",
        Bug("rewards are not scaled", "reward = self.scale(bonus)", "reward = bonus"),
        Bug("weight is never read", "weight=cfg.weight),)", "weight=1.0),)", WEIGHT),
        Bug("the next observation of n-step samples", "batch.extras.get(SUCCESSOR)", "None"),
        Bug("the proportion is never read", "int(total * proportion) // size", "total // size"),
        Bug(
            "masked actions reach the models",
            "following, batch.mask)\n    parts = tuple",
            "following, batch.mask)\n    parts = (parts[0], batch.action, *parts[2:])\n    parts = tuple",
        ),
        Bug("one minibatch, whatever the batch", "max(1, int(total * proportion) // size) * size", "size"),
    ),
    *planted(
        "components/icm.py",
        "components/test_bonuses.py",
        Bug("the inverse error is never the reward", 'if self.cfg.error == "inverse":', "if False:"),
        Bug(
            "the reward is the inverse model's",
            "return 0.5 * (self.forward_model",
            "return 0 * (self.forward_model",
        ),
        Bug("the inverse model is not trained", "(1 - self.cfg.beta) * inverse", "0 * inverse"),
    ),
    *planted(
        "components/count.py",
        "components/test_bonuses.py",
        Bug("cells of the observation before", "slice(1, None)", "slice(0, -1)"),
        Bug("masked rows are counted", "rollout.mask.flatten()", "torch.ones(cell.numel())"),
        Bug("the count itself is the reward", ".clamp(min=1).rsqrt()", ".clamp(min=1)"),
    ),
    *planted(
        "components/noveld.py",
        "components/test_bonuses.py",
        Bug("alpha is never read", "self.cfg.alpha * novelty[:-1]", "novelty[:-1]"),
        Bug("every visit is rewarded", 'return gain * rollout.extras[f"{self.name}_first"]', "return gain"),
        Bug("visits cross episodes", ".masked_fill_(reset.unsqueeze(1), False)", ""),
    ),
    *planted(
        "components/e3b.py",
        "components/test_bonuses.py",
        Bug(
            "the matrix crosses episodes",
            "torch.where(reset[:, None, None], self.start(inverse.device), inverse)",
            "inverse",
        ),
        Bug("the observation before", "self.inverse(next_obs).double()", "self.inverse(obs).double()"),
        Bug(
            "the matrix loses precision",
            "bonus = elliptical_(inverse, ",
            "bonus = elliptical_(inverse.copy_(inverse.float()), ",
            single(
                "components/test_bonuses.py",
                "test_the_elliptical_bonus_is_exact_in_long_episodes_of_similar_features",
            ),
        ),
    ),
    *planted(
        "components/episodic.py",
        "components/test_bonuses.py",
        Bug("memories cross episodes", ".masked_fill(reset, 0)", ""),
        Bug("the observation before", "value = self.inverse(next_obs)", "value = self.inverse(obs)"),
        Bug("lifelong novelty is ignored", "bonus * self.lifelong(error)", "bonus"),
        Bug(
            "errors of the first steps are never forgotten",
            "RecentStatistics((), cfg.lifelong_window)",
            "RecentStatistics((), 10**9)",
        ),
        Bug("the mean of errors never moves", "        self.errors.merge_(", "        (lambda *_: None)("),
        Bug(
            "masked rows are in the mean of errors",
            'blank(rollout.extras[f"{self.name}_error"], rollout.mask)',
            'rollout.extras[f"{self.name}_error"]',
        ),
        Bug("the newest observation is not kept", "held.scatter_(1, place", "held.scatter(1, place"),
        Bug(
            "a reset of all forgets distances",
            'outlives_episodes = ("distance", "distances")',
            "outlives_episodes = ()",
        ),
    ),
    *planted(
        "nets/images.py",
        "nets/test_images.py",
        Bug(
            "a small net is never pooled",
            "nn.Sequential(*layers, *_pooling(wide.pool))",
            "nn.Sequential(*layers)",
        ),
        Bug(
            "earlier layers of a small net shrink the image",
            "padding = 1 if number < wide.layers else 0",
            "padding = 0",
        ),
        Bug(
            "means instead of maxima", "value.amax((2, 3), keepdim=True)", "value.mean((2, 3), keepdim=True)"
        ),
    ),
    *planted(
        "nets/novelty.py",
        "components/test_rnd.py",
        Bug("the oldest frame", "leaf.shape[leaf.axis] - width, width)", "0, width)"),
    ),
    *planted(
        "run/maps.py",
        "run/test_maps.py::test_visits_and_rewards_are_summed_by_the_cell_that_a_step_led_to",
        Bug(
            "masked rows are visits",
            "self.visits.index_add_(0, cell, real.long())",
            "self.visits.index_add_(0, cell, torch.ones_like(cell))",
        ),
        Bug(
            "the reward of the environment", "rollout.reward[..., 1 + number]", "rollout.reward[..., number]"
        ),
        Bug("sums instead of means", "self.rewards / self.visits", "self.rewards"),
    ),
    *planted(
        "run/checkpointing.py",
        "run/test_maps.py::test_a_resumed_run_has_the_same_map",
        Bug("maps are not restored", 'parts.map.load_state_dict(state["map"])', "pass"),
    ),
    *planted(
        "ops/novelty.py",
        "ops/test_novelty.py",
        Bug("the most distant", "largest=False", "largest=True"),
        Bug("empty places are neighbours", "number >= count", "number > count"),
        Bug("distances are not relative", "distance / scale.clamp", "distance * scale.clamp"),
        Bug("no limit of similarity", "similarity > most, 0.0", "similarity > most, 1 / similarity"),
        Bug("the matrix is never updated", "alpha=-1", "alpha=0"),
    ),
    *planted(
        "explore/policies.py",
        "explore/test_policies.py algorithms/test_policy_families.py",
        Bug("policy 0 explores", "    found[0] = 0.0\n", "    found[0] = most\n"),
        Bug("the last policy does not explore most", "    found[-1] = most\n", ""),
        Bug(
            "discounts reversed",
            "(last - number) * log(1 - most) + number * log(1 - least)",
            "(last - number) * log(1 - least) + number * log(1 - most)",
        ),
        Bug("no bonus for rare arms", "self.beta * known.rsqrt()", "0 * known.rsqrt()"),
        Bug("unseen arms are never tried", "known.rsqrt(), torch.inf)", "known.rsqrt(), -torch.inf)"),
        Bug(
            "episodes that go on are counted",
            "torch.where(where.unsqueeze(1), entry",
            "torch.where(where.unsqueeze(1) | True, entry",
        ),
        Bug("the worst policy is evaluated", "-torch.inf).argmax()", "torch.inf).argmin()"),
        Bug(
            "relabelled to the next policy", "drawn < agent.cfg.relabel, 0)", "drawn < agent.cfg.relabel, 1)"
        ),
        Bug("relabelled without being asked", "    if not agent.cfg.relabel:\n        return batch\n", ""),
        Bug("single rows are relabelled", "torch.rand(index.shape[1], gen", "torch.rand(index.shape, gen"),
    ),
    *planted(
        "algorithms/ngu.py",
        "algorithms/test_policy_families.py",
        Bug("beta is ignored", "self.beta[index] * torch.stack", "torch.stack"),
        Bug("one discount for all", "* self.discounts[index]", "* 0.99"),
        Bug("traces never end", "(batch.action == choice[:-1]) / ", "1 / "),
        Bug("returns cross episodes", "batch.keep[..., 0],", "torch.ones_like(batch.keep[..., 0]),"),
    ),
    *planted(
        "algorithms/agent57.py",
        "algorithms/test_policy_families.py",
        Bug(
            "both learn from both rewards",
            "(environment, torch.stack(others).sum(0))",
            "(environment + torch.stack(others).sum(0), torch.stack(others).sum(0))",
        ),
        Bug(
            "the policy of one network",
            "greedy = best(self.mixed(q[0], q[1], policies)",
            "greedy = best((q[0])",
        ),
        Bug(
            "priorities of the other weight",
            "return weight * sizes[0] + (1 - weight) * sizes[1]",
            "return (1 - weight) * sizes[0] + weight * sizes[1]",
        ),
        Bug("the trust region keeps what leads away", "used = used * ~outside", "used = used * outside"),
        Bug(
            "a trust region with old targets",
            "values = q if cfg.trust_region else lagging",
            "values = lagging",
        ),
        Bug("errors of all policies alike", "error / spread if", "error if"),
        Bug("the tolerance is never read", "value - self.cfg.soft_lambda * value.abs()", "value"),
        Bug("the policy head is not followed", "if cfg.policy_head else greedy", "if False else greedy"),
        Bug("a far policy is updated", "weight * (kl <= self.cfg.policy_max_kl)", "weight"),
        Bug("the policy imitates itself", "greedy[:-1], legal", "choice[:-1], legal"),
        Bug(
            "deviations never move",
            "            deviation.merge_(error, index, mask)\n",
            "            pass\n",
        ),
    ),
    *planted(
        "components/byol.py",
        "components/test_byol.py",
        Bug("targets never move", "        polyak_(self.target_encoder, self.encoder, self.cfg.tau)\n", ""),
        Bug(
            "the target projection never moves",
            "        polyak_(self.target_projection, self.projection, self.cfg.tau)\n",
            "",
        ),
        Bug(
            "the target of the same view",
            "self.target_projection(self.target_encoder(other))",
            "self.target_projection(self.target_encoder(view))",
        ),
        Bug(
            "opposite views attract",
            "return 2 - 2 * F.cosine_similarity",
            "return 2 + 2 * F.cosine_similarity",
        ),
        Bug(
            "one order of the views only",
            "self.distance(one, two) + self.distance(two, one)",
            "2 * self.distance(one, two)",
        ),
    ),
    *planted(
        "agents/auxiliary.py",
        "components/test_auxiliary.py",
        Bug(
            "weight is never read", "return self.cfg.weight * loss", "return loss", "components/test_byol.py"
        ),
        Bug(
            "positives cross episodes",
            "real.gather(0, inside) & (ahead < count)",
            "(ahead < count)",
        ),
    ),
    *planted(
        "components/atc.py",
        "components/test_auxiliary.py",
        Bug("targets never move", "polyak_(self.target_projection", "(self.target_projection"),
        Bug("the anchor has no residual", "anchor + self.prediction(anchor)", "self.prediction(anchor)"),
    ),
    *planted(
        "components/siamese_q.py",
        "components/test_auxiliary.py",
        Bug(
            "the target is the online critic", "self._values(agent.target_critic", "self._values(agent.critic"
        ),
    ),
    *planted(
        "nets/memory.py",
        "nets/test_memory.py",
        Bug("LSTM state crosses episodes in acting", "before = _cleared(memory, reset)", "before = memory"),
        Bug(
            "LSTM state crosses episodes in learning",
            "opens = reset.clone()",
            "opens = torch.zeros_like(reset)",
        ),
        Bug("the first row does not reset", "first = _cleared(state, reset[0])", "first = state"),
        Bug(
            "burn-in gets gradients",
            "        with torch.no_grad():\n            before, state",
            "        if True:\n            before, state",
        ),
        Bug(
            "the last action crosses episodes",
            "torch.cat(parts, -1).masked_fill(reset.unsqueeze(-1), 0.0)",
            "torch.cat(parts, -1)",
        ),
        Bug(
            "the last reward is not clipped",
            'last["reward"].clamp(-self.clip, self.clip) if self.clip',
            'last["reward"] if self.clip',
        ),
        Bug("intrinsic rewards are read raw", "value_rescale(self.scale * last[STREAMS]", "(last[STREAMS]"),
    ),
    *planted(
        "nets/rows.py",
        "nets/test_memory.py",
        Bug(
            "rows: gradient crosses episodes",
            "dh = torch.bmm(found[row], recurrent) * keep[row]",
            "dh = torch.bmm(found[row], recurrent)",
        ),
        Bug(
            "rows: burn-in gets gradients",
            "reversed(range(ctx.burn_in, len(gates)))",
            "reversed(range(0, len(gates)))",
        ),
        Bug("rows: GRU state crosses episodes", "h = h * keep[row]", "h = h * 1"),
        Bug(
            "rows: RNN state crosses episodes",
            "torch.baddbmm(projected[row], h * keep[row]",
            "torch.baddbmm(projected[row], h",
        ),
    ),
    *planted(
        "nets/attention.py",
        "nets/test_memory.py",
        Bug(
            "rotary: queries count their own rows",
            "rotated(q, place[-q.shape[2] :])",
            "rotated(q, place[: q.shape[2]])",
        ),
        Bug("rotary: pairs are turned both ways", "first * sin + second * cos", "first * sin - second * cos"),
        Bug(
            "absolute: age crosses episodes in acting",
            'age = torch.where(reset, 0, memory["age"])',
            'age = memory["age"]',
        ),
        Bug(
            "absolute: age crosses episodes in learning",
            'torch.where(reset, row, -state["age"])',
            '-state["age"] + 0 * row',
        ),
        Bug(
            "output gate starts open",
            "nn.init.constant_(self.open.bias, -2.0)",
            "nn.init.constant_(self.open.bias, 2.0)",
        ),
    ),
    *planted(
        "envs/native/platform.py",
        "envs/test_platform.py",
        Bug(
            "a jump gains any speed",
            "first = (speed + gain.clamp(-MOST_GAIN, MOST_GAIN)",
            "first = (speed + gain",
        ),
        Bug("the speed of a flight is not reflected at 0", "sums.cummin(0).values.clamp(max=0)", "0 * sums"),
        Bug("landing does not stop", "speed.masked_fill(inside, 0),", "speed,"),
        Bug(
            "the other enemy walks", "torch.stack([~second, second], 1)", "torch.stack([second, ~second], 1)"
        ),
        Bug("one tick too many of a run", ">= RUN_TICKS - 1", ">= RUN_TICKS"),
        Bug(
            "enemies are not touched",
            "over = (y < HEIGHT) | (x >= END) | touched",
            "over = (y < HEIGHT) | (x >= END)",
        ),
    ),
    *planted(
        "envs/native/goal.py",
        "envs/test_goal.py",
        Bug(
            "a kick ignores the motion of the ball",
            "(1 - BALL_DECAY) * (target - player) - roll",
            "(1 - BALL_DECAY) * (target - player)",
        ),
        Bug("the keeper never dives", "torch.where(threat, DIVE, WALK)", "torch.where(threat, WALK, WALK)"),
        Bug(
            "those that collide go on",
            "torch.where(distance < least, -1.0, 1.0)",
            "torch.where(distance < least, 1.0, 1.0)",
        ),
        Bug("a kick ends with a moving ball", "rests = (_length(roll) <= RESTING) & ", "rests = "),
        Bug(
            "errors do not grow with the angle",
            "angle = (1 + error * errors[0]) * angle",
            "angle = error * errors[0] + angle",
        ),
    ),
    *planted(
        "envs/native/moving.py",
        "envs/test_moving.py",
        Bug("a moving agent succeeds", '(state["speed"] == 0) & ', ""),
        Bug("time is no end", '| (new["time"] >= self.max_steps)', ""),
        Bug("leaving keeps its reward", "nearer.masked_fill(lost, -1)", "nearer"),
    ),
    *planted(
        "envs/native/point_mass.py",
        "envs/test_point_mass.py",
        Bug("ten misses end", "failed = missed > TRIES", "failed = missed >= TRIES"),
        Bug("near is enough to catch", "reached, missed = tried & near,", "reached, missed = near,"),
        Bug("motions are not normalised", "sums / torch.linalg.vector_norm(sums, dim=0).max()", "sums"),
    ),
    *planted(
        "envs/native/recall.py",
        "envs/test_recall.py",
        Bug("a queue is not emptied", 'torch.where(question, fewer, state["kept"])', 'state["kept"]'),
        Bug("gaps are one step longer", "due, count = wait == 0,", "due, count = wait < 0,"),
        Bug(
            "every step is scored",
            "torch.where(question, torch.where(right, 1.0, -1.0), 0.0)",
            "torch.where(right, 1.0, -1.0)",
        ),
    ),
    *planted(
        "nets/noisy.py",
        "nets/test_noisy.py",
        Bug("noise is not factorised by its root", "return raw.sign() * raw.abs().sqrt()", "return raw"),
        Bug("bias has no noise", "torch.addcmul(self.bias, self.bias_scale, out)", "self.bias"),
    ),
    *planted(
        "nets/q_network.py",
        "nets/test_value_nets.py",
        Bug(
            "dueling without the mean advantage",
            "return value + advantage - advantage.mean(-2, keepdim=True)",
            "return value + advantage",
        ),
        Bug(
            "dueling mean over atoms", "advantage.mean(-2, keepdim=True)", "advantage.mean(-1, keepdim=True)"
        ),
        Bug("cosines start at 1", "pi * torch.arange(cosines)", "pi * torch.arange(1, cosines + 1)"),
    ),
    *planted(
        "nets/q_ensemble.py",
        "nets/test_critics.py",
        Bug("dropout does not scale up", "value / (1 - self.dropout))", "value)"),
        Bug(
            "dropout keeps its share",
            "uniform < self.dropout, 0.0",
            "uniform > self.dropout, 0.0",
        ),
        Bug(
            "a subset of critics reads the memories of the first",
            "features.index_select(0, members) if",
            "features[: len(members)] if",
        ),
        Bug(
            "a subset of critics is the first ones",
            "return [part.index_select(0, members) for part in parts]",
            "return [part[: len(members)] for part in parts]",
        ),
    ),
    *planted(
        "nets/renorm.py",
        "nets/test_renorm.py",
        Bug("running variance never moves", "        self.var.lerp_(moments[1], 1 - self.momentum)\n", ""),
        Bug(
            "momentum is reversed",
            "self.mean.lerp_(moments[0], 1 - self.momentum)",
            "self.mean.lerp_(moments[0], self.momentum)",
        ),
        Bug("warm-up one batch too long", "self.count >= self.warmup", "self.count > self.warmup"),
    ),
    *planted(
        "nets/temperature.py",
        "nets/test_actor.py algorithms/test_sac.py",
        Bug(
            "target entropy of one dimension",
            "return self.entropy_per_dimension * size",
            "return self.entropy_per_dimension",
        ),
        Bug(
            "alpha starts at its logarithm",
            "log(value) if value > 0 else",
            "value if value > 0 else",
        ),
    ),
    *planted(
        "nets/preprocessor.py",
        "algorithms/test_replay_agents.py",
        Bug(
            "reward_scale is never read",
            "reward if self.reward_scale == 1 else reward * self.reward_scale",
            "reward",
        ),
        Bug(
            "augment is never read",
            "        if self.pad:\n            lead",
            "        if False:\n            lead",
        ),
    ),
    *planted(
        "run/loop.py",
        "run/test_loop.py run/test_stepping.py run/test_trainer.py",
        Bug("agents do not hear of gaps", "            agent.forget(collector.gaps)\n", ""),
        Bug(
            "random_steps is never random",
            'collector.start(counters.earlier.get("steps", 0) + counters.steps < agent.random_steps)',
            "collector.start(False)",
        ),
        Bug(
            "a run that goes on from another acts at random again",
            'counters.earlier.get("steps", 0) + counters.steps',
            "counters.steps",
            "run/test_load_model.py::test_the_random_phase_is_not_repeated",
        ),
        Bug("progress is never set", "        self.parts.agent.progress.fill_(progress)\n", ""),
        Bug(
            "weights are never sent",
            "        parts.send_weights()\n        collector",
            "        collector",
            "distributed/test_payload.py",
        ),
        Bug(
            "updates are not settled",
            "            experience.settle(batch, learner.update(phase, batch))\n",
            "            learner.update(phase, batch)\n",
            "run/test_loop.py",
        ),
        Bug(
            "gaps are not told to replay",
            "            experience.cut(collector.gaps)\n",
            "            pass\n",
            "run/test_loop.py",
        ),
        Bug(
            "components see no rollouts",
            "            rollout = agent.receive(rollout)\n",
            "            pass\n",
            "components/test_component.py",
        ),
        Bug(
            "passed one step late",
            "self.steps // interval > self.steps_before // interval",
            "(self.steps - 1) // interval > (self.steps_before - 1) // interval",
        ),
        Bug(
            "the budget furthest from its end",
            "return max(limits, key=lambda limit: limit[0] / limit[1])",
            "return min(limits, key=lambda limit: limit[0] / limit[1])",
        ),
        Bug(
            "new episodes are never cleared",
            "self.new_episodes, self.new_return, self.new_length = 0, 0.0, 0.0",
            "pass",
        ),
        Bug(
            "the mean return of all training",
            "                del self.recent[0]\n",
            "                break\n",
            MEAN_RETURN,
        ),
        Bug("episodes are not counted", '        self.episodes += int(seen["episodes"])\n', ""),
        Bug(
            "the mean return divides by rollouts",
            "episodes = sum(count for count, _ in self.recent)",
            "episodes = len(self.recent)",
            MEAN_RETURN,
        ),
    ),
    *planted(
        "run/loop.py",
        "run/test_failures.py",
        Bug(
            "resets repeat their seed",
            "        counters.resets += cut  # before callbacks, which may save\n",
            "",
        ),
    ),
    *planted(
        "run/learner.py",
        "run/test_loop.py",
        Bug("updates are not counted", "            self.agent.updates += 1\n", "            pass\n"),
        Bug("metrics are sums", "self._sums[name].float() / self.count[name]", "self._sums[name].float()"),
        Bug("metrics are never emptied", "        self.count = dict.fromkeys(self.count, 0)\n", ""),
        Bug(
            "metrics are not restored",
            "        self.count = {name: int(number) for name, number in count.items()}\n",
            "",
        ),
        Bug("diverged weights go unnoticed", "            if not good:\n", "            if False:\n"),
    ),
    *planted(
        "run/evaluate.py",
        "run/test_evaluation.py",
        Bug(
            "evaluation ends with the quickest environment",
            "if bool(done.all()):",
            "if bool(done.any()):",
        ),
        Bug("evaluation explores", "greedy=deterministic)", "greedy=False)"),
        Bug(
            "rows of resets are counted",
            "(~idle).long().unsqueeze(0)",
            "torch.ones_like(reset).long().unsqueeze(0)",
        ),
        Bug(
            "truncated episodes never end",
            "ended = step.terminated | step.truncated",
            "ended = step.terminated",
            "run/test_evaluation.py::test_long_episodes_count_as_often_as_short_ones",
        ),
        Bug(
            "all evaluations use one seed",
            'self.parts.streams.seed("eval", str(iteration))',
            'self.parts.streams.seed("eval", "0")',
        ),
        Bug("evaluation with old weights", "        self.parts.send_weights()\n        seed", "        seed"),
    ),
    *planted(
        "run/checkpointing.py",
        "conformance/test_training.py run/test_stepping.py run/test_trainer.py run/test_callbacks.py",
        Bug("counters are not restored", '        self.counters.load_state_dict(state["counters"])\n', ""),
        Bug(
            "random streams are not restored", '        parts.streams.load_state_dict(state["streams"])\n', ""
        ),
        Bug("replay is not restored", '        parts.experience.load_state_dict(state["experience"])\n', ""),
        Bug(
            "sums of metrics are not restored",
            '        parts.learner.load_state_dict(state["learner"])\n',
            "",
            "run/test_trainer.py::test_a_run_that_goes_on_writes_that_window_whole",
        ),
        Bug(
            "environments are not restored",
            '            acting.env.restore(state["env"])\n',
            "            pass\n",
        ),
        Bug(
            "a checkpoint after every iteration",
            "due = counters.steps // run.checkpoint_freq > counters.saved_steps // run.checkpoint_freq",
            "due = True",
            "run/test_stepping.py::test_a_step_logs_evaluates_and_saves_what_is_due",
        ),
        Bug(
            "diverged weights are saved",
            "        parts.learner.check_finite()\n        self.saved",
            "        self.saved",
            "run/test_trainer.py::test_a_checkpoint_never_holds_weights_that_are_not_finite",
        ),
        Bug(
            "a warm start without optimizer state",
            "            state[name] = saved[name]\n",
            "            pass\n",
            "run/test_callbacks.py::test_an_optimizer_whose_weights_do_not_all_fit_starts_afresh",
        ),
    ),
    *planted(
        "run/trainer.py",
        "run/test_stepping.py run/test_trainer.py",
        Bug(
            "one iteration beyond the budget",
            "return done >= total or bool(self._stop_reason)",
            "return done > total or bool(self._stop_reason)",
            "run/test_stepping.py::test_after_the_budget_the_iterator_is_exhausted_and_a_step_is_refused",
        ),
        Bug(
            "progress starts at the end",
            "self.loop.iterate(self.counters.progress(self.settings.run))",
            "self.loop.iterate(1.0 - self.counters.progress(self.settings.run))",
            "run/test_stepping.py::test_the_first_random_steps_are_random_and_progress_is_the_share_of_the_budget_that_is_spent",
        ),
    ),
    *planted(
        "state/streams.py",
        "state/test_streams.py",
        Bug("parts of a stream are equal", "if part:\n            entropy", "if False:\n            entropy"),
        Bug("all streams are one", "entropy = [self._seed, NAMES.index(name)]", "entropy = [self._seed]"),
        Bug(
            "positions are not restored",
            "self.generator(name, device, part).set_state(state[key].cpu())",
            "self.generator(name, device, part)",
        ),
    ),
    *planted(
        "distributed/fleet_collector.py",
        "distributed/test_fleet_collector.py distributed/test_payload.py",
        Bug("max_lag off by one", "lag <= self.max_lag", "lag < self.max_lag"),
        Bug("versions do not count", "        self.version += 1\n", ""),
        Bug(
            "gaps are never marked",
            "        self.gaps[envs] = gap\n",
            "        self.gaps[envs] = False\n",
            "distributed/test_fleet.py",
        ),
        Bug(
            "priorities across a gap are kept",
            "max(0, self._earlier - self._unbroken[place] * self._completed)",
            "0",
        ),
        Bug(
            "one trajectory more is taken for unbroken",
            "self._unbroken[place] = 0 if gap else",
            "self._unbroken[place] = 1 if gap else",
        ),
        Bug(
            "trajectories go to any place",
            "if self._held[at] == trajectory.previous), own)",
            "if self._held[at] == trajectory.name), own)",
            "distributed/test_fleet_collector.py",
        ),
        Bug(
            "dropped steps are counted",
            '            self._log("dropped", trajectory.seen["steps"])\n',
            '            self._count(trajectory)\n            self._log("dropped", trajectory.seen["steps"])\n',
            "distributed/test_fleet.py distributed/test_fleet_collector.py",
        ),
        Bug(
            "actors that wait are let go at once",
            "if self.max_lag == 0:\n            self._waiting",
            "if False:\n            self._waiting",
            "distributed/test_fleet_collector.py distributed/test_payload.py",
        ),
        Bug(
            "resumed actors repeat their seeds",
            "[life + 1 for life in self.fleet.lives]",
            "list(self.fleet.lives)",
            "distributed/test_fleet_collector.py distributed/test_fleet.py",
        ),
        Bug(
            "all actors have the same seed",
            'part = f"actor {actor} life {life}"',
            'part = f"life {life}"',
            "distributed/test_fleet_collector.py",
        ),
    ),
    *planted(
        "distributed/actor.py",
        "distributed/test_payload.py",
        Bug(
            "an actor remembers its first observations by weights of its own",
            "if not self.number:",
            "if self.number < 0:",
            "components/test_bonuses.py::test_the_episodic_memory_of_actors_equals_one_of_lists",
        ),
        Bug(
            "all actors number their environments alike",
            "range(number * role.num_envs, (number + 1) * role.num_envs)",
            "range(0, role.num_envs)",
            "distributed/test_payload.py distributed/test_fleet.py",
        ),
        Bug(
            "priorities are never sent",
            '    "priorities": PrioritizedRowsPayload,',
            '    "priorities": RowsPayload,',
        ),
        Bug(
            "random actions are never asked for",
            "rollout = self.collector.collect(random=random)",
            "rollout = self.collector.collect()",
        ),
    ),
    *planted(
        "distributed/replay_shards.py",
        SHARDS,
        Bug(
            "shards do not divide beta's steps",
            "priority_beta_steps=cfg.priority_beta_steps // cfg.shards",
            "priority_beta_steps=cfg.priority_beta_steps",
        ),
        Bug(
            "every shard has the whole buffer",
            "buffer_size=cfg.buffer_size // cfg.shards",
            "buffer_size=cfg.buffer_size",
        ),
        Bug("one shard gives all batches", "self._turn = (number + 1) % count", "self._turn = number"),
        Bug("learning_starts is never read", "max(0, self.steps - self._learn_after)", "max(0, self.steps)"),
        Bug(
            "errors go to the next shard",
            "            self._settle(*self._from, error)\n",
            "            self._settle(self.links[0], self._from[1], error)\n",
        ),
        Bug(
            "the turn is not restored",
            'for name in ("steps", "drawn", "turn"))',
            'for name in ("steps", "drawn", "drawn"))',
        ),
        Bug(
            "shards share a seed",
            'f"shard {shard} life {life}"',
            'f"life {life}"',
            "distributed/test_replay_shards.py::test_no_two_shards_and_no_two_lives_of_one_share_a_seed",
        ),
    ),
    *planted(
        "distributed/learners.py",
        LEARNERS,
        Bug(
            "all learners get the first part",
            "env_slice(tensors, slice(part * size, (part + 1) * size))",
            "env_slice(tensors, slice(0, size))",
        ),
        Bug("changed tensors are not sent", "if tensor._version != self._sent[n]]", "if self._sent[n] < 0]"),
        Bug(
            "metrics are those of the first learner",
            ".mean(0).to(device)\n        metrics",
            "[0].to(device)\n        metrics",
        ),
        Bug(
            "replicas draw the same noise",
            'part = f"{name} of learner {self.member.rank}, {round.phase} {round.updates}"',
            'part = f"{name}, {round.phase} {round.updates}"',
            "distributed/test_learners.py::test_no_two_replicas_and_no_two_rounds_share_random_numbers",
        ),
    ),
    *planted(
        "distributed/group.py",
        "distributed/test_learners.py::test_a_replica_in_a_process_makes_two_of_one",
        Bug(
            "gradients are added, not averaged", "means = flat.div_(self.size).split(", "means = flat.split("
        ),
    ),
    *planted(
        "core/collectives.py",
        "distributed/test_learners.py::test_two_learners_are_one_with_the_joint_batch",
        Bug("means over learners are sums", "total(value) / _here.ranks.size", "total(value)"),
        Bug(
            "every learner has the first part",
            "value.chunk(_here.ranks.size)[_here.ranks.rank]",
            "value.chunk(_here.ranks.size)[0]",
        ),
    ),
    *planted(
        "distributed/worker_collector.py",
        "run/test_memory_runs.py::test_without_it_every_rollout_has_the_newest",
        Bug(
            "workers never read the weights",
            "        if not self.hold:\n            self._read_weights()\n",
            "",
        ),
    ),
    *planted(
        "population/rules.py",
        "population/test_rules.py",
        Bug(
            "the worst are selected",
            "key=lambda slot: (-scores[slot], slot))",
            "key=lambda slot: (scores[slot], slot))",
        ),
        Bug("deviation of a sample", "stack.std(0, correction=0)", "stack.std(0)"),
        Bug("deviations are not bounded", "std[name].clamp(config.min_std, config.max_std)", "std[name]"),
        Bug(
            "all places draw the same settings",
            "default_rng([self.seed, generation, slot])",
            "default_rng([self.seed, generation])",
        ),
        Bug(
            "the best copy the worst",
            "worst = {row.slot for row in ranked[len(ranked) - count :]}",
            "worst = {row.slot for row in ranked[:count]}",
        ),
        Bug("counts of this generation alone", "[row for row in self.history if row.selected]", "best"),
        Bug(
            "a diverged learner continues",
            "learner, age = (next(numbers), 0) if note else (row.learner, row.age)",
            "learner, age = row.learner, row.age",
        ),
        Bug("removed too early", "if rate * row.age >= factor and counts", "if counts"),
        Bug("settings are never drawn again", "rng.random() < self.config.resample", "rng.random() < 0"),
    ),
    *planted(
        "population/member.py",
        "population/test_evolve.py",
        Bug(
            "target networks keep the parent's weights",
            "polyak_(target, online, 1.0)",
            "polyak_(target, online, 0.0)",
            "population/test_evolve.py::test_target_networks_of_drawn_weights_are_copies_of_them",
        ),
        Bug(
            "a copy keeps its learning rate",
            "    agent.reset_rates()\n",
            "",
            "population/test_evolve.py::test_a_copy_has_weights_and_optimizer_state_of_its_parent_and_learning_rates_of_its_own",
        ),
        Bug(
            "optimizer state is not copied",
            '    agent.load_optimizer_state(found[0]["optimizers"])\n',
            "",
            "population/test_evolve.py::test_a_copy_has_weights_and_optimizer_state_of_its_parent_and_learning_rates_of_its_own",
        ),
        Bug(
            "checkpoints of an unreported attempt stay",
            "        _forget_attempts(folder, task.age)\n",
            "",
            "population/test_evolve.py::test_a_population_killed_at_any_moment_and_resumed_equals_an_unbroken_one",
        ),
        Bug(
            "the report comes before the checkpoint",
            "        evaluation = trainer.evaluate()\n",
            "        evaluation = trainer.evaluate()\n"
            "        found = Report(task.generation, evaluation.mean_return, trainer.steps, task.age + 1)\n"
            "        write_report(folder, found)\n",
            "population/test_evolve.py::test_a_population_killed_at_any_moment_and_resumed_equals_an_unbroken_one",
        ),
    ),
    *planted(
        "population/evolver.py",
        "population/test_evolve.py",
        Bug(
            "all learners have one seed",
            'f"learner {plan.learner}")\n        settings',
            '"learner")\n        settings',
            "population/test_evolve.py::test_the_first_weights_of_all_are_the_same_unless_that_is_switched_off",
        ),
        Bug(
            "nothing is repeated on resume",
            "            self._conclude()\n            if not",
            "            if not",
            "population/test_evolve.py::test_resume_repairs_the_best_policy_where_a_kill_came_before_it",
        ),
        Bug(
            "a failure is neither counted nor announced",
            "                    self.restarts.failed(name, found)\n",
            "",
            "population/test_evolve.py::test_a_process_killed_with_9_is_replaced_and_nothing_changes",
        ),
    ),
    *planted(
        "settings/draws.py",
        "settings/test_draws.py",
        Bug("what is asked for is drawn", "drawn = _without(drawn, kept, hints)", "pass"),
        Bug("counts start at 0", "[1 + sum(one == value", "[0 + sum(one == value"),
        Bug(
            "logarithms are forgotten",
            "math.log(value) if self.log else",
            "math.log10(value) if self.log else",
        ),
        Bug(
            "bounds do not hold",
            "return self._number(min(max(moved, self.low), self.high))",
            "return self._number(moved)",
        ),
    ),
    *planted(
        "state/code.py",
        "run/test_own_code.py",
        Bug("altered code is trusted", "    if not digest(code).startswith(given):", "    if False:"),
        Bug("a short hash is trusted", "len(given) < DIGITS or set(given)", "set(given)"),
    ),
    *planted(
        "settings/trust.py",
        "multi/test_behaviors.py",
        Bug(
            "own algorithms of behaviours are not named",
            "    if isinstance(settings, BehaviorSettings):",
            "    if False:",
        ),
    ),
    *planted(
        "nets/layers.py",
        "run/test_own_code.py",
        Bug(
            "keys of a mapping are imported as layers",
            "    if not isinstance(layers, (list, tuple)):",
            "    if layers is None:",
        ),
    ),
    *planted(
        "log/live.py",
        "run/test_viewer.py",
        Bug("other machines are served", 'HOST = "127.0.0.1"', 'HOST = "0.0.0.0"'),
        Bug(
            "any name leads to the page",
            'partition(":")[0] not in',
            'partition(":")[0] in',
        ),
    ),
    *planted(
        "envs/wrappers.py",
        "envs/test_hit_reward.py",
        Bug(
            "a hit lasts into the next episode",
            "        self._hit = False\n        return self.env.reset",
            "        return self.env.reset",
        ),
    ),
    *planted(
        "envs/warp/world.py",
        "envs/test_warp.py",
        Bug("a diverged state goes on", "            terminated | ~sound,", "            terminated,"),
        Bug(
            "the solver's warm start is not restored",
            'view.qacc_warmstart.copy_(state["warmstart"].T.masked_fill(ended, 0))',
            "pass",
        ),
        Bug(
            "velocity is measured from the origin",
            '(task.position(view) - state["position"])',
            "(task.position(view))",
        ),
        Bug(
            "actions are not scaled", "self._middle + self._half * action.clamp(-1, 1)", "action.clamp(-1, 1)"
        ),
    ),
    *planted(
        "envs/warp/tasks.py",
        "envs/test_warp.py",
        Bug("a fall is paid in v5, too", "if self.old and self.ends", "if self.ends"),
        Bug(
            "no contact cost",
            "        if self.forces:\n            reward",
            "        if False:\n            reward",
        ),
        Bug("uniform noise instead of normal", "        if self.normal:", "        if False:"),
    ),
    *planted(
        "log/statistics.py",
        "bench/test_aggregates.py",
        Bug(
            "runs of all tasks are drawn together",
            "rng.integers(len(data), size=data.shape[:2])",
            "rng.integers(len(data), size=(len(data), 1))",
        ),
        Bug("a tie counts nothing", " + 0.5 * (x[:, None] == y[None])", ""),
        Bug(
            "scores above the target make up for others",
            "np.minimum(np.asarray(scores, dtype=np.float64), target)",
            "np.asarray(scores, dtype=np.float64)",
        ),
        Bug(
            "the median is that of runs",
            "np.median(np.asarray(scores, dtype=np.float64).mean(axis=0), axis=0)",
            "np.median(np.asarray(scores, dtype=np.float64), axis=(0, 1))",
        ),
    ),
    *planted(
        "sweep/sweep.py",
        "sweep/test_sweep.py",
        Bug(
            "trials under way at a kill are forgotten",
            "            self.study.enqueue_trial(dict(trial.params), user_attrs={RETRY: times})",
            "            pass",
        ),
        Bug("nothing is pruned", "elif one.trial.should_prune():", "elif False:"),
        Bug(
            "a sweep that goes on draws its first trials again",
            "self.sweeping.spaces, seed, earlier)",
            "self.sweeping.spaces, seed, 0)",
        ),
        Bug("the best seed counts as the worst", "float(scores.min())", "float(scores.max())"),
        Bug(
            "two processes share a folder",
            "        self.lock = RunLock(self.folder)\n",
            "        self.lock = RunLock(self.folder)\n        self.lock.release()\n",
        ),
    ),
    *planted(
        "sweep/space.py",
        "sweep/test_space.py",
        Bug("conditions are ignored", "        if space.applies(chosen):", "        if True:"),
        Bug("whole settings get fractions", 'whole or "int" in rest', '"int" in rest'),
    ),
    *planted(
        "sweep/report.py",
        "sweep/test_sweep.py::test_a_setting_that_was_searched_replaces_its_other_names_in_the_preset",
        Bug("the preset keeps the settings that were searched", "means <= searched or ", ""),
    ),
    *planted(
        "bench/cell.py",
        "bench/test_bench.py",
        Bug(
            "a run that was killed begins again",
            "            return load_run(folder, {}, trust=trust_for(settings))",
            "            shutil.rmtree(folder)",
        ),
    ),
    *planted(
        "bench/bench.py",
        "bench/test_bench.py",
        Bug(
            "runs that have ended are trained again",
            " if read_result(Path(cell.folder)) is None)",
            ")",
        ),
    ),
    *planted(
        "bench/results.py",
        "bench/test_bench.py",
        Bug(
            "a run that diverged counts as the reference",
            "return 0.0 if value is None",
            "return 1.0 if value is None",
        ),
    ),
    *planted(
        "agents/optimizers.py",
        "agents/test_frame.py",
        Bug(
            "large networks count steps behind a closed gate",
            "torch._foreach_add_(steps, 1 if gate is None else [gate] * len(steps))",
            "torch._foreach_add_(steps, 1)",
        ),
        Bug(
            "the kernel does not hear of the gate",
            "return None if gate is None else 1.0 - gate",
            "return None",
        ),
        Bug("an open gate is closed", "return None if gate is None else 1.0 - gate", "return gate"),
        Bug(
            "RMSprop counts steps behind a closed gate",
            "[packed.values, square, packed.steps]",
            "[packed.values, square]",
        ),
        Bug(
            "moments behind a closed gate move",
            "with _gated([*parameters, *state], gate):",
            "with _gated(parameters, gate):",
        ),
        Bug(
            "gradients behind a closed gate are applied elsewhere",
            "sink(name, gradients, rate if gate is None else rate * gate)",
            "sink(name, gradients, rate)",
        ),
    ),
    *planted(
        "nets/normalize.py",
        "nets/test_running_statistics.py",
        Bug(
            "the mean of large numbers is rounded",
            "        mean = mean + collectives.total(((rows - mean) * spread).sum(0)) / size\n",
            "",
        ),
        Bug(
            "the correction of the mean counts masked rows",
            "((rows - mean) * spread).sum(0)",
            "(rows - mean).sum(0)",
        ),
        Bug(
            "products of large numbers are rounded",
            "return (value - self.mean) * self.scale",
            "return torch.addcmul(-self.mean * self.scale, value, self.scale)",
        ),
        Bug(
            "statistics of earlier versions can not be read",
            '        state_dict.pop(f"{prefix}shift", None)  # of earlier versions, which held -mean * scale\n',
            "",
        ),
    ),
    *planted(
        "envs/spaces.py",
        "envs/test_odd_spaces.py",
        Bug(
            "entries do not begin at their start",
            "chosen = np.asarray(obs, np.int64) - start",
            "chosen = np.asarray(obs, np.int64) - 0 * start",
        ),
        Bug(
            "choices below the first are taken",
            "if (chosen < 0).any() or (chosen >= nvec).any():",
            "if (chosen >= nvec).any():",
        ),
        Bug(
            "choices behind the last are taken",
            "if (chosen < 0).any() or (chosen >= nvec).any():",
            "if (chosen < 0).any():",
        ),
        Bug("ones up to the choice", "(flat[..., entry] == choice)", "(flat[..., entry] >= choice)"),
        Bug(
            "every entry begins with the first column",
            "np.concatenate([np.arange(n) for n in counts])",
            "np.arange(counts.sum())",
        ),
        Bug(
            "one-hots are normalised",
            'Array((sum(nvec),), "float32", 0.0, 1.0, binary=True)',
            'Array((sum(nvec),), "float32", 0.0, 1.0)',
        ),
    ),
    *planted(
        "state/policy_inputs.py",
        "envs/test_odd_spaces.py",
        Bug(
            "policies read entries from 0",
            "[s + k for s, n in zip(like.starts, like.nvec)",
            "[k for s, n in zip(like.starts, like.nvec)",
        ),
        Bug(
            "policies take entries outside of their choices",
            "if bool(((chosen < 0) | (chosen >= torch.tensor(like.nvec, device=flat.device))).any()):",
            "if False:",
        ),
        Bug(
            "policies read one-hots as numbers",
            "if given.is_floating_point() and given.shape[-1:] == like.frame.shape:",
            "if False:",
        ),
    ),
    *planted(
        "state/traced.py",
        "envs/test_odd_spaces.py",
        Bug(
            "an exported policy takes one-hots",
            '    if leaf.nvec:\n        return Port(name, kind, leaf.entries, "int64")\n',
            "",
        ),
    ),
    *planted(
        "run/saved_env.py",
        "envs/test_odd_spaces.py envs/test_quad_pendulum.py",
        Bug(
            "runs that read numbers are told nothing",
            "raise EnvError(f\"{id} has other spaces than the environment of the run: {'; '.join(found)}{numbers}\")",
            "raise EnvError(f\"{id} has other spaces than the environment of the run: {'; '.join(found)}\")",
        ),
        Bug(
            "options of training apply to evaluations",
            "if training or kept.keys() | asked.keys() >= found.options.keys():",
            "if True:",
        ),
        Bug(
            "options of training that are asked for are left out",
            "if key in {**kept, **asked}",
            "if key in kept",
        ),
    ),
    *planted(
        "data/batch.py",
        "data/test_batch.py collect/test_waiting.py",
        Bug(
            "padding before a first observation is a final observation",
            " & follows  # the row of a final observation",
            "  # the row of a final observation",
        ),
        Bug(
            "a first observation that waits is a final one",
            "self.reset[1:] & ~self.reset[:-1] & follows",
            "self.reset[1:] & follows",
        ),
        Bug(
            "a rollout that begins with a final observation leaves it out",
            "torch.cat((torch.ones_like(real[:1]), real[:-1]))",
            "torch.cat((torch.zeros_like(real[:1]), real[:-1]))",
        ),
    ),
    *planted(
        "run/build.py",
        "data/test_memory_check.py",
        Bug(
            "what memories take is not counted",
            "allocated_bytes(cfg, agent.spec, shared, agent.stored(), agent.columns())",
            "allocated_bytes(cfg, agent.spec, shared, None, agent.columns())",
        ),
        Bug(
            "what columns take is not counted",
            "allocated_bytes(cfg, agent.spec, shared, agent.stored(), agent.columns())",
            "allocated_bytes(cfg, agent.spec, shared, agent.stored(), None)",
        ),
        Bug(
            "the agent keeps the size that does not fit",
            "settings, agent = fitted, _agent(source, fitted, spec, streams)",
            "settings = fitted",
        ),
        Bug(
            "a size that was chosen shrinks",
            "if settings.buffer_chosen or not agent.off_policy:",
            "if not agent.off_policy:",
        ),
        Bug("the smaller buffer fills the memory", "while size() > free / 2 and", "while size() > free and"),
        Bug(
            "resets do not send the weights",
            "        self.send_weights()\n        self.acting.collector.reset(",
            "        self.acting.collector.reset(",
            f"{FIRST_MEMORIES} {RESUMED_MEMORIES}",
        ),
    ),
    *planted(
        "data/replay_setup.py",
        "data/test_memory_check.py",
        Bug(
            "the size of one shard is that of all",
            "return cfg.shards * allocated_bytes(part,",
            "return allocated_bytes(part,",
        ),
    ),
    *planted(
        "distributed/worker_collector.py",
        f"{FIRST_MEMORIES} {RESUMED_MEMORIES} run/test_memory_runs.py",
        Bug(
            "resets do not write the weights",
            'newest weights."""\n        self._send_weights()\n',
            'newest weights."""\n',
        ),
        Bug(
            "workers reset with old weights",
            "    def reset(self, seed: int) -> None:\n        self._read_weights()\n",
            "    def reset(self, seed: int) -> None:\n",
        ),
    ),
    *planted(
        "collect/collector.py",
        "collect/test_rollout_actor.py",
        Bug(
            "a held policy is not renewed by a reset",
            "        if self.renew is not None:\n            self.renew()\n        self.begin(",
            "        self.begin(",
        ),
        Bug(
            "a reset forgets what outlives episodes",
            "self.agent.carry_over(fresh, self.memory)",
            "fresh",
            "algorithms/test_policy_families.py components/test_bonuses.py",
        ),
    ),
    *planted(
        "run/behaviors/parts.py",
        "multi/test_behaviors.py",
        Bug(
            "behaviours reset with old weights",
            "            member.parts.send_weights()\n            member.collector.reset(seed)",
            "            member.collector.reset(seed)",
        ),
    ),
    *planted(
        "run/trainer.py",
        FIRST_MEMORIES,
        Bug(
            "environments are reset before the weights are loaded",
            "        run = self.settings.run\n        if run.load_model:\n",
            "        run = self.settings.run\n        self.parts.reset(0)\n        self.parts.reset = lambda _: None\n"
            "        if run.load_model:\n",
        ),
    ),
    *planted(
        "algorithms/sac.py",
        "algorithms/test_sac.py",
        Bug(
            "V-trace without backup_entropy is taken",
            "if not cfg.backup_entropy and self.returns.corrects:",
            "if False:",
        ),
    ),
    *planted(
        "envs/native/quad_pendulum.py",
        "envs/test_quad_pendulum.py",
        Bug(
            "success brings starts nearer to the end",
            "torch.where(upright, LEVEL_STEP, -LEVEL_STEP)",
            "torch.where(upright, -LEVEL_STEP, LEVEL_STEP)",
        ),
        Bug("levels leave their range", "+ change, 0).clamp(0, 1)", "+ change, 0)"),
        Bug(
            "levels outlive a reset",
            "        self.steps.zero_()  # for `_levels`: no episode has ended\n",
            "",
        ),
        Bug("an episode that left the rail is a success", "upright = self._inside(body) & (", "upright = ("),
        Bug(
            "starts are at the level alone",
            "level - LEVEL_RANGE * reach",
            "level - 0 * reach",
        ),
        Bug(
            "starts are anywhere up to the level",
            "level - LEVEL_RANGE * reach",
            "level - reach",
        ),
        Bug(
            "low levels start behind the end",
            "- LEVEL_RANGE * reach).clamp(min=0)",
            "- LEVEL_RANGE * reach)",
        ),
        Bug(
            "an action of the end counts",
            "reward(body, torch.zeros_like(body[0])) >= UPRIGHT",
            "reward(body, torch.ones_like(body[0])) >= UPRIGHT",
        ),
        Bug("curriculum is for evaluations, too", '"training_steps", "curriculum")', '"training_steps")'),
    ),
    *planted(
        "nets/flat.py",
        "nets/test_flat.py",
        Bug(
            "all copies have one scale",
            "return (torch.asinh(value) / torch.asinh(self.scales)).flatten(-2)",
            "return (torch.asinh(value[..., :1, :].expand_as(value)) / torch.asinh(self.scales)).flatten(-2)",
        ),
        Bug("1 does not stay 1", "torch.asinh(value) / torch.asinh(self.scales)", "torch.asinh(value)"),
        Bug(
            "large values are not compressed",
            "torch.asinh(value) / torch.asinh(self.scales)",
            "value / torch.asinh(self.scales)",
        ),
    ),
    *planted(
        "envs/make.py",
        "envs/test_quad_pendulum.py",
        Bug(
            "worlds made by a function keep their options of training",
            "if self.batch is None else self.batch.shown()",
            "if True else None",
        ),
    ),
    *planted(
        "datasets/rows.py",
        single(
            "datasets/test_minari.py",
            "test_a_dict_whose_keys_gymnasium_sorts_is_read_in_the_order_of_the_environment",
            "test_actions_whose_keys_gymnasium_sorts_are_read_in_the_order_of_the_environment",
        ),
        Bug(
            "a dataset in another order is declined",
            "observation=_in_order(spec.observation, own.observation),",
            "observation=own.observation,",
        ),
        Bug(
            "a dataset whose actions are in another order is declined",
            "action=_in_order(spec.action, own.action),",
            "action=own.action,",
        ),
    ),
    *planted(
        "distributed/actor.py",
        "distributed/test_fleet.py",
        Bug(
            "components that follow returns get parts of a batch",
            "isinstance(module, ReturnScale) and module.enabled for",
            "False for",
        ),
    ),
    *planted(
        "run/dataset.py",
        "run/test_offline.py",
        Bug(
            "a final observation before padding is left out",
            "every = torch.ones_like(rollout.mask[:rows, one])",
            "every = rollout.mask[:rows, one]",
        ),
    ),
    *planted(
        "bench/cell.py",
        single("data/test_memory_check.py", "test_a_cell_of_a_benchmark_shrinks_its_buffer"),
        Bug(
            "cells keep a buffer that does not fit", "buffer_chosen=cell.buffer_chosen", "buffer_chosen=True"
        ),
    ),
    *planted(
        "run/loop.py",
        "test_front_door.py",
        Bug(
            "the first part of an observation is blamed",
            "if not bool(leaf[row, env_index].isfinite().all()):",
            "if True:",
        ),
    ),
    *planted(
        "settings/elsewhere.py",
        "test_habits.py",
        Bug(
            "attributes that are missing are None",
            '        of = f"{kind.__name__!r} object" if owner',
            '        return None\n        of = f"{kind.__name__!r} object" if owner',
        ),
    ),
    *planted(
        "__init__.py",
        "test_habits.py",
        Bug(
            "imports of Stable-Baselines3's names are not explained",
            "sys.meta_path.append(_Explaining)",
            "pass",
        ),
    ),
    *planted(
        "log/writers.py",
        "log/test_writers.py",
        Bug(
            "a table that can not be rewritten is closed",
            "        columns = list(dict.fromkeys(key for row in read_rows(self.jsonl) for key in row))\n",
            "        self._table.close()\n"
            "        columns = list(dict.fromkeys(key for row in read_rows(self.jsonl) for key in row))\n",
        ),
    ),
]
