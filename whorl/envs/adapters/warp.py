"""Gymnasium's MuJoCo tasks on a GPU by MuJoCo Warp: `warp:Humanoid-v5` is `Humanoid-v5`, thousands at once."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import gymnasium

from whorl.core.errors import EnvError, missing_extra, nearest
from whorl.envs.adapter import Adapter, make_registered, registry_entry
from whorl.envs.adapters.imported import WARP
from whorl.envs.mistakes import make_env
from whorl.envs.spaces import Factory, probe
from whorl.envs.wrappers import HIT, check_hit, split

if TYPE_CHECKING:
    from whorl.core.spec import Spec
    from whorl.envs.make import Source
    from whorl.envs.vector import VectorEnv

OWN: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("iterations", "nconmax", "njmax"),
        (lambda value: type(value) is int and value > 0, "a number from 1 on"),
    ),
    "deterministic": (lambda value: isinstance(value, bool), "true or false"),
    "device": (lambda value: value == "cpu", "cpu, or be left out"),
}
"""options of ours, which Gymnasium's environment does not get: what is allowed, and how to say it"""


class WarpAdapter(Adapter):
    """warp:Name-v5, for the names in `whorl.envs.warp.tasks`; some have a v4."""

    extra = "warp"
    packages = ("mujoco_warp",)
    single = False
    renders = False

    def owns(self, id: str) -> bool:
        return id.startswith(WARP)

    def ids(self) -> Iterable[str]:
        from whorl.envs.warp.tasks import TASKS

        return [f"{WARP}{name}-v{version}" for name, (_, all) in TASKS.items() for version in reversed(all)]

    def full_id(self, id: str) -> str:
        found = id if re.search(r"-v\d+$", id) else f"{id}-v5"
        if found not in self.ids():
            raise EnvError(f"unknown environment {id!r}; {nearest(found, self.ids(), prefix=WARP)}")
        return found

    def check_options(self, id: str, options: dict[str, Any]) -> dict[str, Any]:
        if find_spec("mujoco_warp") is None:
            raise missing_extra("mujoco-warp", self.extra)
        wrapping = ", ".join(name for name in split(options)[1] if name != HIT)
        if wrapping:
            raise EnvError(f"{id} is stepped as one batch, which {wrapping} can't change; leave it out")
        for name, (allowed, says) in OWN.items():
            if name in options and not allowed(options[name]):
                raise EnvError(f"{name} is {options[name]!r}; it must be {says}")
        # An option that Gymnasium does not take is reported now.
        make_env(partial(_make, self.full_id(id), options)).close()
        return options

    def factory(self, id: str, options: dict[str, Any]) -> Factory:
        def single() -> gymnasium.Env:
            raise EnvError(
                f"{id} is a batch of environments; pass it to whorl.load or whorl.train, or make one of them as "
                f"{id.removeprefix(WARP)}"
            )

        return single

    def batches(self, options: Mapping[str, Any]) -> bool:
        return True

    def settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        return {"env_device": "cuda"} if torch.cuda.is_available() and options.get("device") != "cpu" else {}

    def spec(self, id: str, options: Mapping[str, Any]) -> "Spec":
        from whorl.envs.adapters.gymnasium import to_spec

        # Not measured here: whether an episode was a success, which these environments do not tell.
        return replace(to_spec(probe(partial(_make, id, dict(options))), 1), measures=())

    def vector(self, source: "Source", num_envs: int, device: Any, compile: bool) -> "VectorEnv":
        import torch

        from whorl.envs.warp.tasks import TASKS
        from whorl.envs.warp.world import WarpWorld

        id, options = source.id, source.options
        if torch.device(device).type != "cuda" and options.get("device") != "cpu":
            raise EnvError(
                f"{id} needs a CUDA GPU and env_device cuda, but env_device is {device}; use "
                f"{id.removeprefix(WARP)}, or for a small test on a CPU, which is slow, env_options {{device: cpu}}"
            )
        own = {name: options[name] for name in OWN if name in options and name != "device"}
        task = TASKS[id.removeprefix(WARP).rpartition("-v")[0]][0]
        made = WarpWorld(
            id, _make(id, options), task, self.spec(id, options), num_envs, torch.device(device), **own
        )
        if HIT in options:
            made.count_hits(check_hit(options[HIT]))
        return made


def _make(id: str, options: Mapping[str, Any]) -> gymnasium.Env:
    """Gymnasium's environment of the same task."""
    theirs = {name: value for name, value in options.items() if name not in OWN and name != HIT}
    return make_registered(registry_entry(id.removeprefix(WARP)), theirs)


ADAPTERS = (WarpAdapter(),)
