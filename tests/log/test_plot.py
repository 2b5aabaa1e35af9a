"""Plots of synthetic runs: what is read, how runs are grouped, what the picture holds."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from whorl.core.errors import WhorlError
from whorl.log.plot import curve, plot_runs
from whorl.log.writers import MetricFiles


def run(
    folder: Path, algorithm: str = "ppo", env: str = "Ant-v5", seed: int = 0, evaluations: bool = True
) -> Path:
    random = np.random.default_rng(seed)
    files = MetricFiles(folder)
    (folder / "config.yaml").write_text(
        f"algorithm: {algorithm}\nenv: {env}\nseed: {seed}\nagent: {{lr: 0.1}}\n"
    )
    for i in range(1, 41):
        row = {
            "steps": i * 1000,
            "time/elapsed": i * 2.0,
            "episode/return": i + random.normal(),
            "loss/critic": 1 / i,
        }
        if evaluations and i % 10 == 0:
            row["evaluation/return"] = i + 1.0
        files.write(row)
    files.close()
    return folder


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved, to look inside."""
    saved: list[Figure] = []
    save = Figure.savefig

    def keep(self: Figure, *args: object, **options: object) -> None:
        saved.append(self)
        save(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved


def labels(figure: Figure, panel: int = 0) -> list[str]:
    legend = figure.axes[panel].get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_seeds_of_one_setting_share_a_line_and_settings_do_not(tmp_path: Path, figures: list[Figure]) -> None:
    folders = [
        run(tmp_path / f"{name}{seed}", name, seed=seed) for name in ("ppo", "sac") for seed in (0, 1, 2)
    ]
    output = plot_runs(folders, tmp_path / "plots" / "curve.png")
    assert labels(figures[0]) == [
        "ppo, IQM and 95% CI of 3 seeds",
        "sac, IQM and 95% CI of 3 seeds",
        "evaluation",
    ]
    assert Image.open(output).size == (1140, 690)


def test_a_single_run_is_a_light_line_under_a_smooth_one(tmp_path: Path, figures: list[Figure]) -> None:
    plot_runs([run(tmp_path / "one", evaluations=False)], tmp_path / "curve.png")
    raw, smooth = figures[0].axes[0].get_lines()
    assert raw.get_alpha() == 0.25 and smooth.get_alpha() is None
    assert np.std(np.diff(raw.get_ydata())) > np.std(np.diff(smooth.get_ydata()))


def test_each_environment_has_its_panel(tmp_path: Path, figures: list[Figure]) -> None:
    plot_runs([run(tmp_path / env, env=env) for env in ("Ant-v5", "Hopper-v5")], tmp_path / "curve.png")
    assert [panel.get_title(loc="left") for panel in figures[0].axes] == ["Ant-v5", "Hopper-v5"]


def test_each_metric_has_its_panel(tmp_path: Path, figures: list[Figure]) -> None:
    plot_runs([run(tmp_path / "a")], tmp_path / "curve.png", metrics=["episode/return", "loss/critic"])
    assert [panel.get_ylabel() for panel in figures[0].axes] == ["episode return", "loss / critic"]


def test_runs_can_be_told_apart_by_a_nested_setting(tmp_path: Path, figures: list[Figure]) -> None:
    plot_runs([run(tmp_path / "a")], tmp_path / "curve.png", group_by=["algorithm", "agent.lr"])
    assert labels(figures[0])[0] == "ppo · 0.1"


def test_time_is_seconds_of_training(tmp_path: Path, figures: list[Figure]) -> None:
    plot_runs([run(tmp_path / "a")], tmp_path / "curve.png", x="time")
    assert figures[0].axes[0].get_lines()[0].get_xdata()[-1] == 80.0


def test_evaluations_stand_in_where_no_episode_was_logged(tmp_path: Path, figures: list[Figure]) -> None:
    files = MetricFiles(tmp_path)
    files.write({"steps": 10, "evaluation/return": 1.0})
    files.write({"steps": 20, "evaluation/return": 2.0})
    plot_runs([tmp_path], tmp_path / "curve.png")
    assert figures[0].axes[0].get_ylabel() == "evaluation return"


def test_runs_without_a_config_share_a_panel_under_their_folders_names(
    tmp_path: Path, figures: list[Figure]
) -> None:
    for name in ("left", "right"):
        run(tmp_path / name, evaluations=False)
        (tmp_path / name / "config.yaml").unlink()
    plot_runs([tmp_path / "left", tmp_path / "right"], tmp_path / "curve.png")
    assert labels(figures[0]) == ["left", "right"]


@pytest.mark.parametrize("value", [float("nan"), 5.0])
def test_one_point_or_none_that_is_finite_does_no_harm(tmp_path: Path, value: float) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        MetricFiles(folder).write({"steps": 10, "episode/return": value})
    assert plot_runs(folders, tmp_path / "curve.png", group_by=[]).exists()


def test_seeds_that_share_no_steps_are_drawn_apart(tmp_path: Path, figures: list[Figure]) -> None:
    for start, name in ((0, "a"), (100, "b")):
        files = MetricFiles(tmp_path / name)
        for i in range(5):
            files.write({"steps": start + i, "episode/return": 1.0})
    plot_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "curve.png", group_by=[])
    assert len(figures[0].axes[0].get_lines()) == 4


def test_a_curve_is_steps_and_values_of_the_rows_that_have_the_metric(tmp_path: Path) -> None:
    steps, values = curve(run(tmp_path), "evaluation/return")
    np.testing.assert_array_equal(steps, [10_000, 20_000, 30_000, 40_000])
    np.testing.assert_array_equal(values, [11, 21, 31, 41])


def test_words_for_nan_come_back_as_nan(tmp_path: Path) -> None:
    MetricFiles(tmp_path).write({"steps": 1, "loss/critic": float("nan")})
    assert np.isnan(curve(tmp_path, "loss/critic")[1]).all()


def test_a_folder_without_metrics_is_named(tmp_path: Path) -> None:
    with pytest.raises(WhorlError, match=r"has no metrics.jsonl; is it the folder of a run\?"):
        plot_runs([tmp_path], tmp_path / "curve.png")


def test_a_misspelt_metric_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(WhorlError, match="did you mean 'loss/critic'"):
        curve(run(tmp_path), "loss/critics")


def test_a_metric_of_words_can_not_be_plotted(tmp_path: Path) -> None:
    MetricFiles(tmp_path).write({"steps": 1, "phase/name": "policy"})
    with pytest.raises(WhorlError, match=r"'phase/name' is not a number.*'policy'"):
        curve(tmp_path, "phase/name")
