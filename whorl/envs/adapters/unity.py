"""Unity ML-Agents: players (`unity:PATH`) and the editor (`unity:editor`). Each agent is one environment of a batch.

The messages are those of `mlagents_envs`, which is not needed. Several behaviours in one scene are trained together,
each with an agent of its own; with the option `behavior` one is trained, and the agents of others do nothing.
"""

import atexit
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch

from whorl.core import messages
from whorl.core.errors import ConfigError, EnvError
from whorl.core.spec import Spec
from whorl.core.tree import Tree
from whorl.envs.adapter import Adapter
from whorl.envs.adapters.gymnasium import to_spec, to_step
from whorl.envs.behaviors import BehaviorEnv, OneBehavior
from whorl.envs.spaces import Factory, batch_decoder, leaf_at, make_layout
from whorl.envs.stepping import Buffers, env_seed
from whorl.envs.unity.agents import Agents, PlayerAgents
from whorl.envs.unity.behaviors import Behavior, announced, choose
from whorl.envs.unity.options import EDITOR, UnityOptions, read_options
from whorl.envs.unity.player import Player, PlayerLost
from whorl.envs.unity.side_channels import parameters
from whorl.envs.vector import Step
from whorl.envs.wrappers import split

if TYPE_CHECKING:
    from whorl.envs.make import Source

FAILURES = 3
"""failures of one player without an answer in between after which the run ends"""
FAILURES_PER_HOUR = 30
PROBED = 100
"""messages that are read at most to find out how many agents there are"""


@dataclass
class Scene:
    """What is known of a scene: its behaviours, and how many agents of them a player has."""

    behaviors: dict[str, Behavior]
    """by key"""
    counts: list[list[str]]
    """the keys of the agents that were there at each message"""
    editor: Player | None = None
    """a connection with the editor, which can't be started again"""

    def agents(self, behavior: Behavior) -> int:
        """The most agents of a behaviour that were there together."""
        return max(sum(map(behavior.owns, keys)) for keys in self.counts)


class UnityAdapter(Adapter):
    """Ids `unity:PATH`, with the path of a built player, and `unity:editor`."""

    extra = "unity"
    single = False
    renders = False

    def __init__(self) -> None:
        self._scenes: dict[str, Scene] = {}

    def owns(self, id: str) -> bool:
        return id.partition(":")[0] == "unity"

    def check_options(self, id: str, options: dict[str, Any]) -> dict[str, Any]:
        if wrapping := split(options)[1]:
            raise EnvError(
                f"{id} is stepped as a batch, which {', '.join(wrapping)} can't change; stack observations in Unity"
            )
        read_options(id, options)
        return options

    def factory(self, id: str, options: dict[str, Any]) -> Factory:
        def single() -> gymnasium.Env:
            raise EnvError(
                f"{id} is a batch of environments, one per agent; pass it to whorl.load or whorl.train"
            )

        return single

    def batches(self, options: Mapping[str, Any]) -> bool:
        return True

    def alone(self, id: str, options: Mapping[str, Any]) -> bool:
        return read_options(id, options).editor

    def behaviors(self, id: str, options: Mapping[str, Any]) -> tuple[str, ...]:
        found = self._scene(id, options).behaviors.values()
        return tuple(dict.fromkeys(one.name for one in found if one.continuous or one.branches))

    def num_envs(self, id: str, options: Mapping[str, Any]) -> int:
        return (
            self._scene(id, options).agents(self._behavior(id, options)) * read_options(id, options).players
        )

    def spec(self, id: str, options: Mapping[str, Any]) -> Spec:
        return to_spec(layout_of(self._behavior(id, options)), 1)

    def vector(self, source: "Source", num_envs: int, device: Any, compile: bool) -> "UnityVector":
        options = read_options(source.id, source.options)
        scene, behavior = self._scene(source.id, source.options), self._behavior(source.id, source.options)
        if num_envs % options.players:
            raise ConfigError(
                f"num_envs is {num_envs}, which {options.players} players can't share equally; leave num_envs out, or "
                f"use {options.players * scene.agents(behavior)}"
            )
        editor, scene.editor = scene.editor, None
        return UnityVector(source.id, options, behavior, num_envs, editor, scene.behaviors)

    def behavior_env(self, source: "Source", copies: int = 0) -> "UnityEnv":
        options, scene = read_options(source.id, source.options), self._scene(source.id, source.options)
        chosen = {name: choose(scene.behaviors, name) for name in self.behaviors(source.id, source.options)}
        trained = {name: (one, scene.agents(one) * options.players) for name, one in chosen.items()}
        editor, scene.editor = scene.editor, None
        return UnityEnv(source.id, options, trained, editor, scene.behaviors)

    def _behavior(self, id: str, options: Mapping[str, Any]) -> Behavior:
        """The behaviour that is trained alone: the one that options name, or the only one."""
        return choose(self._scene(id, options).behaviors, read_options(id, options).behavior)

    def _scene(self, id: str, options: Mapping[str, Any]) -> Scene:
        """Scene of a player, read once."""
        others = {name: value for name, value in options.items() if name != "behavior"}
        key = json.dumps([id, others], sort_keys=True, default=str)
        if key not in self._scenes:
            self._scenes[key] = _probe(id, read_options(id, options))
        return self._scenes[key]


ADAPTERS = (UnityAdapter(),)


def path_of(id: str, options: UnityOptions) -> str | None:
    """The path in an id; None for the editor."""
    path = id.partition(":")[2]
    if options.editor or path == EDITOR:
        return None
    if not path:
        raise EnvError("unity needs the path of a built player, unity:PATH, or unity:editor")
    return path


def layout_of(behavior: Behavior) -> Any:
    """Observations and actions of a behaviour as arrays."""
    mask: Any = "info" if behavior.branches else "none"
    return make_layout(behavior.observation_space, behavior.action_space, mask)


def _probe(id: str, options: UnityOptions) -> Scene:
    """Start a player to find its behaviours, and count the agents that ask before one of them asks again.

    An id belongs to an episode: the next one of an agent has another, so those that ended are not counted any more.
    """
    nobody = Behavior("", (), 0, ())
    nothing = np.zeros(0)
    # Without rows, all agents do nothing.
    idle = Agents(nobody, Buffers([], *([nothing] * 7)), {})
    found: dict[str, Behavior] = {}
    seen: set[tuple[str, int]] = set()
    counts: list[list[str]] = []
    """the behaviours of the agents that were there at each message"""
    player = Player(path_of(id, options), options, 0, 0)
    try:
        message = player.connect()
        for _ in range(PROBED):
            found |= announced(message)
            infos = message.unity_output.rl_output.agentInfos
            asking = [(key, info.id) for key in infos for info in infos[key].value if not info.done]
            if seen.intersection(asking):
                break
            seen -= {(key, info.id) for key in infos for info in infos[key].value if info.done}
            seen.update(asking)
            counts.append([key for key, _ in seen])
            idle.take(message)
            message = player.exchange(idle.message())
        if not found:
            choose(found, "")  # raises
    except BaseException:
        player.kill()
        raise
    if options.editor:
        atexit.register(player.close)
    else:
        player.close()
    return Scene(found, counts, player if options.editor else None)


class Trained:
    """A behaviour that is trained: the rows of its agents in all players."""

    def __init__(
        self, behavior: Behavior, num_envs: int, players: int, scene: Mapping[str, Behavior]
    ) -> None:
        self.behavior, self.layout = behavior, layout_of(behavior)
        self.spec = to_spec(self.layout, num_envs)
        buffers = Buffers.empty(self.layout, num_envs)
        self.step = to_step(self.layout, buffers)
        self.waits = torch.zeros(num_envs, dtype=torch.bool)
        self._decode = batch_decoder(behavior.action_space)
        each = num_envs // players
        self._rows = [slice(start, start + each) for start in range(0, num_envs, each)]
        self.agents = [Agents(behavior, buffers[rows], scene) for rows in self._rows]

    def act(self, action: Tree) -> None:
        """Give the agents of all players their actions."""
        given = [leaf_at(action, leaf).cpu().numpy() for leaf in self.layout.action]
        continuous, discrete = self.behavior.split(self._decode(given))
        for rows, agents in zip(self._rows, self.agents):
            agents.act(continuous[rows], discrete[rows])

    def result(self) -> Step:
        """Result of the step."""
        np.concatenate([~agents.answered for agents in self.agents], out=self.waits.numpy())
        return replace(self.step, soft=None, measures=None, cells=None, waits=self.waits)


class UnityEnv(BehaviorEnv):
    """The agents of one or more behaviours in one or more players. There are no snapshots.

    A player that ends or hangs is replaced; its episodes are dropped, and their rows are masked.

    Args:
        trained: the behaviours that are trained, with the number of their agents in all players.
        scene: all behaviours by key, as far as they are known.
    """

    snapshots = False

    def __init__(
        self,
        id: str,
        options: UnityOptions,
        trained: Mapping[str, tuple[Behavior, int]],
        editor: Player | None = None,
        scene: Mapping[str, Behavior] = MappingProxyType({}),
    ) -> None:
        self.id, self.options, self.copies = id, options, options.players
        self.trained = {
            name: Trained(behavior, num_envs, options.players, scene)
            for name, (behavior, num_envs) in trained.items()
        }
        self.specs = {name: one.spec for name, one in self.trained.items()}
        self._agents = [
            PlayerAgents([one.agents[number] for one in self.trained.values()])
            for number in range(options.players)
        ]
        """of each player"""
        self.players = [] if editor is None else [editor]
        self._settings = [b""] * options.players
        """bytes that side channels are to send to each player"""
        self._failures: list[list[float]] = [[] for _ in self._agents]
        """when each player failed"""
        self._failures_in_a_row = [0] * options.players
        """failures of each player since it answered last"""
        self._seed = 0

    def reset(self, seed: int) -> dict[str, Tree]:
        self._seed = seed
        if self.options.exact and not self.options.editor:
            self.close()
        for agents in self._agents:
            agents.clear()
            agents.begin()
        if self.players:
            for number, player in enumerate(self.players):
                self._receive(number, partial(player.reset, self._take_settings(number)))
        else:
            self.players = [self._start(number) for number in range(self.options.players)]
            try:
                for number, player in enumerate(self.players):
                    self._receive(number, player.connect)
            except BaseException:
                self.close()
                raise
        self._advance()
        for name, one in self.trained.items():
            if any(agents.surplus for agents in one.agents):
                most = max(agents.surplus + len(agents.state) for agents in one.agents)
                messages.warn(
                    f"{self.id} has {most} agents of behaviour {name!r} in a player, but num_envs is "
                    f"{one.spec.num_envs}, so that some do nothing; use {most * self.options.players}"
                )
        return {name: one.result().obs for name, one in self.trained.items()}

    def step(self, action: Mapping[str, Tree]) -> dict[str, Step]:
        for name, one in self.trained.items():
            one.act(action[name])
        for agents in self._agents:
            agents.begin()
        self._advance()
        return {name: one.result() for name, one in self.trained.items()}

    def set_parameters(self, **values: Any) -> None:
        """Set environment parameters of all players with their next message, as a curriculum does."""
        self._settings = [held + parameters(values, self._seed) for held in self._settings]
        # For players that are started later.
        self.options = replace(self.options, parameters={**self.options.parameters, **values})

    def close(self) -> None:
        for player in self.players:
            player.close()
        self.players = []

    def _advance(self) -> None:
        """Let all players continue until each has an agent for which the policy has to act."""
        going = [number for number, agents in enumerate(self._agents) if agents.can_be_answered]
        for number in going:
            self._send(number)
        for number in going:
            began, agents = time.monotonic(), self._agents[number]
            self._receive(number, self.players[number].receive)
            while agents.can_be_answered:
                if time.monotonic() - began > self.options.timeout:
                    raise EnvError(
                        f"no agent of behaviour {' or '.join(self.trained)} in {self.players[number].name} asked for a "
                        f"decision for {self.options.timeout:g} seconds, the option timeout"
                    )
                self._send(number)
                self._receive(number, self.players[number].receive)

    def _send(self, number: int) -> None:
        self.players[number].send(self._agents[number].message(self._take_settings(number)))

    def _take_settings(self, number: int) -> bytes:
        held, self._settings[number] = self._settings[number], b""
        return held

    def _receive(self, number: int, call: Callable[[], Any]) -> None:
        """Enter the next message of a player; one that is lost is replaced."""
        try:
            self._agents[number].take(call())
            self._failures_in_a_row[number] = 0
        except PlayerLost as error:
            self._replace(number, error)

    def _replace(self, number: int, error: PlayerLost) -> None:
        """Start another player instead of one that is lost, and enter its first message."""
        agents = self._agents[number]
        while True:
            self.players[number].kill()
            self._count(number, error)
            messages.warn(f"{error.message}; it is started again, and its episodes are dropped")
            agents.clear()
            self.players[number] = self._start(number)
            try:
                agents.take(self.players[number].connect())
            except PlayerLost as again:
                error = again
            else:
                return

    def _count(self, number: int, error: PlayerLost) -> None:
        """Note a failure; raise where there are too many."""
        now = time.monotonic()
        recent = [then for then in self._failures[number] if now - then < 3600]
        self._failures[number] = [*recent, now]
        self._failures_in_a_row[number] += 1
        if self._failures_in_a_row[number] >= FAILURES or len(recent) >= FAILURES_PER_HOUR:
            often = (
                f"{self._failures_in_a_row[number]} times in a row"
                if len(recent) < FAILURES_PER_HOUR
                else "too often in an hour"
            )
            raise EnvError(f"{error.message}; it failed {often}, so the run ends")

    def _start(self, number: int) -> Player:
        # A player that replaces another one does not repeat its episodes.
        seed = env_seed(self._seed, number + self.options.players * len(self._failures[number]))
        return Player(path_of(self.id, self.options), self.options, number, seed)


class UnityVector(OneBehavior):
    """The agents of one behaviour as a batch of environments."""

    env: UnityEnv

    def __init__(
        self,
        id: str,
        options: UnityOptions,
        behavior: Behavior,
        num_envs: int,
        editor: Player | None = None,
        scene: Mapping[str, Behavior] = MappingProxyType({}),
    ) -> None:
        super().__init__(UnityEnv(id, options, {behavior.name: (behavior, num_envs)}, editor, scene))

    def set_parameters(self, **values: Any) -> None:
        """Set environment parameters of all players with their next message, as a curriculum does."""
        self.env.set_parameters(**values)
