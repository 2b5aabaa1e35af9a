"""Show a trained agent: one of the box by name, or that of a run folder."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from whorl import api
from whorl.box.names import find_policy
from whorl.core.errors import ConfigError, WhorlError, install_command, nearest
from whorl.core.hardware import has_display
from whorl.log.live import Page, Screen, Window
from whorl.log.terminal import Terminal
from whorl.run.evaluate import Evaluation
from whorl.run.viewer import FRAMES_PER_SECOND, Viewer, say

SCREENS = ("auto", "window", "terminal", "page")


def play(
    name: str | Path,
    episodes: int = 1,
    *,
    screen: str = "auto",
    gif: str | Path | None = None,
    seed: int = 0,
    stochastic: bool | None = None,
    speed: float = 1.0,
    fps: float = FRAMES_PER_SECOND,
    max_steps: int = 0,
    env: Any = None,
    env_options: dict[str, Any] | None = None,
    best: bool = False,
    trust: Sequence[str] = (),
    device: str = "cpu",
) -> Evaluation:
    """Play episodes of an agent in the box or of a run, and show them.

    Args:
        screen: window, terminal (frames as blocks of colour) or page (in a browser on this machine); auto: a window
            where there is a display, else the terminal; in a pipe nothing is shown.
        gif: record the first episode to this .gif or .mp4 file instead of showing it.
        stochastic: sample actions; None: as the card says, greedy for runs.
        speed: factor of real time.
        fps: frames per second at most.
    """
    if screen not in SCREENS:
        raise ConfigError(f"screen is {screen!r}; {nearest(screen, SCREENS)}")
    if speed <= 0 or fps <= 0:
        raise ConfigError(f"{'speed' if speed <= 0 else 'fps'} must be above 0")
    card = find_policy(name).card
    policy = api.restore(name, best=best, trust=trust, device=device)
    sampled = stochastic if stochastic is not None else card is not None and card.stochastic
    title = f"{name}: {policy.settings.algorithm} on {policy.settings.env}"
    show: bool | Callable[[str, float], Viewer] = False
    blind = screen == "auto" and not has_display() and not sys.stdout.isatty()
    if gif is None and blind:
        say("there is neither a display nor a terminal, so nothing is shown; use --gif FILE or --screen page")
    elif gif is None:

        def show(id: str, rate: float) -> Viewer:
            shown, traces = _open(screen, title)
            return Viewer(id, rate * speed, shown, fps=fps, traces=traces)

    return api.evaluate(
        policy,
        episodes,
        env=env,
        env_options=env_options,
        seed=seed,
        max_steps=max_steps,
        deterministic=not sampled,
        video=gif,
        render=show,
        trust=trust,
    )


def _open(screen: str, title: str) -> tuple[Screen, bool]:
    """Where frames are shown, and whether curves are drawn beside them: a terminal has no room."""
    if screen == "page":
        page = Page(title)
        say(f"watch {title} at {page.address}")
        return page, True
    if screen == "window" or (screen == "auto" and has_display()):
        try:
            return Window(title), True
        except ImportError:
            if screen == "window":
                raise WhorlError(
                    f"a window needs pygame; install it with: {install_command('render')}, or use --screen terminal"
                ) from None
        except WhorlError:
            if screen == "window":
                raise
    return Terminal(title), False
