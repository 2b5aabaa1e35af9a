"""Metrics are read as they grow: whole lines only, new bytes only, no peak lost."""

import json
from pathlib import Path

import numpy as np
import pytest
from page_runs import row, write_rows

from whorl.log.writers import read_rows
from whorl.page.series import Series, Tail, _column, averaged, columns, thin, update


def test_columns_are_those_of_the_rows(tmp_path: Path) -> None:
    rows = [
        row(10, loss__a=1e-3, word="x"),
        row(20, loss__a="nan"),
        {"loss/a": -2, "steps": 30},
        {"steps": 40, "other/loss/a": 5.0},
        {"steps": 50, "text": 'a "loss/a": 7 in a text', "loss/a": "inf"},
        {"steps": 60, "loss/a": "words"},
    ]
    write_rows(tmp_path, rows)
    lines = (tmp_path / "metrics.jsonl").read_bytes()
    steps, values = columns(lines, "steps", "loss/a")
    assert steps.tolist() == [10, 20, 30, 50, 60]
    assert np.array_equal(values, [1e-3, np.nan, -2, np.inf, np.nan], equal_nan=True)
    all_steps, returns = columns(lines, "steps", "episode/return")
    read = [one for one in read_rows(tmp_path / "metrics.jsonl") if "episode/return" in one]
    assert all_steps.tolist() == [one["steps"] for one in read]
    assert returns.tolist() == [one["episode/return"] for one in read]


def test_names_with_quotes_and_umlauts_are_found(tmp_path: Path) -> None:
    name = 'größe/"x"\\y.*'
    write_rows(tmp_path, [{"steps": 1, name: 3.0}])
    assert columns((tmp_path / "metrics.jsonl").read_bytes(), "steps", name)[1].tolist() == [3.0]
    assert Tail(tmp_path / "metrics.jsonl").keys() == ["steps", name]


def test_half_a_line_is_left_for_the_next_time(tmp_path: Path) -> None:
    path, series = tmp_path / "metrics.jsonl", Series("steps", "episode/return")
    write_rows(tmp_path, [row(10)])
    whole = json.dumps(row(20)) + "\n"
    with path.open("a") as file:
        file.write(whole[:40])
    update(path, [series])
    assert series.curve[0].tolist() == [10]
    assert Tail(path).newest(["episode/return"])["steps"] == 10
    update(path, [series])
    assert series.offset == len(json.dumps(row(10))) + 1
    with path.open("a") as file:
        file.write(whole[40:])
    update(path, [series])
    assert series.curve[0].tolist() == [10, 20]


def test_only_new_bytes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, series = tmp_path / "metrics.jsonl", Series("steps", "episode/return")
    write_rows(tmp_path, [row(10 * i) for i in range(1, 500)])
    update(path, [series])
    parsed: list[tuple[int, str]] = []
    monkeypatch.setattr(
        "whorl.page.series._column",
        lambda lines, ends, key: parsed.append((len(lines), key)) or _column(lines, ends, key),
    )
    write_rows(tmp_path, [row(5000)])
    other = Series("steps", "episodes")
    other.offset, other._mark, other._parts = series.offset, series._mark, []
    update(path, [series, other])
    new = len(json.dumps(row(5000))) + 1
    assert parsed == [(new, "steps"), (new, "episode/return"), (new, "episodes")]
    assert other.curve[1].tolist() == [1000]
    late = Series("steps", "iteration")
    update(path, [series, late])
    assert (len(series.curve[0]), len(late.curve[0])) == (500, 500)
    assert series.curve[0][-1] == 5000
    assert len(series.curve[0]) == 500


@pytest.mark.parametrize("where", [(0,), (3,), (0, 3), (1, 2, 3)], ids=str)
def test_a_metric_of_some_rows_stands_at_their_steps(tmp_path: Path, where: tuple[int, ...]) -> None:
    rows = [{"steps": 10 * i, "iteration": i} | ({"x/y": 0.5 * i} if i in where else {}) for i in range(4)]
    write_rows(tmp_path, rows)
    steps, values = columns((tmp_path / "metrics.jsonl").read_bytes(), "steps", "x/y")
    assert (steps.tolist(), values.tolist()) == ([10 * i for i in where], [0.5 * i for i in where])


@pytest.mark.parametrize("again", [20, 60], ids=["shorter", "longer"])
def test_a_file_that_was_cut_and_written_again_is_read_again(tmp_path: Path, again: int) -> None:
    path, series = tmp_path / "metrics.jsonl", Series("steps", "episode/return")
    write_rows(tmp_path, [row(10 * i) for i in range(1, 51)])
    update(path, [series])
    path.unlink()
    write_rows(tmp_path, [row(10 * i, episode__return=-1.0 * i) for i in range(1, again + 1)])
    update(path, [series])
    assert series.curve[1].tolist() == [-1.0 * i for i in range(1, again + 1)]


def test_the_newest_values_come_from_the_rows_that_have_them(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_rows(tmp_path, [row(10, evaluation__return=3.0), row(20, evaluation__return=4.0)])
    write_rows(tmp_path, [{"steps": 30 + i, "loss/a": 1.0, "time/elapsed": 0.3 + 0.1 * i} for i in range(5)])
    newest = Tail(path).newest(["episode/return", "evaluation/return"])
    assert (newest["steps"], newest["evaluation/return"], newest["episode/return"]) == (34, 4.0, 2.0)
    assert Tail(path).rate("steps") == pytest.approx((34 - 10) / (0.7 - 0.1))
    (tmp_path / "empty").touch()
    assert Tail(tmp_path / "empty").newest(["x"]) == {}
    assert Tail(tmp_path / "empty").rows(3) == []


def test_behaviours_whose_episodes_end_in_different_rows_all_count(tmp_path: Path) -> None:
    rows = [
        {"steps": 10, "guard/episode/return": 3.0, "runner/episode/return": 1.0},
        {"steps": 20, "runner/episode/return": 5.0},
        {"steps": 30, "loss/critic": 0.1},
    ]
    write_rows(tmp_path, rows)
    assert Tail(tmp_path / "metrics.jsonl").newest(["episode/return"]) == {
        "steps": 30,
        "guard/episode/return": 3.0,
        "runner/episode/return": 5.0,
        "loss/critic": 0.1,
    }


def test_a_thinned_curve_keeps_its_peaks_and_ends() -> None:
    steps, values = np.arange(10_000.0), np.zeros(10_000)
    values[[1234, 8765]] = 100, -100
    values[5000] = np.nan
    found_steps, found = thin((steps, values), 600)
    assert len(found) <= 602
    assert (found.max(), found.min()) == (100, -100)
    assert (found_steps[0], found_steps[-1]) == (0, 9999)
    assert np.all(np.diff(found_steps) > 0)
    assert found_steps[found.argmax()] == 1234


def test_averages_reach_as_far_as_the_curve() -> None:
    steps = np.arange(10_007.0)
    found_steps, found = averaged((steps, 2 * steps), 1500)
    assert len(found) == 1500
    assert (found_steps[0], found_steps[-1]) == (0, 10_006)
    assert found.mean() == pytest.approx(10_006, rel=1e-3)
    assert np.allclose(found[1:-1], 2 * found_steps[1:-1])
