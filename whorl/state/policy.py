"""A self-contained trained policy: weights, normalisers, frame stack, memory and action scaling in one file."""

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whorl.agents.agent import COMPONENTS, Agent, Context
from whorl.agents.component import with_components
from whorl.core import spec as specs
from whorl.core import tree
from whorl.core.action_masks import flatten_mask
from whorl.core.errors import WhorlError
from whorl.core.registry import only_trusted
from whorl.core.spec import (
    MASK_KEY,
    Array,
    Discrete,
    Spec,
    Stream,
    TupleSpec,
    action_choices,
    as_nested,
    empty_action,
    empty_obs,
    to_env,
)
from whorl.core.tree import Tree
from whorl.data.batch import LAST, remember
from whorl.settings.merge import Settings, configure
from whorl.settings.presets import algorithm_class

FORMAT = 1


class SavedPolicy:
    """Maps the environment's own observations to the actions that its `step` takes.

    Policies with a memory or a frame stack keep them from call to call until `reset`.
    """

    def __init__(self, agent: Agent, settings: Settings) -> None:
        self.agent = agent.eval()
        self.settings = settings
        self.spec = agent.spec
        self._generator = torch.Generator(agent.device).manual_seed(0)
        self._shown = tree.map(_own_shape, self.spec.observation)
        """what the environment gives: one frame of a stack"""
        self._memory: Tree = {}
        self._frames: Tree = {}
        self._action: Tree = {}
        self._fresh: Tensor | None = None

    def reset(self, where: np.ndarray | Tensor | None = None) -> None:
        """Clear memory and frame stack: call it when an episode starts; `where` [B] marks the environments that do."""
        if where is None or self._fresh is None:
            self._fresh = None
        else:
            self._fresh |= torch.as_tensor(where, device=self._fresh.device)

    def seed(self, seed: int) -> None:
        """Seed the sampling of actions."""
        self._generator.manual_seed(seed)

    @torch.no_grad()
    def act(self, obs: Any, deterministic: bool = True, action_mask: Any = None, reward: Any = None) -> Any:
        """The action for one observation, or a batch of actions; arrays give arrays, tensors give tensors.

        An action is a member of the environment's action space: its shape, dtype and bounds, a tuple for Tuple
        spaces, a dict for Dict spaces. A batch has a leading axis in every array.

        Args:
            action_mask: the allowed discrete actions, where the environment gives them outside the observation; flat,
                or nested as the action space (see `whorl.core.action_masks`).
            reward: the reward of the previous step, which a policy trained with `last_reward` needs except at the
                start of an episode.
        """
        obs = _as_stored(obs, action_mask, self.spec, self._shown)
        single = _is_single(obs, self._shown)
        device = self.agent.device
        tensors = tree.map(
            lambda leaf, like: torch.as_tensor(leaf, device=device).to(getattr(torch, like.dtype)),
            obs,
            self.spec.observation,
        )
        if single:
            tensors = tree.map(lambda leaf: leaf.unsqueeze(0), tensors)
        num_envs = len(tree.first(tensors))
        if self._fresh is None or len(self._fresh) != num_envs:
            self._fresh = torch.ones(num_envs, dtype=torch.bool, device=device)
            self._memory = self.agent.initial_memory(num_envs)
            self._frames = empty_obs(self.spec.observation, (num_envs,), device)
            self._action = empty_action(self.spec.action, (num_envs,), device)
        fresh = self._fresh
        if LAST in self._memory:
            if reward is None and self.agent.cfg.last_reward and not bool(fresh.all()):
                raise WhorlError(
                    "this policy reads the reward of the previous step; call act(obs, reward=reward)"
                )
            earned = torch.as_tensor(0.0 if reward is None else reward, dtype=torch.float32, device=device)
            self._memory = remember(self._memory, self._action, earned.expand(num_envs))
        self._frames = tree.map(partial(_stacked, fresh), self.spec.observation, self._frames, tensors)
        acted = self.agent.act(
            self._frames, self._memory, Context(self._fresh, self._generator, greedy=deterministic)
        )
        self._memory, self._action = acted.memory, acted.action
        self._fresh = torch.zeros_like(self._fresh)
        action = to_env(self.spec.action, acted.action)
        if single:
            action = tree.index(action, 0)
        if not any(isinstance(leaf, Tensor) for leaf in tree.leaves(obs)):
            action = tree.map(_to_array, self.spec.action, action)
        return as_nested(self.spec.action, action)

    __call__ = act


def _to_array(like: Any, value: Tensor) -> Any:
    """A numpy array; a scalar for one Discrete action."""
    array = value.cpu().numpy()
    return array[()] if isinstance(like, Discrete) and array.ndim == 0 else array


def _own_shape(like: Array) -> Array:
    """One frame as the environment gives it: an image of [H, W] has no axis for channels."""
    frame = like.frame
    return replace(frame, shape=frame.shape[1:]) if like.plane else frame


def _stacked(fresh: Tensor, like: Array, held: Tensor, newest: Tensor) -> Tensor:
    """The last frames, newest at the end; at the start of an episode its first frame fills the stack."""
    newest = newest.reshape(len(newest), *like.frame.shape)
    if like.stack == 1:
        return newest
    axis, width = like.axis + 1, like.frame.shape[like.axis]
    older = held.narrow(axis, width, held.shape[axis] - width)
    first = torch.cat([newest] * like.stack, axis)
    return tree.where(fresh, first, torch.cat((older, newest), axis))


def _as_stored(obs: Any, mask: Any, spec: Spec, shown: Any) -> Any:
    """An environment's own observation in the form that the agent was trained on."""
    if not spec.masked:
        return _in_order(obs, spec.observation)
    inner = _numbered(obs) if isinstance(obs, (dict, tuple)) else {"obs": obs}
    mask = inner.pop(MASK_KEY, mask)
    if mask is None:
        raise WhorlError("this policy needs the allowed actions; call act(obs, action_mask=mask)")
    others = {key: leaf for key, leaf in spec.observation.items() if key != MASK_KEY}
    found = _in_order(inner, others)
    batch_dims = np.ndim(tree.first(found)) - len(tree.first({key: shown[key] for key in others}).shape)
    flat = flatten_mask(action_choices(spec.action), mask, min(max(batch_dims, 0), 1))
    return {key: flat if key == MASK_KEY else found[key] for key in spec.observation}


def _in_order(obs: Any, like: Any) -> Any:
    """Dicts in the policy's key order, tuples keyed by number, integers one-hot where the policy reads a vector."""
    if isinstance(like, dict):
        given = _numbered(obs)
        missing = [key for key in like if key not in given]
        if missing:
            raise WhorlError(f"the observation lacks {missing[0]!r}; this policy reads {', '.join(like)}")
        return {key: _in_order(given[key], branch) for key, branch in like.items()}
    if np.ndim(obs) == 0 and like.shape == (1,):
        return obs.reshape(1) if isinstance(obs, Tensor) else np.reshape(obs, (1,))
    if np.ndim(obs) == 0 and len(like.shape) == 1:
        return _one_hot(obs, like)
    if np.ndim(obs) == 1 and like.start is not None and not torch.as_tensor(obs).is_floating_point():
        return _one_hot(obs, like)  # a batch of integers
    return obs


def _one_hot(obs: Any, like: Array) -> Any:
    choices, start = like.frame.shape[0], like.start or 0
    number = torch.as_tensor(obs).long() - start
    if bool(((number < 0) | (number >= choices)).any()):
        raise WhorlError(
            f"the observation is {obs}; this policy was trained on {start} to {start + choices - 1}"
        )
    rows = torch.nn.functional.one_hot(number, choices).float()
    return rows if isinstance(obs, Tensor) else rows.numpy()


def _is_single(obs: Any, spec: Any) -> bool:
    """Whether this is one observation and not a batch; raises where it is neither."""
    leads = set()
    for (path, value), like in zip(tree.items(obs), tree.leaves(spec)):
        shape = tuple(np.shape(value))
        lead = len(shape) - len(like.shape)
        if lead not in (0, 1) or shape[lead:] != like.shape:
            raise WhorlError(
                f"the observation{f' {path!r}' if path else ''} has shape {shape}; this policy takes {like.shape} or a "
                f"batch of them"
            )
        leads.add(shape[:lead])
    if len(leads) > 1:
        raise WhorlError(f"the parts of the observation have different batch sizes: {sorted(leads)}")
    return leads == {()}


def _numbered(obs: Any) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(obs)} if isinstance(obs, tuple) else dict(obs)


def export(agent: Agent, settings: Settings) -> dict[str, Any]:
    """The policy as tensors and plain containers."""
    return {
        "format": FORMAT,
        "config": settings.plain(),
        "spec": pack_spec(agent.spec),
        "module": {k: v for k, v in agent.state_dict().items() if not k.startswith(f"{COMPONENTS}.")},
    }


def load_policy(saved: dict[str, Any], trust: tuple[str, ...] = (), device: str = "cpu") -> SavedPolicy:
    """Rebuild an exported policy."""
    config = dict(saved["config"])
    with only_trusted(trust):
        settings = configure(config["algorithm"], config["env"], config, presets=False)
        agent = build_agent(settings, unpack_spec(saved["spec"]), components=False)
    agent.to(device).load_state_dict({name: saved["module"][name] for name in agent.state_dict()})
    return SavedPolicy(agent, settings)


def build_agent(settings: Settings, spec: Spec, seed: int = 0, components: bool = True) -> Agent:
    """The agent that settings describe, initialised from `seed`; global RNGs stay untouched."""
    _, cls, _ = algorithm_class(settings.algorithm)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not components:
            return cls(spec, settings.algo)
        return with_components(partial(cls, cfg=settings.algo), spec, getattr(settings, "components", {}))


def pack_spec(spec: Spec) -> dict[str, Any]:
    """A spec as plain containers."""

    def pack(value: Any) -> Any:
        if isinstance(value, TupleSpec):
            return [pack(branch) for branch in value.values()]
        if isinstance(value, dict):
            return {key: pack(branch) for key, branch in value.items()}
        return {"leaf": type(value).__name__, **{k: _plain(v) for k, v in asdict(value).items()}}

    return {
        "observation": pack(spec.observation),
        "action": pack(spec.action),
        "num_envs": spec.num_envs,
        "streams": [asdict(stream) for stream in spec.streams],
    }


def unpack_spec(packed: dict[str, Any]) -> Spec:
    """The inverse of `pack_spec`."""

    def unpack(value: Any) -> Any:
        if isinstance(value, list):
            return TupleSpec({str(number): unpack(branch) for number, branch in enumerate(value)})
        if not isinstance(value.get("leaf"), str):  # a dict may have a branch of that name
            return {key: unpack(branch) for key, branch in value.items()}
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items() if k != "leaf"}
        return getattr(specs, value["leaf"])(**fields)

    streams = tuple(Stream(**stream) for stream in packed.get("streams", ()))
    return Spec(
        unpack(packed["observation"]), unpack(packed["action"]), int(packed["num_envs"]), streams=streams
    )


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value
