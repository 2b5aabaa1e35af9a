"""Episodes shown while they are played: the picture of the first environment and traces of its numbers."""

import sys
import time
from typing import Any

from whorl.core import tree
from whorl.core.errors import EnvError, WhorlError
from whorl.envs.make import Source
from whorl.envs.mistakes import make_env
from whorl.envs.vector import Step, Traced, VectorEnv
from whorl.log.live import Screen, open_screen
from whorl.log.traces import MOST_LINES, Traces

FRAMES_PER_SECOND = 25


class Viewer:
    """Shows the first environment after each step, in real time; nothing once the user has closed the window.

    Args:
        rate: steps per second of simulated time.
        screen: where frames go; default: a window or a page.
        fps: frames per second, at most.
        traces: whether curves of the last numbers are drawn beside the picture.
    """

    def __init__(
        self,
        title: str,
        rate: float,
        screen: Screen | None = None,
        fps: float = FRAMES_PER_SECOND,
        traces: bool = True,
    ) -> None:
        self.screen = screen or open_screen(title, say)
        self.title, self.stride = title, max(1, round(rate / fps))
        self.period = self.stride / rate
        """seconds between two frames"""
        self.open = True
        self._traces = Traces()
        self._draws_traces = traces
        self._steps = 0
        self._next = 0.0

    def __call__(self, env: VectorEnv, step: Step, action: Any) -> None:
        if not self.open:
            return
        if bool(step.reset[0]):
            self._traces.clear()
            self._steps = 0
            return
        traces = env.traces(0) if isinstance(env, Traced) else {}
        values = {**traces, "action": _numbers(action), "reward": {"reward": float(step.reward[0])}}
        self._traces.add(values)
        ended = bool(step.terminated[0] | step.truncated[0])
        if self._steps % self.stride == 0 or ended:
            frame = env.render(0)
            if frame is None:
                raise EnvError(
                    f"{self.title} renders no frames, so there is nothing to show; its render() must return an image "
                    "with render_mode='rgb_array'"
                )
            self.open = self.screen.show(self._traces.beside(frame) if self._draws_traces else frame)
            self._pause()
        self._steps += 1

    def close(self) -> None:
        self.screen.close()

    def _pause(self) -> None:
        """Wait until the next frame is due; a slow environment is shown as fast as it is."""
        now = time.monotonic()
        self._next = max(self._next + self.period, now)
        time.sleep(min(self._next - now, self.period))


def drawn(source: Source) -> Source:
    """The environment with pictures; native ones always have them."""
    if source.world is not None:
        return source
    if source.batch is not None or (source.adapter is not None and not source.adapter.renders):
        raise WhorlError(f"{source.id} is a batch of environments, which is not rendered; leave out render")
    return source.with_options({**source.options, "render_mode": "rgb_array"})


def frame_rate(source: Source) -> float:
    """Steps per second of an environment."""
    if source.adapter is not None and (rate := source.adapter.frame_rate(source.id, source.options)):
        return rate
    env = make_env(source.factory)
    env.close()
    return float((getattr(env, "metadata", None) or {}).get("render_fps") or 30)


def _numbers(action: Any) -> dict[str, float]:
    """The parts of the first environment's action by number, or by the key of a Dict or Tuple action."""
    found: dict[str, float] = {}
    for path, leaf in tree.items(action):
        values = leaf[0].reshape(-1).tolist()
        for number, value in enumerate(values[:MOST_LINES], 1):
            name = path if path and len(values) == 1 else f"{path} {number}".strip()
            found[name] = float(value)
    return found


def say(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
