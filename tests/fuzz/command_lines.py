"""Random and slightly wrong command lines: exit status 0, 1 or 2, one sentence, never a traceback, no code run."""

import contextlib
import io
import json
import os
import random
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import whorl
from whorl.cli import main, seeds
from whorl.cli.command import commands
from whorl.run.trainer import Trainer
from whorl.settings.merge import settings_of
from whorl.settings.presets import algorithm_class, preset_names

sys.path.append(str(Path(__file__).parent))
import cases
from configurations import value_of

CODE = "!!python/object/apply:os.mkdir [was_run]"
JUNK = (
    *(
        "",
        "-",
        "--",
        "---",
        "=",
        "--=",
        "--=3",
        "-x",
        "-1",
        "1e-3",
        "nan",
        "inf",
        "1" * 40,
        "é",
        "\x00",
        " ",
        "\n",
    ),
    *(
        "[1, 2",
        "{a: b",
        "{a: 1, a: 2}",
        "[]",
        "null",
        "~",
        "true",
        CODE,
        f"{{class: {CODE}}}",
        "&a [*a]",
        "%",
        "{0}",
    ),
    *(
        "--optimizer.",
        "--optimizer.a.b",
        "--.x",
        "--env_options",
        "--env_options.a.b",
        "--a.b.c",
        "--no-",
        "--no-no",
    ),
    *(
        "--help",
        "-h",
        "--help-all",
        "--no-eval",
        "--config",
        "..",
        "/",
        "/dev/null",
        "~/x",
        "nowhere.yaml",
        "os.system",
    ),
)
ENVS = (
    *["CartPole-v1", "Pendulum-v1", "Quadrotor-v0"] * 4,
    "CartPole",
    "nowhere:Env-v0",
    "os.path",
    "pkg.Env",
)
OTHERS = ("play", "record", "sweep", "bench", "serve", "push", "pull")
"""commands that play or train for long, serve until they are stopped, or ask another machine"""
_folder = tempfile.TemporaryDirectory()


@cache
def trained() -> Path:
    """A run that commands can read."""
    settings = {
        "quiet": True,
        "eval": False,
        "tensorboard": False,
        "num_envs": 2,
        "num_steps": 8,
        "batch_size": 16,
    }
    return whorl.train("CartPole-v1", "ppo", settings, max_iterations=1, runs=_folder.name).run_dir


def valid(draw: random.Random) -> list[str]:
    """A command line that works, or nearly so."""
    command = draw.choice([name for name in commands() if name not in OTHERS])
    algorithm, run = draw.choice(preset_names()), str(trained())
    if command in ("train", "config"):
        hints = settings_of(algorithm_class(algorithm)[1])
        words = [command, algorithm, draw.choice(ENVS)]
        for name in draw.sample(list(hints), draw.randrange(3)):
            fits = json.dumps(value_of(draw, name, hints[name])).strip('"')
            words += [
                f"--{name}".replace("_", draw.choice("_-")),
                fits if draw.random() < 0.8 else value(draw),
            ]
        harm = [[], [], [], ["--env_options", CODE], ["--env_options.x", CODE], ["--optimizer", CODE]]
        return [*words, *draw.choice(harm)]
    words = {
        "resume": [run, *draw.choice((["--total-timesteps", value(draw)], ["--max-iterations", "2"]))],
        "eval": [
            run,
            "--episodes",
            "1",
            *draw.choice(([], ["--json"], ["--stochastic"], ["--seed", value(draw)])),
        ],
        "plot": [
            run,
            "--x",
            draw.choice(("steps", "time", "depth")),
            "--smooth",
            value(draw),
            "--output",
            "x.png",
        ],
        "list": draw.choice(([], ["--envs"], ["--runs"], ["--runs", "--folder", _folder.name])),
        "evolve": [
            draw.choice(("missing.yaml", run, CODE)),
            *draw.choice(([], ["--population", value(draw)])),
        ],
        "check": [draw.choice(ENVS)],
        "report": [run, "--output", draw.choice(("x.html", "x.txt", value(draw)))],
        "export": [run, "--output", "x.safetensors", *draw.choice(([], ["--format", value(draw)]))],
        "completion": [draw.choice(("bash", "zsh", "fish", "csh"))],
    }
    return [command, *words[command]]


def value(draw: random.Random) -> str:
    return draw.choice(
        ("0", "1", "3", "-1", "0.5", "true", "none", "cpu", "64 64", "1e6", "[8, 8]", draw.choice(JUNK))
    )


def mutated(draw: random.Random, words: list[str]) -> list[str]:
    """The words with a mistake or two of the kind that people make, or that no one would."""
    words = list(words)
    for _ in range(draw.choice((0, 0, 0, 1, 1, 2))):
        at = draw.randrange(len(words)) if words else 0
        kind = draw.choice(("drop", "double", "swap", "letter", "junk", "insert", "join"))
        if kind == "insert" or not words:
            words.insert(at, draw.choice(JUNK))
        elif kind == "drop":
            del words[at]
        elif kind == "double":
            words.insert(at, words[at])
        elif kind == "swap":
            words[at], words[at - 1] = words[at - 1], words[at]
        elif kind == "letter" and words[at]:
            place = draw.randrange(len(words[at]))
            words[at] = words[at][:place] + draw.choice(("", "x", "-", "=", ".")) + words[at][place + 1 :]
        elif kind == "join" and at + 1 < len(words):
            words[at : at + 2] = ["=".join(words[at : at + 2])]
        else:
            words[at] = draw.choice(JUNK)
    return words


def stops(*given: Any) -> int:
    """Stands in place of training."""
    for thing in given:
        if isinstance(thing, Trainer):
            thing.close()
    return 0


def run(draw: random.Random, folder: Path) -> str:
    """The command line of a case, in an empty folder."""
    words = mutated(draw, valid(draw))
    before, out, err = Path.cwd(), io.StringIO(), io.StringIO()
    os.chdir(folder)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(seeds, "run_trainer", stops),
            mock.patch.object(seeds, "train_seeds", stops),
        ):
            status = main(words)
        ran = Path("was_run").exists()
    except SystemExit as error:
        raise AssertionError(f"{words} left with SystemExit {error.code}") from error
    except Exception as error:
        raise AssertionError(f"{words} raised {type(error).__name__}: {error}") from error
    finally:
        os.chdir(before)
    assert not ran, f"{words} ran code"
    assert status in (0, 1, 2), f"{words} ended with {status}"
    assert status != 1 or "check" in words, f"{words} ended with 1, which is for findings of check"
    assert "Traceback" not in err.getvalue(), f"{words} showed a traceback: {err.getvalue()}"
    if status == 2:
        text = err.getvalue()
        assert text.startswith("whorl: ") and len(text) <= cases.LONGEST + 200, f"{words} said {text!r}"
    return f"status {status}"


if __name__ == "__main__":
    cases.main({"run": run})
