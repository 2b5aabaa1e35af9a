"""Ensembles of Q networks, evaluated together by batched matrix products."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whorl.core.errors import ConfigError, nearest
from whorl.core.registry import Part
from whorl.core.spec import Spec, split_observation
from whorl.core.tree import Tree
from whorl.data.batch import Batch, Rows
from whorl.nets.actor import ActorCriticNetworkConfig
from whorl.nets.backbone import Backbone, BackboneNet, BackboneSettings, torso
from whorl.nets.layers import activation_of, last_of
from whorl.nets.memory import memory_settings
from whorl.nets.preprocessor import reward_limit
from whorl.ops.products import batched_product
from whorl.settings.schema import coerce


class QEnsemble(BackboneNet):
    """Rows, and actions [T, B, columns] -> [members, T, B, *outputs], or with several in a row [T, B, N, columns] ->
    [members, T, B, N, *outputs].

    All members share one encoder, which their loss trains. Each has its own memory, or with `share_memory` all share
    one.

    Args:
        outputs: shape of one member's output per row: () for a value, (n,) for one per discrete action or quantile.
        actions: columns of the actions that are evaluated; 0 if each discrete action has its own output.
        join: number of hidden layers before the action is concatenated (Lillicrap et al. 2016: one).
    """

    def __init__(
        self,
        name: str,
        spec: Spec,
        cfg: ActorCriticNetworkConfig,
        members: int,
        outputs: tuple[int, ...] = (),
        actions: int = 0,
        join: int = 0,
    ) -> None:
        super().__init__()
        reader = BackboneSettings(
            (), cfg.activation, Part("mlp"), cfg.encoder, memory_settings(cfg), reward_clip=reward_limit(cfg)
        )
        public, privileged = split_observation(spec.observation, cfg.privileged_obs)
        memories = 1 if cfg.share_memory else members
        self.backbone = Backbone(name, public, reader, spec.action, memories, privileged)
        self.follows = bool(self.backbone.memories) and not cfg.share_memory and cfg.stores_memory
        """whether its memory is updated while acting, only to be stored in replay"""
        self.can_follow = not self.backbone.memories or cfg.share_memory or self.follows
        """whether it can be evaluated while acting, because it has no memory or its memory is kept"""
        self.members, self.outputs = members, outputs
        columns = prod(outputs)
        if cfg.critic_network.name == "mlp" and cfg.critic_head == Part("linear"):
            self.nets: nn.Module = EnsembleMLP(
                members,
                self.backbone.size,
                cfg.critic_hidden_sizes,
                columns,
                cfg.activation,
                actions=actions,
                join=join,
                **_options(cfg.critic_network),
            )
        elif join:
            raise ConfigError(
                "action_joins is 'second', which needs critic_network 'mlp' and critic_head 'linear', but they are "
                f"{cfg.critic_network.name!r} and {cfg.critic_head.name!r}"
            )
        else:
            self.nets = Separate(members, self.backbone.size + actions, columns, cfg)
        self.selects = isinstance(self.nets, EnsembleMLP)
        """whether a subset of the members can be evaluated alone, without asking the device which they are"""

    def draw(self, rows: int, generator: torch.Generator | None) -> Tree:
        """Fresh noise for one pass over `rows` rows if there is dropout; otherwise an empty dict."""
        return self.nets.draw(rows, generator)  # type: ignore[operator]

    def forward(
        self,
        rows: Rows,
        action: Tensor | None = None,
        noise: Tree | None = None,
        subset: Tensor | None = None,
    ) -> Tensor:
        """Outputs of all members, or of those at the indices `subset` [n]."""
        if subset is None or self.selects:
            return self._evaluate(rows, action, noise, self.members if subset is None else subset)
        return self._evaluate(rows, action, noise, self.members).index_select(0, subset)

    def first(self, rows: Rows, action: Tensor | None = None) -> Tensor:
        """Outputs of the first member only: [T, B, *outputs]."""
        return self._evaluate(rows, action, None, 1)[0]

    def initial_memory(self, num_envs: int, device: torch.device) -> Tree:
        return super().initial_memory(num_envs, device) if self.follows else {}

    def advance(self, obs: Tree, memory: Tree, reset: Tensor) -> Tree:
        return super().advance(obs, memory, reset) if self.follows else {}

    def prepare(self, batch: Batch) -> Batch:
        """See `Backbone.unrolled`. The actor's loss then evaluates updated critics on memory outputs from before their
        update: one step late, but one unroll less (as offpcc does)."""
        return super().prepare(batch)

    def _evaluate(
        self, rows: Rows, action: Tensor | None, noise: Tree | None, members: int | Tensor
    ) -> Tensor:
        """Outputs of the first `members`, or of those at these indices."""
        if isinstance(members, int):
            features = self.backbone(rows, members=members)  # [T, B, size], or [members, T, B, size]
        else:
            features = self.backbone(rows)
            features = features.index_select(0, members) if features.dim() == 4 else features
        lead = features.shape[-3:-1]
        flat = None if action is None else action.flatten(0, -2)
        if action is not None and action.dim() == 4:  # several actions in every row
            features = features.unsqueeze(-2).expand(*features.shape[:-1], action.shape[-2], -1)
            features, lead = features.flatten(-3, -2), action.shape[:-1]
        values = self.nets(features.flatten(-3, -2), flat, noise, members)  # [members, rows, columns]
        return values.reshape(len(values), *lead, *self.outputs)


class EnsembleMLP(nn.Module):
    """`members` MLPs of the same shape, one batched product per layer, with orthogonal initialisation.

    A hidden layer is linear -> dropout -> layer norm -> activation (Hiraoka et al. 2022, arXiv:2110.02034); dropout and
    layer norm are optional.
    """

    def __init__(
        self,
        members: int,
        inputs: int,
        hidden: tuple[int, ...],
        outputs: int,
        activation: str,
        *,
        actions: int = 0,
        join: int = 0,
        layer_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if join > len(hidden):
            raise ConfigError(
                f"the action is concatenated after hidden layer {join}, but critic_hidden_sizes has {len(hidden)}"
            )
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout is {dropout}; it must be at least 0 and less than 1")
        self.activation, self.join, self.dropout, self.hidden = (
            activation_of(activation),
            join,
            dropout,
            hidden,
        )
        sizes = [inputs, *hidden, outputs]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.scales, self.shifts = nn.ParameterList(), nn.ParameterList()
        for number, (before, after) in enumerate(pairwise(sizes)):
            before += actions if number == join else 0
            weight = torch.empty(members, before, after)
            for member in weight:
                # As in nn.Linear: each row of the transpose is one unit.
                nn.init.orthogonal_(member.T, 1.0 if number == len(hidden) else 2**0.5)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(members, 1, after)))
            if layer_norm and number < len(hidden):
                self.scales.append(nn.Parameter(torch.ones(members, 1, after)))
                self.shifts.append(nn.Parameter(torch.zeros(members, 1, after)))
        self.members = members
        self._layers = list(zip(self.weights, self.biases))
        self._norms = list(zip(self.scales, self.shifts))

    def draw(self, rows: int, generator: torch.Generator | None) -> Tree:
        if not self.dropout:
            return {}
        device = self.weights[0].device
        return {
            str(number): torch.rand(self.members, rows, width, generator=generator, device=device)
            for number, width in enumerate(self.hidden)
        }

    def forward(
        self, value: Tensor, action: Tensor | None, noise: Tree | None, members: int | Tensor
    ) -> Tensor:
        """Outputs [members, rows, outputs] of the first `members`, or of those at these indices, for rows
        [rows, inputs] or one set per member."""
        count = members if isinstance(members, int) else len(members)
        value = value.expand(count, *value.shape[-2:])
        last = len(self._layers) - 1
        for number, layer in enumerate(self._layers):
            weight, bias = self._of(members, layer)
            if number == self.join and action is not None:
                value = torch.cat((value, action.expand(count, *action.shape)), -1)
            # Not baddbmm, which first expands the bias to the size of the result.
            value = batched_product(value, weight).add_(bias)
            if number == last:
                break
            if noise:
                (uniform,) = self._of(members, (noise[str(number)],))
                value = torch.where(uniform < self.dropout, 0.0, value / (1 - self.dropout))
            if self._norms:
                scale, shift = self._of(members, self._norms[number])
                value = torch.addcmul(shift, F.layer_norm(value, value.shape[-1:]), scale)
            value = self.activation(value)
        return value

    def _of(self, members: int | Tensor, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """What belongs to the first `members`, or to those at these indices."""
        if not isinstance(members, int):
            return [part.index_select(0, members) for part in parts]
        return parts if members == self.members else [part[:members] for part in parts]


class Separate(nn.Module):
    """An ensemble of networks from `critic_network` and `critic_head`, evaluated one after the other."""

    def __init__(self, members: int, inputs: int, outputs: int, cfg: ActorCriticNetworkConfig) -> None:
        super().__init__()
        settings = BackboneSettings(cfg.critic_hidden_sizes, cfg.activation, cfg.critic_network, cfg.encoder)
        built = [torso(settings, inputs) for _ in range(members)]
        last = last_of(cfg.critic_head)
        self.torsos = nn.ModuleList(net for net, _ in built)
        self.heads = nn.ModuleList(last(width, outputs, 1.0) for _, width in built)

    def draw(self, rows: int, generator: torch.Generator | None) -> Tree:
        return {}

    def forward(self, value: Tensor, action: Tensor | None, noise: Tree | None, members: int) -> Tensor:
        both = value.expand(members, *value.shape[-2:])
        if action is not None:
            both = torch.cat((both, action.expand(members, *action.shape)), -1)
        return torch.stack([head(net(rows)) for net, head, rows in zip(self.torsos, self.heads, both)])


def _options(network: Part) -> dict[str, Any]:
    known = {"layer_norm": bool, "dropout": float}
    for key in network.options:
        if key not in known:
            raise ConfigError(f"critic_network mlp has no option {key!r}; {nearest(key, known)}")
    return {key: coerce(f"critic_network.{key}", value, known[key]) for key, value in network.options.items()}
