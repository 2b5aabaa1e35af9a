"""A self-contained trained policy: weights, normalisers, frame stack, memory and action scaling in one file."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whorl.agents import estimates
from whorl.agents.agent import COMPONENTS, Agent, Context
from whorl.agents.component import with_components
from whorl.core import tree
from whorl.core.errors import CheckpointError, ConfigError, WhorlError
from whorl.core.registry import only_trusted
from whorl.core.spec import (
    Array,
    Continuous,
    Discrete,
    Spec,
    TupleSpec,
    as_keyed,
    as_nested,
    empty_action,
    empty_obs,
    from_env,
    split_observation,
    to_env,
)
from whorl.core.tree import Tree
from whorl.data.batch import LAST, Rows
from whorl.settings.elsewhere import POLICY, explaining
from whorl.settings.merge import Settings, configure
from whorl.settings.presets import algorithm_class
from whorl.state.policy_inputs import action_tree, as_stored, is_single
from whorl.state.saved_spec import pack_spec, unpack_spec

FORMAT = 1


@dataclass(frozen=True)
class PolicyState:
    """What a policy remembers between two observations of an episode, one row per environment."""

    fresh: Tensor
    """[B] bool: the next observation is the first of an episode"""
    memory: Tree
    frames: Tree
    action: Tree
    """the last canonical action"""


@dataclass(frozen=True)
class _Seen:
    """Observations that were passed in, as a batch of tensors."""

    obs: Tree
    single: bool
    """whether one observation was passed, and not a batch"""
    arrays: bool
    """whether none of them was a tensor, so that the answer is in arrays"""

    def answer(self, value: Any) -> Any:
        """Results [B, ...] in the form of the observations: one or a batch, arrays or tensors."""
        if isinstance(value, dict):
            return {key: self.answer(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.answer(part) for part in value)
        if value is None:
            return None
        value = value[0] if self.single else value
        return value.cpu().numpy()[()] if self.arrays else value  # [()]: one number becomes a scalar


@explaining(POLICY)
class SavedPolicy:
    """Maps the environment's own observations to the actions that its `step` takes.

    Policies with a memory or a frame stack keep them from one call of `act` to the next until `reset`.
    `value`, `probabilities`, `log_prob` and `q_values` read an observation as the next one of the episode, and change
    nothing: ask them before `act`. They are computed by the networks of training, in the units of its rewards, which
    `normalize_reward` and `clip_reward` scale.
    """

    def __init__(self, agent: Agent, settings: Settings) -> None:
        self.agent = agent.eval()
        self.settings = settings
        self.spec = agent.spec
        self.steps = 0
        """environment steps that it was trained for, if it comes from a run"""
        self.origin: dict[str, Any] = {}
        """command, commit, versions and seed of its run, if it comes from one (see `whorl.state.provenance`)"""
        self.acts_only = False
        """whether it was saved without what acting does not read, so that it has no values"""
        self._generator = torch.Generator(agent.device).manual_seed(0)
        observation = split_observation(agent.spec.observation, agent.privileged)[0]
        self.reads = replace(agent.spec, observation=observation)
        """the spec without what exists in training only"""
        self._shown = tree.map(_own_shape, observation)
        """what the environment gives: one frame of a stack"""
        self._state: PolicyState | None = None
        stacked = any(leaf.stack > 1 for leaf in tree.leaves(observation))
        self._remembers = stacked or bool(agent.initial_memory(1))

    def __repr__(self) -> str:
        return f"<policy of {self.settings.algorithm} on {self.settings.env} after {self.steps:,} steps>"

    def reset(self, where: np.ndarray | Tensor | None = None) -> None:
        """Clear memory and frame stack: call it when an episode starts; `where` [B] marks the environments that do."""
        if where is None or self._state is None:
            self._state = None
        else:
            self._state = _with_starts(self._state, where)

    def seed(self, seed: int) -> None:
        """Seed the sampling of actions."""
        self._generator.manual_seed(seed)

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
        seen = self._read(obs, action_mask)
        action, self._state = self._step(seen, self._state_for(seen), deterministic, reward)
        return action

    __call__ = act

    def took(self, action: Any) -> None:
        """Correct what a policy that reads its last action remembers, where another was taken than `act` returned."""
        state = self._state
        if state is None:
            return
        given = tree.map(torch.as_tensor, as_keyed(self.spec.action, action))
        taken = from_env(self.spec.action, tree.to(given, self.agent.device))
        self._state = replace(state, action=tree.map(torch.Tensor.reshape_as, taken, state.action))

    def predict(
        self,
        obs: Any,
        state: PolicyState | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
        action_masks: Any = None,
        reward: Any = None,
    ) -> tuple[Any, PolicyState | None]:
        """The action and the state after it, as in Stable-Baselines3; what `act` keeps stays as it is.

        Args:
            state: what the call before returned; None at the start.
            episode_start: [B] bool, or one bool: which observations are the first of an episode.
            action_masks, reward: see `act`.
        """
        seen = self._read(obs, action_masks)
        number = len(tree.first(seen.obs))
        if state is None:
            state = self.start(number)
        elif len(state.fresh) != number:
            raise WhorlError(
                f"the state belongs to {len(state.fresh)} environments, but {number} observations were given; pass "
                "state=None when their number changes"
            )
        if episode_start is not None:
            state = _with_starts(state, episode_start)
        action, state = self._step(seen, state, deterministic, reward)
        return action, state if self._remembers else None

    @torch.no_grad()
    def value(self, obs: Any, action_mask: Any = None, reward: Any = None) -> Any:
        """The critic's value of one observation, or of a batch [B]; for Q functions, that of the greedy action."""
        self._require("value")
        seen = self._read(obs, action_mask)
        return seen.answer(estimates.value(self.agent, self._rows(seen, reward, critic=True)))

    @torch.no_grad()
    def probabilities(self, obs: Any, action_mask: Any = None, reward: Any = None) -> Any:
        """The probability of each discrete action [n] or [B, n].

        Several choices give a list of these (MultiDiscrete, MultiBinary), or a dict or tuple as the action space has,
        with None for continuous parts.
        """
        self._require("probabilities")
        seen = self._read(obs, action_mask)
        policy = estimates.distribution(self.agent, self._rows(seen, reward))
        return seen.answer(estimates.probabilities(self.spec.action, policy))

    @torch.no_grad()
    def log_prob(self, obs: Any, action: Any, action_mask: Any = None, reward: Any = None) -> Any:
        """The log-probability of an action of the environment, or of a batch of them.

        For continuous actions it is the log-density of the action scaled to [-1, 1], as in training.
        """
        self._require("log_prob")
        seen = self._read(obs, action_mask)
        policy = estimates.distribution(self.agent, self._rows(seen, reward))
        taken = tree.map(lambda part: part.unsqueeze(0), self._canonical(action, seen))
        return seen.answer(policy.log_prob(taken)[0])

    @torch.no_grad()
    def q_values(self, obs: Any, action: Any = None, action_mask: Any = None, reward: Any = None) -> Any:
        """Q values of all discrete actions [n] or [B, n], or of a given action; the minimum over several critics."""
        self._require("q_values")
        if action is None and not isinstance(self.spec.action, Discrete):
            raise WhorlError(
                f"{self.settings.algorithm} has a Q value for each whole action; call q_values(obs, action)"
            )
        seen = self._read(obs, action_mask)
        taken = None if action is None else self._canonical(action, seen)
        return seen.answer(estimates.q_values(self.agent, self._rows(seen, reward, critic=True), taken))

    def export(self, path: str | Path, format: str = "", stochastic: bool = False) -> dict[str, Any]:
        """Write this policy as ONNX, TorchScript or safetensors, by the suffix of `path` or by name.

        Normalisers, action scaling, masks and frame stacks are in the file; memory is among its inputs and outputs.
        Returns the description that the file holds too; see `whorl.state.formats.export_policy`.
        """
        from whorl.state.formats import export_policy  # imported on use: exporters take a second to import

        return export_policy(self, path, format, stochastic)

    def _require(self, method: str) -> None:
        if self.acts_only:
            raise WhorlError(
                f"this policy was saved for acting alone, so it has no {method}; use that of a run"
            )
        has = estimates.offered(self.agent)
        if method not in has:
            raise WhorlError(
                f"a policy of {self.settings.algorithm} on this action space has no {method}; it has "
                f"{', '.join(has)}"
            )

    def _read(self, obs: Any, mask: Any) -> _Seen:
        answer = isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict)
        if answer and not isinstance(self.reads.observation, TupleSpec):
            raise WhorlError(
                "a tuple of an observation and a dict was given, which is what reset() returns; pass the observation "
                "alone: obs, info = env.reset()"
            )
        obs = as_stored(obs, mask, self.reads, self._shown)
        single = is_single(obs, self._shown)
        tensors = tree.map(
            lambda leaf, like: torch.as_tensor(leaf, device=self.agent.device).to(getattr(torch, like.dtype)),
            obs,
            self.reads.observation,
        )
        if single:
            tensors = tree.map(lambda leaf: leaf.unsqueeze(0), tensors)
        return _Seen(tensors, single, not any(isinstance(leaf, Tensor) for leaf in tree.leaves(obs)))

    def _state_for(self, seen: _Seen) -> PolicyState:
        """The state that `act` stored; another number of observations starts a new episode."""
        number = len(tree.first(seen.obs))
        if self._state is None or len(self._state.fresh) != number:
            return self.start(number)
        return self._state

    def start(self, number: int) -> PolicyState:
        """The state of `number` environments before their first observation."""
        device = self.agent.device
        nothing = empty_obs(self.reads.observation, (number,), device)
        with torch.no_grad():
            memory = self.agent.begin(nothing, collecting=False)
        return PolicyState(
            torch.ones(number, dtype=torch.bool, device=device),
            memory,
            nothing,
            empty_action(self.spec.action, (number,), device),
        )

    def respond(
        self, obs: Tree, state: PolicyState, earned: Tensor, deterministic: bool
    ) -> tuple[Tree, PolicyState]:
        """One step in tensors alone: the canonical action for newest frames `obs` [B, ...], and the state after it.

        Args:
            earned: [B] rewards of the previous step.
        """
        frames, memory = self._entered(obs, state, earned)
        acted = self.agent.act_tracked(
            frames, memory, Context(state.fresh, self._generator, greedy=deterministic)
        )
        return acted.action, PolicyState(torch.zeros_like(state.fresh), acted.memory, frames, acted.action)

    def _entered(self, obs: Tree, state: PolicyState, earned: Tensor) -> tuple[Tree, Tree]:
        """The stacked frames with this observation, and the memory before it."""
        frames = tree.map(partial(_stacked, state.fresh), self.reads.observation, state.frames, obs)
        if LAST not in state.memory:
            return frames, state.memory
        # Components may change their memory in place, but the caller may hold this state.
        memory = tree.clone(state.memory) if self.agent.tracks else state.memory
        return frames, self.agent.follow(memory, state.frames, state.action, earned, frames, state.fresh)[0]

    def _earned(self, state: PolicyState, reward: Any) -> Tensor:
        """The rewards [B] of the previous step."""
        needed = LAST in state.memory and self.agent.cfg.last_reward
        if needed and reward is None and not bool(state.fresh.all()):
            raise WhorlError(
                "this policy reads the reward of the previous step; call act(obs, reward=reward)"
            )
        given = torch.as_tensor(
            0.0 if reward is None else reward, dtype=torch.float32, device=self.agent.device
        )
        return given.expand(len(state.fresh))

    @torch.no_grad()
    def _step(
        self, seen: _Seen, state: PolicyState, deterministic: bool, reward: Any
    ) -> tuple[Any, PolicyState]:
        canonical, after = self.respond(seen.obs, state, self._earned(state, reward), deterministic)
        action = seen.answer(to_env(self.spec.action, canonical))
        if seen.arrays:
            action = tree.map(_as_member, self.spec.action, action)
        return as_nested(self.spec.action, action), after

    def _rows(self, seen: _Seen, reward: Any, critic: bool = False) -> Rows:
        """One row of prepared observations, with the memory before it."""
        state = self._state_for(seen)
        frames, memory = self._entered(seen.obs, state, self._earned(state, reward))
        if critic and estimates.untracked(self.agent, memory):
            raise WhorlError(
                "the critic of this policy has a memory that acting does not keep, so it has no values of single "
                "observations; train with stored_memory or share_memory"
            )
        agent: Any = self.agent

        def one(part: Tensor) -> Tensor:
            return part.unsqueeze(0)

        last = tree.map(one, memory[LAST]) if LAST in memory else {}
        obs = tree.map(one, agent.observations(frames))
        return Rows(obs, one(state.fresh), memory, 0, 0, 1, last)

    def _canonical(self, action: Any, seen: _Seen) -> Tree:
        """Actions of the environment as the agent has them, one per observation."""
        found = action_tree(self.spec.action, action, self.agent.device)
        if seen.single:
            found = tree.map(lambda part: part.unsqueeze(0), found)
        want = to_env(self.spec.action, empty_action(self.spec.action, (len(tree.first(seen.obs)),)))
        for (path, part), like in zip(tree.items(found), tree.leaves(want)):
            if part.shape != like.shape:
                given, needed = (tuple(x.shape)[int(seen.single) :] for x in (part, like))
                name = f"the action{f' {path!r}' if path else ''}"
                raise WhorlError(f"{name} has shape {given}, but this observation needs {needed}")
        actions = from_env(self.spec.action, found)
        tree.map(partial(_check_choices, action), self.spec.action, actions)
        return actions


def _check_choices(given: Any, like: Any, action: Tensor) -> None:
    """Raise for a canonical action that the environment does not have."""
    if isinstance(like, Continuous):
        return
    numbers = torch.tensor(like.n if isinstance(like, Discrete) else like.nvec, device=action.device)
    if bool(((action < 0) | (action >= numbers)).any()):
        raise WhorlError(f"the action {given} is outside the action space of this policy, {like}")


def _with_starts(state: PolicyState, where: Any) -> PolicyState:
    """`state`, in which the environments in `where` start an episode."""
    return replace(state, fresh=state.fresh | torch.as_tensor(where, device=state.fresh.device))


def _as_member(like: Any, value: Any) -> Any:
    """Actions are arrays, even those without an axis; only one Discrete action is a scalar."""
    return value if isinstance(like, Discrete) else np.asarray(value)


def _own_shape(like: Array) -> Array:
    """One frame as the environment gives it: an image of [H, W] has no axis for channels."""
    frame = like.frame
    return replace(frame, shape=frame.shape[1:]) if like.plane else frame


def _stacked(fresh: Tensor, like: Array, held: Tensor, newest: Tensor) -> Tensor:
    """The last frames, newest at the end; at the start of an episode its first frame fills the stack."""
    newest = newest.reshape(newest.shape[0], *like.frame.shape)
    if like.stack == 1:
        return newest
    axis, width = like.axis + 1, like.frame.shape[like.axis]
    older = held.narrow(axis, width, held.shape[axis] - width)
    first = torch.cat([newest] * like.stack, axis)
    return tree.where(fresh, first, torch.cat((older, newest), axis))


def export(agent: Agent, settings: Settings, acting: bool = False) -> dict[str, Any]:
    """The policy as tensors and plain containers.

    Args:
        acting: leave out what acting does not read, such as critics; values can't be asked for then.
    """
    module = agent.state_dict()
    if acting:
        module = {name: module[name].clone() for name in _read_in_acting(agent)}
    if not agent.tracks:
        module = {k: v for k, v in module.items() if not k.startswith(f"{COMPONENTS}.")}
    return {
        "format": FORMAT,
        "config": settings.saved(),
        "spec": pack_spec(agent.spec),
        "module": module,
        **({"acting": True} if acting else {}),
    }


def _read_in_acting(agent: Agent) -> list[str]:
    """Names of the state's tensors that acting reads."""
    read = {tensor.data_ptr() for tensor in agent.acting_tensors()}
    return [name for name, value in agent.state_dict().items() if value.data_ptr() in read]


def load_policy(
    saved: dict[str, Any], trust: tuple[str, ...] = (), device: str = "cpu", hint: str = ""
) -> SavedPolicy:
    """Rebuild an exported policy; see `only_trusted` for `trust` and `hint`."""
    config = dict(saved["config"])
    with only_trusted(trust, hint):
        settings = configure(config["algorithm"], config["env"], config, presets=False)
        cls: Any = algorithm_class(settings.algorithm)[1]
        agent = build_agent(settings, unpack_spec(saved["spec"]), components=cls.tracks)
    known = agent.state_dict()  # the learning rates of components are not
    acting = bool(saved.get("acting", False))
    lacking = [name for name in _read_in_acting(agent) if acting and name not in saved["module"]]
    if lacking:
        raise CheckpointError(
            f"a saved policy lacks {lacking[0]!r}, which its actions depend on; save it again"
        )
    agent.to(device).load_state_dict(
        {name: saved["module"][name] for name in saved["module"] if name in known}, strict=not acting
    )
    policy = SavedPolicy(agent, settings)
    policy.acts_only = acting
    return policy


def read_policy(path: Path, trust: tuple[str, ...] = (), device: str = "cpu") -> SavedPolicy:
    """The policy in a file of `export`'s containers that torch wrote; reading it runs no code."""
    problem = CheckpointError(
        f"{path} holds no policy of Whorl; name a run, a checkpoint, an agent in the box, or a .safetensors file of "
        "whorl export"
    )
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # any file may be given, also a malicious one
        raise problem from error
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise problem
    try:
        return load_policy(saved, trust, device)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, WhorlError):
            raise
        raise problem from error


_SEEDING = threading.RLock()
"""held while weights are drawn from the global generator, which threads share"""


def build_agent(settings: Settings, spec: Spec, seed: int = 0, components: bool = True) -> Agent:
    """The agent that settings describe, initialised from `seed`; global RNGs stay untouched."""
    name, cls, _ = algorithm_class(settings.algorithm)
    with _SEEDING, _naming(name, cls), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if not components:
            return cls(spec, settings.algo)
        agent = with_components(partial(cls, cfg=settings.algo), spec, getattr(settings, "components", {}))
    agent.collects_greedily = settings.run.disable_sample
    return agent


@contextmanager
def _naming(name: str, cls: type) -> Iterator[None]:
    """Errors name the algorithm that was asked for: td3_bc is TD3 with other settings, whose errors name td3."""
    try:
        yield
    except ConfigError as error:
        rule = cls.__module__.rpartition(".")[2]
        if not error.message.startswith(f"{rule} "):
            raise
        raise ConfigError(f"{name}{error.message.removeprefix(rule)}", error.details) from None
