"""Gymnasium's MuJoCo tasks on a GPU by MuJoCo Warp: `warp:Humanoid-v5` is `Humanoid-v5`, thousands at once."""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium

from whorl.core.errors import EnvError, WhorlError, install_command, missing_extra, nearest
from whorl.envs.adapter import Adapter, make_registered, registry_entry
from whorl.envs.adapters.imported import MJX, WARP
from whorl.envs.mistakes import make_env
from whorl.envs.spaces import Factory, probe
from whorl.envs.wrappers import HIT, check_hit, split

if TYPE_CHECKING:
    from whorl.core.spec import Spec
    from whorl.envs.make import Source
    from whorl.envs.vector import VectorEnv
    from whorl.envs.warp.tasks import Task
    from whorl.envs.warp.world import Simulation

Allowed = tuple[Callable[[Any], bool], str]
"""whether a value is allowed, and how to say it"""
COUNT: Allowed = (lambda value: type(value) is int and value > 0, "a number from 1 on")
FLAG: Allowed = (lambda value: isinstance(value, bool), "true or false")
ON_CPU: Allowed = (lambda value: value == "cpu", "cpu, or be left out")


class BatchAdapter(Adapter):
    """Environments of which thousands are stepped at once on a GPU."""

    single = False
    renders = False
    prefix: ClassVar[str]
    """what ids begin with"""
    own: ClassVar[dict[str, Allowed]]
    """options of ours, which the library's environment does not get"""

    def owns(self, id: str) -> bool:
        return id.startswith(self.prefix)

    def batches(self, options: Mapping[str, Any]) -> bool:
        return True

    def factory(self, id: str, options: dict[str, Any]) -> Factory:
        def single() -> gymnasium.Env:
            raise EnvError(
                f"{id} is a batch of environments; pass it to whorl.load or whorl.train{self.alone_as(id)}"
            )

        return single

    def alone_as(self, id: str) -> str:
        """How one environment of the task is made, as the end of a message; "" where it can't be."""
        return ""

    def settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        return {"env_device": "cuda"} if torch.cuda.is_available() and options.get("device") != "cpu" else {}

    def check_own(self, id: str, options: dict[str, Any]) -> None:
        """Raise where one of our options is not allowed."""
        wrapping = ", ".join(name for name in split(options)[1] if name != HIT)
        if wrapping:
            raise EnvError(f"{id} is stepped as one batch, which {wrapping} can't change; leave it out")
        for name, (allowed, says) in self.own.items():
            if name in options and not allowed(options[name]):
                raise EnvError(f"{name} is {options[name]!r}; it must be {says}")


class TaskAdapter(BatchAdapter):
    """PREFIX:Name-v5, for the names in `whorl.envs.warp.tasks`; some have a v4."""

    without: ClassVar[tuple[str, ...]] = ()
    """names of tasks that the engine can't simulate"""

    @abstractmethod
    def physics(
        self, gym: Any, task: "Task", num_envs: int, device: Any, own: dict[str, Any]
    ) -> "Simulation":
        """`num_envs` copies of the model of Gymnasium's environment `gym`."""

    @abstractmethod
    def check_installed(self, id: str) -> None:
        """Raise where the engine is not installed."""

    def alone_as(self, id: str) -> str:
        return f", or make one of them as {id.removeprefix(self.prefix)}"

    def ids(self) -> Iterable[str]:
        from whorl.envs.warp.tasks import TASKS

        return [
            f"{self.prefix}{name}-v{version}"
            for name, (_, all) in TASKS.items()
            for version in reversed(all)
            if name not in self.without
        ]

    def full_id(self, id: str) -> str:
        found = id if re.search(r"-v\d+$", id) else f"{id}-v5"
        if found not in self.ids():
            raise EnvError(f"unknown environment {id!r}; {nearest(found, self.ids(), prefix=self.prefix)}")
        return found

    def check_options(self, id: str, options: dict[str, Any]) -> dict[str, Any]:
        self.check_installed(id)
        self.check_own(id, options)
        # An option that Gymnasium does not take is reported now.
        make_env(partial(self._make, self.full_id(id), options)).close()
        return options

    def spec(self, id: str, options: Mapping[str, Any]) -> "Spec":
        from whorl.envs.adapters.gymnasium import to_spec

        # Not measured here: whether an episode was a success, which these environments do not tell.
        return replace(to_spec(probe(partial(self._make, id, dict(options))), 1), measures=())

    def vector(self, source: "Source", num_envs: int, device: Any, compile: bool) -> "VectorEnv":
        import torch

        from whorl.envs.warp.tasks import TASKS
        from whorl.envs.warp.world import MujocoWorld

        id, options = source.id, source.options
        if torch.device(device).type != "cuda" and options.get("device") != "cpu":
            raise EnvError(
                f"{id} needs a CUDA GPU and env_device cuda, but env_device is {device}; use "
                f"{id.removeprefix(self.prefix)}, or for a small test on a CPU, which is slow, "
                "env_options {device: cpu}"
            )
        name, _, version = id.removeprefix(self.prefix).rpartition("-v")
        env = self._make(id, options)
        task = TASKS[name][0](env.unwrapped, int(version), torch.device(device))
        own = {name: options[name] for name in self.own if name in options and name != "device"}
        physics = self.physics(env.unwrapped, task, num_envs, torch.device(device), own)
        made = MujocoWorld(id, env, task, physics, self.spec(id, options).with_num_envs(num_envs))
        if HIT in options:
            made.count_hits(check_hit(options[HIT]))
        return made

    def _make(self, id: str, options: Mapping[str, Any]) -> gymnasium.Env:
        """Gymnasium's environment of the same task."""
        theirs = {name: value for name, value in options.items() if name not in self.own and name != HIT}
        return make_registered(registry_entry(id.removeprefix(self.prefix)), theirs)


class WarpAdapter(TaskAdapter):
    extra = "warp"
    packages = ("mujoco_warp",)
    prefix = WARP
    own: ClassVar = {
        **dict.fromkeys(("iterations", "nconmax", "njmax"), COUNT),
        "deterministic": FLAG,
        "device": ON_CPU,
    }

    def check_installed(self, id: str) -> None:
        if find_spec("mujoco_warp") is None:
            named = missing_extra("mujoco-warp", self.extra)
            raise WhorlError(
                f"{named}; or, where it does not run, use {MJX}{id.removeprefix(WARP)}: {install_command('mjx')}"
            )

    def physics(
        self, gym: Any, task: "Task", num_envs: int, device: Any, own: dict[str, Any]
    ) -> "Simulation":
        from whorl.envs.warp.physics import Capacity, Physics
        from whorl.envs.warp.world import ITERATIONS

        capacity = Capacity(
            own.get("nconmax", task.capacity.contacts), own.get("njmax", task.capacity.constraints)
        )
        iterations, deterministic = own.get("iterations", ITERATIONS), own.get("deterministic", False)
        return Physics(
            *(gym.model, num_envs, device, gym.frame_skip, capacity, iterations, task.forces), deterministic
        )


ADAPTERS = (WarpAdapter(),)
