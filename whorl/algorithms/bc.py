"""Behaviour cloning: maximum likelihood of the actions in a dataset (Pomerleau 1991; Bain and Sammut 1999).

minimise -E[log pi(a|s)]
Continuous actions are Gaussian, with one standard deviation per dimension for all states; discrete choices are
categorical; of several parts of an action the log-probabilities are summed. With a memory, E is over sequences.
"""

from dataclasses import dataclass

from torch import Tensor

from whorl.agents.agent import Acted, Agent, Context, Updated, captured, pure
from whorl.agents.families import OffPolicyConfig
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.data.batch import Batch
from whorl.explore.acting import act_by_policy
from whorl.nets.policy import NetworkConfig, Policy
from whorl.nets.preprocessor import Preprocessor
from whorl.settings.schema import Activation, HiddenSizes, LearningRate, LogStdRange


@dataclass(frozen=True)
class BCConfig(NetworkConfig, OffPolicyConfig):
    unused = (
        *("critic_hidden_sizes", "critic_network", "critic_head", "tau", "target_update_interval"),
        *("target_memory", "gamma", "n_step", "random_steps", "reward_scale", "prioritized"),
        *("priority_alpha", "priority_beta", "priority_beta_steps", "priority_clip"),
        *("priority_on_add", "priority_eta"),
    )
    actor_lr: LearningRate = 3e-4
    """learning rate"""
    actor_hidden_sizes: HiddenSizes = (256, 256)
    """hidden layer sizes of the policy"""
    activation: Activation = "relu"
    """activation after each hidden layer"""
    log_std_range: LogStdRange = (-5.0, 2.0)
    """bounds of the log standard deviation"""


class BC(Agent):
    """Behaviour cloning."""

    Config = BCConfig
    cfg: BCConfig
    acts_with = ("observations", "actor")

    def __init__(self, spec: Spec, cfg: BCConfig) -> None:
        super().__init__(spec, cfg)
        self.observations, self.actor = Preprocessor(spec, cfg), Policy("actor", spec, cfg)
        self.add_optimizers(actor=cfg.actor_lr)

    def act(self, obs: Tree, memory: Tree, context: Context) -> Acted:
        return act_by_policy(self, obs, memory, context, log_prob=False)

    @captured
    def update(self, batch: Batch) -> Updated:
        self.anneal()
        batch = self.actor.prepare(self.observations.learn(batch, self.random("actor")))
        loss = self.loss(batch)
        self.minimize("actor", loss, self.cfg.max_grad_norm)
        return Updated({"loss/actor": loss.detach()})

    @pure
    def loss(self, batch: Batch) -> Tensor:
        """-E[log pi(a|s)]"""
        return -(self.actor(batch.now).log_prob(batch.action) * batch.share).mean()
