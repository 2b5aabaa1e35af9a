"""PettingZoo's parallel API: `pettingzoo:butterfly.pistonball_v6`, `pettingzoo:mpe2.simple_tag_v3`, your own
`pettingzoo:my_module:MyEnv`, and objects that have this API, whether or not they derive from PettingZoo's class. Games
that are played in turns, its AEC API, are stepped turn by turn (`whorl.envs.adapters.turns`).

Agents that share a policy are one behaviour (`whorl.envs.behaviors`), and each of them in each copy of the environment
is a row of its batch. An agent that is terminated or truncated before the others leaves its row waiting until the copy
is reset; one that appears late has a row that waits until then.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

from whorl.core.arrays import SUCCESS
from whorl.core.errors import ConfigError, EnvError, missing_extra, nearest
from whorl.core.spec import Spec
from whorl.envs.adapter import Adapter, imported
from whorl.envs.adapters.gymnasium import to_spec
from whorl.envs.adapters.imported import MAKERS, PETTINGZOO, parallel_path
from whorl.envs.adapters.parallel import Group, PettingZooEnv, calling, snapshot_of
from whorl.envs.adapters.turns import Turns, in_turns
from whorl.envs.behaviors import OneBehavior
from whorl.envs.mistakes import make_env
from whorl.envs.spaces import Factory, make_layout, mask_in
from whorl.envs.wrappers import split
from whorl.settings.schema import Range, build, fields_of

if TYPE_CHECKING:
    from whorl.envs.make import Source

SHARING = ("type", "none", "all")
_NUMBER = re.compile(r"_?\d+$")


@dataclass(frozen=True)
class PettingZooOptions:
    """Options of all PettingZoo environments, besides those that the environment itself takes."""

    copies: Annotated[int, Range(1, 10_000)] = 8
    """copies of the environment that are stepped together; num_envs of a behaviour is copies times its agents"""
    sharing: str | Mapping[str, Any] = "type"
    """which agents share a policy: those of one type (prey_0 and prey_1 are prey), none, all, or a mapping of names to
    agents, {hunters: [adversary_*], prey: [agent_0]}"""
    behavior: str = ""
    """train this behaviour alone; agents of the others get actions of 0, in games in turns the first legal one"""

    def __post_init__(self) -> None:
        if not _is_sharing(self.sharing):
            raise ConfigError(
                f"sharing is {self.sharing!r}; use {', '.join(SHARING)} or a mapping of names to agents"
            )


OPTIONS = tuple(fields_of(PettingZooOptions))


def is_parallel(env: Any) -> bool:
    """Whether an object has PettingZoo's parallel API, or what its AEC API has in common with that."""
    needed = ("possible_agents", "observation_space", "action_space", "reset", "step")
    return not isinstance(env, type) and all(hasattr(env, name) for name in needed)


@dataclass
class Scene:
    """What is known of an environment: its behaviours by name, and whether it has snapshots."""

    groups: dict[str, Group] = field(default_factory=dict)
    snapshots: bool = False


class PettingZooAdapter(Adapter):
    """Ids `pettingzoo:MODULE` and `pettingzoo:MODULE:NAME`, or the function or class that the user `given`."""

    extra = "pettingzoo"
    packages = (PETTINGZOO,)
    single = False

    def __init__(self, given: Callable[..., Any] | None = None) -> None:
        self._given = given
        self._scenes: dict[str, Scene] = {}

    def owns(self, id: str) -> bool:
        return id.partition(":")[0] == PETTINGZOO

    def check_options(self, id: str, options: dict[str, Any]) -> dict[str, Any]:
        if wrapping := split(options)[1]:
            raise EnvError(
                f"{id} is stepped as a batch, which {', '.join(wrapping)} can't change; use wrappers of SuperSuit"
            )
        read_options(options)
        return options

    def factory(self, id: str, options: dict[str, Any]) -> Factory:
        return partial(_make, self._given, id, {k: v for k, v in options.items() if k not in OPTIONS})

    def batches(self, options: Mapping[str, Any]) -> bool:
        return True

    def behaviors(self, id: str, options: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(self._scene(id, options).groups)

    def num_envs(self, id: str, options: Mapping[str, Any]) -> int:
        return len(self._group(id, options).agents) * read_options(options).copies

    def spec(self, id: str, options: Mapping[str, Any]) -> Spec:
        return to_spec(self._group(id, options).layout, 1)

    def vector(self, source: "Source", num_envs: int, device: Any, compile: bool) -> OneBehavior:
        agents = len(self._group(source.id, source.options).agents)
        if num_envs % agents:
            raise ConfigError(
                f"num_envs is {num_envs}, which {agents} agents in each copy of {source.id} can't share equally; "
                "leave num_envs out, and set the number of copies with env_options.copies"
            )
        return OneBehavior(self.behavior_env(source, num_envs // agents))

    def behavior_env(self, source: "Source", copies: int = 0) -> "PettingZooEnv":
        options = read_options(source.options)
        scene = self._scene(source.id, source.options)
        chosen = (
            {options.behavior: self._group(source.id, source.options)} if options.behavior else scene.groups
        )
        factory = self.factory(source.id, dict(source.options))
        return PettingZooEnv(source.id, factory, chosen, copies or options.copies, scene.snapshots)

    def _group(self, id: str, options: Mapping[str, Any]) -> Group:
        """The behaviour that is trained alone: the one that options name, or the only one."""
        groups, asked = self._scene(id, options).groups, read_options(options).behavior
        if not asked and len(groups) == 1:
            return next(iter(groups.values()))
        if not asked:
            raise EnvError(
                f"{id} has the behaviours {', '.join(groups)}; train all of them with whorl.train or whorl train, or "
                f"choose one with the option behavior (--env_options.behavior {next(iter(groups))})"
            )
        if asked not in groups:
            raise EnvError(f"{id} has no behaviour {asked!r}; {nearest(asked, groups)}")
        return groups[asked]

    def _scene(self, id: str, options: Mapping[str, Any]) -> Scene:
        """Behaviours of one copy, found once."""
        others = {name: value for name, value in options.items() if name != "behavior"}
        key = json.dumps([id, others], sort_keys=True, default=str)
        if key not in self._scenes:
            self._scenes[key] = _probe(id, self.factory(id, dict(options)), read_options(options))
        return self._scenes[key]


ADAPTERS = (PettingZooAdapter(),)


def read_options(options: Mapping[str, Any]) -> PettingZooOptions:
    """The options that all of these environments have, checked."""
    found: PettingZooOptions = build(PettingZooOptions, {k: v for k, v in options.items() if k in OPTIONS})
    return found


def _make(given: Callable[..., Any] | None, id: str, options: dict[str, Any]) -> Any:
    """One copy of the environment."""
    env = make_env(partial(given or _named(id), **options))
    if not is_parallel(env):
        raise EnvError(
            f"{id} makes a {type(env).__name__}, which has neither PettingZoo's parallel API nor its AEC API; name a "
            "class or function whose environment has one of them"
        )
    return Turns(env) if in_turns(env) else env


def _named(id: str) -> Callable[..., Any]:
    """The function or class that an id names."""
    module, name = parallel_path(id)
    if not module:
        raise EnvError(
            f"{id} names no environment; write {PETTINGZOO}:butterfly.pistonball_v6 or {PETTINGZOO}:my_module:MyEnv"
        )
    if module.startswith(f"{PETTINGZOO}.") and find_spec(PETTINGZOO) is None:
        raise missing_extra(PETTINGZOO, PettingZooAdapter.extra)
    inside = imported(id, module, module)
    names = (name,) if name else MAKERS
    for maker in names:
        found = getattr(inside, maker, None)
        if callable(found):
            return found
    raise EnvError(f"{module} has no {' or '.join(names)}, which makes a PettingZoo environment")


def _probe(id: str, factory: Factory, options: PettingZooOptions) -> Scene:
    env: Any = factory()
    try:
        agents = list(env.possible_agents)
        if not agents:
            raise EnvError(f"possible_agents of {id} is empty; name all agents that may appear")
        with calling(f"{id}, reset(seed=0)"):
            _, infos = env.reset(seed=0)
        names = _shared(id, agents, options.sharing)
        groups = {name: _group(id, env, name, members, infos) for name, members in names.items()}
        return Scene(groups, snapshot_of(env) is not None)
    finally:
        env.close()


def _is_sharing(value: Any) -> bool:
    """Whether the option sharing is one of its words, or names agents (patterns) for each behaviour."""
    if isinstance(value, str):
        return value in SHARING
    return isinstance(value, Mapping) and all(
        isinstance(given, str | list | tuple) for given in value.values()
    )


def _shared(id: str, agents: Sequence[str], sharing: str | Mapping[str, Any]) -> dict[str, list[str]]:
    """The agents of each behaviour, by name."""
    found: dict[str, list[str]] = {}
    if sharing == "all":
        return {"all": list(agents)}
    if isinstance(sharing, str):
        for agent in agents:
            found.setdefault((_NUMBER.sub("", agent) or agent) if sharing == "type" else agent, []).append(
                agent
            )
        return found
    patterns = {
        str(name): [given] if isinstance(given, str) else [str(one) for one in given]
        for name, given in sharing.items()
    }
    for agent in agents:
        owners = [name for name, some in patterns.items() if any(fnmatchcase(agent, one) for one in some)]
        if len(owners) != 1:
            which = " and ".join(owners) if owners else "no behaviour"
            raise EnvError(
                f"agent {agent!r} of {id} belongs to {which} in the option sharing; give it to one"
            )
        found.setdefault(owners[0], []).append(agent)
    if unused := set(patterns) - set(found):
        raise EnvError(
            f"no agent of {id} is in behaviour {sorted(unused)[0]!r} of the option sharing; its agents are "
            f"{', '.join(agents)}"
        )
    return {name: found[name] for name in patterns}


def _group(id: str, env: Any, name: str, agents: Sequence[str], infos: Mapping[str, Any]) -> Group:
    """A behaviour, whose agents must have the same spaces."""
    pairs = [(env.observation_space(agent), env.action_space(agent)) for agent in agents]
    for agent, pair in zip(agents, pairs):
        if pair != pairs[0]:
            raise EnvError(
                f"{agents[0]} and {agent} of {id} have different spaces, so that they can't share the policy {name!r}; "
                "use the option sharing: none, or a mapping of names to agents"
            )
    observation, action = pairs[0]
    # Agents that have not appeared yet give masks where the others do.
    info: Any = next((infos[agent] for agent in (*agents, *infos) if agent in infos), {})
    return Group(
        tuple(agents),
        make_layout(observation, action, mask_in(observation, action, dict(info)), measures=(SUCCESS,)),
    )
