"""n-step targets of soft actor-critics, corrected by V-trace for actions that another policy took."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.errors import ConfigError
from whorl.core.spec import Array
from whorl.core.tree import Tree
from whorl.data.batch import LOG_PROB, STEPS, Batch, Rows
from whorl.data.config import ReplayConfig
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.soft_actions import SoftActions
from whorl.nets.temperature import Temperature
from whorl.ops.returns import n_step_vtrace
from whorl.settings.schema import Fraction, NonNegative


@dataclass(frozen=True)
class CorrectionConfig(ReplayConfig):
    """Settings of n-step targets from actions of older policies."""

    use_n_step_is: bool = False
    """n-step returns: correct them by V-trace, with importance weights from stored log-probabilities, and include the
    entropy of the steps between; no effect if n_step is 1"""
    v_lambda: Fraction = 1.0
    """lambda of V-trace, a factor of its coefficients c"""
    v_rho: NonNegative = 1.0
    """upper bound of the importance weights rho of the TD errors"""
    v_c: NonNegative = 1.0
    """upper bound of the importance weights c of later TD errors"""
    refresh_probabilities: bool = False
    """with use_n_step_is: learning replaces the stored log-probabilities of a sample by the current policy's
    (Advanced-SAC), so that importance weights measure the change since the sample was last used"""
    use_replay_buffer: bool = True
    """false: learn from each rollout once, with one update, and correct n-step returns by V-trace; settings of the
    buffer have no effect"""
    clip_epsilon: NonNegative = 0.0
    """clip the critics' values to this distance from the target critics'; the larger of the clipped and the unclipped
    error counts; 0: no clipping"""


class NStepTargets:
    """Rows that targets of Q(s_t, a_t) bootstrap from: the last row of an n-step return, or with `use_n_step_is`
    the next row, whose soft value V is corrected by V-trace over the n - 1 steps after it (Espeholt et al. 2018).

    y_t = r_t + discount_t * (V_{t+1} + D_{t+1}),   D: sum of rho-weighted TD errors,
    with rewards r - alpha log pi(a|s) from the second step on: on policy y is the soft n-step return
    """

    def __init__(self, cfg: CorrectionConfig, observations: Preprocessor, actions: SoftActions) -> None:
        self.cfg, self.observations = cfg, observations
        self.corrects = cfg.needs_steps
        if cfg.refresh_probabilities and not (cfg.use_n_step_is and cfg.use_replay_buffer):
            raise ConfigError(
                "refresh_probabilities replaces stored log-probabilities, but without use_n_step_is and a replay "
                "buffer none are stored; leave it out, or set use_n_step_is"
            )
        if actions.greedy and self.corrects:
            raise ConfigError(
                "V-trace compares two random policies, but with discrete_dqn_like choices are greedy; leave "
                "discrete_dqn_like or use_n_step_is out"
            )

    @property
    def columns(self) -> dict[str, Array]:
        """Columns that replay stores with every row."""
        return {LOG_PROB: Array(())} if self.corrects else {}

    def rows(self, batch: Batch) -> Rows:
        """The rows whose value is needed: [T, B], with correction [T+n-1, B]."""
        return batch.after if self.corrects else batch.next

    def shape(self, batch: Batch) -> tuple[int, int]:
        """Their shape."""
        return (batch.reset.shape[0] - 1, batch.shape[1]) if self.corrects else batch.shape

    def corrected(
        self, batch: Batch, soft: Tensor, value: Tensor, policy: Any, temperature: Temperature
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rewards, discounts [T, B] and what to bootstrap from [T, B, ...], where `soft` has the last of `rows`.

        `value` [T+n-1, B] is the soft value of these rows, the mean of `soft`; `policy` is that of the same rows.
        """
        if not self.corrects:
            return batch.reward, batch.discount, soft
        cfg, count, steps = self.cfg, batch.shape[0], steps_of(batch)
        reward, discount, keep = steps["reward"], steps["discount"], steps["keep"]
        if STEPS in batch.extras:  # else they are the batch's own, which is scaled
            reward = self.observations.scaled(reward)
        shift = torch.zeros_like(value)
        if len(value) > 1:
            taken = tree.map(lambda part: torch.cat((part[1:], torch.zeros_like(part[:1]))), steps["action"])
            log_prob = policy.log_prob_by_kind(taken)  # of rows 1.., the last without an action
            cost = temperature.cost(log_prob)[:-1]
            whole = log_prob if log_prob.dim() == value.dim() else log_prob.sum(0)
            ratio = importance(whole[:-1], steps[LOG_PROB][1:])
            given = (reward[1:] - cost, discount[1:], value, keep[1:], ratio)
            shift = n_step_vtrace(*given, cfg.n_step - 1, cfg.v_rho, cfg.v_c, cfg.v_lambda) - value
        shift = shift[:count].masked_fill(keep[:count] == 0, 0.0)
        return reward[:count], discount[:count], soft[:count] + tree.expand(shift, soft)

    def refreshed(self, actor: Any, batch: Batch) -> dict[str, Tensor]:
        """With `refresh_probabilities`, log pi(a|s) of the current policy for all steps of a sample [T+n-1, B]."""
        if not self.cfg.refreshes_log_prob:
            return {}
        return {LOG_PROB: actor(batch.before).log_prob(steps_of(batch)["action"])}


def steps_of(batch: Batch) -> dict[str, Tree]:
    """Columns of every single step of a batch; a rollout's steps are its rows."""
    if STEPS in batch.extras:
        return batch.extras[STEPS]
    own = {"action": batch.action, "reward": batch.reward, "discount": batch.discount, "keep": batch.keep}
    return {**own, LOG_PROB: batch.extras[LOG_PROB]}


def importance(log_prob: Tensor, behaviour: Tensor) -> Tensor:
    """pi(a) / mu(a), finite for every pair of log-probabilities."""
    return (log_prob - behaviour).clamp(-30, 30).exp()
