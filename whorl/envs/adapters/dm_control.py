"""The dm_control suite as Gymnasium environments, from states or pixels (Tassa et al. 2018, arXiv:1801.00690).

An episode that dm_control ends with discount 0 is terminated; one that ends with discount 1, at its time limit, is
truncated. Rewards are in [0, 1] per step, except in lqr; a frame skip sums them.

Differs from dm_control: observations are float32, concatenated in dm_control's order; unlimited actuators have infinite
bounds; and the lqr tasks always have the system of seed 0.
"""

import os
import re
import sys
from ctypes.util import find_library
from functools import cache
from importlib.metadata import version
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from whorl.core.errors import EnvError, install_command, missing_extra, nearest
from whorl.envs.adapter import RegisteredAdapter
from whorl.envs.snapshot import mujoco_state, restore_mujoco

UNLIMITED = 1e10
"""MuJoCo's value for a missing bound"""
ALWAYS_DRAWN = {("quadruped", "escape")}
"""tasks that upload their terrain to the renderer even if nothing is rendered"""
LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
PIXELS = "-pixels"
"""suffix of ids that observe images as in PlaNet and DrQ: three frames, actions repeated as often as `REPEATS` says"""
REPEATS = {"cartpole": 8, "finger": 2, "walker": 2}
"""steps per action from pixels by domain; 4 for all others (Hafner et al. 2019, arXiv:1811.04551)"""
VIEW = (480, 640)
"""height and width of rendered frames"""
REMEDY = (
    "to render without a display, install libegl1, libopengl0 and libgl1-mesa-dri (or a GPU's driver) and set "
    "MUJOCO_GL=egl, or install libosmesa6 and set MUJOCO_GL=osmesa"
)


class DmControlAdapter(RegisteredAdapter):
    """dm_control/domain-task or dm_control/domain-task-pixels; -v0, dmc/ and underscores for dashes are understood."""

    extra = "dm-control"
    packages = ("dm_control",)
    modules = (__name__,)

    def owns(self, id: str) -> bool:
        return id.startswith(("dm_control/", "dmc/"))

    def entry(self, id: str) -> EnvSpec:
        name = re.sub(r"-v0$", "", id.partition("/")[2])
        pixels = re.search(r"[-_]pixels$", name) is not None
        name = re.sub(r"[-_]pixels$", "", name)
        tasks = {f"{domain}-{task}": (domain, task) for domain, task in _suite().ALL_TASKS}
        known = {_plain(key): key for key in tasks}
        if _plain(name) not in known:
            raise EnvError(f"unknown dm_control task {name!r}; {nearest(name, tasks)}")
        key = known[_plain(name)]
        domain, task = tasks[key]
        kwargs: dict[str, Any] = {"domain": domain, "task": task}
        if pixels:
            kwargs |= {"pixels": True, "frame_skip": REPEATS.get(domain, 4), "stack": 3}
            key += PIXELS
        return EnvSpec(f"dm_control/{key}-v0", f"{__name__}:DmControl", kwargs=kwargs)


ADAPTERS = (DmControlAdapter(),)


class DmControl(gymnasium.Env):
    """One task of the suite.

    Args:
        frame_skip: steps of dm_control per action.
        flatten: concatenate all observations to one vector; else a dict with dm_control's names.
        pixels: observe only camera images, uint8 [height, width, 3], or [height, width, 1] with `gray`.
        camera: index or name; -1 is MuJoCo's free camera.
        state: with `pixels`: a dict of them and the state as one vector (`pixels`, `state`).
        stack: frames that an observation has, unless the option `frame_stack` is given.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(
        self,
        domain: str,
        task: str,
        frame_skip: int = 1,
        flatten: bool = True,
        pixels: bool = False,
        height: int = 84,
        width: int = 84,
        camera: int | str = 0,
        gray: bool = False,
        state: bool = False,
        stack: int = 1,
        render_mode: str | None = None,
    ) -> None:
        if state and not pixels:
            raise EnvError(
                "state is true, but without pixels the state is all there is; set pixels, or leave it out"
            )
        for name, value in (("frame_skip", frame_skip), ("height", height), ("width", width)):
            if value < 1:
                raise EnvError(f"{name} is {value}; it must be 1 or more")
        self.domain, self.task = domain, task
        self.frame_skip, self.flatten, self.pixels, self.gray = frame_skip, flatten, pixels, gray
        self.render_mode, self.state, self.frame_stack = render_mode, state, stack
        self._env = _load(domain, task)
        self._physics = self._env.physics
        self._seeded = False
        self._lens: Any = None
        self._view: Any = None
        if pixels or render_mode or (domain, task) in ALWAYS_DRAWN:
            self._prepare_drawing(height, width, camera)
        fps = round(1 / (self._env.control_timestep() * frame_skip))
        self.metadata = {**self.metadata, "render_fps": fps}

        bounds = self._env.action_spec()
        low, high = (
            np.where(np.abs(x) < UNLIMITED, x, np.sign(x) * np.inf) for x in (bounds.minimum, bounds.maximum)
        )
        self.action_space = spaces.Box(low.astype(np.float32), high.astype(np.float32))
        shapes = {key: leaf.shape or (1,) for key, leaf in self._env.observation_spec().items()}
        self.observation_space: spaces.Space
        vector = _unbounded((sum(int(np.prod(shape)) for shape in shapes.values()),))
        if pixels:
            image = spaces.Box(0, 255, (height, width, 1 if gray else 3), np.uint8)
            self.observation_space = spaces.Dict({"pixels": image, "state": vector}) if state else image
        elif flatten:
            self.observation_space = vector
        else:
            self.observation_space = spaces.Dict({key: _unbounded(shape) for key, shape in shapes.items()})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**32))
        if seed is not None:
            self._env.task.random.seed(seed)
            self._seeded = True
        return self._observe(self._env.reset()), {}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        reward = 0.0
        for _ in range(self.frame_skip):
            now = self._env.step(action)
            reward += now.reward
            if now.last():
                return self._observe(now), float(reward), now.discount == 0, now.discount != 0, {}
        return self._observe(now), float(reward), False, False, {}

    def render(self) -> Any:
        return None if self._view is None else np.array(self._view.render())

    def close(self) -> None:
        self._physics.free()

    def get_snapshot(self) -> dict[str, Any]:
        """Physics, the task's changes to the model, and the task's attributes and random stream."""
        model, task = self._physics.model.ptr, self._env.task
        loaded = _model_as_loaded(self.domain, self.task)
        changed = {
            name: x for name, x in _arrays(model).items() if not np.array_equal(x, getattr(loaded, name))
        }
        return {
            "data": mujoco_state(model, self._physics.data.ptr),
            "model": changed,
            "task": {name: value for name, value in vars(task).items() if name != "_random"},
            "random": task.random.get_state(),
            "steps": self._env._step_count,
            "ended": self._env._reset_next_step,
        }

    def set_snapshot(self, snapshot: dict[str, Any]) -> None:
        import mujoco

        model, data, task = self._physics.model.ptr, self._physics.data.ptr, self._env.task
        loaded = _model_as_loaded(self.domain, self.task)
        for name, value in _arrays(model).items():
            value[...] = snapshot["model"].get(name, getattr(loaded, name))
        restore_mujoco(data, snapshot["data"])
        # dm_control stops between the two halves of a physics step. The contacts of the first half are in an arena that
        # only the engine can fill; everything else is recomputed to the same values.
        mujoco.mj_step1(model, data)
        for name, value in snapshot["task"].items():
            setattr(task, name, value)
        task.random.set_state(snapshot["random"])
        self._seeded = True
        self._env._step_count, self._env._reset_next_step = snapshot["steps"], snapshot["ended"]
        self._upload_terrain()

    def _observe(self, now: Any) -> Any:
        leaves = now.observation
        if self.pixels:
            # A copy, because dm_control renders into the same array again.
            frame = np.array(self._lens.render())  # [height, width, 3]
            frame = np.rint(frame @ LUMINANCE)[..., None].astype(np.uint8) if self.gray else frame
            return {"pixels": frame, "state": _vector(leaves)} if self.state else frame
        if self.flatten:
            return _vector(leaves)
        return {key: np.array(leaf, np.float32, ndmin=1) for key, leaf in leaves.items()}

    def _prepare_drawing(self, height: int, width: int, camera: int | str) -> None:
        from dm_control.mujoco import Camera

        model = self._physics.model
        names = [model.id2name(number, "camera") for number in range(model.ncam)]
        if camera not in [*names, *range(-1, model.ncam)]:
            raise EnvError(
                f"camera is {camera!r}, which {self.domain} does not have; "
                f"choose one of: {', '.join(filter(None, names))}, or a number from -1 to {model.ncam - 1}"
            )
        # No larger than needed: a frame buffer of 84 by 84 takes two thirds of the time of the default one.
        sizes = [(height, width)] * self.pixels + [VIEW] * bool(self.render_mode)
        model.vis.global_.offheight = max((size[0] for size in sizes), default=1)
        model.vis.global_.offwidth = max((size[1] for size in sizes), default=1)
        _open_renderer(self._physics)
        if self.pixels:
            self._lens = Camera(self._physics, height, width, camera)
        if self.render_mode:
            self._view = Camera(self._physics, *VIEW, camera)

    def _upload_terrain(self) -> None:
        """Send the height field of a snapshot to the renderer, which keeps its own copy."""
        import mujoco

        model = self._physics.model
        if model.nhfield and (self.pixels or self.render_mode):
            contexts = self._physics.contexts
            with contexts.gl.make_current() as thread:
                for number in range(model.nhfield):
                    thread.call(mujoco.mjr_uploadHField, model.ptr, contexts.mujoco.ptr, number)


@cache
def _suite() -> Any:
    """The package, imported on first use; without a display it must not search for one."""
    quiet = _headless()
    try:
        import mujoco  # noqa: F401 - it reads MUJOCO_GL too, and should read the user's value

        if quiet:
            os.environ["MUJOCO_GL"] = "disable"
        from dm_control import suite
    except ModuleNotFoundError as error:
        raise missing_extra("dm_control", "dm-control") from error
    except (ImportError, AttributeError, RuntimeError) as error:
        raise EnvError(
            f"dm_control can't be imported with MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}: {error}; {REMEDY}"
        ) from error
    finally:
        if quiet:
            os.environ.pop("MUJOCO_GL", None)
    return suite


def _load(domain: str, task: str) -> Any:
    suite = _suite()
    try:
        return suite.load(domain, task, task_kwargs={"random": 0})
    except AttributeError as error:
        raise EnvError(
            f"dm_control {version('dm_control')} does not work with mujoco {version('mujoco')} ({error}); "
            f"install versions that do with: {install_command('dm-control')}"
        ) from error


@cache
def _model_as_loaded(domain: str, task: str) -> Any:
    """A task's model before an episode changes it."""
    return _load(domain, task).physics.model.ptr


def _headless() -> bool:
    chosen = any(name in os.environ for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"))
    return sys.platform == "linux" and not chosen


def _open_renderer(physics: Any) -> None:
    """Make the GL contexts for rendering: as MUJOCO_GL says, in a hidden window, or without a display."""
    from dm_control import _render

    backend = _windowless() if _headless() else _render.BACKEND
    try:
        if _headless():
            _render.Renderer = getattr(_render, f"_import_{backend}")()
        _ = physics.contexts
    except Exception as error:  # of any type: a missing driver can even raise an AttributeError
        raise EnvError(f"{backend} can't render here ({error}); {REMEDY}") from error


@cache
def _windowless() -> str:
    return "egl" if find_library("EGL") else "osmesa"


def _arrays(model: Any) -> dict[str, np.ndarray]:
    found = {name: getattr(model, name) for name in dir(model) if not name.startswith("_")}
    return {name: x for name, x in found.items() if isinstance(x, np.ndarray) and x.size}


def _vector(leaves: dict[str, Any]) -> np.ndarray:
    """All observations as one vector, in dm_control's order."""
    return np.concatenate([np.ravel(leaf) for leaf in leaves.values()], dtype=np.float32)


def _unbounded(shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def _plain(name: str) -> str:
    return re.sub(r"[-/]", "_", name).lower()
