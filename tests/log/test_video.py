"""Video files: right number of frames, right speed, reasonable size."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from whorl.core.errors import WhorlError
from whorl.log.video import Frame, save_gif, save_video


def ball(count: int, height: int = 60, width: int = 81) -> list[Frame]:
    """A ball that rolls over a shaded background."""
    y, x = np.mgrid[:height, :width]
    frames = []
    for i in range(count):
        frame = np.stack([x * 2, y * 3, np.full_like(x, 90)], axis=-1).astype(np.uint8)
        frame[(y - 30) ** 2 + (x - i % width) ** 2 < 60] = (255, 40, 40)
        frames.append(frame)
    return frames


def seconds(path: Path) -> float:
    image = Image.open(path)
    total = 0
    for index in range(image.n_frames):
        image.seek(index)
        total += image.info["duration"]
    return total / 1000


@pytest.mark.parametrize(("fps", "count"), [(30, 60), (25, 50), (60, 120), (125, 250)])
def test_a_gif_lasts_as_long_as_the_episode(tmp_path: Path, fps: int, count: int) -> None:
    save_gif(ball(count), tmp_path / "episode.gif", fps)
    assert seconds(tmp_path / "episode.gif") == pytest.approx(2.0, abs=0.02)


def test_a_gif_shows_the_frames_in_close_colours(tmp_path: Path) -> None:
    frames = ball(5)
    save_gif(frames, tmp_path / "episode.gif", 10)
    image = Image.open(tmp_path / "episode.gif")
    image.seek(3)
    assert np.abs(np.asarray(image.convert("RGB"), dtype=int) - frames[3]).mean() < 6


def test_a_gif_costs_a_fraction_of_its_pixels(tmp_path: Path) -> None:
    frames = ball(60)
    save_gif(frames, tmp_path / "episode.gif", 30)
    assert (tmp_path / "episode.gif").stat().st_size < 0.02 * sum(frame.nbytes for frame in frames)


def test_an_episode_that_does_not_move_keeps_its_length(tmp_path: Path) -> None:
    save_gif(ball(1) * 20, tmp_path / "episode.gif", 10)
    assert seconds(tmp_path / "episode.gif") == pytest.approx(2.0)


def test_an_mp4_holds_every_frame_even_at_odd_sizes(tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    save_video(ball(12), tmp_path / "deep" / "episode.mp4", 30)
    reader = ffmpeg.read_frames(str(tmp_path / "deep" / "episode.mp4"))
    assert next(reader)["size"] == (82, 60)
    assert sum(1 for _ in reader) == 12


def test_mp4_without_ffmpeg_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(WhorlError, match=r"\[video\]"):
        save_video(ball(2), tmp_path / "episode.mp4", 30)


def test_an_unknown_ending_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(WhorlError, match=r"\.avi.*\.gif or \.mp4"):
        save_video(ball(2), tmp_path / "episode.avi", 30)


def test_no_frames_is_an_error_that_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(WhorlError, match="render_mode"):
        save_gif([], tmp_path / "episode.gif", 30)


def test_frames_of_another_size_or_type_are_named(tmp_path: Path) -> None:
    frames = [*ball(2), np.zeros((60, 81), dtype=np.uint8)]
    with pytest.raises(WhorlError, match=r"frame 2 is uint8 \[60, 81\]"):
        save_gif(frames, tmp_path / "episode.gif", 30)


def test_a_file_that_can_not_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    frames = [np.zeros((8, 8, 3), np.uint8)] * 2
    with pytest.raises(WhorlError, match=r"x\.gif can't be written"):
        save_video(frames, tmp_path / "file" / "x.gif", 30)
