"""Gymnasium's MuJoCo tasks on a GPU by MJX, where MuJoCo Warp does not run: `mjx:HalfCheetah-v5`."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from whorl.core.errors import missing_extra
from whorl.envs.adapters.imported import MJX
from whorl.envs.adapters.warp import COUNT, FLAG, ON_CPU, TaskAdapter

if TYPE_CHECKING:
    from whorl.envs.warp.tasks import Task
    from whorl.envs.warp.world import Simulation


class MjxAdapter(TaskAdapter):
    extra = "mjx"
    packages = ("jax",)
    prefix = MJX
    own: ClassVar = {"iterations": COUNT, "deterministic": FLAG, "device": ON_CPU}
    # MJX finds contacts of its cylinders by optimisation: four environments take two seconds per step.
    without = ("Pusher",)

    def check_installed(self, id: str) -> None:
        if find_spec("jax") is None or find_spec("mujoco") is None or find_spec("mujoco.mjx") is None:
            raise missing_extra("mujoco-mjx", self.extra)

    def physics(
        self, gym: Any, task: "Task", num_envs: int, device: Any, own: dict[str, Any]
    ) -> "Simulation":
        from whorl.envs.mjx.physics import MjxPhysics
        from whorl.envs.warp.world import ITERATIONS

        settings = {"iterations": ITERATIONS, **own}
        return MjxPhysics(gym.model, num_envs, device, gym.frame_skip, forces=task.forces, **settings)


ADAPTERS = (MjxAdapter(),)
