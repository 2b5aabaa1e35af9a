"""A prediction model (as in Advanced-SAC) that shapes the memory or encoder which actor and critics read.

s_t is the output of the agent's encoder and memory. Beside it a recurrent latent model predicts (`nets/latent.py`):
prior p(z_t | h_t),  posterior q(z_t | h_t, s_t),  h_{t+1} = GRU([z_t, a_t], h_t)
loss = kl_weight * KL(q || p) + reward_weight * 1/2 (r_t - reward(h_{t+1}, z_{t+1}))^2
       + obs_weight * 1/2 |o_t - decode(h_t, z_t)|^2, summed over the rows of a window, mean over windows
Observations are all those of training, `privileged_obs` included: so a memory learns to infer what the policy does not
see. With `memory` and `share_memory` in SAC, TD3 or TQC the policy reads what the model has shaped.

Differs from Advanced-SAC: its transition is Gaussian on the states themselves, with a KL to N(0, 1); here the latent
has a learned prior (Hafner et al. 2019, arXiv:1811.04551) with balanced KL and free nats (2021, arXiv:2010.02193).
With n-step returns the reward is that of the n steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from whorl.agents.agent import Agent
from whorl.agents.auxiliary import Auxiliary, AuxiliaryConfig, Prepare
from whorl.core import tree
from whorl.core.arrays import MASK_KEY
from whorl.core.errors import ConfigError, nearest
from whorl.core.registry import Part, register
from whorl.core.spec import Spec, flat_action_size, flatten_action
from whorl.data.batch import SUCCESSOR, Batch
from whorl.nets.latent import LatentModel, balanced_kl, decoder
from whorl.nets.layers import MLP
from whorl.ops.augment import Channels, picture
from whorl.settings.schema import Fraction, NonNegative, PositiveCount, Range, Size


@dataclass(frozen=True)
class PredictionConfig(AuxiliaryConfig):
    kl_weight: NonNegative = 1.0
    """weight of the KL divergence between posterior and prior"""
    kl_balance: Fraction = 0.8
    """share of the KL's gradient that trains the prior; the rest trains the posterior"""
    free_nats: NonNegative = 0.0
    """KL divergence per row below which it has no gradient"""
    reward_weight: NonNegative = 1.0
    """weight of the reward's error"""
    obs_weight: NonNegative = 1.0
    """weight of the observations' error"""
    predicts: tuple[str, ...] = ()
    """keys of the observation that are predicted; empty: all, privileged ones included"""
    length: Annotated[int, Range(1, 10**6)] = 16
    """batches are split into windows of this many steps, behind their burn-in; rows that fill no window are left out,
    at either end by chance; transitions of a replay buffer are windows of one step"""
    batch_size: PositiveCount = 64
    """windows per gradient step, drawn from the batch"""
    size: Size = 128
    """recurrent units h"""
    latent_size: Size = 16
    """latents z"""
    hidden_size: Size = 128
    """width of hidden layers"""


@register("component", "prediction")
class Prediction(Auxiliary):
    """A latent model that predicts rewards and observations from the agent's encoder or memory."""

    Config = PredictionConfig
    cfg: PredictionConfig
    shown_features: Tensor
    shown_action: Tensor

    def __init__(self, name: str, spec: Spec, cfg: PredictionConfig, agent: Agent) -> None:
        super().__init__(name, spec, cfg, agent)
        self.needs_successors("the next observation")
        shared: list[nn.Module] = [self.backbone.encoder, self.backbone.memories]
        if not any(True for module in shared for _ in module.parameters()) or len(self.backbone.memories) > 1:
            raise ConfigError(
                f"{name} trains an encoder of images or a memory that actor and critics share, and there is none; set "
                f"memory (with share_memory, where an agent has it), or leave {name} out"
            )
        part: Part = getattr(agent.cfg, "encoder", Part("auto"))
        chosen: Any = part.options.get("channels")
        self.channels: Channels = chosen if chosen in ("first", "last") else "auto"
        known = {
            path: leaf for path, leaf in tree.items(spec.observation) if path.rpartition(".")[2] != MASK_KEY
        }
        for key in cfg.predicts:
            if key not in known:
                raise ConfigError(f"{name}.predicts names {key!r}; {nearest(key, known)}")
        self.leaves = {path: known[path] for path in cfg.predicts or known}
        width, actions = cfg.size + cfg.latent_size, flat_action_size(spec.action)
        self.model = LatentModel(
            self.backbone.summary_size, actions, cfg.size, cfg.latent_size, cfg.hidden_size
        )
        # A list, because keys of an observation may be names that a ModuleDict refuses.
        self.decoders = nn.ModuleList(
            decoder(width, leaf, cfg.hidden_size, self.channels) for leaf in self.leaves.values()
        )
        self.reward = nn.Sequential(MLP(width, (cfg.hidden_size,), "elu"), nn.Linear(cfg.hidden_size, 1))
        self.optimize(shared, [self.model, self.decoders, self.reward])
        self.images = [n for n, leaf in enumerate(self.leaves.values()) if picture(leaf, self.channels)]
        self.register_buffer("shown_features", torch.zeros(1, width), persistent=False)
        self.register_buffer("shown_action", torch.zeros(cfg.length, 1, actions), persistent=False)
        if self.images:
            leaf = self._pictured
            self.register_buffer("shown", torch.zeros(cfg.length + 1, *leaf.shape), persistent=False)
        self._length = 0
        for part_name in ("kl", "reward", "obs"):
            self.register_buffer(f"last_{part_name}", torch.zeros(()))

    @property
    def looks_ahead(self) -> tuple[int, ...]:
        return (1,)

    def update(self, agent: Agent, batch: Batch) -> dict[str, Tensor]:
        found = super().update(agent, batch)
        parts = ("kl", "reward", "obs")
        return found | {f"loss/{self.name}_{part}": getattr(self, f"last_{part}").clone() for part in parts}

    def errors(self, batch: Batch, prepare: Prepare) -> tuple[Tensor, Tensor]:
        cfg = self.cfg
        state, obs, action, reward, reset, real = self.windows(batch, prepare)
        # A row counts if it is a transition, or the successor of one.
        counts = torch.cat((real, torch.zeros_like(real[:1]))).maximum(
            torch.cat((torch.zeros_like(real[:1]), real))
        )
        noise = torch.randn(*state.shape[:2], cfg.latent_size, generator=self.generator, device=state.device)
        posterior, prior, features = self.model(state, action, reset, noise)
        kl = balanced_kl(posterior, prior, cfg.kl_balance, cfg.free_nats) * counts
        missed = 0.5 * (self.reward(features[1:])[..., 0] - reward).square() * real
        wrong = self.observation_error(features, obs) * counts
        self._show(features, action, obs)
        for name, value in (("kl", kl), ("reward", missed), ("obs", wrong)):
            getattr(self, f"last_{name}").copy_(value.detach().sum() / real.sum().clamp(min=1))
        total = cfg.kl_weight * kl.sum(0) + cfg.reward_weight * missed.sum(0) + cfg.obs_weight * wrong.sum(0)
        return total, torch.ones_like(total)

    def observation_error(self, features: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """1/2 |o - decode(features)|^2 of all predicted observations: [T+1, N]."""
        total = features.new_zeros(features.shape[:2])
        for path, net in zip(self.leaves, self.decoders):
            total = total + 0.5 * (net(features) - obs[path].float()).square().flatten(2).sum(-1)
        return total

    def windows(
        self, batch: Batch, prepare: Prepare
    ) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor, Tensor, Tensor]:
        """Up to `batch_size` windows of L steps: states [L+1, N, ...], observations by path, flat actions [L, N, ...],
        rewards [L, N], where episodes start [L+1, N], which rows are transitions [L, N]."""
        if SUCCESSOR in batch.extras:  # a transition with an n-step return: the row after it is another one
            following = tree.map(lambda a, b: torch.cat((a[:1], b)), batch.obs, batch.extras[SUCCESSOR])
            batch = batch.replace(obs=following, ahead=None)
        rows, num_envs = batch.shape
        learned = rows - batch.burn_in  # rows of the burn-in are masked, and warm up the agent's memory alone
        length = min(self.cfg.length, learned)
        device = batch.mask.device
        first = batch.burn_in + torch.arange(learned // length, device=device) * length
        # Windows begin later in some batches, or the last rows were never learned.
        if left := learned % length:
            first = first + torch.randint(left + 1, (1,), generator=self.generator, device=device)
        row = torch.arange(length + 1, device=device).unsqueeze(1) + first  # [L+1, windows]
        cells = (row.unsqueeze(-1) * num_envs + torch.arange(num_envs, device=device)).flatten(1)  # [L+1, N]
        order = torch.rand(cells.shape[1], generator=self.generator, device=device).argsort()
        cells = cells.index_select(1, order[: self.cfg.batch_size])

        def pick(leaf: Tensor, index: Tensor = cells) -> Tensor:
            return leaf.flatten(0, 1).index_select(0, index.flatten()).unflatten(0, index.shape)

        backbone = self.backbone
        if backbone.memories:
            seen = prepare(tree.map(lambda leaf: leaf[: rows + 1], batch.obs))
            read = {"reset": batch.reset, "last": batch.last}
            first_rows = tree.map(lambda leaf: leaf[: rows + 1], read)
            every = batch.replace(obs=seen, summaries={}, **first_rows).all
            state = pick(backbone.summary(lambda: backbone.encode(every), every))
            obs = tree.map(pick, seen)
        else:
            obs = prepare(tree.map(pick, batch.obs))
            state = backbone.encoder(obs)
        steps = cells[:-1]
        real = pick(batch.mask, steps)
        reward = batch.reward if batch.reward.dim() == 2 else batch.reward[..., 0]
        # Whatever masked rows hold must not reach a gradient, not even as 0 * nan.
        reward = torch.where(real > 0, pick(reward, steps), 0.0)
        action = tree.map(lambda leaf: pick(leaf, steps), batch.action)
        action = tree.where(real > 0, action, tree.map(torch.zeros_like, action))
        flat = flatten_action(self.spec.action, action)
        return state, dict(tree.items(obs)), flat, reward, pick(batch.reset[: rows + 1]), (real > 0).float()

    # Pictures

    @property
    def _pictured(self) -> Any:
        return list(self.leaves.values())[self.images[0]]

    @torch.no_grad()
    def _show(self, features: Tensor, action: Tensor, obs: Mapping[str, Tensor]) -> None:
        """Keep the first window, so that `pictures` can imagine it."""
        if not self.images:
            return
        self._length = len(action)
        self.shown_features.copy_(features[0, :1])
        self.shown_action[: self._length].copy_(action[:, :1])
        shown: Any = self.shown
        shown[: self._length + 1].copy_(obs[list(self.leaves)[self.images[0]]][:, 0])

    @torch.no_grad()
    def pictures(self, agent: Agent) -> dict[str, Tensor]:
        """What was seen in the last window, and below what the model imagines from its first row and the actions."""
        if not self.images or not self._length:
            return {}
        imagined = self.model.imagine(self.shown_features, self.shown_action[: self._length])
        frames = self.decoders[self.images[0]](imagined)[:, 0]
        shown: Any = self.shown
        both = torch.stack((shown[: self._length + 1], frames))  # [2, L+1, ...]
        leaf = self._pictured
        found = picture(leaf, self.channels)
        both = both.permute(0, 1, 3, 4, 2) if found is not None and found.first else both
        width = both.shape[-1] // leaf.stack
        newest = both[..., -width:]
        newest = newest if width in (1, 3) else newest.amax(-1, keepdim=True)
        tiles = newest.clamp(0, 1).mul(255).to(torch.uint8)  # [2, L+1, H, W, C]
        return {f"{self.name}/imagined": torch.cat([torch.cat(list(line), 1) for line in tiles], 0)}
