"""Atari games through the Arcade Learning Environment (Bellemare et al. 2013; Machado et al. 2018, arXiv:1709.06009).

A step repeats an action for `frame_skip` frames and returns the pixelwise maximum of the last two, because the console
draws some objects only in every other frame. Rewards are the game's own, summed over frames; an episode longer than
`max_frames` is truncated. Observations are single frames: `EnvStepper` stacks them.

Differs from ALE: sticky actions are drawn here, from the environment's random stream, because saved states of ALE lack
the action to repeat. Images are resized by area averaging as in OpenCV, in integers.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from whorl.core.errors import EnvError, install_command, missing_extra, nearest
from whorl.envs.adapter import RegisteredAdapter
from whorl.envs.wrappers import HIDING

if TYPE_CHECKING:
    from whorl.envs.make import Source
    from whorl.envs.vector import VectorEnv

ID = re.compile(r"(?P<prefix>ALE/)?(?P<game>\w+?)(?P<plain>NoFrameskip)?(-v(?P<version>\d+))?")
STICKY = {"ALE/5": 0.25, "NoFrameskip0": 0.25, "NoFrameskip4": 0.0}
"""probability of a sticky action by version of the id"""
NOT_ATARI = {"Blackjack"}
"""games whose name alone means an environment of Gymnasium"""
SHORT = {"Montezuma": "MontezumaRevenge"}
"""names that games have besides their own"""
BACKENDS = ("ale", "envpool")
"""what steps the games: ALE in this process and its workers, or EnvPool's threads"""
NOOP, FIRE = 0, 1
TWO_PLAYERS = {"combat", "joust", "maze_craze", "warlords"}
UNSAVED = {"miniature_golf"}
"""games whose score is missing from saved states of ALE: the first reward after a restore would be wrong"""


@dataclass(frozen=True)
class Rooms:
    """The rooms of a game."""

    address: int
    """of the room's number in RAM"""
    map_shape: tuple[int, int]
    positions: dict[int, tuple[int, int]]
    """row and column of each room on the map, by its number"""


def _pyramid() -> dict[int, tuple[int, int]]:
    """Montezuma's Revenge: 24 rooms on four floors of 3, 5, 7 and 9, counted from the left and from the top."""
    places = [(floor, 3 - floor + i) for floor in range(4) for i in range(3 + 2 * floor)]
    return dict(enumerate(places))


def _jungle() -> dict[int, tuple[int, int]]:
    """Pitfall: a loop of 255 rooms, here from the first one to the right, in lines of 17.

    Their numbers are the states of a shift register, by which the game also makes what is in a room.
    """
    found, room = {}, 0xC4
    for i in range(255):
        found[room] = divmod(i, 17)
        room = (room << 1 | (room >> 3 ^ room >> 4 ^ room >> 5 ^ room >> 7) & 1) & 0xFF
    return found


ROOMS = {
    "montezuma_revenge": Rooms(3, (4, 9), _pyramid()),
    "pitfall": Rooms(1, (15, 17), _jungle()),
}


class AtariAdapter(RegisteredAdapter):
    """Games by their ids: ALE/Pong-v5, PongNoFrameskip-v4, Pong."""

    extra = "atari"
    packages = ("ale_py",)
    modules = (__name__,)

    def owns(self, id: str) -> bool:
        found = ID.fullmatch(id)
        if found is None or _registered_by_others(id):
            return False
        if found["prefix"] or found["plain"]:
            return True
        game, version = SHORT.get(found["game"], found["game"]), found["version"]
        return game in games() and game not in NOT_ATARI and version in (None, "0", "4")

    def ids(self) -> Iterable[str]:
        return games()

    def notice(self, id: str) -> str:
        """A name alone means NoFrameskip-v4, without sticky actions, in Deep RL Zoo and others."""
        if "/" in id or "-v" in id or "NoFrameskip" in id:
            return ""
        name = self.full_id(id)
        game = name.removeprefix("ALE/").removesuffix("-v5")
        return f"{id} is {name} here, with sticky actions; {game}NoFrameskip-v4 is the game without them"

    def entry(self, id: str) -> EnvSpec:
        """A name alone, and ALE/ without a version, mean version 5."""
        found = ID.fullmatch(id)
        assert found is not None
        _ale()
        game, number = SHORT.get(found["game"], found["game"]), found["version"]
        if game not in games():
            raise EnvError(f"unknown Atari game {game!r}; {nearest(game, games())}")
        if found["plain"]:
            family, number = "NoFrameskip", number or "4"
        elif found["prefix"] or not number:
            family, number = "ALE/", number or "5"
        else:
            family = ""
        if family + number not in STICKY:
            raise EnvError(f"unknown environment {id!r}; use ALE/{game}-v5 or {game}NoFrameskip-v4")
        name = f"ALE/{game}-v5" if family == "ALE/" else f"{game}NoFrameskip-v{number}"
        return EnvSpec(
            name, f"{__name__}:Atari", kwargs={"game": games()[game], "sticky": STICKY[family + number]}
        )

    def check_options(self, id: str, options: dict[str, Any]) -> dict[str, Any]:
        found = {name: value for name, value in options.items() if name != "backend"}
        backend, hiding = options.get("backend", "ale"), [name for name in HIDING if name in options]
        if backend not in BACKENDS:
            raise EnvError(f"backend is {backend!r}; {nearest(str(backend), BACKENDS)}")
        if backend == "envpool" and hiding:
            raise EnvError(
                f"EnvPool does not support {', '.join(hiding)}; leave it out, or use backend='ale'"
            )
        if "frame_stack" in found:
            found["stack"] = found.pop("frame_stack")
        return found

    def batches(self, options: Mapping[str, Any]) -> bool:
        # EnvPool does not render, so what is shown or recorded is stepped by ALE.
        return options.get("backend") == "envpool" and "render_mode" not in options

    def vector(self, source: "Source", num_envs: int, device: Any, compile: bool) -> "VectorEnv | None":
        if not self.batches(source.options):
            return None
        from whorl.envs.adapters.envpool import EnvPoolVector  # here, so that workers need no torch

        return EnvPoolVector(source.factory, num_envs, source.id)


ADAPTERS = (AtariAdapter(),)


def _registered_by_others(name: str) -> bool:
    """Whether somebody registered an environment under the name of a game."""
    known = gymnasium.registry
    same = [key for key in known if name in (key, key.rpartition("-v")[0])]
    return any(not str(known[key].entry_point).startswith("ale_py") for key in same)


@cache
def games() -> dict[str, str]:
    """Name and ROM of every single-player game; empty where ale-py is not installed."""
    found = find_spec("ale_py")
    if found is None or not found.submodule_search_locations:
        return {}
    folder = Path(found.submodule_search_locations[0]) / "roms"
    roms = sorted({path.stem for path in folder.glob("*.bin")} - TWO_PLAYERS)
    return {rom.title().replace("_", ""): rom for rom in roms}


class Atari(gymnasium.Env):
    """One game.

    Args:
        game: the ROM, a value of `games()`.
        frame_skip: frames per action.
        noop_max: an episode starts with 1 to `noop_max` no-op frames.
        screen: height and width of observations; 0: the console's own.
        gray: grayscale [height, width]; else RGB [height, width, 3].
        stack: number of stacked frames.
        sticky: probability that a frame repeats the previous action.
        life_loss: report lost lives in `info["soft_end"]`; the game continues.
        fire_reset: the last no-op frame presses FIRE instead, in games that use it.
        full_actions: all 18 actions of the console instead of the game's minimal set.
        max_frames: frames after which an episode is truncated; 0: never.
        obscure: probability that an observation is black.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(
        self,
        game: str,
        frame_skip: int = 4,
        noop_max: int = 30,
        screen: int = 84,
        gray: bool = True,
        stack: int = 4,
        sticky: float = 0.25,
        life_loss: bool = False,
        fire_reset: bool = False,
        full_actions: bool = False,
        max_frames: int = 108_000,
        obscure: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        counts = {
            "frame_skip": (frame_skip, 1, 1000),
            "stack": (stack, 1, 1000),
            "noop_max": (noop_max, 0, 100_000),
            "screen": (screen, 0, 4096),
            "max_frames": (max_frames, 0, 10**9),
        }
        for name, (count, least, most) in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or not least <= count <= most:
                raise EnvError(f"{name} is {count!r}; it must be an integer from {least} to {most:,}")
        for name, chance in {"sticky": sticky, "obscure": obscure}.items():
            if isinstance(chance, bool) or not isinstance(chance, int | float) or not 0 <= chance <= 1:
                raise EnvError(f"{name} is {chance!r}; it must be between 0 and 1")
        switches = {
            "gray": gray,
            "life_loss": life_loss,
            "fire_reset": fire_reset,
            "full_actions": full_actions,
        }
        for name, switch in switches.items():
            if not isinstance(switch, bool):
                raise EnvError(f"{name} is {switch!r}; it must be true or false")
        self.game, self.frame_skip, self.noop_max, self.gray = game, frame_skip, noop_max, gray
        self.sticky, self.obscure, self.max_frames = sticky, obscure, max_frames
        self.fire_reset, self.full_actions = fire_reset, full_actions
        self.frame_stack, self.soft_ends = stack, life_loss
        self._map = ROOMS.get(game)
        self.measures = ("rooms",) if self._map else ()
        self.map_shape = self._map.map_shape if self._map else None
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": round(60 / frame_skip)}
        self._ale: Any = self._load()
        self._draw: Any = self._ale.getScreenGrayscale if gray else self._ale.getScreenRGB
        self._loaded = self._ale.cloneState(include_rng=True)
        self._seeded = False
        allowed = self._ale.getLegalActionSet() if full_actions else self._ale.getMinimalActionSet()
        self._actions = [action.value for action in allowed]
        self._fires = fire_reset and FIRE in self._actions
        self._repeated = NOOP
        """the emulator's last action, which a sticky frame repeats"""
        self._lives = 0
        self._rooms: set[int] = set()

        self.native_screen: tuple[int, int] = self._ale.getScreenDims()
        shape = self.native_screen if gray else (*self.native_screen, 3)
        self._earlier, self._latest = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
        self._shrink = _Shrink(self.native_screen, screen) if screen else None
        self.shape: tuple[int, ...] = (screen, screen, *shape[2:]) if screen else shape
        self.observation_space = spaces.Box(0, 255, self.shape, np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self._restore(self._loaded)  # resetting the console alone keeps part of its memory
            self._seeded = True
        ale = self._ale
        ale.reset_game()
        self._repeated = NOOP
        frames = int(self.np_random.integers(1, self.noop_max + 1)) if self.noop_max else 0
        for _ in range(frames - self._fires):
            ale.act(NOOP)
            if ale.game_over():
                ale.reset_game()
        if self._fires:
            ale.act(FIRE)
            self._repeated = FIRE
        self._lives = ale.lives()
        self._rooms = set()
        self._draw(self._latest)
        return self._observe(), self._info()

    def step(self, action: int) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        reward, whole = self._advance(action)
        ale = self._ale
        self._draw(self._latest)
        if whole and self.frame_skip > 1:
            np.maximum(self._earlier, self._latest, out=self._latest)
        terminated = ale.game_over(with_truncation=False)
        truncated = not terminated and ale.game_truncated()
        info = self._info()
        lives = ale.lives()
        if self.soft_ends and lives < self._lives and not (terminated or truncated):
            info["soft_end"] = True
        self._lives = lives
        return self._observe(), float(reward), terminated, truncated, info

    def render(self) -> Any:
        return self._ale.getScreenRGB() if self.render_mode else None

    def close(self) -> None:
        """Free the emulator: one that lives until the interpreter ends is reported as leaked, in forty lines."""
        self._ale = self._loaded = self._draw = None

    @property
    def position(self) -> tuple[int, int]:
        """Row and column of the room on the map, in games that have one."""
        assert self._map is not None
        return self._map.positions.get(self._room(), (0, 0))

    def get_snapshot(self) -> dict[str, Any] | None:
        """The emulator's state and that of this class."""
        if self.game in UNSAVED:
            return None
        state = self._ale.cloneState(include_rng=True).serialize()
        snapshot = {
            "emulator": np.frombuffer(state, np.uint8),
            "random": self.np_random,
            "repeated": self._repeated,
            "lives": self._lives,
            "rooms": sorted(self._rooms),
        }
        # Saved states of ALE lack old screen contents, which show where a game draws nothing, and in rare cases more.
        # Continuing from the saved state here, too, makes this run and one that is resumed from it equal.
        self.set_snapshot(snapshot)
        return snapshot

    def set_snapshot(self, snapshot: dict[str, Any]) -> None:
        from ale_py import ALEState

        self._restore(ALEState(snapshot["emulator"].tobytes()))
        self.np_random = snapshot["random"]
        self._seeded = True
        self._repeated, self._lives = snapshot["repeated"], snapshot["lives"]
        self._rooms = set(snapshot["rooms"])

    def _load(self) -> Any:
        from ale_py import roms

        ale = _ale()()
        ale.setInt("random_seed", 0)
        ale.setFloat("repeat_action_probability", 0.0)  # ALE's own default is 0.25
        ale.setInt("max_num_frames_per_episode", self.max_frames)
        ale.loadROM(roms.get_rom_path(self.game))
        return ale

    def _restore(self, state: Any) -> None:
        """Restore a state; without a reset and a frame before it, earlier states would have an influence."""
        self._ale.reset_game()
        self._ale.act(NOOP)
        self._ale.restoreState(state)

    def _advance(self, action: int) -> tuple[float, bool]:
        """Run the frames of one action; the sum of rewards, and whether all frames were run before the game ended."""
        ale, chosen, last = self._ale, self._actions[action], self.frame_skip - 1
        sticks = (self.np_random.random(last + 1) < self.sticky).tolist() if self.sticky else None
        reward = 0.0
        for frame in range(last + 1):
            if sticks is None or not sticks[frame]:
                self._repeated = chosen
            reward += ale.act(self._repeated)
            if frame == last - 1:
                self._draw(self._earlier)
            if ale.game_over():
                return reward, frame == last
        return reward, True

    def _observe(self) -> np.ndarray:
        if self.obscure and self.np_random.random() < self.obscure:
            return np.zeros(self.shape, np.uint8)
        return self._latest.copy() if self._shrink is None else self._shrink(self._latest)

    def _room(self) -> int:
        assert self._map is not None
        return int(self._ale.getRAM()[self._map.address])

    def _info(self) -> dict[str, Any]:
        if self._map is None:
            return {}
        self._rooms.add(self._room())
        return {
            "rooms": len(self._rooms),
            "visited_rooms": frozenset(self._rooms),
            "position": self.position,
        }


class _Shrink:
    """Resizes images of `shape` to `size` by `size` by area averaging.

    All sums are integers below 2^24, which are exact in float32: every machine gives the same images. Rows are weighted
    and added, then columns; a product of matrices would wake a thread of BLAS on every core for each image.
    """

    def __init__(self, shape: tuple[int, int], size: int) -> None:
        height, width = shape
        rows, row_share, row_sum = _shares(height, size)
        columns, column_share, column_sum = _shares(width, size)
        self._total = np.float32(row_sum * column_sum)
        kind = np.uint16 if 255 * row_sum * column_sum < 2**16 else np.uint32
        self._row_sums = _Weighted(rows, row_share.astype(kind), width, np.uint8)
        self._column_sums = _Weighted(columns, column_share.astype(kind), size, kind)
        self._turned = np.zeros((width, size), kind)
        self._mean = np.zeros((size, size), np.float32)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        if image.ndim == 2:
            return self._plane(image)
        if image.shape[2] == 1:
            return self._plane(image[:, :, 0])[:, :, None]
        return np.stack([self._plane(plane) for plane in np.moveaxis(image, 2, 0)], axis=2)

    def _plane(self, plane: np.ndarray) -> np.ndarray:
        np.copyto(self._turned, self._row_sums(plane).T)
        np.divide(self._column_sums(self._turned).T, self._total, out=self._mean)
        return np.rint(self._mean, out=self._mean).astype(np.uint8)


class _Weighted:
    """Sums of rows: `index` and `share` [k, new rows] are the old rows of each new one and their weights."""

    def __init__(self, index: np.ndarray, share: np.ndarray, width: int, kind: Any) -> None:
        self._index, self._share = list(index), list(share[:, :, None])
        self._picked = np.zeros((index.shape[1], width), kind)
        self._part, self._sum = (np.zeros(self._picked.shape, share.dtype) for _ in range(2))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        self._sum.fill(0)
        for index, share in zip(self._index, self._share):
            np.take(rows, index, axis=0, out=self._picked, mode="clip")  # other modes copy `out` once more
            np.multiply(self._picked, share, out=self._part)
            np.add(self._sum, self._part, out=self._sum)
        return self._sum


def _shares(old: int, new: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Indices of the old pixels under each new one [k, new], their integer weights [k, new], and the sum of weights."""
    unit = gcd(old, new)
    start = np.arange(new) * old
    pixel = start // new + np.arange(-(-old // new) + 1)[:, None]
    share = np.minimum(start + old, (pixel + 1) * new) - np.maximum(start, pixel * new)
    share = np.maximum(share, 0) // unit
    used = share.any(1)
    return np.minimum(pixel, old - 1)[used], share[used].astype(np.uint16), old // unit


@cache
def _ale() -> Any:
    """The emulator's class, imported on first use."""
    try:
        from ale_py import ALEInterface, LoggerMode
    except ImportError as error:
        raise missing_extra("ale-py", "atari") from error
    if tuple(int(part) for part in version("ale-py").split(".")[:2]) < (0, 12):
        raise EnvError(
            f"ale-py {version('ale-py')} can't save its state; install a newer one with: {install_command('atari')}"
        )
    ALEInterface.setLoggerMode(LoggerMode.Error)
    return ALEInterface
