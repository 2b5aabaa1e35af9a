"""A population on the command line, its table and its picture, and the examples that are shipped."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from rich.console import Console

import whorl
from whorl import cli
from whorl.population.config import EvolveConfig
from whorl.population.curve import draw_population
from whorl.population.display import Display
from whorl.population.evolver import read_lineage
from whorl.population.member import Report
from whorl.population.rules import LineageRow, Plan, Population
from whorl.settings.draws import Choices, Interval
from whorl.settings.merge import configure

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("evolve_*.yaml"))


@pytest.fixture
def config(small: dict[str, Any], tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(
        yaml.safe_dump({**small, "runs": str(tmp_path / "runs"), "population": 2, "quiet": False})
    )
    return str(path)


def test_the_command_evolves_resumes_and_evaluates(
    config: str, inline: None, capsys: Any, tmp_path: Path
) -> None:
    assert cli.main(["evolve", config, "--generations", "1", "--rule", "pbt", "--gae-lambda", "0.5"]) == 0
    text = capsys.readouterr().out
    assert "pbt of 2 ppo on CartPoleContinuous-v0" in text
    assert "generation 1/1 · best" in text
    folder = next((tmp_path / "runs").iterdir())
    assert f"whorl resume {folder} --generations 2" in text
    assert yaml.safe_load((folder / "learner_0" / "config.yaml").read_text())["gae_lambda"] == 0.5
    assert cli.main(["resume", str(folder), "--generations", "2"]) == 0
    assert "generation 2/2" in capsys.readouterr().out
    assert cli.main(["eval", str(folder), "--episodes", "2"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evolve"], "evolve takes one settings file: whorl evolve CONFIG"),
        (["evolve", "CONFIG", "other.yaml"], "evolve takes one settings file, but got"),
        (["evolve", "nothing.yaml"], "there is no settings file 'nothing.yaml'"),
        (
            ["evolve", "CONFIG", "--populatoin", "3"],
            "evolve has no flag --populatoin; did you mean '--population'",
        ),
        (["evolve", "CONFIG", "--population", "many"], "--population"),
        (["evolve", "CONFIG", "--total-timesteps", "9"], "total_timesteps can't be set for a population"),
        (["evolve", "CONFIG", "--max-seconds", "9"], "max_seconds can't be set for a population"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(
    words: list[str], message: str, config: str, capsys: Any
) -> None:
    assert cli.main([config if word == "CONFIG" else word for word in words]) == 2
    found = capsys.readouterr().err
    assert message in found
    assert "Traceback" not in found


def test_the_help_lists_the_settings_of_the_population_and_all_lists_those_of_learners_too(
    capsys: Any,
) -> None:
    assert cli.main(["evolve", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--generation-steps N" in text
    assert "--gae-lambda" not in text
    assert cli.main(["evolve", "--help-all"]) == 0
    assert "--gae-lambda" in capsys.readouterr().out


@pytest.mark.parametrize("rule", ["cem", "pbt"])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs(path: Path, rule: str, inline: None, tmp_path: Path) -> None:
    tiny = {
        "population": 2,
        "generations": 2,
        "generation_steps": 64,
        "n_eval_episodes": 1,
        "target_return": 1e9,
    }
    small = {"num_envs": 4, "num_steps": 16, "batch_size": 64, "n_epochs": 1, "quiet": True}
    result = whorl.evolve(path, rule=rule, runs=str(tmp_path), **tiny, **small)
    assert len(read_lineage(result.run_dir)) == 4


PARAMS = {"gamma": 0.9, "lr": 1e-3}


def history() -> list[LineageRow]:
    return [
        LineageRow(1, 0, 0, 1, 10.0, PARAMS, "new", steps=64, selected=True),
        LineageRow(1, 1, 1, 1, 250.5, {"gamma": 0.99, "lr": 2e-3}, "new", steps=64, selected=True),
        LineageRow(1, 2, 2, 0, float("-inf"), PARAMS, "new", note="nan"),
    ]


def test_the_table_shows_every_learner(tmp_path: Path) -> None:
    settings = configure("ppo", "CartPole-v1", {})
    display = Display(EvolveConfig(population=3), settings, tmp_path, file=StringIO())
    display.generation(Population(EvolveConfig(population=3), {}, 1, history()))
    rows = history()
    plans = [
        Plan(0, 0, 1, PARAMS, "drawn", (rows[1], rows[0])),
        Plan(1, 1, 1, rows[1].params, "own"),
        Plan(2, 3, 0, PARAMS, "copied", (rows[1],)),
    ]
    (tmp_path / "learner_1").mkdir()
    (tmp_path / "learner_1" / "metrics.jsonl").write_text('{"steps": 96, "episode/return": 33.5}\n')
    display.plan(plans, {plan.slot: tmp_path / f"learner_{plan.learner}" for plan in plans})
    display.started(1)
    display.ended(0, Report(2, 12.25, 128, 2))
    screen = Console(width=120, file=StringIO())
    screen.print(display._picture())
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    found = {words[0]: " ".join(words) for line in lines if (words := line.split())}
    assert "generation 2 of 20 · best so far 250.5 (learner 1)" in "\n".join(lines)
    assert found["0"] == "0 drawn from 0, 1 10.0 64 0.9 0.001 scored 12.2"
    assert found["1"] == "1 own 250.5 96 33.5 0.99 0.002 training"
    assert found["3"] == "3 copy of 1 -inf 0 0.9 0.001 waiting"


def test_the_picture_has_a_panel_for_each_drawn_setting(tmp_path: Path) -> None:
    rows = [*history(), LineageRow(2, 0, 0, 2, 40.0, PARAMS, "drawn", (1, 0), steps=128)]
    draws = {"gamma": Choices((0.9, 0.99)), "lr": Interval(1e-4, 1e-2, log=True)}
    words = [LineageRow(1, slot, slot, 1, 1.0, {"noise": "ou"}, "new") for slot in range(2)]
    heights = []
    for number, (one, these) in enumerate(
        [(rows, {}), (rows, draws), (words, {"noise": Choices(("ou", "none"))})]
    ):
        output = tmp_path / f"{number}.png"
        draw_population(one, these, output, "pbt of 3")
        heights.append(Image.open(output).size[1])
    assert heights[0] < heights[2] < heights[1]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["0.png", "1.png", "2.png"]
