"""Losses of PPO, A2C and DQN without autograd, where the networks are small MLPs on a CPU.

There autograd's operations cost more than their arithmetic. The formulas are in `whorl.ops.by_hand`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whorl.agents.optimizers import ByHand
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.nets.by_hand import Dense, dense, dense_q
from whorl.nets.losses import huber
from whorl.nets.policy import CategoricalHead, GaussianHead
from whorl.ops.by_hand import PolicyRows, categorical_surrogate, gaussian_surrogate, huber_loss, squared_loss
from whorl.ops.losses import masked_normalize, squared


class ActorByHand:
    """Loss and gradients of the actor: -E[min(ratio A, clip(ratio) A)] - ent_coef * H, or without a clip
    -E[log pi(a|s) A] - ent_coef * H."""

    def __init__(
        self, head: Any, net: Dense, gradients: dict[int, Tensor], cfg: Any, clip: float | None
    ) -> None:
        self._head, self._clip, self._ent_coef = head, clip, cfg.ent_coef
        self._normalizes = cfg.normalize_advantage == "minibatch"
        self._net, self._gradients = net, ByHand(tuple(gradients.values()))
        self._of_std = gradients[id(head.log_std)] if isinstance(head, GaussianHead) else None

    def __call__(
        self, rows: Rows, data: dict[str, Tensor], measure: bool
    ) -> tuple[ByHand, Tensor, Tensor, Tensor]:
        """Gradients and loss, log ratio and entropy of rows [R, N]."""
        loss, log_ratio, entropy = self._pass(rows, data, measure)
        # Unlike tensors of inference mode, their copies may be changed in place and read by autograd, as a subclass
        # of the algorithm may do.
        return self._gradients, loss.clone(), log_ratio.clone(), entropy.clone()

    @torch.inference_mode()
    def _pass(self, rows: Rows, data: dict[str, Tensor], measure: bool) -> tuple[Tensor, Tensor, Tensor]:
        outputs = self._net.forward(rows.selected.flatten(0, 1))
        read = PolicyRows(*(data[name].flatten(0, 1) for name in PolicyRows._fields if name in data))
        if self._normalizes:
            read = read._replace(advantage=masked_normalize(read.advantage, read.weight))
        clip, ent_coef = self._clip, self._ent_coef
        if self._of_std is None:
            found = categorical_surrogate(outputs, read, clip, ent_coef, measure)
        else:
            log_std = self._head.log_std.clamp(*self._head.bound)
            found = gaussian_surrogate(outputs, log_std, read, clip, ent_coef, measure)
            assert found.slope_of_log_std is not None
            torch.mul(found.slope_of_log_std, log_std == self._head.log_std, out=self._of_std)
        self._net.backward(found.slope)
        shape = data["weight"].shape
        return found.loss, found.log_ratio.view(shape), found.entropy.view(shape)


class CriticByHand:
    """Loss and gradients of the critic: E[(V(s) - target)^2] / 2."""

    def __init__(self, net: Dense, gradients: dict[int, Tensor]) -> None:
        self._net, self._gradients = net, ByHand(tuple(gradients.values()))

    def __call__(self, rows: Rows, data: dict[str, Tensor]) -> tuple[ByHand, Tensor]:
        """Gradients and loss."""
        return self._gradients, self._pass(rows, data).clone()  # as in `ActorByHand`

    @torch.inference_mode()
    def _pass(self, rows: Rows, data: dict[str, Tensor]) -> Tensor:
        value = self._net.forward(rows.selected.flatten(0, 1)).flatten()
        loss, slope = squared_loss(value, data["target"].flatten(), data["value_weight"].flatten())
        self._net.backward(slope.unsqueeze(-1))
        return loss

    @torch.no_grad()
    def values(self, rows: Rows) -> Tensor:
        """V of rows [R, N]."""
        observed = rows.selected
        return self._net.forward(observed.flatten(0, 1)).view(observed.shape[:2])

    @torch.no_grad()
    def loss(self, value: Tensor, target: Tensor, weight: Tensor) -> tuple[ByHand, Tensor]:
        """Gradients and loss of the last `values`, whose rows after those of the target do not count."""
        counted = value[: len(target)].flatten()
        loss, slope = squared_loss(counted, target.flatten(), weight.flatten())
        slope = F.pad(slope, (0, value.numel() - len(counted)))
        self._net.backward(slope.unsqueeze(-1))
        return self._gradients, loss


def losses_by_hand(
    agent: Any, cls: Any, clip: float | None = None, clip_value: bool = False, critic_in: Sequence[str] = ()
) -> dict[str, Any]:
    """Losses by optimizer, as far as `agent` has those of `cls`, and networks and losses that are written out.

    Args:
        critic_in: further methods of `cls` that an agent must not override for the critic's loss by hand, because they
            compute the values.
        clip: of the ratio of probabilities; None: the loss is the plain policy gradient.
        clip_value: the critic clips its predictions, which is not written out.
    """
    cfg = agent.cfg
    found: dict[str, Any] = {}

    if cfg.shared_trunk:
        return {}
    actor, gradients = agent.actor, agent.packed_gradients("actor")
    head = actor.head
    known = isinstance(head, GaussianHead) or (isinstance(head, CategoricalHead) and head.single)
    if gradients and known and not actor.masked and _has(agent, cls, "actor_pass", "actor_loss"):
        net = dense(actor.backbone, head.last, gradients)
        if net is not None:
            found["actor"] = ActorByHand(head, net, gradients, cfg, clip)
    critic, gradients = agent.critic, agent.packed_gradients("critic")
    plain = _known_loss(agent.value_loss) is squared and not clip_value and not critic.separate
    if gradients and plain and _has(agent, cls, "critic_pass", "critic_loss", *critic_in):
        net = dense(critic.backbone, critic.head, gradients)
        if net is not None:
            found["critic"] = CriticByHand(net, gradients)
    return found


class QByHand:
    """Loss and gradients of a Q network: E[loss(Q(s, a) - y)], y by `bellman_target` of the agent."""

    def __init__(self, agent: Any, online: Dense, target: Dense, gradients: dict[int, Tensor]) -> None:
        self._agent, self._online, self._target = agent, online, target
        self._gradients = tuple(gradients.values())
        options = agent.loss.keywords
        self._delta = options.get("delta", 1.0) if agent.loss.func is huber else None

    @torch.no_grad()
    def __call__(self, batch: Batch, noise: Tree) -> tuple[ByHand, Tensor, Tensor]:
        """What `critic_loss` returns."""
        shape, after = batch.shape, batch.next.selected.flatten(0, 1)
        next_q = self._target.forward(after)
        select = self._online.forward(after) if self._agent.cfg.double else next_q
        target = self._agent.bellman_target(batch, next_q.unflatten(0, shape), select.unflatten(0, shape))
        outputs = self._online.forward(batch.now.selected.flatten(0, 1))  # [N, choices]
        action = batch.action.reshape(-1, 1)
        q, y, weight = outputs.gather(-1, action).squeeze(-1), target.flatten(), batch.weight.flatten()
        if self._delta is None:
            loss, slope = squared_loss(q, y, weight)
        else:
            loss, slope = huber_loss(q, y, weight, self._delta)
        self._online.backward(torch.zeros_like(outputs).scatter_(-1, action, slope.unsqueeze(-1)))
        return ByHand(self._gradients, loss), (q - y).abs_().view(shape), q.mean()


def q_loss_by_hand(agent: Any, cls: Any) -> dict[str, Any]:
    """The critic's loss by optimizer, if `agent` has that of `cls` and its network and loss are written out."""
    gradients, known = agent.packed_gradients("critic"), _known_loss(agent.loss) and not agent.cfg.munchausen
    if not gradients or not known or not _has(agent, cls, "critic_loss", "target", "bellman_target"):
        return {}
    online, target = dense_q(agent.critic, gradients), dense_q(agent.target_critic, None)
    return {} if online is None or target is None else {"critic": QByHand(agent, online, target, gradients)}


def _has(agent: Any, cls: Any, *names: str) -> bool:
    """Whether these methods of `agent` are those of `cls`, replaced neither by a subclass nor on the instance."""
    own = vars(agent).keys()
    return all(name not in own and getattr(type(agent), name) is getattr(cls, name) for name in names)


def _known_loss(loss: Any) -> Any:
    """The function behind `value_loss`'s result if its derivative is written out, else None."""
    function = loss.func if isinstance(loss, partial) else None
    return function if function in (squared, huber) else None
