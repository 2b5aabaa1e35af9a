"""Observations and actions of an environment in the form that a trained policy takes, checked."""

import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whorl.core import tree
from whorl.core.action_masks import flatten_mask
from whorl.core.errors import WhorlError
from whorl.core.spec import MASK_KEY, Array, Spec, action_choices
from whorl.core.tree import Tree


def as_stored(obs: Any, mask: Any, spec: Spec, shown: Any) -> Any:
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
    if not isinstance(obs, Tensor):
        obs = _numbers(obs, like)
    if like.nvec:
        return _one_hots(obs, like)
    if np.ndim(obs) == 0 and like.shape == (1,):
        return obs.reshape(1) if isinstance(obs, Tensor) else np.reshape(obs, (1,))
    if np.ndim(obs) == 1 and len(obs) > 1 and like.shape == (1,):
        return obs.reshape(-1, 1)  # a batch of observations without axes
    if np.ndim(obs) == 0 and len(like.shape) == 1:
        return _one_hot(obs, like)
    if np.ndim(obs) == 1 and like.start is not None and not torch.as_tensor(obs).is_floating_point():
        return _one_hot(obs, like)  # a batch of integers
    return obs


def _numbers(obs: Any, like: Array) -> np.ndarray:
    try:
        found = np.asarray(obs)
    except ValueError:  # parts of different lengths
        found = np.empty((), object)
    if found.dtype.kind not in "biuf":
        raise WhorlError(
            f"the observation is {reprlib.repr(obs)}; this policy takes an array of numbers of shape "
            f"{like.frame.shape}"
        )
    return found


def _one_hot(obs: Any, like: Array) -> Any:
    choices, start = like.frame.shape[0], like.start or 0
    number = torch.as_tensor(obs).long() - start
    if bool(((number < 0) | (number >= choices)).any()):
        raise WhorlError(
            f"the observation is {obs}; this policy was trained on {start} to {start + choices - 1}"
        )
    rows = torch.nn.functional.one_hot(number, choices).float()
    return rows if isinstance(obs, Tensor) else rows.numpy()


def _one_hots(obs: Any, like: Array) -> Any:
    """Numbers of a MultiDiscrete space, one observation or a batch, as the policy reads them."""
    given = torch.as_tensor(obs)
    if given.is_floating_point() and given.shape[-1:] == like.frame.shape:
        return obs  # they are already one-hots
    lead = given.shape[: given.dim() - len(like.entries)]
    if given.shape != (*lead, *like.entries):
        raise WhorlError(
            f"the observation has shape {tuple(given.shape)}; this policy takes {like.entries} or a batch of them"
        )
    flat = given.long().reshape(*lead, len(like.nvec))
    chosen = flat - torch.tensor(like.starts, device=flat.device)
    if bool(((chosen < 0) | (chosen >= torch.tensor(like.nvec, device=flat.device))).any()):
        last = [start + n - 1 for start, n in zip(like.starts, like.nvec)]
        raise WhorlError(
            f"the observation is {obs}; this policy was trained on {list(like.starts)} to {last}"
        )
    rows = one_hots(like, flat)
    return rows if isinstance(obs, Tensor) else rows.numpy()


def one_hots(like: Array, flat: Tensor) -> Tensor:
    """The entries [..., entries] of a MultiDiscrete space as one-hots end to end."""
    device = flat.device
    entry = torch.tensor([i for i, n in enumerate(like.nvec) for _ in range(n)], device=device)
    value = torch.tensor([s + k for s, n in zip(like.starts, like.nvec) for k in range(n)], device=device)
    return (flat[..., entry] == value).to(getattr(torch, like.dtype))


def is_single(obs: Any, spec: Any) -> bool:
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


def action_tree(like: Any, action: Any, device: torch.device) -> Tree:
    """Nested actions of an environment as a tree of tensors."""
    if not isinstance(like, dict):
        return torch.as_tensor(action, device=device)
    given = _numbered(action)
    missing = [key for key in like if key not in given]
    if missing:
        raise WhorlError(f"the action lacks {missing[0]!r}; this policy has {', '.join(like)}")
    return {key: action_tree(branch, given[key], device) for key, branch in like.items()}


def _numbered(obs: Any) -> dict[str, Any]:
    if not isinstance(obs, Mapping | tuple):
        raise WhorlError(
            f"this policy needs a dict or a tuple, with a value for each part, not {type(obs).__name__}"
        )
    return {str(number): value for number, value in enumerate(obs)} if isinstance(obs, tuple) else dict(obs)
