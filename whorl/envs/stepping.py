"""Steps several Gymnasium environments in one process into numpy buffers, with next-step autoreset.

Used by the main process and by workers. Imports no torch, because workers start without it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces
from gymnasium.error import DependencyNotInstalled

from whorl.core.arrays import SUCCESS, SUCCESS_KEYS, Array
from whorl.core.errors import EnvError, WhorlError
from whorl.envs.mistakes import (
    failure,
    make_env,
    raised,
    theirs,
    wrong_flag,
    wrong_observation,
    wrong_reset,
    wrong_reward,
    wrong_step,
)
from whorl.envs.snapshot import restore_env, snapshot_env
from whorl.envs.spaces import (
    Factory,
    Layout,
    action_decoder,
    mask_reader,
    observation_parts,
)

SOFT_END = "soft_end"
"""key of `info` that reports a lost life: the return after this step counts as 0, but the episode continues"""

NOTHING: Any = object()
"""the result of a call that raised"""


@dataclass
class Buffers:
    """Arrays that a step writes its results to, one row per environment; the fields are those of `Step`."""

    obs: list[np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    reset: np.ndarray
    soft: np.ndarray
    measures: np.ndarray
    cells: np.ndarray

    @classmethod
    def empty(cls, layout: Layout, rows: int) -> "Buffers":
        obs = [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in layout.observation]
        terminated, truncated, reset, soft = np.zeros((4, rows), bool)
        measures = np.zeros((rows, len(layout.measures)), np.float32)
        cells = np.zeros(rows, np.int64)
        return cls(obs, np.zeros(rows, np.float32), terminated, truncated, reset, soft, measures, cells)

    def __getitem__(self, rows: Any) -> "Buffers":
        """Views of some rows."""
        _, *flat = vars(self).values()
        return Buffers([leaf[rows] for leaf in self.obs], *(array[rows] for array in flat))


class Frames:
    """The last frames of every environment; the first frame of an episode is repeated to fill the stack."""

    def __init__(self, leaf: Array, num_envs: int) -> None:
        self.held = np.zeros((num_envs, *leaf.shape), leaf.dtype)
        self.axis, self.width = leaf.axis, leaf.shape[leaf.axis] // leaf.stack
        self._one = leaf.frame.shape
        self._joined = np.moveaxis(self.held, leaf.axis + 1, 1)  # [environments, stack * width, ...]

    def push(self, env_index: int, frame: Any, opens: bool) -> np.ndarray:
        """The stack of one environment with `frame` as the newest; `opens` an episode: all frames are `frame`."""
        joined, width = self._joined[env_index], self.width
        newest = np.moveaxis(np.reshape(frame, self._one), self.axis, 0)
        if opens:
            for start in range(0, len(joined), width):
                joined[start : start + width] = newest
        else:
            joined[:-width] = joined[width:]
            joined[-width:] = newest
        return self.held[env_index]


class EnvStepper:
    """Steps environments one after another. `numbers` are their indices among all environments and determine seeds."""

    def __init__(self, factory: Factory, layout: Layout, numbers: list[int]) -> None:
        self.layout = layout
        self.numbers = numbers
        self.envs = [make_env(factory) for _ in numbers]
        self.pending = [False] * len(numbers)
        """environments whose episode ended: the next step resets them"""
        self._calls: dict[int, int] = {}
        """how often `step` was called, by its `start`; with the next two, what a message about a mistake names"""
        self._began = [0] * len(numbers)
        """the call that began the episode of each environment"""
        self._episodes = [0] * len(numbers)
        self._entered, self._at = 0, -1
        """calls of `reset` and `step` so far, and the environment that is in one now; -1: none"""
        self._steps = [env.step for env in self.envs]
        self._decode = action_decoder(layout.action_space)
        self._masks = [mask_reader(layout, env) for env in self.envs]
        self._masked = layout.mask in ("info", "method")
        parts = observation_parts(layout.observation_space, layout.action_space, layout.mask)
        self._shapes, self._readers = [leaf for leaf, _ in parts], [read for _, read in parts]
        self._frames = [
            Frames(x.array, len(numbers)) if x.array.stack > 1 else None for x in layout.observation
        ]
        # A plain array is stored without a Python call, which would be most of the overhead of a small environment.
        stacked = any(x.array.stack > 1 for x in layout.observation)
        self._plain = isinstance(layout.observation_space, spaces.Box) and not (self._masked or stacked)

    def __len__(self) -> int:
        return len(self.envs)

    def reset(self, seed: int, out: Buffers, start: int = 0) -> None:
        """Seed and reset environments `start, start + 1, …`, one per row of `out`."""
        out.reward.fill(0.0)
        out.terminated.fill(False)
        out.truncated.fill(False)
        out.reset.fill(True)
        out.soft.fill(False)
        env_index, result = start, NOTHING
        self._calls[start] = 0
        self._entered += 1
        try:
            for row in range(len(out.reward)):
                env_index, result = start + row, NOTHING
                self._at = env_index
                self._open(env_index, start)
                result = self.envs[env_index].reset(seed=env_seed(seed, self.numbers[env_index]))
                obs, info = result
                self._check(obs)
                self._write(out.obs, row, obs, env_index, True)
                if self._masked:
                    out.obs[-1][row] = self._masks[env_index](info)
            self._at = -1
        except Exception as error:  # an environment may raise anything
            self._fail(env_index, "reset()", result, error)

    def step(self, action: list[np.ndarray], out: Buffers, start: int = 0) -> None:
        """Step environments `start, start + 1, …` with canonical actions, one array [rows, ...] per action leaf."""
        choices = self._decode(action)
        reward, terminated, truncated, reset = out.reward, out.terminated, out.truncated, out.reset
        terminated.fill(False)
        truncated.fill(False)
        reset.fill(False)
        out.soft.fill(False)
        pending, steps, plain, soft_ends = self.pending, self._steps, self._plain, self.layout.soft_ends
        write, mapped = out.obs[0].__setitem__, self.layout.map_shape
        calls = self._calls[start] = self._calls.get(start, 0) + 1
        env_index, row, result = start, 0, NOTHING
        self._entered += 1
        try:
            for row, choice in enumerate(choices):
                env_index, result = start + row, NOTHING
                self._at = env_index
                if pending[env_index]:
                    reset[row] = True
                    reward[row] = 0.0
                    self._open(env_index, start)
                    result = self.envs[env_index].reset()
                    obs, info = result
                else:
                    result = steps[env_index](choice)
                    obs, reward[row], ended, cut, info = result
                    if ended or cut or calls == 1:
                        self._check(obs)
                        if result[1] is None:
                            raise TypeError("numpy reads None as nan")
                    if ended or cut:
                        terminated[row], truncated[row], pending[env_index] = ended, cut, True
                        for number, name in enumerate(self.layout.measures):
                            out.measures[row, number] = measured(info, name)
                    elif soft_ends:
                        out.soft[row] = info.get(SOFT_END, False)
                if plain:
                    write(row, obs)
                else:
                    self._write(out.obs, row, obs, env_index, reset[row])
                if self._masked:
                    out.obs[-1][row] = self._masks[env_index](info)
                if mapped is not None:
                    line, column = self.envs[env_index].get_wrapper_attr("position")
                    out.cells[row] = line * mapped[1] + column
            self._at = -1
        except Exception as error:  # an environment may raise anything
            self._fail(env_index, "reset()" if reset[row] else "step()", result, error)

    def snapshot(self) -> list[dict[str, Any]]:
        """The exact state of each environment, as plain containers and numpy arrays."""
        found: list[dict[str, Any]] = []
        for number, env, pending in zip(self.numbers, self.envs, self.pending):
            state = snapshot_env(env)
            if state is None:
                raise EnvError(
                    f"environment {number}: {env} has no snapshot; define get_snapshot and set_snapshot"
                )
            frames = [held.held[len(found)].copy() for held in self._frames if held is not None]
            at = len(found)
            counts = [self._episodes[at], self._steps_of(at)]
            found.append({"env": state, "pending": pending, "frames": frames, "counts": counts})
        return found

    def restore(self, snapshots: list[dict[str, Any]]) -> None:
        self._calls = {}
        for env_index, (env, snapshot) in enumerate(zip(self.envs, snapshots)):
            restore_env(env, snapshot["env"])
            self.pending[env_index] = bool(snapshot["pending"])
            self._episodes[env_index], steps = snapshot.get("counts", (0, 0))
            self._began[env_index] = -steps
            held = [frames for frames in self._frames if frames is not None]
            for frames, saved in zip(held, snapshot.get("frames", []), strict=True):
                frames.held[env_index] = saved

    def positions(self) -> list[tuple[int, int]]:
        """Row and column of each agent on the map, from the attribute `position` of its environment."""
        return [env.get_wrapper_attr("position") for env in self.envs]

    def render(self, env_index: int) -> np.ndarray | None:
        env = self.envs[env_index]
        if env.render_mode is None:
            return None
        try:
            frame: Any = env.render()
        except NotImplementedError:  # Gymnasium's own render()
            return None
        except (WhorlError, DependencyNotInstalled):  # the latter is explained where drawing was asked for
            raise
        except Exception as error:  # an environment may raise anything
            raise failure(raised("render()", error), error) from theirs(error)
        if isinstance(frame, list):
            frame = frame[-1] if frame else None
        return frame if isinstance(frame, np.ndarray) else None

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _write(self, into: list[np.ndarray], row: int, obs: Any, env_index: int, opens: bool) -> None:
        for array, read, frames in zip(into, self._readers, self._frames):
            value = read(obs)
            array[row] = value if frames is None else frames.push(env_index, value, opens)

    def _open(self, env_index: int, start: int) -> None:
        """An episode begins."""
        self.pending[env_index] = False
        self._episodes[env_index] += 1
        self._began[env_index] = self._calls[start]

    def _steps_of(self, env_index: int) -> int:
        """Steps in the present episode of an environment."""
        calls = [self._calls[start] for start in sorted(self._calls) if start <= env_index]
        return (calls[-1] if calls else 0) - self._began[env_index]

    def _check(self, obs: Any) -> None:
        """Raise where numpy would silently broadcast a wrong shape or cut fractions off.

        This takes longer than a small step: only resets, ends of episodes and the first step are checked.
        """
        for leaf, read in zip(self._shapes, self._readers):
            value = read(obs)
            lossy = leaf.dtype == "uint8" and np.asarray(value).dtype.kind not in "biu"
            if lossy or (np.shape(value) or (1,)) != leaf.shape:
                raise ValueError("the observation has another shape or type than its space")

    def under_way(self) -> tuple[int, int] | None:
        """Changes whenever an environment returns from `reset` or `step`; None: none is in one."""
        return None if self._at < 0 else (self._entered, self._at)

    def where(self) -> str:
        """The environment that is in a call now, and the call."""
        resets = self._steps_of(self._at) == 0
        call = "reset()" if resets else "step()"
        return f"{self._place(self._at, call)}: {call}"

    def _place(self, env_index: int, call: str) -> str:
        steps = "" if call == "reset()" else f"step {self._steps_of(env_index)} of "
        return f"environment {self.numbers[env_index]}, {steps}episode {self._episodes[env_index]}"

    def _fail(self, env_index: int, where: str, result: Any, error: Exception) -> NoReturn:
        """Raise for what an environment did, and when; `result` is what `where` returned, `NOTHING` if it raised."""
        at, self._at = self._place(env_index, where), -1
        found = error.message if isinstance(error, WhorlError) else None
        if found is None and result is not NOTHING:
            found = self._mistake(where, result)
            if found is not None:
                raise EnvError(f"{at}: {found}") from None
        raise failure(f"{at}: {found or raised(where, error)}", error) from theirs(error)

    def _mistake(self, where: str, result: Any) -> str | None:
        """Why the result of reset() or step() can't be read."""
        found = wrong_reset(result) if where == "reset()" else wrong_step(result)
        if found is None and where == "step()":
            _, reward, terminated, truncated, _ = result
            if _fails(float, reward):
                return wrong_reward(reward)
            if _fails(bool, terminated) or _fails(bool, truncated):
                return wrong_flag("terminated", terminated) or wrong_flag("truncated", truncated)
        return found or wrong_observation(
            self.layout.observation_space, result[0], f"the observation of {where}"
        )


def _fails(convert: Callable[[Any], Any], value: Any) -> bool:
    try:
        convert(value)
    except (TypeError, ValueError):
        return True
    return False


def measured(info: dict[str, Any], name: str) -> float:
    """The number called `name` in the last `info` of an episode; nan if there is none."""
    for key in SUCCESS_KEYS if name == SUCCESS else (name,):
        if key in info:
            try:
                return float(info[key])
            except (TypeError, ValueError):  # something else under the name "success"
                return np.nan
    return np.nan


def env_seed(seed: int, env_index: int) -> int:
    """The seed of one environment's first reset; different environments and seeds get unrelated random streams."""
    # 31 bits, because some environments pass the seed to a C int.
    return int(np.random.SeedSequence((seed, env_index)).generate_state(1)[0] >> 1)
