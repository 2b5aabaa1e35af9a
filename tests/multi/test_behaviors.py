"""Several behaviours in one run: each has its own agent, settings and replay buffer; one checkpoint holds them all."""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from comparing import assert_same
from zoo import LENGTH, Corridors, Meadow, Unsaved

import whorl
from whorl.cli import main
from whorl.core.errors import ConfigError, EnvError
from whorl.envs import make
from whorl.log.console import Console
from whorl.run.behaviors.evaluate import play
from whorl.run.behaviors.parts import SharedCollector
from whorl.run.behaviors.trainer import BehaviorTrainer
from whorl.run.resume import load_run
from whorl.run.trust import trust_flag
from whorl.settings.behaviors import read_saved, take_behaviors
from whorl.state import checkpoint, code

QUIET = {"quiet": True, "tensorboard": False, "eval": False, "threads": 1}
OFF_POLICY = {"learning_starts": 8, "batch_size": 8, "buffer_size": 512, "updates_per_step": 0.2}
PPO = {"algorithm": "ppo", "num_steps": 4, "n_epochs": 1, "batch_size": 2}
RUNNER = {"algorithm": "dqn", "num_steps": 4, **OFF_POLICY}
GUARD = {"algorithm": "sac", "num_steps": 2, **OFF_POLICY}


def load(tmp_path: Path, env: Any = Meadow, **settings: Any) -> BehaviorTrainer:
    settings = {"behaviours": {"runner": RUNNER, "guard": GUARD}, "max_iterations": 8, **settings}
    options = {"copies": 2, **settings.pop("env_options", {})}
    trainer = whorl.load(
        env, "ppo", {**QUIET, "runs": str(tmp_path)}, env_options=options, log_freq=1, **settings
    )
    assert isinstance(trainer, BehaviorTrainer)
    return trainer


class Collected(whorl.Callback):
    """All transitions of each behaviour, in the order in which they reach its agent."""

    def __init__(self) -> None:
        self.rows: dict[int, list[tuple[float, ...]]] = {4: [], 3: []}

    def on_rollout(self, trainer: Any, rollout: Any) -> None:
        for t, env in (rollout.mask > 0).nonzero().tolist():
            now, after = rollout.obs[t, env], rollout.obs[t + 1, env]
            ends = float(not rollout.continues[t, env]), float(rollout.keep[t, env])
            self.rows[len(now)].append(
                (*now[:3].tolist(), *after[:3].tolist(), float(rollout.reward[t, env]), *ends)
            )


def expected(agent: int, first: int, last: int, terminal: bool) -> set[tuple[float, ...]]:
    """The transitions of one agent in an episode, without its number."""
    found = set()
    for time in range(first, last):
        over = time == last - 1
        ends = (1.0 if over and terminal else 0.0, 0.0 if over else 1.0)
        found.add((agent, time, agent, time + 1, 100.0 * agent + time + 1, *ends))
    return found


@pytest.mark.parametrize(
    "sections", [{"runner": RUNNER, "guard": GUARD}, {"runner": PPO, "guard": {**PPO, "num_steps": 3}}]
)
def test_each_agents_transitions_reach_its_own_learner_and_no_other(tmp_path, sections):
    """Whatever the lengths of rollouts: agent, episode and time are in the observations, agent and time in rewards."""
    seen = Collected()
    trainer = load(tmp_path, behaviours=sections, callbacks=[seen], max_iterations=6)
    with trainer:
        for _ in trainer:
            pass
        steps = {name: member.counters.steps for name, member in trainer.behaviors.items()}
    for row in (*seen.rows[4], *seen.rows[3]):
        assert row[1] == row[4], "no transition crosses an episode"
    runner = {(row[0], row[2], row[3], row[5], *row[6:]) for row in seen.rows[4]}
    guard = {(row[0], row[2], row[3], row[5], *row[6:]) for row in seen.rows[3]}
    # An episode that goes on has keep 1, except where a rollout ends and the row after it is missing.
    assert {row[:-1] for row in runner} == {
        row[:-1] for row in expected(1, 0, LENGTH, False) | expected(2, 0, 3, True)
    }
    assert {row[:-1] for row in guard} == {row[:-1] for row in expected(3, 2, LENGTH, True)}
    assert all(row[-1] == 0.0 for row in runner if row[1] == (LENGTH - 1 if row[0] == 1 else 2))
    assert steps == {"runner": len(seen.rows[4]), "guard": len(seen.rows[3])}
    # Two copies: no transition is lost or seen twice in the episodes that are over.
    over = [row for row in seen.rows[4] if row[0] == 1 and row[1] == 1]
    assert len(over) == 2 * LENGTH


def test_each_replay_buffer_holds_rows_of_its_own_agents(tmp_path):
    trainer = load(tmp_path)
    with trainer:
        for _ in trainer:
            pass
        rings = {name: member.parts.experience.ring for name, member in trainer.behaviors.items()}
        agents = {
            name: set(ring.columns["obs"][: ring.rows, :, 0].unique().tolist())
            for name, ring in rings.items()
        }
    assert agents["runner"] == {1.0, 2.0}
    assert agents["guard"] - {0.0} == {3.0}  # 0: nobody was there yet


def test_behaviours_of_the_same_kind_begin_with_other_weights_and_explore_differently(tmp_path):
    trainer = load(tmp_path, env_options={"sharing": "none"}, behaviours={}, num_steps=8).build()
    one, other = (trainer.behaviors[name].parts.agent for name in ("runner_0", "runner_1"))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))
    draws = [
        torch.rand(3, generator=agent.parts.streams.generator("act", "cpu"))
        for agent in trainer.behaviors.values()
    ]
    assert not torch.equal(draws[0], draws[1])
    trainer.close()


def rows(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in lines]


def state(run: Path) -> dict[str, Any]:
    found = checkpoint.use_newest(run, pytest.fail, lambda loaded: loaded).state
    for one in found["behaviours"].values():
        one["experience"].pop("ring", None)  # names of files; what they hold shows in the metrics
    return found


class KilledAt(whorl.Callback):
    """SIGKILL in the middle of an iteration."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_rollout(self, trainer: Any, rollout: Any) -> None:
        if trainer.iteration == self.iteration:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("env", [Meadow, Unsaved])
def test_a_run_killed_in_the_middle_of_an_iteration_and_resumed_equals_an_uninterrupted_one(tmp_path, env):
    settings = {"checkpoint_freq": 30, "reset_every": 30, "max_iterations": 9}
    whole = load(tmp_path / "whole", env, **settings).train().run_dir
    pid = os.fork()
    if pid == 0:
        try:
            load(tmp_path / "pieces", env, callbacks=[KilledAt(6)], **settings).train()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    (pieces,) = (tmp_path / "pieces").iterdir()
    assert 0 < checkpoint.load(checkpoint.checkpoints(pieces)[0]).metadata["iterations"] <= 6
    whorl.resume(pieces, env=env)
    assert_same(state(whole), state(pieces))
    assert rows(whole) == rows(pieces)
    assert len(rows(whole)) == 9


def test_a_reset_sends_the_weights_to_those_who_act_before_their_memories_begin():
    calls: list[str] = []
    member: Any = SimpleNamespace(
        name="runner",
        view=SimpleNamespace(obs=None),
        parts=SimpleNamespace(send_weights=lambda: calls.append("weights")),
        collector=SimpleNamespace(reset=lambda seed: calls.append(f"reset {seed}")),
    )
    env: Any = SimpleNamespace(reset=lambda seed: {"runner": torch.ones(1)})
    SharedCollector(env, [member]).reset(3)
    assert calls == ["weights", "reset 3"] and member.view.obs.tolist() == [1]


class LastRows(whorl.Callback):
    """Whether returns go on after the last row of each rollout of the runners."""

    def __init__(self) -> None:
        self.keep: list[float] = []

    def on_rollout(self, trainer: Any, rollout: Any) -> None:
        if rollout.obs.shape[-1] == 4:
            self.keep.append(float(rollout.keep[-1, 0]))


def test_returns_end_where_environments_without_snapshots_are_reset(tmp_path):
    """Two iterations of four steps, after which all are reset: runner_0 is in the middle of its episode."""
    seen = LastRows()
    trainer = load(tmp_path, Unsaved, callbacks=[seen], reset_every=40, max_iterations=4)
    trainer.train()
    assert trainer.counters.resets == 2
    assert seen.keep == [1.0, 0.0, 1.0, 0.0]


class Stormy(Meadow):
    """Each copy raises in the first step of the second iteration, as long as it storms."""

    storms = True

    def step(self, actions: dict[str, Any]) -> Any:
        if self.storms and len(self.received) == 4:
            raise OSError("the fence is gone")
        return super().step(actions)


def test_an_environment_that_fails_costs_the_iteration_under_way_alone(tmp_path, monkeypatch):
    with pytest.raises(EnvError, match="the fence is gone") as error:
        load(tmp_path, Stormy).train()
    assert "is saved in checkpoint_1, without the episodes under way" in str(error.value)
    monkeypatch.setattr(Stormy, "storms", False)
    (run,) = tmp_path.iterdir()
    with pytest.warns(UserWarning, match="an environment had failed; all of them start new episodes"):
        trainer = load_run(run, {}, env=Stormy)
    assert trainer.iteration == 1 and trainer.counters.resets == 1
    assert trainer.train().iterations == 8
    assert [row["iteration"] for row in rows(run)] == list(range(1, 9))


class Tired(Meadow):
    """It has no snapshot any more once it was stepped."""

    def get_snapshot(self) -> dict[str, Any] | None:
        return None if self.received else super().get_snapshot()


def test_an_environment_that_loses_its_snapshots_is_trained_and_resumed(tmp_path):
    with pytest.warns(UserWarning, match=r"copy 0 of .* has no snapshot.* a resumed run begins new ones"):
        run = load(tmp_path, Tired, checkpoint_freq=1, max_iterations=3).train().run_dir
    with pytest.warns(UserWarning, match="had no snapshot; all of them start new episodes"):
        assert whorl.resume(run, env=Tired, max_iterations=4).iterations == 4


def test_one_checkpoint_holds_all_behaviours_and_its_policies_can_be_taken_one_by_one(tmp_path):
    run = load(tmp_path, checkpoint_freq=40).train().run_dir
    for folder in checkpoint.checkpoints(run):
        found = checkpoint.load(folder)
        assert found.state["behaviours"].keys() == found.policy["behaviours"].keys() == {"runner", "guard"}
    runner, guard = (whorl.restore(run, behavior=name) for name in ("runner", "guard"))
    assert (runner.settings.algorithm, guard.settings.algorithm) == ("dqn", "sac")
    assert guard.act(torch.zeros(3).numpy()).shape == (1,)
    with pytest.raises(ConfigError, match="has the behaviours runner, guard; name the one"):
        whorl.restore(run)
    with pytest.raises(ConfigError, match="no behaviour 'guards'; did you mean 'guard'"):
        whorl.restore(run, behavior="guards")


def test_a_saved_config_names_every_setting_once_and_trains_the_same_run_again(tmp_path):
    run = load(tmp_path).train().run_dir
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["behaviours"]["guard"]["algorithm"] == "sac"
    assert "max_iterations" in config and "max_iterations" not in config["behaviours"]["guard"]
    again = whorl.load(
        Meadow, "ppo", files=[run / "config.yaml"], runs=str(tmp_path), env_options={"copies": 2}
    )
    assert again.settings == load(tmp_path).settings


def test_sections_come_from_files_flags_and_aliases_layer_by_layer():
    layers = [
        {"gamma": 0.9, "ma_config": {"prey": {"sac_config": {"lr": 1}, "algorithm": "sac"}}},
        {"behaviours.prey.lr": 2, "behaviors": {"hunter": None}},
    ]
    found, rest = take_behaviors(layers)
    assert found == [{"prey": {"lr": 1, "algorithm": "sac"}}, {"prey": {"lr": 2}, "hunter": {}}]
    assert rest == [{"gamma": 0.9}, {}]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"behaviours": {"guards": {}}}, "has no behaviour 'guards'; did you mean 'guard'"),
        ({"behaviours": {"guard": {"seed": 3}}}, "seed in behaviours.guard holds for the whole run"),
        (
            {"behaviours": {"guard": {"buffer_size": 3}}},
            "behaviour 'guard': ppo has no setting 'buffer_size'",
        ),
        ({"behaviours": {"guard": 3}}, "behaviours.guard"),
        ({"num_envs": 5}, "num_envs"),
        ({"learners": 2}, "learners"),
        ({"actors": 2}, "actors is 2"),
    ],
)
def test_mistakes_in_settings_are_one_sentence(tmp_path, settings, message):
    with pytest.raises(ConfigError) as error:
        load(tmp_path, **settings)
    assert message in str(error.value)


@pytest.mark.parametrize("name, value", [("render", True), ("screenshot_freq", 5), ("learners", 2)])
def test_what_several_behaviours_do_not_have_is_refused_also_on_resuming(tmp_path, name, value):
    with pytest.raises(ConfigError, match=f"a run of several behaviours .*{'leave' if value == 2 else name}"):
        load(tmp_path, **{name: value})
    saved = load(tmp_path).settings
    with pytest.raises(ConfigError, match="a run of several behaviours"):
        read_saved(saved.plain(), {name: value})


def test_behaviours_of_an_environment_with_one_agent_are_an_error():
    with pytest.raises(ConfigError, match="CartPole-v1 has one agent; leave behaviours out"):
        whorl.load("CartPole-v1", "ppo", behaviours={"pole": {}})


def test_evaluation_counts_episodes_of_every_behaviour(tmp_path):
    """runner_0 earns 621, runner_1 606 in three steps, the guard 1218 in its four."""
    trainer = load(tmp_path, eval=True, eval_freq=10**9, n_eval_episodes=4).build()
    found = trainer.evaluate()
    assert sorted(found.behaviors["runner"].returns) == [606.0] * 4 + [621.0] * 4
    assert (found.behaviors["runner"].episodes, found.behaviors["runner"].players) == (4, 2)
    assert found.behaviors["guard"].returns == [1218.0] * 4
    assert found.behaviors["guard"].lengths == [4] * 4
    assert found.metrics()["guard/evaluation/return"] == 1218.0
    assert found.mean_return == (613.5 + 1218.0) / 2
    trainer.close()


def test_an_evaluation_cuts_long_episodes(tmp_path):
    trainer = load(tmp_path).build()
    source = make.find(Meadow, {"copies": 2})
    agents = {name: member.parts.agent for name, member in trainer.behaviors.items()}
    with pytest.warns(UserWarning, match="evaluation truncated"):
        found = play(agents, source.adapter.behavior_env(source), 2, 0, max_steps=3)
    assert sorted(found.behaviors["runner"].lengths) == [3] * 4
    trainer.close()


def test_what_training_evaluates_is_in_the_metrics_and_the_best_policies_are_kept(tmp_path):
    run = load(tmp_path, eval=True, eval_freq=50, n_eval_episodes=2).train().run_dir
    assert any("guard/evaluation/return" in row for row in rows(run))
    assert rows(run)[-1]["runner/episode/length"] > 0
    assert whorl.restore(run, best=True, behavior="guard").settings.algorithm == "sac"


def test_weights_are_taken_from_a_run_with_the_same_behaviours(tmp_path):
    run = load(tmp_path).train().run_dir
    trainer = load(tmp_path, load_model=True, load_checkpoint_dir=str(run), max_iterations=1)
    with trainer:
        trainer._open()
        saved = state(run)["behaviours"]["guard"]["agent"]["module"]
        mine = trainer.behaviors["guard"].parts.agent.state_dict()
        name = next(name for name, value in mine.items() if value.is_floating_point() and value.dim() > 1)
        assert torch.equal(mine[name], saved[name])
        steps = trainer.behaviors["guard"].counters.earlier["steps"]
        second = trainer.train().run_dir
    with load(tmp_path, load_model=True, load_checkpoint_dir=str(second)) as trainer:
        trainer._open()
        assert trainer.behaviors["guard"].counters.earlier["steps"] > steps > 0


@pytest.mark.full
def test_two_behaviours_solve_their_tasks(tmp_path):
    """Runners learn to choose 1 (return 6 and 3), the guard to say 0.5 (return 4, -0.8 for actions drawn at random)."""
    trainer = load(
        tmp_path,
        Corridors,
        behaviours={
            "runner": {"algorithm": "ppo", "num_steps": 12, "n_epochs": 4, "batch_size": 24, "lr": 3e-3},
            "guard": {
                "algorithm": "sac",
                "num_steps": 4,
                **OFF_POLICY,
                "batch_size": 32,
                "lr": 3e-3,
                "updates_per_step": 1,
            },
        },
        max_iterations=40,
        gamma=0.5,
    )
    with trainer:
        for _ in trainer:
            pass
        found = trainer.evaluate(4)
    assert set(found.behaviors["runner"].returns) == {6.0, 3.0}
    assert found.behaviors["guard"].mean_return > 3.4


def test_settings_outside_of_behaviours_hold_for_all_unless_one_has_its_own(tmp_path):
    settings = load(tmp_path, gamma=0.9, behaviours={"guard": {**GUARD, "gamma": 0.8}}).settings
    assert {name: one.gamma for name, one in settings.behaviors.items()} == {"runner": 0.9, "guard": 0.8}


def test_a_later_layer_comes_over_the_section_of_an_earlier_one(tmp_path):
    """Files < the mapping of settings < keywords; within each, a section over what is said for all."""
    file = {"gamma": 0.9, "gae_lambda": 0.5, "behaviours": {"guard": {"gamma": 0.8, "gae_lambda": 0.4}}}
    settings = {"gamma": 0.7, "runs": str(tmp_path)}

    def found(name, **keywords):
        loaded = whorl.load(Meadow, "ppo", settings, files=[file], env_options={"copies": 2}, **keywords)
        return {behavior: getattr(one, name) for behavior, one in loaded.settings.behaviors.items()}

    assert found("gamma") == {"runner": 0.7, "guard": 0.7}
    assert found("gae_lambda") == {"runner": 0.5, "guard": 0.4}
    assert found("gamma", behaviours={"guard": {"gamma": 0.6}}) == {"runner": 0.7, "guard": 0.6}
    assert found("gamma", behaviours={"guard": {"gamma": 0.6}}, gamma=0.1) == {"runner": 0.1, "guard": 0.6}
    assert found("gae_lambda", gae_lambda=0.3) == {"runner": 0.3, "guard": 0.3}


def test_a_flag_comes_over_the_sections_of_a_file_and_its_own_section_over_both(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("two.yaml").write_text("behaviours: {guard: {gamma: 0.8, algorithm: sac}}")
    words = ["config", "ppo", "pettingzoo:zoo:Meadow", "--config", "two.yaml", "--gamma", "0.7"]
    for more, guard in (([], 0.7), (["--behaviours.guard.gamma", "0.6"], 0.6)):
        assert main([*words, *more]) == 0
        found = yaml.safe_load(capsys.readouterr().out)["behaviours"]
        assert {name: one["gamma"] for name, one in found.items()} == {"runner": 0.7, "guard": guard}
        assert found["guard"]["algorithm"] == "sac"


def test_the_command_line_trains_evaluates_and_plots_all_behaviours(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sections = {"runner": {**RUNNER, "num_steps": 4}, "guard": {"num_steps": 2}}
    Path("two.yaml").write_text(
        yaml.safe_dump({"ma_config": sections, "env_options": {"copies": 2}, "n_step": 2})
    )
    run = [
        "train",
        "sac",
        "pettingzoo:zoo:Meadow",
        "--config",
        "two.yaml",
        "--name",
        "two",
        "--log-freq",
        "1",
    ]
    run += ["--max-iterations", "8", "--quiet", "--no-tensorboard", "--no-eval"]
    flags = [f"--behaviours.guard.{key}={value}" for key, value in OFF_POLICY.items()]
    assert main([*run, *flags]) == 0
    assert "mean return of guard" in capsys.readouterr().out
    settings = yaml.safe_load(Path("runs/two/config.yaml").read_text())["behaviours"]
    assert {name: one["algorithm"] for name, one in settings.items()} == {"runner": "dqn", "guard": "sac"}
    assert {name: one["n_step"] for name, one in settings.items()} == {"runner": 2, "guard": 2}
    assert main(["eval", "runs/two", "--episodes", "2", "--json", "--trust", "zoo"]) == 0
    found = json.loads(capsys.readouterr().out)["behaviours"]
    assert found["runner"]["mean_return"] == 613.5 and found["guard"]["returns"] == [1218.0, 1218.0]
    assert main(["eval", "runs/two", "--episodes", "2", "--video", "--trust", "zoo"]) == 2
    assert "renders no frames, so there is nothing to record" in capsys.readouterr().err
    assert main(["plot", "runs/two", "--output", "curves.svg"]) == 0
    drawn = Path("curves.svg").read_text()
    assert "runner / episode/return" in drawn and "guard / episode/return" in drawn
    capsys.readouterr()
    assert main(["list", "--runs"]) == 0
    assert "finished    122   912.0" in capsys.readouterr().out  # the mean of both behaviours in the last row
    assert main(["config", "ppo", "pettingzoo:zoo:Meadow", "--behaviours.guard.algorithm", "sac"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["behaviours"]["guard"]["algorithm"] == "sac"


def test_an_algorithm_of_ones_own_is_saved_and_never_imported_without_trust(tmp_path, monkeypatch):
    """Its name is nested in `behaviours`, where it must be found for the flag, and refused before it is imported."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "whorl_own_rule.py").write_text(
        "from whorl.algorithms.sac import SAC\n\n\nclass Rule(SAC): ...\n"
    )
    monkeypatch.syspath_prepend(str(sources))
    guard = {**GUARD, "algorithm": "whorl_own_rule.Rule"}
    trainer = load(tmp_path, behaviours={"runner": RUNNER, "guard": guard}, max_iterations=1)
    run = trainer.train().run_dir
    assert trust_flag(trainer.settings) == ["--trust", "whorl_own_rule.Rule"]
    saved = checkpoint.load(run / "checkpoint_1").code
    assert list(saved) == ["code/whorl_own_rule.py"]
    sys.modules.pop("whorl_own_rule")
    for use in (whorl.evaluate, whorl.resume):
        with pytest.raises(ConfigError, match="if you trust it"):
            use(run, env=Meadow)
        assert "whorl_own_rule" not in sys.modules
    assert whorl.evaluate(run, 1, env=Meadow, trust=[code.flag(saved)]).behaviors["guard"].returns


def test_the_progress_display_names_the_behaviours():
    console = Console(10, "steps", quiet=False)
    console._row = {"runner/episode/return": 3.0, "guard/evaluation/return": 4.0}
    assert console._numbers() == ["runner return 3", "guard evaluation 4"]
