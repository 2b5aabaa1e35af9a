"""The order of an off-policy update, shared by all algorithms with target networks."""

from typing import Any

from torch import Tensor

from whorl.agents.agent import Updated, captured
from whorl.agents.optimizers import ByHand
from whorl.agents.protocols import ReplayAgent
from whorl.data.batch import Batch


@captured
def replay_step(
    agent: ReplayAgent,
    batch: Batch,
    *,
    move_targets: bool,
    train_actor: bool = False,
    tune_weight: bool = False,
) -> Updated:
    """One step along `critic_loss` (or its equal without autograd, `by_hand`), one of a weight in that loss if
    `tune_weight`, one of the actor if `train_actor` (`improve_actor`), and of the target networks."""
    batch = agent.prepare_batch(batch)
    noise = agent.draw(batch)
    own: Any = agent
    loss, error, q, *more = own.by_hand.get("critic", agent.critic_loss)(batch, noise)
    agent.minimize("critic", loss, agent.cfg.max_grad_norm)
    value: Any = loss.loss if isinstance(loss, ByHand) else loss.detach()
    metrics: dict[str, Tensor] = {"loss/critic": value, "q/mean": q}
    for further in more:
        metrics |= further
    if tune_weight:
        metrics |= own.tune_weight(metrics)
    if train_actor:
        metrics |= own.improve_actor(batch, noise)
    agent.targets.update_(move_targets)
    return Updated(metrics, priority=error)
