"""Plots of synthetic runs: what is read, how runs are grouped, what the picture holds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure

from whorl.core.errors import WhorlError
from whorl.log.groups import evaluations
from whorl.log.maps import save_maps
from whorl.log.plot import Style, curve, plot_arms, plot_map, plot_runs
from whorl.log.writers import MetricFiles


def run(
    folder: Path,
    algorithm: str = "ppo",
    env: str = "Ant-v5",
    seed: int = 0,
    evaluations: bool = True,
    rows: int = 40,
    **settings: Any,
) -> Path:
    random = np.random.default_rng(seed)
    files = MetricFiles(folder)
    config = {"algorithm": algorithm, "env": env, "seed": seed, "agent": {"lr": 0.1}, **settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    for i in range(1, rows + 1):
        row = {
            "steps": i * 1000,
            "episodes": i * 3,
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
    """The figures that would be saved, to look inside; they are not drawn, which takes most of the time."""
    saved: list[Figure] = []

    def keep(self: Figure, path: Path, **_: Any) -> None:
        saved.append(self)
        path.touch()

    monkeypatch.setattr(Figure, "savefig", keep)
    return saved


def labels(figure: Figure, panel: int = 0) -> list[str]:
    legend = figure.axes[panel].get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def title_of_legend(figure: Figure) -> str:
    return figure.axes[0].get_legend().get_title().get_text()


def test_seeds_of_one_setting_share_a_line_and_settings_do_not(tmp_path: Path, figures: list[Figure]) -> None:
    folders = [
        run(tmp_path / f"{name}{seed}", name, seed=seed) for name in ("ppo", "sac") for seed in (0, 1, 2)
    ]
    plot_runs(folders, tmp_path / "plots" / "curve.png")
    assert labels(figures[0]) == ["ppo (3 seeds)", "sac (3 seeds)", "evaluation"]
    assert title_of_legend(figures[0]) == "mean and 95% CI of the seeds"


def test_a_single_run_is_a_light_line_under_a_smooth_one(tmp_path: Path, figures: list[Figure]) -> None:
    plot_runs([run(tmp_path / "one", evaluations=False)], tmp_path / "curve.png")
    raw, smooth = figures[0].axes[0].get_lines()
    assert raw.get_alpha() == 0.25 and smooth.get_alpha() is None
    assert np.std(np.diff(raw.get_ydata())) > np.std(np.diff(smooth.get_ydata()))


def test_each_environment_has_its_panel(tmp_path: Path, figures: list[Figure]) -> None:
    plot_runs([run(tmp_path / env, env=env) for env in ("Ant-v5", "Hopper-v5")], tmp_path / "curve.png")
    assert [panel.get_title(loc="left") for panel in figures[0].axes] == [
        "ppo on Ant-v5",
        "ppo on Hopper-v5",
    ]


def test_each_metric_has_its_panel(tmp_path: Path, figures: list[Figure]) -> None:
    plot_runs([run(tmp_path / "a")], tmp_path / "curve.png", metrics=["episode/return", "loss/critic"])
    assert [panel.get_ylabel() for panel in figures[0].axes] == ["episode return", "loss / critic"]


def test_runs_can_be_told_apart_by_a_nested_setting(tmp_path: Path, figures: list[Figure]) -> None:
    plot_runs([run(tmp_path / "a")], tmp_path / "curve.png", group_by=["algorithm", "agent.lr"])
    assert labels(figures[0])[0] == "ppo, agent.lr = 0.1"


def test_time_is_seconds_of_training(tmp_path: Path, figures: list[Figure]) -> None:
    plot_runs([run(tmp_path / "a")], tmp_path / "curve.png", style=Style(x="time"))
    assert figures[0].axes[0].get_lines()[0].get_xdata()[-1] == 80.0
    assert figures[0].axes[0].get_xlabel() == "training time (s)"


def test_episodes_are_an_axis_too(tmp_path: Path, figures: list[Figure]) -> None:
    plot_runs([run(tmp_path / "a")], tmp_path / "curve.png", style=Style(x="episodes"))
    assert figures[0].axes[0].get_lines()[0].get_xdata()[-1] == 120
    assert figures[0].axes[0].get_xlabel() == "episodes"


# Groups


def test_runs_are_told_apart_by_every_setting_that_differs_but_the_seed(
    tmp_path: Path, figures: list[Figure]
) -> None:
    folders = [
        run(tmp_path / f"{lr}{seed}", seed=seed, actor_lr=lr, gamma=0.99, tag=f"seed{seed}", quiet=seed == 1)
        for lr in (0.001, 0.0003)
        for seed in (1, 2)
    ]
    plot_runs(folders, tmp_path / "curve.png")
    assert labels(figures[0])[:2] == ["actor_lr = 0.001 (2 seeds)", "actor_lr = 0.0003 (2 seeds)"]


def test_options_of_nested_settings_tell_runs_apart(tmp_path: Path, figures: list[Figure]) -> None:
    plain = run(tmp_path / "a", optimizer={"class": "Adam"}, env_options={}, hidden=[64, 64], memory=False)
    other = run(
        tmp_path / "b",
        optimizer={"class": "Adam", "eps": 1e-5},
        env_options={"wind": 3},
        hidden=[8],
        memory=True,
    )
    plot_runs([plain, other], tmp_path / "curve.png")
    assert [label.replace("\n", " ") for label in labels(figures[0])[:2]] == [
        "env_options.wind = default, hidden = 64 64, memory = false, optimizer.eps = default",
        "env_options.wind = 3, hidden = 8, memory = true, optimizer.eps = 1e-05",
    ]


def test_a_setting_without_a_value_is_none(tmp_path: Path, figures: list[Figure]) -> None:
    folders = [run(tmp_path / "a", demonstrations=""), run(tmp_path / "b", demonstrations="expert")]
    plot_runs(folders, tmp_path / "curve.png")
    assert labels(figures[0])[:2] == ["demonstrations = none", "demonstrations = expert"]


def test_settings_of_different_algorithms_are_not_compared(tmp_path: Path, figures: list[Figure]) -> None:
    folders = [run(tmp_path / "a", "ppo", num_envs=8), run(tmp_path / "b", "sac", num_envs=1)]
    plot_runs(folders, tmp_path / "curve.png")
    assert labels(figures[0])[:2] == ["ppo", "sac"]


def test_where_a_run_is_computed_matters_over_time_only(tmp_path: Path, figures: list[Figure]) -> None:
    folders = [run(tmp_path / device, device=device, seed=i) for i, device in enumerate(("cpu", "cuda"))]
    plot_runs(folders, tmp_path / "curve.png")
    plot_runs(folders, tmp_path / "curve.png", style=Style(x="time"))
    assert labels(figures[0])[0] == "ppo (2 seeds)"
    assert labels(figures[1])[:2] == ["device = cpu", "device = cuda"]


def test_a_setting_that_an_older_run_does_not_name_is_not_known_to_differ(
    tmp_path: Path, figures: list[Figure]
) -> None:
    plot_runs([run(tmp_path / "a", seed=1, new=1), run(tmp_path / "b", seed=2)], tmp_path / "curve.png")
    assert labels(figures[0])[0] == "ppo (2 seeds)"


def test_settings_to_group_by_can_be_given(tmp_path: Path, figures: list[Figure]) -> None:
    folders = [run(tmp_path / f"{i}", seed=i, actor_lr=i / 10, gamma=0.9 + i // 2 / 100) for i in range(4)]
    plot_runs(folders, tmp_path / "curve.png", group_by=["gamma"])
    assert labels(figures[0])[:2] == ["gamma = 0.9 (2 seeds)", "gamma = 0.91 (2 seeds)"]


# Statistics


@pytest.mark.parametrize(("statistic", "height"), [("mean", 24.0), ("iqm", 4.0), ("median", 4.0)])
def test_the_statistic_of_the_seeds_is_drawn(
    statistic: Any, height: float, tmp_path: Path, figures: list[Figure]
) -> None:
    for name, value in zip("abcde", (1.0, 3.0, 4.0, 5.0, 107.0)):
        files = MetricFiles(tmp_path / name)
        for step in (1, 2):
            files.write({"steps": step, "episode/return": value})
    folders = [tmp_path / name for name in "abcde"]
    plot_runs(folders, tmp_path / "c.png", group_by=["env"], style=Style(statistic=statistic))
    np.testing.assert_allclose(figures[0].axes[0].get_lines()[0].get_ydata(), height)


@pytest.mark.parametrize(("band", "height"), [("ci", None), ("std", 2.0), ("none", 0.0)])
def test_the_band_is_an_interval_the_standard_deviation_or_nothing(
    band: Any, height: float | None, tmp_path: Path, figures: list[Figure]
) -> None:
    for name, value in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        files = MetricFiles(tmp_path / name)
        for step in (1, 2):
            files.write({"steps": step, "episode/return": value})
    folders = [tmp_path / name for name in "abc"]
    plot_runs(folders, tmp_path / "c.png", group_by=["env"], style=Style(band=band))
    bands = figures[0].axes[0].collections
    if band == "none":
        assert not bands
        return
    heights = bands[0].get_paths()[0].vertices[:, 1]
    # 1, 2 and 3 have the standard deviation 1, so the band is 1 to 3; a mean of resampled seeds lies within 1 to 3.
    assert heights.min() >= 1.0 and heights.max() <= 3.0
    assert height is None or heights.max() - heights.min() == pytest.approx(height)


def test_curves_are_smoothed_over_a_number_of_rows(tmp_path: Path, figures: list[Figure]) -> None:
    folder = run(tmp_path / "a", evaluations=False)
    for rows in (0, 20):
        plot_runs([folder], tmp_path / "c.png", style=Style(smooth=rows))
    roughness = [np.abs(np.diff(figure.axes[0].get_lines()[1].get_ydata(), 2)).sum() for figure in figures]
    np.testing.assert_array_equal(*(line.get_ydata() for line in figures[0].axes[0].get_lines()))
    assert roughness[1] < roughness[0] / 5


def test_seeds_that_go_on_longer_are_dashed_and_told(tmp_path: Path, figures: list[Figure]) -> None:
    folders = [
        run(tmp_path / f"{i}", seed=i, rows=rows, evaluations=False) for i, rows in enumerate((40, 40, 20))
    ]
    plot_runs(folders, tmp_path / "c.png")
    whole, rest = figures[0].axes[0].get_lines()
    assert (whole.get_xdata()[-1], rest.get_xdata()[0], rest.get_xdata()[-1]) == (20_000, 20_000, 40_000)
    assert (
        labels(figures[0])[0].replace("\n", " ") == "ppo (3 seeds; dashed: fewer, the shortest ends at 20k)"
    )


def test_seeds_that_end_almost_together_are_drawn_as_far_as_all_reach(
    tmp_path: Path, figures: list[Figure]
) -> None:
    folders = [
        run(tmp_path / f"{i}", seed=i, rows=rows, evaluations=False) for i, rows in enumerate((40, 39))
    ]
    plot_runs(folders, tmp_path / "c.png")
    assert [line.get_xdata()[-1] for line in figures[0].axes[0].get_lines()] == [39_000]
    assert labels(figures[0]) == ["ppo (2 seeds)"]


# Files


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_the_same_runs_give_the_same_file(ending: str, tmp_path: Path) -> None:
    folders = [run(tmp_path / f"{seed}", seed=seed) for seed in (1, 2, 3)]
    files = [plot_runs(folders, tmp_path / "plots" / f"{i}{ending}").read_bytes() for i in range(2)]
    assert files[0] == files[1]
    assert files[0].startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[ending])


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WhorlError, match=r"end the name in \.png, \.svg, \.pdf"):
        plot_runs([run(tmp_path / "a")], tmp_path / "c.jpeg")


def test_a_run_without_rows_is_left_out_or_an_error(tmp_path: Path) -> None:
    MetricFiles(tmp_path / "new").close()
    with pytest.warns(UserWarning, match="new has no rows of metrics yet; it is left out"):
        plot_runs([run(tmp_path / "a"), tmp_path / "new"], tmp_path / "c.png")
    with pytest.raises(WhorlError, match="new has no rows of metrics yet; let the run log"):
        plot_runs([tmp_path / "new"], tmp_path / "c.png")


def test_a_long_legend_stands_below_the_axis_and_covers_nothing(
    tmp_path: Path, figures: list[Figure]
) -> None:
    folders = [
        run(tmp_path / f"{i}", seed=1, actor_lr=i / 10, clip_range=i / 7, num_envs=i, evaluations=False)
        for i in range(1, 5)
    ]
    plot_runs(folders, tmp_path / "c.png")
    figures[0].draw_without_rendering()
    panel = figures[0].axes[0]
    legend, label = panel.get_legend().get_window_extent(), panel.xaxis.label.get_window_extent()
    assert legend.y1 <= label.y0, "it does not touch the label of the axis"
    assert legend.y0 >= 0 and legend.x1 <= figures[0].bbox.x1, "it is not cut"


# Runs as they are found


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
    assert plot_runs(folders, tmp_path / "curve.png", group_by=["env"]).exists()


def test_seeds_that_share_no_steps_are_drawn_apart(tmp_path: Path, figures: list[Figure]) -> None:
    for start, name in ((0, "a"), (100, "b")):
        files = MetricFiles(tmp_path / name)
        for i in range(5):
            files.write({"steps": start + i, "episode/return": 1.0})
    plot_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "curve.png", group_by=["env"])
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


def drawn_by(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved from now on."""
    found: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (found.append(self), save(self, *a, **k))[1])
    return found


def test_a_map_has_a_panel_of_visits_and_one_for_each_intrinsic_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn_by(monkeypatch)
    visits = np.array([[0, 9], [99, 9]])
    reward = np.array([[np.nan, 0.5], [0.1, 0.4]])
    save_maps(tmp_path, {"visits": visits, "rnd": reward})
    assert plot_map(tmp_path, tmp_path / "map.png").stat().st_size > 1000
    panels = [panel for panel in figures[0].axes if panel.images and panel.get_title(loc="left")]
    assert [panel.get_title(loc="left") for panel in panels] == ["visits", "mean reward of rnd"]
    shown = np.ma.filled(panels[0].images[0].get_array(), np.nan)
    np.testing.assert_array_equal(shown, [[np.nan, 1.0], [2.0, 1.0]])
    np.testing.assert_array_equal(np.ma.filled(panels[1].images[0].get_array(), np.nan), reward)


def test_arms_are_shares_of_the_episodes_between_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = drawn_by(monkeypatch)
    files = MetricFiles(tmp_path)
    (tmp_path / "config.yaml").write_text("algorithm: agent57\nenv: Maze\n")
    for steps, counts in ((100, (1, 1, 0)), (200, (4, 2, 0)), (300, (4, 2, 0)), (400, (4, 2, 5))):
        row = {f"policies/episodes_{i}": float(count) for i, count in enumerate(counts)}
        files.write({"steps": steps, **row, "policies/best": 0.0})
    files.close()
    plot_arms(tmp_path, tmp_path / "arms.png")
    shown = np.ma.filled(figures[0].axes[0].collections[0].get_array(), np.nan).reshape(3, 3)
    np.testing.assert_array_equal(shown, [[0.75, np.nan, 0], [0.25, np.nan, 0], [0, np.nan, 1]])


def test_a_single_arm_has_one_whole_number(tmp_path: Path, figures: list[Figure]) -> None:
    files = MetricFiles(tmp_path)
    (tmp_path / "config.yaml").write_text("algorithm: agent57\nenv: Maze\n")
    for steps in (100, 200):
        files.write({"steps": steps, "policies/episodes_0": steps / 10})
    files.close()
    plot_arms(tmp_path, tmp_path / "arms.png")
    panel = figures[0].axes[0]
    low, high = panel.get_ylim()
    assert [tick for tick in panel.get_yticks() if low <= tick <= high] == [0]


def test_a_run_without_a_bandit_has_no_arms(tmp_path: Path) -> None:
    with pytest.raises(WhorlError, match="which Agent57 writes"):
        plot_arms(run(tmp_path), tmp_path / "arms.png")


def test_curves_of_one_point_are_seen(tmp_path: Path, figures: list[Figure]) -> None:
    alone = [run(tmp_path / "one", rows=1)]
    seeds = [run(tmp_path / f"gamma{seed}", seed=seed, rows=1) for seed in (1, 2)]
    plot_runs(alone, tmp_path / "one.png")
    plot_runs(seeds, tmp_path / "seeds.png")
    for figure in figures:
        assert any(line.get_marker() == "." for line in figure.axes[0].get_lines())
    plot_runs([run(tmp_path / "long", evaluations=False)], tmp_path / "long.png")
    assert not any(line.get_marker() == "." for line in figures[-1].axes[0].get_lines())


def test_repetitions_of_one_seed_are_not_called_seeds(tmp_path: Path, figures: list[Figure]) -> None:
    plot_runs([run(tmp_path / name, evaluations=False) for name in ("a", "b")], tmp_path / "curve.png")
    assert labels(figures[0]) == ["ppo (2 runs)"]


def test_evaluations_of_seeds_some_steps_apart_are_averaged() -> None:
    one = np.array([100.0, 200.0]), np.array([1.0, 2.0])
    other = np.array([105.0, 203.0, 300.0]), np.array([3.0, 4.0, 5.0])
    places, values = evaluations([one, other])
    assert places.tolist() == [102.5, 201.5, 300.0]
    assert values.tolist() == [2.0, 3.0, 5.0]


def test_evaluations_of_seeds_at_different_times_are_averaged_on_a_grid() -> None:
    """One seed is evaluated every 10 s, the other every 16 s, and it ends later."""
    one = np.array([10.0, 20.0, 30.0, 40.0]), np.array([1.0, 2.0, 3.0, 4.0])
    other = np.array([8.0, 24.0, 40.0, 56.0]), np.array([8.0, 24.0, 40.0, 72.0])
    time = Style(x="time")
    places, values = evaluations([one, other], time)
    # The median gap is 13 s: three places in the 30 s of both, two in the 16 s of the longer one (the first is there).
    assert places.tolist() == [10.0, 25.0, 40.0, 56.0]
    assert values.tolist() == [5.5, 13.75, 22.0, 72.0]
    never = np.empty(0), np.empty(0)
    places, values = evaluations([one, (other[0][:3], other[1][:3]), never], time)
    assert places.tolist() == [10.0, 25.0, 40.0] and values.tolist() == [5.5, 13.75, 22.0]


def test_evaluations_at_times_that_do_not_overlap_stay_where_they_are() -> None:
    one = np.array([10.0, 20.0]), np.array([1.0, 2.0])
    for other in ((np.array([50.0, 60.0]), np.array([5.0, 6.0])), (np.array([50.0]), np.array([5.0]))):
        places, values = evaluations([one, other], Style(x="time"))
        assert places.tolist() == [*one[0], *other[0]] and values.tolist() == [*one[1], *other[1]]


def test_single_evaluations_of_seeds_are_averaged_if_they_are_near_each_other() -> None:
    curves = [
        (np.array([place]), np.array([value]))
        for place, value in ((8093.0, 1.0), (8104.0, 3.0), (16000.0, 9.0))
    ]
    places, values = evaluations(curves)
    assert places.tolist() == [8098.5, 16000.0]
    assert values.tolist() == [2.0, 9.0]
