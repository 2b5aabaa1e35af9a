"""What shows or records the episodes of an evaluation."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gymnasium.error import DependencyNotInstalled

from whorl.core.errors import EnvError, WhorlError
from whorl.core.tree import Tree
from whorl.envs.make import Source
from whorl.envs.vector import Step
from whorl.log.video import save_video
from whorl.run.evaluate import Watch
from whorl.run.recording import Camera, Screenshots
from whorl.run.viewer import Viewer, frame_rate


@dataclasses.dataclass(frozen=True)
class Show:
    """Rendering options of an evaluation; see `evaluate`."""

    video: str | Path | None
    screenshots: str | Path | None
    render: bool | Callable[[str, float], Viewer]

    @property
    def mode(self) -> str | None:
        """How environments are to be made."""
        return "rgb_array" if self.render or self.saves else None

    @property
    def saves(self) -> bool:
        return self.video is not None or self.screenshots is not None

    @contextmanager
    def watch(self, source: Source, quota: list[int]) -> Iterator[Watch | None]:
        """Observers of the episodes, each environment's `quota` of them; files are complete afterwards."""
        camera = None if self.video is None else Camera(source.id, frame_rate(source))
        ends = None if self.screenshots is None else Screenshots(source.id, Path(self.screenshots), quota)
        make_viewer = Viewer if self.render is True else self.render
        viewer = make_viewer(source.id, frame_rate(source)) if make_viewer else None
        watching = [one for one in (camera, viewer, ends) if one is not None]

        def watch(env: Any, step: Step, action: Tree) -> None:
            for one in watching:
                one(env, step, action)

        try:
            yield watch if watching else None
        finally:
            if viewer is not None:
                viewer.close()
        if camera is not None and self.video is not None:
            save_video(camera.frames, Path(self.video), camera.fps)


@contextmanager
def explaining_render_errors(id: str, mode: str | None) -> Iterator[None]:
    """Errors of rendering in one sentence."""
    what = "shown in a window" if mode == "human" else "recorded"
    try:
        yield
    except EnvError as error:
        cause = error.__cause__
        if mode is not None and isinstance(cause, DependencyNotInstalled):
            raise WhorlError(f"{id} can't be rendered: {cause}") from error
        if mode is not None and isinstance(cause, TypeError) and "render_mode" in str(cause):
            raise EnvError(
                f"{id} can't be {what}, because its __init__ takes no render_mode; add that argument, keep it as "
                "self.render_mode, and return an image from render()"
            ) from None
        raise
    except DependencyNotInstalled as error:
        raise WhorlError(f"{id} can't be rendered: {error}") from error
