"""`whorl play`: show a trained agent at once."""

from dataclasses import dataclass
from typing import Annotated, Literal

from whorl.cli.command import command, env_options_of, one_name, parser_of, wants_help
from whorl.settings.schema import Device, Range


@dataclass(frozen=True)
class PlayFlags:
    """Flags of `whorl play`."""

    episodes: Annotated[int, Range(1, 10**6)] = 1
    """episodes to play"""
    screen: Literal["auto", "window", "terminal", "page"] = "auto"
    """where to show them: window, terminal (blocks of colour), page (in a browser on this machine); auto: a window
    where there is a display, else the terminal; in a pipe nothing is shown"""
    gif: str = ""
    """record the first episode to this .gif or .mp4 file instead"""
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    """seed of the episodes"""
    stochastic: bool = False
    """sample actions instead of taking the mean or most likely one"""
    speed: Annotated[float, Range(1e-3, 10**6)] = 1.0
    """factor of real time"""
    fps: Annotated[float, Range(0.1, 1000)] = 25.0
    """frames per second, at most"""
    max_steps: Annotated[int, Range(0, 10**12)] = 0
    """truncate episodes after this many steps; 0: eval_max_steps of the run"""
    env: str = ""
    """play in this environment instead of the agent's"""
    best: bool = False
    """of a run: use the policy with the best evaluation instead of the newest"""
    device: Device = "cpu"
    """device of the policy"""
    trust: tuple[str, ...] = ()
    """of a run: your own code that may be loaded: an import path, a module, a file (my_env.py), or the hash of code
    saved with the run (code:HASH)"""


@command("play AGENT|RUN [--gif FILE] [flags]", PlayFlags)
def play(words: list[str]) -> int:
    """show an agent in the box, or the policy of a run, in a window or in the terminal"""
    parser = parser_of("play", env_options=True)
    asked, words = wants_help(words)
    if asked:
        print(parser.format_help())
        return 0
    name, own, rest = one_name(parser, words, PlayFlags)
    from whorl.box.play import play as show

    found = show(
        name,
        own.episodes,
        screen=own.screen,
        gif=own.gif or None,
        seed=own.seed,
        stochastic=own.stochastic or None,
        speed=own.speed,
        fps=own.fps,
        max_steps=own.max_steps,
        env=own.env or None,
        env_options=env_options_of(rest),
        best=own.best,
        trust=own.trust,
        device=own.device,
    )
    for number, (total, length) in enumerate(zip(found.returns, found.lengths), 1):
        print(f"episode {number}: return {total:.1f} in {length} steps")
    if own.gif:
        print(f"recorded the first episode to {own.gif}")
    return 0
