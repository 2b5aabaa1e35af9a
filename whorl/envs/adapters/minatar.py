"""MinAtar: five Atari games on a grid of 10 by 10 (Young & Tian 2019, arXiv:1903.03176), as Gymnasium environments.

A seed gives the same episodes as in the package. Observations are uint8 [10, 10, channels], 255 where an object is,
because networks divide images by 255. `-v0` has all six actions, `-v1` the game's minimal set.

Differs from the package: Freeway ends after 2500 frames, which is a time limit, so the episode is truncated.
"""

import colorsys
import re
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from whorl.core.errors import EnvError, missing_extra, nearest
from whorl.envs.adapter import RegisteredAdapter

PREFIX = "MinAtar/"
GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
CONSTANT = {"channels", "action_map", "ramping", "random"}
"""attributes of a game that do not change within an episode, and the random stream, which is saved separately"""
CELL = 16
"""height and width of a cell in pixels, in `render`"""


class MinAtarAdapter(RegisteredAdapter):
    """MinAtar/Game-v0 or -v1; without a version it is 1."""

    extra = "minatar"
    packages = ("minatar",)
    modules = (__name__,)
    cheap = True

    def owns(self, id: str) -> bool:
        return id.startswith(PREFIX)

    def ids(self) -> Iterable[str]:
        return [f"{PREFIX}{name}-v{version}" for name in GAMES for version in (0, 1)]

    def entry(self, id: str) -> EnvSpec:
        found = re.fullmatch(rf"{PREFIX}(\w+?)(?:-v([01]))?", id)
        if found is None or found[1] not in GAMES:
            raise EnvError(f"unknown environment {id!r}; {nearest(id, self.ids())}")
        name, version = found[1], found[2] or "1"
        kwargs = {"game": GAMES[name], "full_actions": version == "0"}
        return EnvSpec(f"{PREFIX}{name}-v{version}", f"{__name__}:MinAtar", kwargs=kwargs)


ADAPTERS = (MinAtarAdapter(),)


class MinAtar(gymnasium.Env):
    """One game.

    Args:
        game: the name of its module in the package.
        full_actions: all six actions instead of the game's minimal set.
        sticky: probability that the previous action is repeated, also right after a reset.
        ramping: difficulty increases, in games that support it.
        max_steps: steps after which an episode is truncated; 0: never.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(
        self,
        game: str,
        full_actions: bool = False,
        sticky: float = 0.1,
        ramping: bool = True,
        max_steps: int = 0,
        render_mode: str | None = None,
    ) -> None:
        if not 0 <= sticky <= 1:
            raise EnvError(f"sticky is {sticky}; it must be between 0 and 1")
        if max_steps < 0:
            raise EnvError(f"max_steps is {max_steps}; it must be 0 (no limit) or more")
        self.sticky, self.max_steps, self.render_mode = sticky, max_steps, render_mode
        self._game = _module(game).Env(ramping=ramping)
        self._timed = game == "freeway"
        self._seeded = False
        self._random = self._game.random
        self._last, self._steps = 0, 0
        self._actions = list(range(6)) if full_actions else self._game.minimal_action_set()
        self.action_space = spaces.Discrete(len(self._actions))
        self.observation_space = spaces.Box(0, 255, tuple(self._game.state_shape()), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is None and not self._seeded:
            seed = int(self.np_random.integers(2**32))
        if seed is not None:
            self._random.seed(seed)
            self._seeded, self._last = True, 0
        self._game.reset()
        self._steps = 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        if self._random.rand() >= self.sticky:
            self._last = self._actions[action]
        reward, ended = self._game.act(self._last)
        self._steps += 1
        terminated = bool(ended) and not self._timed
        truncated = not terminated and (bool(ended) or self._steps == self.max_steps)
        return self._observe(), float(reward), terminated, truncated, {}

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        state = self._game.state()
        planes = state.shape[2]
        topmost = (state * np.arange(1, planes + 1)).max(2)  # [10, 10], 0: nothing
        return _palette(planes)[topmost].repeat(CELL, 0).repeat(CELL, 1)

    def get_snapshot(self) -> dict[str, Any]:
        return {
            "game": {name: value for name, value in vars(self._game).items() if name not in CONSTANT},
            "random": self._random.get_state(),
            "last": self._last,
            "steps": self._steps,
        }

    def set_snapshot(self, snapshot: dict[str, Any]) -> None:
        vars(self._game).update(snapshot["game"])
        self._random.set_state(snapshot["random"])
        self._seeded = True
        self._last, self._steps = snapshot["last"], snapshot["steps"]

    def _observe(self) -> np.ndarray:
        return self._game.state().view(np.uint8) * np.uint8(255)


@cache
def _palette(planes: int) -> np.ndarray:
    """Black, and a colour for each channel: uint8 [channels + 1, 3]."""
    colours = [colorsys.hsv_to_rgb(plane / planes, 0.7, 0.95) for plane in range(planes)]
    return (255 * np.array([(0.0, 0.0, 0.0), *colours])).round().astype(np.uint8)


@cache
def _module(game: str) -> Any:
    """A game's module, loaded from its file: importing the package imports its plotting code, which takes seconds."""
    package = find_spec("minatar")
    if package is None or not package.submodule_search_locations:
        raise missing_extra("minatar", "minatar")
    file = Path(package.submodule_search_locations[0]) / "environments" / f"{game}.py"
    found = spec_from_file_location(f"{__name__}.{game}", file)
    if found is None or found.loader is None:
        raise EnvError(f"minatar has no game {game!r}; {nearest(game, GAMES.values())}")
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module
