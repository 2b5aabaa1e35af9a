"""The environments of `whorl.envs.native`, which are stepped as one batch of tensors."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from whorl.core.errors import EnvError
from whorl.envs.adapter import RegisteredAdapter, registry_id
from whorl.envs.native import WORLDS
from whorl.envs.vector import VectorEnv
from whorl.envs.wrappers import HIT, check_hit, split

if TYPE_CHECKING:
    from whorl.envs.make import Source


class NativeAdapter(RegisteredAdapter):
    """Ids that `register_world` knows."""

    def owns(self, id: str) -> bool:
        return registry_id(_name(id)) in WORLDS

    def check_options(self, id: str, options: dict[str, Any]) -> dict[str, Any]:
        """Options of `whorl.envs.wrappers` wrap single environments, so there are none; most have `observe`."""
        names = ", ".join(name for name in split(options)[1] if name != HIT)
        if names:
            choices = ", ".join(getattr(WORLDS[_name(self.full_id(id))], "choices", ()))
            remedy = f"choose what is observed with observe, one of {choices}" if choices else "leave it out"
            if "frame_stack" in options:
                remedy = "leave it out, or join observations with concat" if choices else "leave it out"
            raise EnvError(f"{id} is a native environment, which does not support {names}; {remedy}")
        return options

    def batches(self, options: Mapping[str, Any]) -> bool:
        return True

    def vector(self, source: "Source", num_envs: int, device: Any, compile: bool) -> VectorEnv:
        world = WORLDS[_name(source.id)]
        given = {name: value for name, value in source.options.items() if name not in ("render_mode", HIT)}
        if compile and "compile" in inspect.signature(world).parameters:
            given["compile"] = True
        made = world(num_envs=num_envs, device=device, **given)
        if HIT in source.options:
            made.count_hits(check_hit(source.options[HIT]))
        return made


def _name(id: str) -> str:
    return id.rpartition(":")[2]


ADAPTERS = (NativeAdapter(),)
