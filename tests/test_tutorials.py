"""Every code block of the README and the documentation runs, each page in a folder of its own.

    python    executed in order, in one namespace per page
    bash      each command checked: `whorl ...` by the command line itself, `make` against the Makefile, `pip` against
              the extras, `python FILE` against the repository
    yaml      settings of `whorl train` that some algorithm takes
    py        other libraries' code, and code for a cluster: compiled only

A training with a large budget is stopped after its first iteration here. One that a small machine has no room for
(actors, several learners, Ray, Atari's replay buffers) is configured and its agent built, but not started.
"""

import dataclasses
import math
import re
import shlex
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import gymnasium
import pytest
import torch
import yaml
from inline import InlineBackend

import whorl
from whorl import cli, hub
from whorl.bench import bench, cell
from whorl.bench.bench import Bench, Benched
from whorl.bench.suite import check_runs, read_suite
from whorl.core.errors import WhorlError
from whorl.envs.adapter import adapter_of
from whorl.envs.adapters.imported import GPU
from whorl.envs.make import find
from whorl.envs.native import WORLDS
from whorl.page import server
from whorl.population import evolver, setup
from whorl.population.config import EvolveConfig
from whorl.population.evolver import Evolver
from whorl.run.behaviors.trainer import BehaviorTrainer
from whorl.run.reporting import Result
from whorl.run.trainer import Trainer
from whorl.settings.behaviors import take_behaviors
from whorl.settings.merge import configure
from whorl.settings.schema import build
from whorl.sweep import setup as sweep_setup
from whorl.sweep import sweep
from whorl.sweep import worker as sweep_worker
from whorl.sweep.sweep import Sweep, Swept

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = re.compile(r"<!-- generated: .*?<!-- end generated -->", re.S)
FENCE = re.compile(r"^( *)(```+)([^\n]*)\n(.*?)^\1\2 *$", re.M | re.S)
LANGUAGES = ("python", "py", "bash", "yaml", "json", "text", "math")
WHOLE, LARGE = 2_048, 40_000
"""steps: budgets that run whole; rollouts that are not collected at all"""
EMULATED = ("ALE/", "NoFrameskip")
"""parts of ids whose replay buffers and emulators take too long for the tests of pages"""
FILES = {
    "mine.yaml": "gamma: 0.98\n",
    "base.yaml": "actor_lr: 1e-3\n",
    "variants.yaml": "default: {sac_config: {gamma: 0.98}}\nvanilla: {sac_config: {n_step: 3}}\n",
}
"""files that commands name and the reader is to have"""
KINDS: dict[str, tuple[str, str, dict[str, object]]] = {
    "--attention": ("TMaze-v0", "ppo", {"memory": "attention"}),
    "--map": ("DeepSea-v0", "ppo", {"components": ["count"]}),
    "--arms": ("CartPole-v1", "agent57", {"max_iterations": 6, "num_steps": 64, "log_freq": 1}),
}
"""pictures of one kind of run: its environment, algorithm and settings"""
PLAYER = f'#!/bin/sh\nexec {sys.executable} {ROOT / "tests" / "unity" / "player.py"} "$@"\n'
"""a stand-in for a built Unity player"""


class Block(NamedTuple):
    language: str
    text: str
    line: int
    """of its first line in the page"""


def blocks(page: Path) -> list[Block]:
    """The code blocks that were written by hand; generated ones are compared with the source in test_docs.py."""
    text = page.read_text("utf-8")
    text = GENERATED.sub(lambda found: "\n" * found[0].count("\n"), text)
    return [
        Block(found[3].strip(), textwrap.dedent(found[4]), text.count("\n", 0, found.start(4)) + 1)
        for found in FENCE.finditer(text)
    ]


RUNNABLE = [page for page in PAGES if any(block.language not in ("text", "math") for block in blocks(page))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with three checkpoints and a best policy, for commands that take one."""
    folder = tmp_path_factory.mktemp("trained")
    small = {"num_envs": 4, "num_steps": 16, "batch_size": 64, "max_iterations": 3, "eval_freq": 1}
    result = whorl.train("CartPole-v1", "ppo", small, checkpoint_freq=1, runs=str(folder), quiet=True)
    assert (result.run_dir / "checkpoint_3").is_dir()
    return result.run_dir


@pytest.fixture
def page_folder(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, own_registry: None
) -> Iterator[Path]:
    """A folder with what commands name; afterwards whatever the page registered is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Trainer, "train", shortened)
    monkeypatch.setattr(Evolver, "train", evolve_shortly)
    monkeypatch.setattr(evolver, "make_backend", lambda *_: InlineBackend())
    # It would serve until Ctrl-C.
    monkeypatch.setattr(server, "serve", lambda root, *_: server.make_app(root, "token"))
    # tests/test_hub.py has a stand-in for the hub.
    monkeypatch.setattr(hub, "push", lambda run, repo, **_: repo)
    monkeypatch.setattr(
        hub, "pull", lambda repo, *_, **__: shutil.copytree(trained, Path("runs", hub.local_name(repo)))
    )
    monkeypatch.setattr(sweep, "make_backend", lambda *_: InlineBackend())
    monkeypatch.setattr(sweep_worker, "prepare_process", lambda *_: None)
    monkeypatch.setattr(Sweep, "run", sweep_shortly)
    monkeypatch.setattr(bench, "make_backend", lambda *_: InlineBackend())
    monkeypatch.setattr(cell, "prepare_process", lambda *_: None)
    monkeypatch.setattr(Bench, "run", bench_shortly)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    torch.set_num_threads(1)
    for name in ("RUN", "RUN1", "RUN2", "runs/first", "runs/second"):
        shutil.copytree(trained, tmp_path / name)
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "builds").mkdir()
    (tmp_path / "builds" / "3DBall.x86_64").write_text(PLAYER)
    (tmp_path / "builds" / "3DBall.x86_64").chmod(0o755)
    with suppress(ImportError):  # a package registers its ids once, when it is imported
        import_module("pybullet_envs_gymnasium")
    ids, worlds = set(gymnasium.registry), set(WORLDS)
    yield tmp_path
    for id in set(gymnasium.registry) - ids:
        gymnasium.registry.pop(id)
    for id in set(WORLDS) - worlds:
        WORLDS.pop(id)


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_a_page_runs_as_it_is_written(page: Path, page_folder: Path) -> None:
    names: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page):
        if block.language in ("python", "py"):
            # Blank lines in front keep the line numbers of the page in tracebacks.
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            if block.language == "python":
                exec(code, names)
        elif block.language == "bash":
            for command in commands(block.text):
                check_command(command, page)
        elif block.language == "yaml":
            check_settings(yaml.safe_load(block.text))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{name_of(page)}:{block.line}: a block in {block.language!r}"
        if block.language == "text":
            assert not re.search(r"^\s*whorl \w", block.text, re.M), f"{name_of(page)}:{block.line}: bash"


def commands(text: str) -> list[list[str]]:
    """The words of each command, without comments and prompts."""
    lines = text.replace("\\\n", " ").splitlines()
    found = [shlex.split(part, comments=True) for line in lines for part in line.split(" && ")]
    return [words for words in found if words]


def check_command(words: list[str], page: Path) -> None:
    """Run a command of the documentation, or check that it could be run."""
    program, *rest = (
        [word for word in words if not re.match(r"[A-Z_]+=", word)] if words[0] != "make" else words
    )
    if program == "whorl":
        if "--parallel" in rest:  # other processes would train for as long as the page says
            rest[rest.index("--parallel") + 1] = "1"
        if any("pettingzoo:mpe2" in word for word in rest):  # a package that tests do without
            return
        if tasks := [
            word for word in rest if word.startswith(GPU)
        ]:  # needs a GPU, and packages that tests do without
            assert all(adapter_of(id).full_id(id) == id for id in tasks)
            return
        if "unity:editor" in rest:  # waits for somebody to press Play; tests/unity has a stand-in that does
            return
        for flag, (env, algorithm, settings) in KINDS.items():
            if flag in rest:
                small = {"num_envs": 4, "num_steps": 16, "batch_size": 32, "max_iterations": 2, **settings}
                result = whorl.load(env, algorithm, small, runs="kinds", eval=False).train()
                rest = [str(result.run_dir) if word == "RUN" else word for word in rest]
        paths = [
            path for word in rest for path in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
        ]
        assert cli.main(paths) == 0, f"{name_of(page)}: {shlex.join(words)}"
    elif program == "make":
        targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.M)
        assert rest[0] in targets, f"{name_of(page)}: the Makefile has no target {rest[0]!r}"
    elif program == "pip":
        extras = re.fullmatch(r"install -e \.(?:\[([\w,-]+)\])?(?: jax\[cuda1\d\])?", " ".join(rest))
        assert extras, f"{name_of(page)}: {shlex.join(words)} does not install from the clone"
        known = re.findall(r"^([\w-]+) = \[", (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
        assert set((extras[1] or "all").split(",")) <= set(known), f"{name_of(page)}: {shlex.join(words)}"
    elif program == "python":
        assert (ROOT / rest[0]).is_file(), f"{name_of(page)}: there is no {rest[0]}"
    else:
        assert program in ("cd", "git", "hf", "ray", "tensorboard"), f"{name_of(page)}: {shlex.join(words)}"


FIVE = [
    ROOT / "docs" / "coming_from" / f"{name}.md"
    for name in ("co_gym", "offpcc", "rlcycle", "deep_rl_zoo", "advanced_sac")
]
NOT_TRAINED = ("wandb",)
"""words in commands of these tables that are configured but not trained: they need an account"""


def rows(page: Path) -> list[list[str]]:
    """The rows of the table that goes through a text line by line: what it says, and the commands for it."""
    section = page.read_text("utf-8").partition("## Line by line")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[1:]]


def commands_of(page: Path) -> list[list[str]]:
    found = [shlex.split(command) for row in rows(page) for command in re.findall(r"`([^`]+)`", row[1])]
    return [list(words) for words in dict.fromkeys(map(tuple, found))]


@pytest.mark.parametrize("page", FIVE, ids=name_of)
def test_every_line_of_a_text_has_a_command(page: Path) -> None:
    found = rows(page)
    assert len(found) >= 30
    for row in found:
        assert len(row) == 2 and all(row), row
        assert re.fullmatch(r"`(whorl|tensorboard) [^`]+`(, `whorl [^`]+`)*", row[1]), row[1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", FIVE, ids=name_of)
def test_the_commands_of_a_table_are_understood(
    page: Path, page_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Trainings with flags are configured only; `test_the_commands_of_a_table_run` trains all of them."""
    for words in commands_of(page):
        # Ids alone are made in tests/envs/test_names.py, and Atari's environments take a second each.
        flags = any(word.startswith("-") for word in words) and "NoFrameskip" not in " ".join(words)
        if words[:2] == ["whorl", "train"] and flags:
            rest = ["config", *without_seeds(words[2:])]
            with warnings.catch_warnings():
                warnings.simplefilter("always", UserWarning)
                status = cli.main(rest)
            errors = capsys.readouterr().err
            assert status == 0 and "no effect" not in errors, shlex.join(words) + errors


def without_seeds(words: list[str]) -> list[str]:
    """`--seeds 1 2 3` trains several times; its settings are those of one."""
    if "--seeds" not in words:
        return words
    start = words.index("--seeds")
    end = next((i for i in range(start + 1, len(words)) if words[i].startswith("--")), len(words))
    return [*words[:start], "--seed", words[start + 1], *words[end:]]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", FIVE, ids=name_of)
def test_the_commands_of_a_table_run(
    page: Path,
    page_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LARGE", 4_096)
    monkeypatch.setattr(sys.modules[__name__], "EMULATED", ())
    for words in commands_of(page):
        if words[0] == "whorl" and not any(word in part for part in words for word in NOT_TRAINED):
            train = words[1] == "train" and not any(word.startswith("unity:") for word in words)
            small = ["--runs", "tables", "--quiet", "--no-eval", *tiny(words[2:], capsys)] if train else []
            check_command([*without_seeds(words), *small], page)


def tiny(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Flags for fewer environments where a preset has many, or an emulator, which is slow; actors are not started."""
    capsys.readouterr()
    assert cli.main(["config", *without_seeds(words)]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    emulated = any(part in found["env"] for part in ("ALE/", "NoFrameskip"))
    if (
        found["actors"]
        or "behaviours" in found
        or not (emulated or found["num_envs"] * found["num_steps"] > LARGE)
    ):
        return []
    short = emulated and found.get("memory", "none") == "none" and not found.get("lookahead")
    steps = ["--num-steps", "16"] if short else []
    return ["--num-envs", "2" if emulated else "8", *steps]


def check_settings(settings: dict[str, object]) -> None:
    """Settings of a YAML block have to suit one algorithm together; those of a population name theirs."""
    mistakes = []
    if "environments" in settings:
        check_runs(read_suite("page", settings))
        return
    if "search" in settings:
        sweep_setup.read([settings])
        return
    sections, (settings,) = take_behaviors([settings])
    for section in sections[0].values():
        configure(section.pop("algorithm", "ppo"), "", section, [settings])
    own, drawn, (settings,) = setup.split([settings], str(settings.get("algorithm", "ppo")))
    build(EvolveConfig, own)
    if own:
        found = configure(settings["algorithm"], settings["env"], settings)
        setup.check(build(EvolveConfig, own), found, setup.read_params(drawn, found), find(found.env).spec(1))
        return
    for algorithm in ("ppo", "dqn", "sac", "td3"):
        try:
            configure(algorithm, "", settings)
            return
        except WhorlError as error:
            mistakes.append(f"{algorithm}: {error}")
    raise AssertionError("\n".join(mistakes))


train_whole, evolve_whole = Trainer.train, Evolver.train
sweep_whole, bench_whole = Sweep.run, Bench.run


def shortened(trainer: Trainer) -> Result:
    """`Trainer.train`, stopped early where the page asks for more than a test can wait for."""
    run = trainer.settings.run
    emulated = any(part in trainer.settings.env for part in EMULATED)
    if run.actors or run.ray or run.learners > 1 or emulated or run.num_envs * run.num_steps > LARGE:
        assert trainer.replay_bytes >= 0  # builds the agent for the environment's spaces
        return Result(Path("RUN"), 0, 0, 0, 0.0, 0.0, "not started in tests")
    if not (0 < run.total_timesteps - trainer.steps <= WHOLE or 0 < run.max_iterations <= 10):
        trainer.callbacks.append(StopEarly())
    changes = {"workers": 0, "n_eval_episodes": 1, "quiet": True, "tensorboard": False}
    if getattr(run, "dataset", "") and any(isinstance(each, StopEarly) for each in trainer.callbacks):
        changes["num_steps"] = min(
            run.num_steps, 16
        )  # an iteration has as many updates as a rollout has rows
    if "-pixels" in trainer.settings.env:  # frames are drawn by the processor, a tenth of a second each
        trainer.settings = trainer.settings.replace(num_envs=1, num_steps=4, buffer_size=1_000)
        run = dataclasses.replace(trainer.settings.run, eval=False, save_model=False)
    if isinstance(trainer, BehaviorTrainer):
        behaviors = trainer.settings.behaviors
        found = {
            name: dataclasses.replace(one, run=dataclasses.replace(one.run, **changes))
            for name, one in behaviors.items()
        }
        trainer.settings = dataclasses.replace(trainer.settings, behaviors=found)
    else:
        trainer.settings = dataclasses.replace(trainer.settings, run=dataclasses.replace(run, **changes))
    return train_whole(trainer)


def evolve_shortly(population: Evolver) -> Result:
    """`Evolver.train` of two learners for one generation, in this process."""
    run = dataclasses.replace(population.settings.run, n_eval_episodes=1, num_envs=4, quiet=True)
    population.settings = dataclasses.replace(population.settings, run=run).replace(
        num_steps=32, batch_size=128
    )
    config = dataclasses.replace(population.config, population=2, generations=1, generation_steps=128)
    population.config = config
    population.population = dataclasses.replace(population.population, config=config)
    return evolve_whole(population)


def sweep_shortly(found: Sweep) -> Swept:
    """`Sweep.run` of one short trial, in this process."""
    small = {"total_timesteps": 256, "n_eval_episodes": 1, "num_envs": 4, "eval_max_steps": 50}
    found.sweeping = dataclasses.replace(found.sweeping, layers=(*found.sweeping.layers, small))
    found.config = dataclasses.replace(found.config, trials=1, target_return=math.inf)
    return sweep_whole(found)


def bench_shortly(found: Bench, jobs: int, ray: str) -> Benched:
    """`Bench.run` of short runs of one algorithm on one environment, in this process."""
    suite = found.suite
    small = {"total_timesteps": 256, "n_eval_episodes": 1, "num_envs": 4, "eval_max_steps": 50}
    task = dataclasses.replace(suite.tasks[0], settings={**suite.tasks[0].settings, **small})
    found.suite = dataclasses.replace(
        suite, contestants=suite.contestants[:1], tasks=(task,), seeds=suite.seeds[:1]
    )
    return bench_whole(found, jobs, ray)


class StopEarly(whorl.Callback):
    def on_update(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        trainer.stop("this is a test")


def test_an_unknown_flag_in_the_documentation_is_found(page_folder: Path) -> None:
    with pytest.raises(AssertionError):
        check_command(["whorl", "train", "ppo", "CartPole-v1", "--num-envz", "8"], PAGES[0])
    with pytest.raises(AssertionError):
        check_command(["pip", "install", "whorl[atari]"], PAGES[0])
    with pytest.raises(AssertionError):
        check_settings({"gama": 0.9})


def test_every_tutorial_is_there() -> None:
    expected = {"callbacks", "config_files", "own_algorithm", "own_environment", "own_network", "stepping"}
    assert expected <= {page.stem for page in PAGES}
