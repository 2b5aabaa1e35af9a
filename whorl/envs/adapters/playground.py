"""Environments of MuJoCo Playground: `playground:CheetahRun`."""

import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from whorl.core.errors import EnvError, missing_extra, nearest
from whorl.envs.adapters.imported import PLAYGROUND
from whorl.envs.adapters.warp import FLAG, BatchAdapter
from whorl.envs.wrappers import HIT

if TYPE_CHECKING:
    from whorl.core.spec import Spec
    from whorl.envs.make import Source
    from whorl.envs.vector import VectorEnv

PACKAGE = "mujoco_playground"


class PlaygroundAdapter(BatchAdapter):
    """playground:Name, for the names in Playground's registry."""

    extra = "playground"
    packages = (PACKAGE,)
    prefix = PLAYGROUND
    renders = True
    own: ClassVar = {"deterministic": FLAG}

    def ids(self) -> Iterable[str]:
        return self._names() if PACKAGE in sys.modules else ()  # importing it takes seconds

    def full_id(self, id: str) -> str:
        if find_spec(PACKAGE) is not None and id not in self._names():
            raise EnvError(
                f"unknown environment {id!r}; {nearest(id, self._names(), most=8, prefix=PLAYGROUND)}"
            )
        return id

    def check_options(self, id: str, options: dict[str, Any]) -> dict[str, Any]:
        if find_spec(PACKAGE) is None:
            raise missing_extra("playground", self.extra)
        self.full_id(id)
        self.check_own(id, options)
        if HIT in options:
            raise EnvError(f"{id} is stepped as one batch, which {HIT} can't change; leave it out")
        self._load(id, options)
        return options

    def spec(self, id: str, options: Mapping[str, Any]) -> "Spec":
        from whorl.envs.mjx.playground import spec_of

        return spec_of(self._load(id, options)[0], 1)

    def frame_rate(self, id: str, options: Mapping[str, Any]) -> float:
        env, config = self._load(id, options)
        return 1 / (env.dt * config.action_repeat)

    def vector(self, source: "Source", num_envs: int, device: Any, compile: bool) -> "VectorEnv":
        import torch

        from whorl.envs.mjx.playground import PlaygroundEnv

        env, config = self._load(source.id, source.options)
        deterministic = source.options.get("deterministic", False)
        return PlaygroundEnv(source.id, env, config, num_envs, torch.device(device), deterministic)

    def _load(self, id: str, options: Mapping[str, Any]) -> tuple[Any, Any]:
        from whorl.envs.mjx.playground import load

        theirs = {name: value for name, value in options.items() if name not in (*self.own, "render_mode")}
        return load(id.removeprefix(PLAYGROUND), theirs)

    def _names(self) -> list[str]:
        from whorl.envs.mjx.playground import registry

        return [f"{PLAYGROUND}{name}" for name in registry().ALL_ENVS]


ADAPTERS = (PlaygroundAdapter(),)
