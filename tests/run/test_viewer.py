"""Episodes that are shown while they are played: frames with traces, the window, the page, `--render`."""

import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import whorl
from whorl.core import hardware
from whorl.core.errors import EnvError, WhorlError
from whorl.core.hardware import has_display
from whorl.envs.adapter import WALKING, _filmed, make_registered
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.envs.mistakes import make_env
from whorl.envs.native import WORLDS
from whorl.log import traces
from whorl.log.live import Page, Window, open_screen
from whorl.log.traces import Traces
from whorl.run import viewer
from whorl.run.viewer import Viewer

SMALL: dict[str, Any] = {
    "quiet": True,
    "tensorboard": False,
    "num_envs": 2,
    "num_steps": 16,
    "batch_size": 32,
    "max_iterations": 1,
    "n_eval_episodes": 2,
    "eval_max_steps": 4,
    "workers": 0,
    "device": "cpu",
}
FRAME = np.full((4, 6, 3), 90, np.uint8)


class Kept:
    """A screen that keeps frames; closed by the user after `most`."""

    def __init__(self, most: int = 10**6) -> None:
        self.frames: list[np.ndarray] = []
        self.most, self.closed = most, False

    def show(self, frame: np.ndarray) -> bool:
        self.frames.append(frame)
        return len(self.frames) < self.most

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """The screen of everything that is shown, without waiting between frames."""
    kept = Kept()
    monkeypatch.setattr(viewer, "open_screen", lambda title, say: kept)
    monkeypatch.setattr(viewer.time, "sleep", lambda seconds: None)
    return kept


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return whorl.train("Quadrotor-v0", "ppo", {**SMALL, "eval": False, "runs": str(folder)}).run_dir


def play(name: str, steps: int, shown: Kept) -> Viewer:
    world = WORLDS[name](1)
    world.reset(0)
    seen = Viewer(name, world.fps, shown)
    seen.period = 0.0
    size = world.spec.action.size
    for _ in range(steps):
        action = torch.full((1, size), 0.25)
        seen(world, world.step(action), action)
    return seen


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "Quadrotor-v0",
            {"position, m": "x y z", "attitude, degrees": "roll pitch yaw", "action": "1 2 3 4"},
        ),
        ("PendulumFull-v0", {"attitude, degrees": "angle", "velocity, rad/s": "velocity", "action": "1"}),
        ("QuadInvPendulum-v0", {"position, m": "cart", "attitude, degrees": "1 2 3 4", "action": "1"}),
    ],
)
def test_position_attitude_and_actions_are_traced(name: str, lines: dict[str, str]) -> None:
    shown = Kept()
    panels = play(name, 3, shown)._traces.panels
    assert {panel: " ".join(names) for panel, names in panels.items()} == {**lines, "reward": "reward"}
    assert all(len(line) == 3 for names in panels.values() for line in names.values())
    assert panels["action"]["1"] == [0.25] * 3
    assert shown.frames[0].shape == (360, 480 + traces.WIDTH, 3)


def test_the_quadrotors_traces_are_its_state_in_metres_and_degrees() -> None:
    world = WORLDS["Quadrotor-v0"](1)
    world.reset(0)
    world.state["body"][:6, 0] = torch.tensor([1.0, -2.0, 3.0, 0.0, torch.pi / 6, torch.pi * 1.5])
    found = world.traces(0)
    assert found["position, m"] == {"x": 1.0, "y": -2.0, "z": 3.0}
    assert list(found["attitude, degrees"].values()) == pytest.approx([0, 30, -90], abs=1e-4)


def test_traces_start_again_with_the_episode() -> None:
    world = WORLDS["PendulumFull-v0"](1, max_steps=3)
    world.reset(0)
    seen = Viewer("pendulum", world.fps, Kept())
    seen.period = 0.0
    lengths = []
    for _ in range(6):
        action = torch.zeros(1, 1)
        seen(world, world.step(action), action)
        lengths.append(len(seen._traces.panels.get("action", {}).get("1", [])))
    assert lengths == [1, 2, 3, 0, 1, 2]


def test_lines_are_drawn_where_the_values_are() -> None:
    kept = Traces()
    for value in (0.0, 1.0):
        kept.add({"height": {"z": value}})
    panel = kept.beside(np.zeros((360, 10, 3), np.uint8))[:, 10:]
    blue = np.abs(panel.astype(int) - traces.COLOURS[0]).sum(-1) < 60
    rows, columns = np.nonzero(blue[traces.TOP :])
    low, high = columns < traces.LEFT + 40, columns > traces.WIDTH - 60
    assert rows[low].mean() > 250 and rows[high].mean() < 60  # rising from left to right


def test_small_pictures_are_enlarged_and_need_no_traces() -> None:
    assert Traces().beside(np.zeros((84, 84, 3), np.uint8)).shape == (360, 360, 3)


def test_a_closed_window_shows_nothing_more() -> None:
    shown = Kept(most=2)
    seen = play("PendulumFull-v0", 6, shown)
    assert len(shown.frames) == 2 and not seen.open


def test_a_window_takes_frames_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    window = Window("a title")
    assert window.show(FRAME) and pygame.display.get_caption()[0] == "a title"
    surface = pygame.display.get_surface()
    assert surface.get_size() == (6, 4) and surface.get_at((0, 0))[:3] == (90, 90, 90)
    pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_ESCAPE))
    assert not window.show(FRAME) and not window.show(FRAME)
    window.close()


def test_without_a_display_there_is_a_page_and_its_address_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hardware.sys, "platform", "linux")
    assert not has_display()
    said: list[str] = []
    screen = open_screen("Quadrotor-v0", said.append)
    screen.close()
    assert re.fullmatch(r"watch Quadrotor-v0 at http://127\.0\.0\.1:\d+/", said[0])
    monkeypatch.setenv("DISPLAY", ":0")
    assert has_display()


def get(url: str, **headers: str) -> Any:
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=600)


def test_the_page_streams_frames_to_this_machine_only() -> None:
    page = Page("<b>a title", wait=0)
    assert page._server.server_address[0] == "127.0.0.1"
    text = get(page.address).read().decode()
    assert '<img src="/frames"' in text and "<b>" not in text
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(get(f"{page.address}frames").read()))
    reader.start()
    with page._changed:
        assert page._changed.wait_for(lambda: page._viewers == 1, 30)
    assert page.show(FRAME)
    page.close()  # the reader gets the last frame, then the end
    reader.join(30)
    assert received[0].count(b"Content-Type: image/jpeg") == 1 and b"\xff\xd8\xff" in received[0]
    page.close()
    with pytest.raises(urllib.error.URLError):
        get(page.address)


def test_the_page_refuses_other_names_and_paths() -> None:
    page = Page("title", wait=0)
    try:
        for path, host, status in (
            ("", "evil.example", 403),
            ("", f"127.0.0.1.evil.example:{page.port}", 403),
            ("elsewhere", "localhost:8000", 404),  # through a tunnel, whose port is another one
            ("../etc/passwd", f"127.0.0.1:{page.port}", 404),
        ):
            with pytest.raises(urllib.error.HTTPError) as error:
                get(page.address + path, Host=host)
            assert error.value.code == status
    finally:
        page.close()


def test_the_first_frame_waits_for_a_viewer_but_not_for_ever() -> None:
    page = Page("title", wait=0.01)
    assert page.show(FRAME) and page._wait == 0.0
    page.close()


def test_eval_shows_native_environments(run: Path, screen: Kept) -> None:
    found = whorl.evaluate(run, 2, max_steps=8, render=True)
    assert len(found.returns) == 2 and screen.closed
    assert len(screen.frames) >= 4  # two episodes of 8 steps at 100 Hz, one frame in four steps


def test_eval_shows_and_records_at_once(run: Path, screen: Kept, tmp_path: Path) -> None:
    whorl.evaluate(run, 1, max_steps=8, render=True, video=tmp_path / "a.gif")
    assert screen.frames and (tmp_path / "a.gif").stat().st_size > 0


def test_eval_shows_gymnasiums_environments_without_a_display(
    screen: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setattr("whorl.api.has_display", lambda: False)
    given = {**SMALL, "eval": False, "runs": str(tmp_path)}
    run = whorl.train("CartPole-v1", "ppo", given).run_dir
    whorl.evaluate(run, 1, max_steps=3, render=True)
    assert screen.frames[0].shape == (360, 540 + traces.WIDTH, 3)  # 400 x 600 pixels, and the panels


def test_training_shows_its_evaluations(screen: Kept, tmp_path: Path) -> None:
    whorl.train("Quadrotor-v0", "ppo", {**SMALL, "render": True, "runs": str(tmp_path)})
    assert screen.frames and screen.closed


def test_training_shows_evaluations_of_gymnasiums_environments(screen: Kept, tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    whorl.train("CartPole-v1", "ppo", {**SMALL, "render": True, "runs": str(tmp_path)})
    assert screen.frames


def test_a_batch_that_has_no_pictures_is_refused(tmp_path: Path) -> None:
    import gymnasium

    batch = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    with pytest.raises(WhorlError, match="a batch of environments, which is not rendered; leave out render"):
        whorl.train(batch, "ppo", {**SMALL, "render": True, "runs": str(tmp_path)})


def test_showing_changes_nothing_in_training(screen: Kept, tmp_path: Path) -> None:
    one, other = (
        whorl.train("Quadrotor-v0", "ppo", {**SMALL, "render": shown, "runs": str(tmp_path / str(shown))})
        for shown in (True, False)
    )
    assert one.mean_return == other.mean_return
    assert os.path.isdir(other.run_dir)


def test_pygame_and_sdl_keep_silent_without_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """pygame greets on import, and SDL looks for a display."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "PYGAME_HIDE_SUPPORT_PROMPT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hardware.sys, "platform", "linux")
    make_env(lambda: gymnasium.make("CartPole-v1")).close()
    assert (os.environ["PYGAME_HIDE_SUPPORT_PROMPT"], os.environ["SDL_VIDEODRIVER"]) == ("1", "dummy")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SDL_VIDEODRIVER")
    make_env(lambda: gymnasium.make("CartPole-v1")).close()
    assert "SDL_VIDEODRIVER" not in os.environ


class Blind(gymnasium.wrappers.TransformReward):
    def render(self) -> Any:
        raise RuntimeError("no GL context")


def test_an_error_while_drawing_is_one_sentence() -> None:
    def make() -> gymnasium.Env:
        return Blind(gymnasium.make("CartPole-v1", render_mode="rgb_array"), lambda reward: reward)

    vector = GymnasiumVector(make, 1, "CartPole-v1")
    vector.reset(0)
    with pytest.raises(EnvError, match=r"render\(\) raised RuntimeError: no GL context"):
        vector.render(0)


def test_mujoco_is_drawn_without_a_display_by_a_camera_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hardware.sys, "platform", "linux")
    drawn = {"render_mode": "rgb_array"}
    assert _filmed("Ant-v5", drawn) == {**drawn, "camera_name": "track"} and os.environ["MUJOCO_GL"] == "egl"
    assert _filmed("Ant-v5", {**drawn, "camera_id": 0}) == {**drawn, "camera_id": 0}
    assert _filmed("Hopper-v4", drawn)["camera_name"] == "track"
    assert _filmed("Reacher-v5", drawn) == drawn


@pytest.mark.parametrize("name", WALKING)
def test_a_camera_follows_a_robot_that_walks(name: str) -> None:
    mujoco = pytest.importorskip("mujoco")
    env = make_registered(gymnasium.spec(f"{name}-v5"), {"render_mode": "rgb_array"})
    env.reset(seed=0)
    robot: Any = env.unwrapped
    try:
        env.render()
    except (mujoco.FatalError, ImportError, AttributeError) as error:
        pytest.skip(f"nothing can be drawn here: {error}")
    orange = []  # pixels of the robot
    for metres in (0.0, 15.0):
        place = robot.data.qpos.copy()
        place[0] += metres
        robot.set_state(place, robot.data.qvel)
        frame = np.asarray(env.render(), np.int16)
        orange.append(int((frame[..., 0] - frame[..., 2] > 40).sum()))
    env.close()
    assert orange[1] > 0.5 * orange[0] > 0


def test_a_display_that_does_not_answer_is_told_without_a_line_of_sdl() -> None:
    """SDL would draw where nobody sees it, and print a line about XDG_RUNTIME_DIR."""
    pytest.importorskip("pygame")
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("SDL_", "XDG_", "WAYLAND"))
    }
    text = "import gymnasium\nfrom whorl.log.live import Window\nWindow('a title')"
    ran = subprocess.run(
        [sys.executable, "-c", text],
        env={**environment, "DISPLAY": ":98765"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "no window can be opened: the display that DISPLAY names does not answer" in ran.stderr
    assert "XDG_RUNTIME_DIR" not in ran.stderr
