"""Which choice to take, given the value of each: the best one, or something new."""

import torch
from torch import Tensor, nn

from whorl.agents.agent import Context
from whorl.core.spec import MASK_KEY, Spec
from whorl.core.tree import Tree
from whorl.ops.values import best
from whorl.settings.families import ChoiceConfig


class Exploration(nn.Module):
    """Epsilon-greedy or a softmax over values, by schedules over the budget; every environment may have its own epsilon."""

    rung: Tensor

    def __init__(self, spec: Spec, cfg: ChoiceConfig) -> None:
        super().__init__()
        self.cfg, self.masked = cfg, spec.masked
        # Not saved: weights may go on in a run with other environments.
        rung = 1 + cfg.epsilon_ladder * torch.linspace(0, 1, spec.num_envs)
        self.register_buffer("rung", rung, persistent=False)

    def forward(self, q: Tensor, obs: Tree, context: Context, progress: Tensor) -> Tensor:
        """Choices [B] for values [B, choices]."""
        allowed = obs[MASK_KEY] > 0 if self.masked else None
        kind = self.cfg.exploration
        if context.greedy:
            return (
                self._mixed(q, allowed, self.cfg.eval_epsilon, context)
                if self.cfg.eval_epsilon
                else best(q, allowed)
            )
        if kind == "epsilon":
            return self._mixed(q, allowed, self.epsilon(context.env_index, progress), context)
        return best(q, allowed) if kind == "none" else self._softmax(q, allowed, progress, context)

    def epsilon(self, env_index: Tensor | None, progress: Tensor) -> Tensor:
        """Probability of a random choice: [B], or [] where environments are not known."""
        cfg = self.cfg
        now = self._falling(cfg.exploration_initial_eps, cfg.exploration_final_eps, progress)
        if not cfg.epsilon_ladder:
            return now
        return now ** (self.rung.mean() if env_index is None else self.rung[env_index])

    def _falling(self, first: float, last: float, progress: Tensor) -> Tensor:
        """From `first` to `last`, linearly over `exploration_fraction` of the budget."""
        share = self.cfg.exploration_fraction
        done = (progress / share).clamp(max=1) if share else torch.ones_like(progress)
        return first + (last - first) * done

    def _mixed(self, q: Tensor, allowed: Tensor | None, epsilon: Tensor | float, context: Context) -> Tensor:
        drawn = torch.rand(q.shape[0], q.shape[1] + 1, generator=context.generator, device=q.device)
        return torch.where(drawn[:, 0] < epsilon, best(drawn[:, 1:], allowed), best(q, allowed))

    def _softmax(self, q: Tensor, allowed: Tensor | None, progress: Tensor, context: Context) -> Tensor:
        """A draw from softmax(q / temperature), by Gumbel's trick: no sum that could overflow."""
        temperature = self._falling(self.cfg.temperature, self.cfg.temperature_final, progress)
        drawn = torch.rand(q.shape, generator=context.generator, device=q.device)
        gumbel = -(-drawn.clamp(min=1e-20).log()).log()
        return best(q / temperature + gumbel, allowed)
