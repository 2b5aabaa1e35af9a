"""Populations as a whole: what learners take over, what is written, what becomes of those that die, resuming."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

import whorl
from whorl.core.errors import ConfigError, DivergedError, WhorlError
from whorl.core.spec import Array, Continuous, Spec
from whorl.distributed.remote import RemoteError
from whorl.envs.vector import VectorEnv
from whorl.population import curve, evolver, member
from whorl.population.config import EvolveConfig
from whorl.population.curve import draw_population
from whorl.population.evolver import Evolved, ProcessPool, read_lineage
from whorl.population.load import load_population, resume_population
from whorl.population.member import Member, Report, read_report, write_report
from whorl.population.rules import LineageRow, drawn, moments
from whorl.run.callbacks import Callback
from whorl.run.trainer import Trainer
from whorl.settings.merge import settings_of
from whorl.settings.presets import rules
from whorl.settings.schema import fields_of
from whorl.state import checkpoint
from whorl.state.runlock import RunLock

REPLAY = {
    "algorithm": "sac",
    "generation_steps": 64,
    "learning_starts": 16,
    "random_steps": 16,
    "updates_per_step": 0.25,
    "batch_size": 16,
    "buffer_size": 500,
}


def evolve(settings: dict[str, Any], **changes: Any) -> Evolved:
    found = {**settings, **changes}
    return whorl.evolve({key: value for key, value in found.items() if value is not None})


def module(folder: Path, learner: int, age: int) -> dict[str, torch.Tensor]:
    return checkpoint.load(folder / f"learner_{learner}" / f"checkpoint_{age}").state["agent"]["module"]


def trained(folder: Path, learner: int, age: int) -> dict[str, torch.Tensor]:
    found = module(folder, learner, age)
    policy = whorl.restore(folder / f"learner_{learner}" / f"checkpoint_{age}")
    return {name: found[name] for name in policy.agent.trained()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


FIXED = {"learning_rate": 0.0, "random_params": {"gamma": [0.9, 0.99]}, "keep_checkpoints": 0}
"""with a learning rate of 0, the weights at the end of a generation are those of its start"""


def test_drawn_weights_are_those_of_the_selected_learners(small: dict[str, Any], inline: None) -> None:
    changes = {**FIXED, "generations": 2, "common_start": False, "population": 4, "elite": 0.5}
    result = evolve(small, **changes)
    rows = read_lineage(result.run_dir)
    best = [row for row in rows if row.generation == 1 and row.selected]
    assert len(best) == 2
    first = {row.learner: trained(result.run_dir, row.learner, 1) for row in rows if row.generation == 1}
    assert not same(first[0], first[1])
    for row in (row for row in rows if row.generation == 2):
        after = trained(result.run_dir, row.learner, 2)
        if row.origin == "own":
            assert same(after, first[row.learner])
            continue
        assert set(row.parents) == {one.learner for one in best}
        mean, std = moments([first[learner] for learner in row.parents])
        seed = evolver.Population(EvolveConfig(), {}, 1).weight_seed(row.slot, 2)
        assert same(after, drawn(mean, std, EvolveConfig(), seed))


def test_the_first_weights_of_all_are_the_same_unless_that_is_switched_off(
    small: dict[str, Any], inline: None
) -> None:
    result = evolve(small, **FIXED, generations=1)
    assert same(trained(result.run_dir, 0, 1), trained(result.run_dir, 2, 1))
    result = evolve(small, **FIXED, generations=1, rule="pbt")
    assert not same(trained(result.run_dir, 0, 1), trained(result.run_dir, 2, 1))


def test_a_copy_has_weights_and_optimizer_state_of_its_parent_and_learning_rates_of_its_own(
    small: dict[str, Any], inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[tuple[int, int], dict[str, Any]] = {}
    take_over = member.take_over

    def watched(agent: Any, task: Any, *rest: Any) -> None:
        take_over(agent, task, *rest)
        seen[task.generation, task.learner] = {
            "state": {name: value.clone() for name, value in agent.state_dict().items()},
            "moments": [entry["exp_avg"].clone() for entry in agent.optimizer_state()["actor"]],
        }

    monkeypatch.setattr(member, "take_over", watched)
    result = evolve(small, rule="pbt", exploit=0.5, generations=2, population=4, keep_checkpoints=0)
    copies = [row for row in read_lineage(result.run_dir) if row.origin == "copied"]
    assert len(copies) == 2
    for row in copies:
        parent = checkpoint.load(result.run_dir / f"learner_{row.parents[0]}" / "checkpoint_1").state["agent"]
        mine = seen[2, row.learner]
        names = whorl.restore(result.run_dir / f"learner_{row.learner}").agent.trained()
        assert all(torch.equal(mine["state"][name], parent["module"][name]) for name in names)
        pairs = zip(mine["moments"], parent["optimizers"]["actor"])
        assert all(torch.equal(value, saved["exp_avg"]) for value, saved in pairs)
        assert mine["state"]["lr_actor"].item() == pytest.approx(row.params["learning_rate"])


def test_a_copy_keeps_returns_of_its_running_episodes_also_those_of_components(
    small: dict[str, Any], inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_over, seen = member.take_over, []

    def watched(agent: Any, task: Any, *rest: Any) -> None:
        scale = agent.components["rnd"].scale.running
        before = scale.clone()
        take_over(agent, task, *rest)
        if task.origin == "copied":
            seen.append(torch.equal(scale, before) and bool(before.any()))

    monkeypatch.setattr(member, "take_over", watched)
    evolve(small, rule="pbt", exploit=0.5, generations=2, population=2, components=["rnd"])
    assert seen == [True]


def test_target_networks_of_drawn_weights_are_copies_of_them(
    small: dict[str, Any], inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_over, found = member.take_over, []

    def watched(agent: Any, task: Any, *rest: Any) -> None:
        take_over(agent, task, *rest)
        if task.origin == "drawn":
            found.extend(agent.targets.pairs)
            for online, target in agent.targets.pairs:
                assert same(dict(online.state_dict()), dict(target.state_dict()))

    monkeypatch.setattr(member, "take_over", watched)
    evolve(small, **REPLAY, n_epochs=None, random_params=None, generations=2)
    assert found


def test_what_a_population_writes(
    small: dict[str, Any], inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curve, "draw_population", draw_population)
    result = evolve(small)
    folder = result.run_dir
    rows = [json.loads(line) for line in (folder / "lineage.jsonl").read_text().splitlines()]
    assert [(row["generation"], row["slot"]) for row in rows] == [(g, s) for g in (1, 2, 3) for s in range(3)]
    assert result.mean_return == max(row["score"] for row in rows)
    assert result.generations == 3
    assert (folder / "population.png").read_bytes().startswith(b"\x89PNG")
    for row in rows[-3:]:
        run = folder / f"learner_{row['learner']}"
        saved = checkpoint.load(run / "checkpoint_3")
        assert saved.metadata["mean_return"] == row["score"]
        assert saved.config["gamma"] == row["params"]["gamma"]
        assert saved.config["actor_lr"] == row["params"]["learning_rate"]
        logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert sum("evaluation/return" in one for one in logged) == 3
    best = checkpoint.load(folder / "best")
    assert best.metadata["learner"] == result.learner
    assert whorl.evaluate(folder, 2, seed=3).returns == whorl.evaluate(folder / "best", 2, seed=3).returns


def states(result: Evolved) -> list[Any]:
    """The lineage, and the weights of every learner at its end."""
    rows = read_lineage(result.run_dir)
    last = [row for row in rows if row.generation == rows[-1].generation]
    return [rows, [module(result.run_dir, row.learner, row.age) for row in last]]


def equal(one: list[Any], other: list[Any]) -> bool:
    return one[0] == other[0] and all(same(*pair) for pair in zip(one[1], other[1], strict=True))


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_second_generation(method: Any) -> Any:
    """A method of a trainer that kills the process when learner 1 has trained in its second generation."""

    def watched(trainer: Trainer, *arguments: Any) -> Any:
        second = trainer.run_dir.name == "learner_1" and trainer.steps >= 128
        return die() if second else method(trainer, *arguments)

    return watched


MOMENTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the evaluation": lambda patch: patch.setattr(
        Trainer, "evaluate", in_second_generation(Trainer.evaluate)
    ),
    "before the checkpoint": lambda patch: patch.setattr(Trainer, "save", in_second_generation(Trainer.save)),
    "between checkpoint and report": lambda patch: patch.setattr(
        member,
        "write_report",
        lambda folder, report: die() if report.generation == 2 else write_report(folder, report),
    ),
    "before the lineage": lambda patch: patch.setattr(evolver, "write_lineage", die),
    "after the lineage": lambda patch: patch.setattr(
        evolver.Evolver, "_save_best", lambda self, rows: die() if rows else None
    ),
}
WORST = "between checkpoint and report"


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        ("cem", "before the checkpoint"),
        ("replay", WORST),
        *(pytest.param("cem", moment, marks=pytest.mark.full) for moment in MOMENTS),
        *(pytest.param(kind, WORST, marks=pytest.mark.full) for kind in ("pbt", "no snapshots")),
    ],
)
def test_a_population_killed_at_any_moment_and_resumed_equals_an_unbroken_one(
    kind: str, moment: str, small: dict[str, Any], inline: None, forgetful: str, tmp_path: Path
) -> None:
    settings = {
        "cem": small,
        "pbt": {**small, "rule": "pbt"},
        "replay": {**small, **REPLAY, "rule": "pbt"},
        "no snapshots": {**small, "env": forgetful, "workers": 0},
    }[kind]
    settings = {key: value for key, value in settings.items() if kind != "replay" or key != "n_epochs"}
    settings |= {"population": 2, "generations": 2}
    unbroken = states(evolve(settings, tag="unbroken"))
    pid = os.fork()
    if pid == 0:
        try:
            with pytest.MonkeyPatch.context() as patch:
                MOMENTS[moment](patch)
                evolve(settings, tag="broken")
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    folder = next(tmp_path.glob("*_broken"))
    assert len(read_lineage(folder)) < len(unbroken[0])
    resumed = whorl.resume(folder)
    assert isinstance(resumed, Evolved)
    assert equal(states(resumed), unbroken)
    assert not [path for path in folder.rglob("*") if ".tmp-" in path.name]


def test_a_resumed_population_may_be_longer_and_remembers_that(small: dict[str, Any], inline: None) -> None:
    small |= {"population": 2}
    whole = evolve(small, generations=2)
    part = evolve(small, generations=1)
    longer = whorl.resume(part.run_dir, generations=2)
    assert equal(states(longer), states(whole))
    assert whorl.resume(part.run_dir).reason == "the last generation is over"
    assert len(read_lineage(part.run_dir)) == 4


def test_the_target_return_ends_it(small: dict[str, Any], inline: None) -> None:
    result = evolve(small, target_return=-1000.0)
    assert (result.generations, result.reason) == (1, "the target return is reached")


@pytest.mark.parametrize("rule", ["cem", pytest.param("pbt", marks=pytest.mark.full)])
def test_a_learner_that_diverges_is_replaced_by_a_new_one(
    rule: str, small: dict[str, Any], inline: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    step = Trainer.step

    def diverging(trainer: Trainer) -> Any:
        if trainer.run_dir.name == "learner_1" and trainer.steps > 64:
            raise DivergedError("a loss is not finite; use a lower learning rate")
        return step(trainer)

    monkeypatch.setattr(Trainer, "step", diverging)
    result = evolve(small, rule=rule, keep_best=0, quiet=False)
    rows = {(row.generation, row.slot): row for row in read_lineage(result.run_dir)}
    assert rows[2, 1].score == float("-inf")
    assert rows[2, 1].note == "a loss is not finite"
    assert (rows[3, 1].learner, rows[3, 1].age) == (3, 1)
    assert 1 not in rows[3, 1].parents
    text = capsys.readouterr().out
    assert "learner 1 diverged: a loss is not finite" in text
    assert "learner 3 replaces another in slot 1: a loss is not finite" in text
    assert (result.run_dir / "learner_3" / "checkpoint_1").is_dir()


@pytest.mark.parametrize("rule", ["cem", "pbt"])
def test_if_all_diverge_that_is_an_error_also_on_resume(
    rule: str, small: dict[str, Any], inline: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def diverging(trainer: Trainer) -> Any:
        raise DivergedError("a loss is not finite")

    monkeypatch.setattr(Trainer, "step", diverging)
    error = "all 3 learners diverged in generation 1; the last one: a loss"
    with pytest.raises(WhorlError, match=error):
        evolve(small, rule=rule)
    with pytest.raises(WhorlError, match=error):
        whorl.resume(next(tmp_path.iterdir()))


def test_resume_repairs_the_best_policy_where_a_kill_came_before_it(
    small: dict[str, Any], inline: None
) -> None:
    result = evolve(small, generations=1)
    best = result.run_dir / "best"
    written = {path.name: path.read_bytes() for path in best.iterdir()}
    shutil.rmtree(best)
    whorl.resume(result.run_dir)
    found = {path.name: path.read_bytes() for path in best.iterdir()}
    assert found.keys() == written.keys() and found["policy.pt"] == written["policy.pt"]


def test_a_learner_that_fails_again_and_again_ends_the_run(
    small: dict[str, Any], inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Member, task: Any) -> Report:
        raise WhorlError("no licence")

    monkeypatch.setattr(Member, "train", failing)
    with pytest.raises(RemoteError, match=r"learner 0 failed 2 times in a row; last error: .*no licence"):
        evolve(small, actor_restarts=1)


def test_ctrl_c_stops_at_once_and_the_rest_of_the_generation_is_repeated(
    small: dict[str, Any], inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    small |= {"population": 2, "generations": 2}
    whole = evolve(small)
    train = Member.train

    def interrupted(self: Member, task: Any) -> Report:
        report = train(self, task)
        if (task.generation, task.learner) == (2, 0):
            os.kill(os.getpid(), signal.SIGINT)
        return report

    with monkeypatch.context() as patch:
        patch.setattr(Member, "train", interrupted)
        with pytest.raises(KeyboardInterrupt) as stop:
            evolve(small)
    assert (stop.value.result.generations, stop.value.result.interrupted) == (1, True)
    assert read_report(stop.value.result.run_dir / "learner_0", 2) is not None
    assert read_report(stop.value.result.run_dir / "learner_1", 2) is None
    assert equal(states(whorl.resume(stop.value.result.run_dir)), states(whole))


def test_the_folder_gets_a_sign_of_life_while_a_generation_trains(
    small: dict[str, Any], inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats, seen, train = [0], list[int](), Member.train

    def beat(lock: RunLock) -> None:
        beats[0] += lock.path.parent.name.endswith("_beating")  # not of the learners' own folders

    def watched(self: Member, task: Any) -> Report:
        seen.append(beats[0])
        return train(self, task)

    monkeypatch.setattr(RunLock, "beat", beat)
    monkeypatch.setattr(Member, "train", watched)
    evolve(small, generations=1, tag="beating")
    assert len(seen) == 3 and 0 < seen[0] < seen[1] < seen[2]


def test_ctrl_c_before_the_first_generation_is_taken(
    small: dict[str, Any], inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: evolver.Evolver) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(evolver.Evolver, "_save_config", interrupted)
    with pytest.raises(KeyboardInterrupt) as stop:
        evolve(small)
    assert stop.value.result.generations == 0


def test_a_process_killed_with_9_is_replaced_and_nothing_changes(
    small: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any, forgetful: str, inline_backend: Any
) -> None:
    small = {**small, "env": forgetful, "population": 2, "generations": 1, "parallel": 1, "workers": 0}
    give, killed = ProcessPool.give, []

    def killing(pool: ProcessPool, slot: int, task: Any) -> None:
        give(pool, slot, task)
        if slot == 1 and not killed:
            remote = next(iter(pool.busy.values()))[0]
            killed.append(remote.pid)
            os.kill(remote.pid, signal.SIGKILL)

    monkeypatch.setattr(ProcessPool, "give", killing)
    monkeypatch.setattr(curve, "draw_population", lambda *_: None)
    result = evolve(small, quiet=False)
    assert killed
    text = capsys.readouterr().out
    assert "learner 1 failed and is replaced (1 of 3 in a row" in text
    assert "was killed by SIGKILL" in text
    with monkeypatch.context() as patch:
        patch.setattr(evolver, "make_backend", lambda *_: inline_backend())
        assert equal(states(result), states(evolve(small)))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": None}, "must name its algorithm, as in algorithm: sac"),
    ({"env": None}, "must name its env"),
    ({"rule": "cma"}, "rule is 'cma'; .*cem"),
    ({"population": 1}, "population is 1; it must be from 2"),
    ({"generation_steps": 10}, "generation_steps is 10, but one rollout has 64 steps"),
    ({"keep_best": 3}, "keep_best is 3, but there are 3 learners"),
    ({"min_std": 2.0}, "min_std is 2.0 and max_std 1.0"),
    ({"keep_checkpoints": 1}, "keep_checkpoints is 1"),
    ({"total_steps": 100}, "total_steps can't be set for a population: learners train for generations"),
    ({"eval_freq": 100}, "eval_freq can't be set for a population"),
    ({"random_params": {"gama": [0.9, 1.0]}}, "ppo has no setting 'gama'; did you mean 'gamma'"),
    ({"random_params": {"gamma": [0.9, 2.0]}}, "random_params: gamma is 2.0; it must be from 0 to 1"),
    ({"random_params": {"num_envs": [4, 8]}}, "setting of the training loop, which all learners share"),
    ({"random_params": {"actor_hidden_sizes": [[8], [16]]}}, "changes the shape of the networks"),
    ({"random_params": {"rnd.lr": [1, 2]}}, "rnd is not in use; add it"),
    ({"random_params": {"optimizer.eps": [1, 2]}}, "optimizer.eps can't be drawn by a population; draw"),
    ({"poplation": 3}, "neither a population nor ppo has a setting 'poplation'; did you mean 'population'"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message for _, message in BAD])
def test_mistakes_are_one_sentence_and_leave_no_folder(
    changes: dict[str, Any], message: str, small: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        evolve(small, **changes)
    assert not list(tmp_path.iterdir())


def test_what_arguments_set_is_not_drawn(small: dict[str, Any]) -> None:
    found = load_population(small, settings={"discount": 0.8})
    assert list(found.population.draws) == ["learning_rate"]
    assert found.settings.gamma == 0.8


def test_settings_of_the_replay_buffer_that_a_learner_keeps_are_not_drawn(small: dict[str, Any]) -> None:
    changes = {**REPLAY, "n_epochs": None, "random_params": {"n_step": [1, 3]}}
    with pytest.raises(ConfigError, match="decides what the replay buffer holds"):
        evolve(small, **changes)


def test_a_resumed_population_can_not_change_its_rule(small: dict[str, Any], inline: None) -> None:
    folder = evolve(small, generations=1).run_dir
    with pytest.raises(ConfigError, match="can't change 'elite'; it can change generations"):
        whorl.resume(folder, elite=0.5)


class Guarded(CartPoleEnv):
    """A cart-pole that needs a password, which is not saved."""

    def __init__(self, token: str, render_mode: str | None = None) -> None:
        assert token == "xyzzy", token
        super().__init__(render_mode=render_mode)


def test_a_resumed_population_takes_options_of_its_environment_and_refuses_what_it_has_no_use_for(
    small: dict[str, Any], inline: None
) -> None:
    whorl.register("environment", "Guarded-v0", Guarded)
    try:
        small |= {"env": "Guarded-v0", "generations": 1, "population": 2, "workers": 0}
        folder = whorl.evolve(small, env_options={"token": "xyzzy"}).run_dir
        assert "xyzzy" not in (folder / "population.yaml").read_text()
        with pytest.raises(ConfigError, match="is a secret"):
            whorl.resume(folder)
        assert whorl.resume(folder, env_options={"token": "xyzzy"}).generations == 1
        found = resume_population(folder, {"env_options.token": "xyzzy"})
        assert found.source.options["token"] == found.settings.env_options["token"] == "xyzzy"
        with pytest.raises(ConfigError, match="a resumed population can't change 'env_options'"):
            whorl.resume(folder, env_options={"token": "xyzzy", "render_mode": "human"})
        with pytest.raises(ConfigError, match="whose learners take no callbacks; leave callbacks out"):
            whorl.resume(folder, callbacks=[Callback()])
        with pytest.raises(ConfigError, match="whose learners take no loggers; leave loggers out"):
            whorl.resume(folder, loggers=["csv"])
    finally:
        whorl.core.registry._registered["environment"].pop("Guarded-v0")


class Once(VectorEnv):
    """A batch of environments of which there is one."""

    spec = Spec(Array((1,)), Continuous((1,), (-1.0,), (1.0,)), 4)


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (
            "unity:editor",
            {},
            "there is one unity:editor, but each learner .* train one learner with whorl train",
        ),
        ("unity:player", {"editor": True}, "there is one unity:player"),
        (Once(), {}, "there is one Once, but each learner .* pass a class or function that makes it"),
    ],
)
def test_an_environment_that_exists_once_is_refused(
    env: Any, options: dict[str, Any], message: str, small: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        whorl.evolve(small, env=env, env_options=options)
    assert not list(tmp_path.iterdir())


def test_names_of_advanced_sac_are_accepted(small: dict[str, Any], inline: None) -> None:
    found = load_population(
        small, settings={"evolver_enabled": True, "evolver_cem_best": 0.9, "evolver_cem_length": 3}
    )
    assert (found.config.elite, found.settings.n_eval_episodes) == (0.9, 3)
    with pytest.raises(ConfigError, match="a generation ends when all learners have made generation_steps"):
        load_population(small, settings={"evolver_cem_time": 3})
    with pytest.raises(ConfigError, match="a population is trained by whorl evolve CONFIG"):
        whorl.load("CartPole-v1", "ppo", evolver_enabled=True)


def test_all_settings_that_a_population_decides_are_named_at_once(small: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"(?s)^eval_freq can't be set .*\n\nsave_model can't be set"):
        load_population(small, settings={"eval_freq": 100, "save_model": True})


def test_no_setting_of_a_learner_has_the_name_of_one_of_the_population() -> None:
    own = set(fields_of(EvolveConfig))
    for name, cls in rules().items():
        assert not own & set(settings_of(cls)), name


def test_rows_of_the_lineage_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        LineageRow(1, 0, 0, 1, 2.5, {"gamma": 0.9}, "new", steps=64, selected=True),
        LineageRow(1, 1, 1, 0, float("-inf"), {"gamma": 0.99}, "drawn", (0, 2), note="nan"),
    ]
    evolver.write_lineage(tmp_path, rows)
    assert read_lineage(tmp_path) == rows
    assert "Infinity" not in (tmp_path / "lineage.jsonl").read_text()
