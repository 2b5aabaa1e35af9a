"""Curves of a page: the groups and bands of `whorl plot`, few points, sent once."""

from pathlib import Path

import numpy as np
import pytest
from page_runs import make_run, row, write_rows

from whorl.log.groups import Style
from whorl.log.statistics import align
from whorl.page.catalog import Catalog, Entry
from whorl.page.curves import RAW, Curves, Query


def entries_of(root: Path) -> list[Entry]:
    catalog = Catalog(root)
    catalog.refresh()
    return list(catalog.entries.values())


def test_seeds_of_one_setting_are_one_curve_with_a_band(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / f"a{seed}", config={"seed": seed}, episode__return=float(seed))
    make_run(tmp_path / "b", config={"actor_lr": 0.1})
    make_run(tmp_path / "c", config={"env": "Ant-v5"})
    found = Curves().panels(entries_of(tmp_path), Query(style=Style(smooth=0)))
    assert [(panel["env"], panel["metric"]) for panel in found["panels"]] == [
        ("CartPole-v1", "episode/return"),
        ("Ant-v5", "episode/return"),
    ]
    seeds, single = found["panels"][0]["groups"]
    assert (seeds["label"], single["label"]) == ("actor_lr = 0.001", "actor_lr = 0.1")
    assert seeds["runs"] == ["a0", "a1", "a2"]
    assert seeds["seeds"] == 3
    (line,) = seeds["lines"]
    assert set(line["y"]) == {1.0}
    grid, values = align([(np.array([10.0, 500.0]), np.full(2, float(seed))) for seed in range(3)])
    low, high = Style().bounds(values)
    assert line["low"][0] == pytest.approx(low[0])
    assert line["high"][-1] == pytest.approx(high[-1])
    assert line["x"][-1] == grid[-1]
    assert [one.get("raw", False) for one in single["lines"]] == [True, False]
    assert found["colours"]["a0"] == found["colours"]["a2"] != found["colours"]["b"]
    assert {"setting": "actor_lr", "values": ["0.001", "0.1", "0.001"]} in found["differ"]["rows"]


def test_a_curve_that_the_page_has_is_not_sent_again(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", config={"env": "Ant-v5"})
    entries, curves = entries_of(tmp_path), Curves()
    first = curves.panels(entries, Query())
    groups = [group for panel in first["panels"] for group in panel["groups"]]
    have = {group["key"]: group["digest"] for group in groups}
    write_rows(tmp_path / "a", [row(510)])
    second = curves.panels(entries, Query(have=have))
    sent = {panel["env"]: "lines" in panel["groups"][0] for panel in second["panels"]}
    assert sent == {"CartPole-v1": True, "Ant-v5": False}
    assert second["panels"][0]["groups"][0]["lines"][0]["x"][-1] == 510


def test_an_answer_does_not_wait_for_all_runs_to_be_read(tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / f"a{seed}", config={"seed": seed})
    entries, curves = entries_of(tmp_path), Curves()
    assert curves.panels(entries, Query(), read_seconds=-1)["waiting"] == 3
    whole = curves.panels(entries, Query())
    assert whole["waiting"] == 0
    assert whole["panels"][0]["groups"][0]["seeds"] == 3


def test_long_curves_are_thinned(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", rows=0)
    write_rows(run, [row(i, episode__return=1000.0 if i == 3217 else 0.0) for i in range(1, 6000)])
    raw, smoothed = Curves().panels(entries_of(tmp_path), Query())["panels"][0]["groups"][0]["lines"]
    assert len(raw["x"]) <= RAW + 2
    assert max(raw["y"]) == 1000.0
    assert raw["x"][raw["y"].index(1000.0)] == 3217
    assert len(smoothed["x"]) <= 402


def test_behaviours_and_evaluations_stand_in_for_a_metric(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", rows=0)
    write_rows(
        run, [{"steps": i, "hunter/episode/return": 1.0, "prey/episode/return": 2.0} for i in range(9)]
    )
    found = Curves().panels(entries_of(tmp_path), Query())
    assert found["shown"] == ["hunter/episode/return", "prey/episode/return"]
    assert [panel["metric"] for panel in found["panels"]] == found["shown"]
    other = make_run(tmp_path / "x" / "b", rows=0)
    write_rows(other, [{"steps": i, "evaluation/return": 1.0} for i in range(9)])
    assert Curves().panels(entries_of(tmp_path / "x"), Query())["shown"] == ["evaluation/return"]


def test_runs_without_rows_or_with_nan_only_are_left_out(tmp_path: Path) -> None:
    make_run(tmp_path / "a", rows=0)
    make_run(tmp_path / "b", episode__return="nan", evaluation__return="inf")
    assert Curves().panels(entries_of(tmp_path), Query())["panels"] == []
    assert Curves().panels([], Query())["panels"] == []


def test_evaluations_are_points(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    write_rows(run, [row(600, evaluation__return=9.0)])
    group = Curves().panels(entries_of(tmp_path), Query())["panels"][0]["groups"][0]
    assert group["points"] == {"x": [600.0], "y": [9.0]}


def test_curves_that_were_read_ahead_are_answered_at_once_and_still_grow(tmp_path: Path) -> None:
    for name in "abc":
        make_run(tmp_path / name, config={"seed": ord(name)})
    entries, curves = entries_of(tmp_path), Curves()
    curves.prefetch(entries)
    found = curves.panels(entries, Query(), read_seconds=-1.0)
    assert found["waiting"] == 0
    assert found["panels"] == Curves().panels(entries, Query())["panels"]
    for name in "abc":
        write_rows(tmp_path / name, [row(9000)])
    grown = curves.panels(entries, Query(), read_seconds=-1.0)
    assert grown["panels"][0]["groups"][0]["lines"][0]["x"][-1] == 9000
