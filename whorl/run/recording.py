"""What evaluations record: the first episode as frames, and pictures of the last states of episodes."""

from pathlib import Path
from typing import Any

from PIL import Image

from whorl.core.errors import EnvError, WhorlError
from whorl.core.files import reason


class Camera:
    """Records the first episode of the first environment, about 25 frames per second of it."""

    def __init__(self, id: str, rate: float) -> None:
        self.id = id
        self.stride = max(1, round(rate / 25))
        self.fps = rate / self.stride
        self.frames: list[Any] = []
        self.steps = 0
        self.over = False

    def __call__(self, world: Any, step: Any, action: Any) -> None:
        if self.over:
            return
        self.over = bool(step.terminated[0] | step.truncated[0])
        if self.steps % self.stride == 0 or self.over:
            self.frames.append(_frame(world, 0, self.id))
        self.steps += 1


class Screenshots:
    """Writes the last frame of every episode that counts as a picture, numbered by the order in which they end."""

    def __init__(self, id: str, folder: Path, quota: list[int]) -> None:
        self.id, self.folder, self.count = id, folder, 0
        self.left = quota
        """episodes of each environment that still count"""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WhorlError(f"pictures can't be saved in {folder}: {reason(error)}") from None

    def __call__(self, world: Any, step: Any, action: Any) -> None:
        for env_index in (step.terminated | step.truncated).nonzero().flatten().tolist():
            if not self.left[env_index]:
                continue
            self.left[env_index] -= 1
            self.count += 1
            # The environment is reset by the next step: now it is still in its last state.
            frame = _frame(world, env_index, self.id)
            Image.fromarray(frame).save(self.folder / f"episode_{self.count:03}.png")


def _frame(world: Any, env_index: int, id: str) -> Any:
    frame = world.render(env_index)
    if frame is None:
        raise EnvError(
            f"{id} renders no frames, so there is nothing to record; it must be made with "
            "render_mode='rgb_array', and render() must then return an image"
        )
    return frame
