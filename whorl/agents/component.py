"""Something that is learned in addition to the policy: an intrinsic reward, an auxiliary loss, a memory of its own.

A component is one file with a `Config` and a subclass of `Component`, registered by name. The agent holds it in
`agent.components`, so it is moved, checkpointed and sent to other learners with the agent. No algorithm knows of it.

    @register("component", "mine")
    class Mine(Component):
        Config = MyConfig
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from whorl.core.errors import ConfigError
from whorl.core.registry import resolve
from whorl.core.spec import Array, Spec, Stream
from whorl.core.tree import Tree
from whorl.data.batch import Batch

if TYPE_CHECKING:
    from whorl.agents.agent import Agent


class Component(nn.Module):
    """Base class; every method is optional.

    The constructor makes the networks, and gives them an optimizer with `agent.add_optimizer(name, ...)` or lets one of
    the agent's train them with `agent.join_optimizer("critic", modules, loss)`. Methods that run while learning follow
    the rules of `@captured` steps: they change tensors in place and do not wait for values on the host.

    Args:
        name: name of this component in the agent, and of its optimizer and random generator if it has them.
        agent: the agent it belongs to; do not store it, except in a tuple (as a submodule it would be a cycle).
    """

    Config: ClassVar[type]
    """a frozen dataclass with the component's settings"""
    columns: ClassVar[Mapping[str, Array]] = {}
    """columns that `track` returns and that are stored with every row, in `Batch.extras`"""

    needs_successor: ClassVar[bool] = False
    """whether `update` reads the observation right after each action (`agents.bonus.drawn`)"""
    outlives_episodes: ClassVar[tuple[str, ...]] = ()
    """keys of `initial_memory` that are kept when all environments are reset"""

    def __init__(self, name: str, spec: Spec, cfg: Any, agent: "Agent") -> None:
        super().__init__()
        self.name, self.spec, self.cfg = name, spec, cfg

    @classmethod
    def streams(cls, name: str, cfg: Any) -> tuple[Stream, ...]:
        """The reward streams that `rewards` computes."""
        return ()

    def observe(self, rollout: Batch) -> None:
        """Update running statistics with a new rollout, before `rewards`."""

    def rewards(self, rollout: Batch) -> dict[str, Tensor]:
        """Rewards [T, B] by stream of a new rollout, once, before it is added to the experience.

        Row t belongs to the transition from `obs[t]` to `obs[t + 1]`. Masked rows are set to 0 afterwards.
        """
        return {}

    def update(self, agent: "Agent", batch: Batch) -> dict[str, Tensor]:
        """Learn from a batch, after the agent has; returns metrics. Runs as a `@captured` step."""
        return {}

    def pictures(self, agent: "Agent") -> dict[str, Tensor]:
        """Images to look at, uint8 [height, width, 1 or 3] by name; asked for with each evaluation."""
        return {}

    @property
    def looks_ahead(self) -> tuple[int, ...]:
        """How many steps after each action are the observations that `update` reads besides those of the agent."""
        return (1,) if self.needs_successor else ()

    @property
    def immediate(self) -> bool:
        """Whether its rewards are known while acting: columns of `track` with the names of its streams."""
        return False

    @property
    def acts(self) -> bool:
        """Whether it has a part in acting: then its tensors are sent to the processes that act."""
        return type(self).track is not Component.track

    @property
    def candidates(self) -> int:
        """Actions sampled from a stochastic policy while exploring, of which the one with the best `score` is taken; 0:
        the first is taken."""
        return 0

    def score(self, obs: Tree, action: Tree) -> Tensor:
        """Scores [n, B] of candidate actions [n, B, ...] for observations [B, ...]; the highest is taken."""
        raise NotImplementedError

    def initial_memory(self, num_envs: int) -> Tree:
        """Memory per environment before its first episode, [num_envs, ...]."""
        return {}

    def track(
        self, memory: Tree, obs: Tree, action: Tree, next_obs: Tree, reset: Tensor
    ) -> tuple[Tree, dict[str, Tensor]]:
        """While collecting, once the environments have answered: the memory after this row, and its `columns` [B, ...].

        Where `reset` [B] is true the row is no step: `next_obs` starts an episode, and the memory has to start with
        it. It may be changed in place.
        """
        raise NotImplementedError


def with_components(build: Callable[[Spec], "Agent"], spec: Spec, configs: Mapping[str, Any]) -> "Agent":
    """The agent that `build` makes, with the named components and their reward streams.

    Args:
        configs: the settings of each component, by the name it is registered under.
    """
    classes: dict[str, Any] = {name: resolve("component", name) for name in configs}
    if configs:
        found = [
            stream
            for name, cfg in configs.items()
            for stream in classes[name].streams(name.replace(".", "_"), cfg)
        ]
        names = [stream.name for stream in found]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"two components have a reward stream called {twice!r}; leave one of them out")
        spec = replace(spec, streams=tuple(found))
    agent = build(spec)
    for name, cfg in configs.items():
        key = name.replace(".", "_")  # of an import path: names of submodules have no dots
        agent.components[key] = component = classes[name](key, spec, cfg, agent)
        if agent.tracks and component.streams(key, cfg) and not component.immediate:
            why = f"{name} computes its rewards when learning; use components: [episodic]"
            if type(component).immediate is not Component.immediate and getattr(cfg, "normalize", False):
                why = f"{name}.normalize divides them when learning; leave it out"
            raise ConfigError(f"{type(agent).__name__} reads intrinsic rewards while acting, but {why}")
    return agent
