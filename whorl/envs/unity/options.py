"""Options of a Unity environment: which player, which behaviour, how it is started and set."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from whorl.core.errors import EnvError, nearest
from whorl.core.files import expanded
from whorl.envs.unity.side_channels import engine_settings, parameters
from whorl.settings.schema import Positive, Range, build, fields_of

EDITOR = "editor"
"""what stands for a path in the id where the Unity editor plays"""
EDITOR_PORT = 5004
Port = Annotated[int, Range(0, 65_535)]
Pixels = Annotated[int, Range(1, 10_000)]


@dataclass(frozen=True)
class UnityOptions:
    """Options of a Unity environment, as `env_options`."""

    behavior: str = ""
    """train this behaviour alone; agents of the others get actions of 0; empty: all behaviours of the scene"""
    players: Annotated[int, Range(1, 1000)] = 1
    """players that run in parallel; num_envs is players times the agents of one"""
    editor: bool = False
    """wait for the editor instead of starting a player; as the id unity:editor"""
    port: Port = 0
    """first port to try for a player, or the editor's; 0: any free port, in the editor 5004"""
    args: str | tuple[str, ...] = ()
    """arguments of the player, a list or one line"""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """environment parameters by name: numbers or distributions, {uniform: [min, max]}, {gaussian: [mean, deviation]},
    {multi_range: [[min, max], ...]}"""
    time_scale: Annotated[float, Range(0.001, 100)] = 20.0
    """speed of the simulation; players run at least at 1"""
    width: Pixels = 84
    """of the window"""
    height: Pixels = 84
    """of the window"""
    quality_level: Annotated[int, Range(0, 100)] = 5
    """quality of graphics"""
    target_frame_rate: Annotated[int, Range(-1, 10_000)] = -1
    """frames per second to aim at; -1: as many as possible"""
    capture_frame_rate: Annotated[int, Range(0, 10_000)] = 60
    """frames per simulated second"""
    no_graphics: bool = False
    """start players without graphics; camera sensors then see nothing"""
    areas: Annotated[int, Range(1, 10_000)] = 1
    """copies of the training area that a player makes, where its scene can replicate one"""
    start_timeout: Positive = 60.0
    """seconds within which a player has to connect"""
    timeout: Positive = 60.0
    """seconds within which a player has to answer; one that does not is restarted"""
    exact: bool = False
    """restart players at every reset, with its seed, so that a resumed run of a deterministic player is exact"""

    def __post_init__(self) -> None:
        parameters(self.parameters)  # raises for a value that can't be sent

    @property
    def arguments(self) -> list[str]:
        return shlex.split(self.args) if isinstance(self.args, str) else list(self.args)

    def settings(self, seed: int) -> bytes:
        """What side channels send with a player's first reset."""
        engine = engine_settings(
            self.width,
            self.height,
            self.quality_level,
            self.time_scale,
            self.target_frame_rate,
            self.capture_frame_rate,
        )
        return engine + parameters(self.parameters, seed)


def read_options(id: str, options: Mapping[str, Any]) -> UnityOptions:
    """The options of an id, checked."""
    known = fields_of(UnityOptions)
    for name in options:
        if name not in known:
            raise EnvError(f"{id} has no option {name!r}; {nearest(name, known)}")
    given = {**options, **({"editor": True} if id.partition(":")[2] == EDITOR else {})}
    found: UnityOptions = build(UnityOptions, given)
    if found.editor and found.players > 1:
        raise EnvError(f"players is {found.players}, but there is one editor; leave players out")
    return found


def executable(path: str) -> list[str]:
    """The command that starts a player; a Python file is run by this Python."""
    import sys

    given = expanded(path)
    for candidate in (given.with_name(f"{given.name}{end}") for end in ("", ".x86_64", ".x86", ".exe")):
        if candidate.is_file():
            return [sys.executable, str(candidate)] if candidate.suffix == ".py" else [str(candidate)]
    bundle = given if given.suffix == ".app" else given.with_name(f"{given.name}.app")
    inside = sorted((bundle / "Contents" / "MacOS").glob("*"))
    if inside:
        return [str(inside[0])]
    raise EnvError(
        f"there is no Unity player {path!r}; give the path of a built player, unity:PATH, or unity:editor"
    )
