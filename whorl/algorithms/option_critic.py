"""Option-critic (Bacon et al. 2017, arXiv:1609.05140) whose options are soft actor-critics.

Option w has a policy pi_w(a|s) and ends in state s with probability beta_w(s); then another is chosen, epsilon-greedily
by the option values Q_O(s, w). Only the option that acted learns from a transition, so that options can specialise.
value of options:  V_O(s) = (1 - epsilon) max_w Q_O(s, w) + epsilon mean_w Q_O(s, w)
value on arrival:  U(w, s') = (1 - beta_w(s')) Q'_O(s', w) + beta_w(s') V'_O(s')
critics:           minimise sum_i E[(Q_i(s, w, a) - r - discount * U(w, s'))^2]
option values:     minimise E[(Q_O(s, w) - (min_i Q'_i(s, w, b) - alpha_w log pi_w(b|s)))^2],  b ~ pi_w(.|s)
options:           minimise E[alpha_w log pi_w(b|s) - min_i Q_i(s, w, b)]
temperatures:      minimise -log(alpha_w) * E[log pi_w(b|s) + target_entropy]
termination:       minimise E[beta_w(s') (Q_O(s', w) - V_O(s') + cost)], with values and cost as constants
For discrete actions the expectations over b are exact.

With memory and `option_dilation` k, the memory of Q_O is dilated: h_t = cell(s_t, h_{t-k}) (Vezhnevets et al. 2017,
arXiv:1703.01161), so that the choice of options remembers k times as long as the options do.

Differs from the paper: it learns from replay, with target networks; policies are soft, with a temperature each.
"""

from dataclasses import dataclass
from math import log
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from whorl.agents.agent import Acted, Agent, Context, Updated, pure
from whorl.agents.families import ActorCriticConfig
from whorl.agents.protocols import MemoryNet
from whorl.agents.steps import replay_step
from whorl.agents.targets import TargetNetworks
from whorl.core import collectives
from whorl.core.errors import ConfigError
from whorl.core.spec import MASK_KEY, Array, Discrete, Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.explore.acting import sample
from whorl.explore.noise import random_action
from whorl.nets.actor import Actor, bounded
from whorl.nets.layers import orthogonal_
from whorl.nets.memory import CELLS
from whorl.nets.preprocessor import Preprocessor
from whorl.nets.q_ensemble import QEnsemble
from whorl.nets.temperature import EntropyConfig, Temperature, without_weight_decay
from whorl.ops.distributions import Categorical, TanhNormal
from whorl.settings.schema import Fraction, LearningRate, NonNegative, PositiveCount, Probability, Range

OPTION = "option"
"""the option that acted: in the memory, and a column of replay"""
SHOWN = (8, 200)
"""environments and steps in the picture of options over time"""


@dataclass(frozen=True)
class OptionCriticConfig(EntropyConfig, ActorCriticConfig):
    unused = ("n_step", "actor_head")
    num_options: Annotated[int, Range(1, 1000)] = 4
    """number of options"""
    option_epsilon: Probability = 0.1
    """probability of a random option where one is chosen"""
    deliberation_cost: NonNegative = 0.01
    """advantage that another option must have before the current one is ended (Harb et al. 2018)"""
    option_dilation: Annotated[int, Range(1, 1000)] = 1
    """with memory: dilation k of the recurrent option-value network, which has k hidden states, each updated at every
    k-th step (dilated LSTM, FeUdal networks); 1: none"""
    termination_lr: LearningRate = 3e-4
    """learning rate of the terminations"""
    entropy_ratio: Fraction = 0.5
    """discrete actions: target entropy as a fraction of the uniform policy's entropy"""
    ensemble_q_num: Annotated[int, Range(1, 1000)] = 2
    """number of critics"""
    policy_delay: PositiveCount = 1
    """critic updates per update of options and terminations"""


class OptionCritic(Agent):
    """Option-critic: policies that act until they terminate, and a policy over them."""

    Config = OptionCriticConfig
    cfg: OptionCriticConfig
    acts_with = ("observations", "options", "option_values", "termination")
    shares_unroll = ("options", "option_values", "termination", "critic")
    q_of_actions = False
    history: Tensor

    def __init__(self, spec: Spec, cfg: OptionCriticConfig) -> None:
        super().__init__(spec, cfg)
        _check_dilation(cfg)
        self.discrete, count = isinstance(spec.action, Discrete), cfg.num_options
        self.observations = Preprocessor(spec, cfg)
        if self.discrete:
            choices = spec.action.n
            self.outputs = choices
            self.critic = QEnsemble("critic", spec, cfg, cfg.ensemble_q_num, (count, choices))
            auto = cfg.target_entropy == "auto"
            self.target_entropy = cfg.entropy_ratio * log(choices) if auto else float(cfg.target_entropy)
            if cfg.tune_alpha and not 0 <= self.target_entropy <= log(choices):
                raise ConfigError(
                    f"target_entropy is {self.target_entropy:g}, but the entropy of {choices} actions lies between "
                    f"0 and {log(choices):.3g}; use a number in between, or entropy_ratio"
                )
        else:
            size = bounded(spec, "option_critic", "continuous or discrete")
            self.outputs = 2 * size
            self.critic = QEnsemble("critic", spec, cfg, cfg.ensemble_q_num, (count,), actions=size)
            self.target_entropy = cfg.target(size)
        reads = self.critic.backbone
        self.options = Actor("options", spec, cfg, self._heads, reads)
        self.option_values = Actor(
            "option_values", spec, cfg, lambda width: Outputs(width, count, 1.0), reads, cfg.option_dilation
        )
        self.termination = Actor("termination", spec, cfg, lambda width: Outputs(width, count, 0.01), reads)
        self.temperature = Temperature((cfg.alpha,) * count, cfg.tune_alpha)
        self.targets = TargetNetworks(cfg)
        self.target_critic = self.targets.add(self.critic)
        target = self.option_values.target(self.target_critic.backbone)
        self.target_values = self.targets.add(self.option_values, target)
        options = self.optimizer_options()
        self.add_optimizer(
            "critic", [self.critic, self.option_values], cfg.optimizer, cfg.critic_lr, **options
        )
        self.add_optimizer("actor", self.options, cfg.optimizer, cfg.actor_lr, **options)
        self.add_optimizer("termination", self.termination, cfg.optimizer, cfg.termination_lr, **options)
        if cfg.tune_alpha:
            part = without_weight_decay(cfg.optimizer)
            self.add_optimizer("alpha", self.temperature, part, cfg.alpha_lr, **self.optimizer_options(0.0))
        shown = min(SHOWN[0], spec.num_envs), SHOWN[1]
        self.register_buffer("history", torch.full(shown, -1, dtype=torch.int64), persistent=False)

    def _heads(self, width: int) -> nn.Module:
        return OptionHeads(width, self.cfg.num_options, self.outputs, self.discrete)

    # Acting

    def networks(self) -> list[MemoryNet]:
        return [self.options, self.option_values, self.termination, self.critic]

    def initial_memory(self, num_envs: int) -> Tree:
        index = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        return {**super().initial_memory(num_envs), OPTION: {"index": index}}

    def stored(self, num_envs: int = 1) -> Tree:
        return {key: value for key, value in super().stored(num_envs).items() if key != OPTION}

    def columns(self) -> dict[str, Array]:
        return {**super().columns(), OPTION: Array((), "int64")}

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        """An action of the option under way, or of the next one where it ends."""
        seen, reset, after = self.observations(obs), context.reset, dict(memory)
        outputs = []
        for net in (self.options, self.option_values, self.termination):
            noise = {} if context.greedy else net.draw(context.generator)
            found, state = net.step(seen, memory, reset, noise)
            outputs.append(found)
            after |= state
        after |= self.critic.advance(seen, memory, reset)
        policies, values, logits = outputs
        option = self.next_option(values, logits.sigmoid(), memory[OPTION]["index"], context)
        after[OPTION] = {"index": option}
        if context.random:
            action = random_action(self.spec, obs, context.generator)
        else:
            action = sample(self.policy(policies, option), context)
        return Acted(action, after, {OPTION: option})

    def next_option(self, values: Tensor, beta: Tensor, held: Tensor, context: Context) -> Tensor:
        """The options [B] that act, by option values and terminations [B, K]; greedy ones end if that is likely."""
        best, ends = values.argmax(-1), pick(beta, held)
        if context.greedy:
            return torch.where(context.reset | (ends > 0.5), best, held)
        chance = torch.rand(3, held.shape[0], generator=context.generator, device=held.device)
        other = (chance[2] * self.cfg.num_options).long().clamp(max=self.cfg.num_options - 1)
        choice = torch.where(chance[1] < self.cfg.option_epsilon, other, best)
        return torch.where(context.reset | (chance[0] < ends), choice, held)

    def policy(self, outputs: Tensor, option: Tensor) -> Any:
        """The policies of options [...], from outputs of all [..., K, n]."""
        at = option[..., None, None].expand(*option.shape, 1, outputs.shape[-1])
        own = outputs.gather(-2, at).squeeze(-2)
        if self.discrete:
            return Categorical(own)
        mean, log_std = own.chunk(2, -1)
        return TanhNormal(mean, log_std.clamp(*self.cfg.log_std_range))

    # Learning

    def value(self, rows: Rows) -> Tensor:
        """V_O(s) of rows [T, B]."""
        return self.over_options(self.option_values(rows))

    def over_options(self, values: Tensor) -> Tensor:
        """(1 - epsilon) max_w Q_O(s, w) + epsilon mean_w Q_O(s, w): [..., K] -> [...]."""
        epsilon = self.cfg.option_epsilon
        return (1 - epsilon) * values.amax(-1) + epsilon * values.mean(-1)

    def update(self, batch: Batch) -> Updated:
        train_actor = (self.updates + 1) % self.cfg.policy_delay == 0
        return replay_step(self, batch, train_actor=train_actor, move_targets=self.targets.due(self.updates))

    def draw(self, batch: Batch) -> Tree:
        """Noise of actions, noisy layers and dropout."""
        rows, critic, actor = batch.mask.numel(), self.random("critic"), self.random("actor")
        found: dict[str, Any] = {
            "options": self.options.draw(actor),
            "next_options": self.options.draw(critic),
            "values": self.option_values.draw(critic),
            "target_values": self.target_values.draw(critic),
            "judged": self.option_values.draw(actor),
            "termination": self.termination.draw(actor),
            "next_termination": self.termination.draw(critic),
            "critic": self.critic.draw(rows, critic),
            "target_critic": self.target_critic.draw(rows, critic),
            "actor_critic": self.critic.draw(rows, actor),
        }
        if not self.discrete:
            for name, generator in (("action", actor), ("value_action", critic)):
                found[name] = torch.randn(batch.action.shape, generator=generator, device=self.device)
        return found

    @pure
    def critic_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """sum_i E[(Q_i(s, w, a) - y)^2] + E[(Q_O(s, w) - V_w(s))^2]; the TD errors [T, B]; the mean of Q; metrics"""
        option = batch.extras[OPTION]  # [T, B]
        with torch.no_grad():
            target = batch.reward + batch.discount * self.arrival(batch.next, option, noise)
            policy = self.policy(self.options(batch.now, noise["next_options"]), option)
            q, log_prob = self.judge(
                self.target_critic,
                batch.now,
                policy,
                option,
                noise.get("value_action"),
                noise["target_critic"],
            )
            soft = q - self.temperature()[option] * log_prob
        error = self.taken(batch, option, noise) - target  # [critics, T, B]
        missed = pick(self.option_values(batch.now, noise["values"]), option) - soft
        loss = ((error.square().sum(0) + missed.square()) * batch.weight).mean()
        mean = ((error + target).detach() * batch.share).mean()
        if self.cfg.q_regularization:
            values = (error + target).square().mean(0)
            loss = loss + self.cfg.q_regularization * (values * batch.weight).mean()
        return loss, error.detach().abs().mean(0), mean, self.option_metrics(batch, option)

    def arrival(self, rows: Rows, option: Tensor, noise: Tree) -> Tensor:
        """U(w, s') = (1 - beta_w(s')) Q'_O(s', w) + beta_w(s') V'_O(s') of rows and options [T, B]."""
        values = self.target_values(rows, noise["target_values"])  # [T, B, K]
        beta = pick(self.termination(rows, noise["next_termination"]).sigmoid(), option)
        return (1 - beta) * pick(values, option) + beta * self.over_options(values)

    def taken(self, batch: Batch, option: Tensor, noise: Tree) -> Tensor:
        """Q_i(s, w, a) of the actions of a batch: [critics, T, B]."""
        if not self.discrete:
            return pick(self.critic(batch.now, batch.action, noise["critic"]), option)
        values = pick_rows(self.critic(batch.now, noise=noise["critic"]), option)  # [critics, T, B, n]
        return pick(values, batch.action)

    def judge(
        self, critic: Any, rows: Rows, policy: Any, option: Tensor, noise: Any, dropout: Tree
    ) -> tuple[Tensor, Tensor]:
        """E_b[min_i Q_i(s, w, b)] and E_b[log pi_w(b|s)] [T, B]: exact if discrete, else by the sample of `noise`."""
        if self.discrete:
            values = pick_rows(critic(rows, noise=dropout), option).amin(0)
            probs = policy.probs
            return (probs * values).sum(-1), (probs * policy.log_probs).sum(-1)
        action, log_prob = policy.sample_with_log_prob(noise)
        return pick(critic(rows, action, dropout), option).amin(0), log_prob

    def improve_actor(self, batch: Batch, noise: Tree) -> dict[str, Tensor]:
        """Steps of the options, their temperatures and their terminations."""
        loss, log_prob = self.actor_loss(batch, noise)
        self.minimize("actor", loss, self.cfg.max_grad_norm)
        if self.cfg.tune_alpha:
            short = (log_prob + self.wanted_entropy(batch)) * batch.share  # [T, B]
            each = (self.one_hot(batch.extras[OPTION]) * short.unsqueeze(-1)).mean((0, 1))  # [K]
            self.minimize("alpha", -(self.temperature.log_alpha * each).sum())
        ending, beta = self.termination_loss(batch, noise)
        self.minimize("termination", ending, self.cfg.max_grad_norm)
        return {
            "loss/actor": loss.detach(),
            "loss/termination": ending.detach(),
            "policy/entropy": -(log_prob * batch.share).mean(),
            "policy/alpha": self.temperature().detach().mean(),
            "option/termination": beta,
        }

    def wanted_entropy(self, batch: Batch) -> Tensor | float:
        """The target entropy; with action masks a fraction of what each row allows at most [T, B]."""
        if not (self.discrete and self.options.masked and self.cfg.target_entropy == "auto"):
            return self.target_entropy
        allowed = (batch.now.selected[MASK_KEY] > 0).sum(-1).clamp(min=1)
        return self.cfg.entropy_ratio * allowed.log()

    @pure
    def actor_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor]:
        """E[alpha_w log pi_w(b|s) - min_i Q_i(s, w, b)]; log pi_w(b|s) [T, B]"""
        option = batch.extras[OPTION]
        policy = self.policy(self.options(batch.now, noise["options"]), option)
        q, log_prob = self.judge(
            self.critic, batch.now, policy, option, noise.get("action"), noise["actor_critic"]
        )
        loss = ((self.temperature()[option].detach() * log_prob - q) * batch.share).mean()
        return loss, log_prob.detach()

    @pure
    def termination_loss(self, batch: Batch, noise: Tree) -> tuple[Tensor, Tensor]:
        """E[beta_w(s') (Q_O(s', w) - V_O(s') + cost)] over s' that are not terminal; the mean of beta"""
        option = batch.extras[OPTION]
        beta = pick(self.termination(batch.next, noise["termination"]).sigmoid(), option)
        with torch.no_grad():
            values = self.option_values(batch.next, noise["judged"])
            advantage = pick(values, option) - self.over_options(values)
        counts = batch.share * (batch.discount > 0)
        loss = (beta * (advantage + self.cfg.deliberation_cost) * counts).mean()
        return loss, (beta.detach() * batch.share).mean()

    def option_metrics(self, batch: Batch, option: Tensor) -> dict[str, Tensor]:
        """The number of options in use: exp of the entropy of their shares in the batch."""
        share = collectives.mean((self.one_hot(option) * batch.share.unsqueeze(-1)).mean((0, 1)))
        return {"option/in_use": torch.special.entr(share).sum().exp()}

    def one_hot(self, option: Tensor) -> Tensor:
        """Options [...] as [..., K]."""
        return (option.unsqueeze(-1) == torch.arange(self.cfg.num_options, device=option.device)).float()

    # Pictures

    def observe(self, rollout: Batch) -> None:
        super().observe(rollout)
        envs, length = self.history.shape
        seen = torch.where(rollout.mask > 0, rollout.extras[OPTION], -1)[-length:, :envs].T.to(self.device)
        steps = seen.shape[1]
        self.history.copy_(self.history.roll(-steps, 1))
        self.history[:, length - steps :].copy_(seen)

    def pictures(self) -> dict[str, Tensor]:
        """Which option acted in the last steps: a line for each environment, a colour for each option."""
        count = self.cfg.num_options
        angle = torch.arange(count, device=self.device).unsqueeze(1) / count + torch.tensor(
            [0.0, 1 / 3, 2 / 3], device=self.device
        )
        colours = (127.5 + 127.5 * (2 * torch.pi * angle).cos()).to(torch.uint8)  # [K, 3]
        palette = torch.cat((torch.zeros_like(colours[:1]), colours))  # black: no step
        lines = palette[self.history + 1].repeat_interleave(8, 0).repeat_interleave(3, 1)
        return {**super().pictures(), "option/over_time": lines}


class Outputs(nn.Module):
    """One number per option: a value, or the logit of a termination."""

    def __init__(self, inputs: int, options: int, gain: float) -> None:
        super().__init__()
        self.last = orthogonal_(nn.Linear(inputs, options), gain)

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        return self.last(features)


class OptionHeads(nn.Module):
    """Parameters of the policy of every option [..., K, n]; logits of masked actions are far below all others."""

    def __init__(self, inputs: int, options: int, outputs: int, discrete: bool) -> None:
        super().__init__()
        self.shape, self.discrete = (options, outputs), discrete
        self.last = orthogonal_(nn.Linear(inputs, options * outputs), 0.01)

    def forward(self, features: Tensor, mask: Tensor | None) -> Tensor:
        found = self.last(features).unflatten(-1, self.shape)
        return found if mask is None else torch.where(mask.unsqueeze(-2) > 0, found, -1e9)


def _check_dilation(cfg: OptionCriticConfig) -> None:
    if cfg.option_dilation == 1:
        return
    if cfg.memory not in CELLS:
        raise ConfigError(
            f"option_dilation is {cfg.option_dilation}, but memory is {cfg.memory}; choose lstm, gru or rnn, or leave "
            "option_dilation out"
        )
    if cfg.share_memory:
        raise ConfigError(
            f"option_dilation is {cfg.option_dilation}, but with share_memory option values have no memory of their "
            "own; leave one of them out"
        )


def pick(values: Tensor, index: Tensor) -> Tensor:
    """Entries `index` [...] of the last axis of values [*, ..., K]: [*, ...]."""
    return values.gather(-1, index.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def pick_rows(values: Tensor, index: Tensor) -> Tensor:
    """Rows `index` [...] of the second last axis of values [*, ..., K, n]: [*, ..., n]."""
    at = index.expand(values.shape[:-2])[..., None, None]
    return values.gather(-2, at.expand(*values.shape[:-2], 1, values.shape[-1])).squeeze(-2)
