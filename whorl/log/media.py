"""Pictures and videos in files, which a notebook shows inline."""

import base64
from dataclasses import dataclass
from pathlib import Path

_IMAGES = {".gif": "image/gif", ".png": "image/png", ".svg": "image/svg+xml"}
_VIDEOS = {".mp4": "video/mp4"}


@dataclass(frozen=True)
class Media:
    """A picture or video in a file; as the last value of a notebook's cell it is shown."""

    path: Path

    def _repr_png_(self) -> bytes | None:
        return self.path.read_bytes() if self.path.suffix.lower() == ".png" else None

    def _repr_html_(self) -> str | None:
        """The file within the page, so that the notebook shows it on other machines, too."""
        ending = self.path.suffix.lower()
        if ending == ".png" or ending not in {**_IMAGES, **_VIDEOS}:
            return None
        data = base64.b64encode(self.path.read_bytes()).decode()
        if ending in _VIDEOS:
            return f'<video controls loop src="data:{_VIDEOS[ending]};base64,{data}"></video>'
        return f'<img src="data:{_IMAGES[ending]};base64,{data}">'
