"""Callbacks: hooks by their names, per step and per episode; success rates; the reported mean return; warm starts."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import whorl
from whorl.agents.agent import Acted
from whorl.core.errors import CheckpointError, ConfigError
from whorl.envs.adapters.gymnasium import GymnasiumVector
from whorl.run.callbacks import overridden
from whorl.run.evaluate import run_episodes
from whorl.run.loop import Counters
from whorl.state import checkpoint

SMALL = {
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "log_freq": 1,
    "num_envs": 2,
    "num_steps": 8,
    "batch_size": 16,
    "n_epochs": 1,
    "max_iterations": 3,
    "workers": 0,
    "actor_hidden_sizes": [8],
    "critic_hidden_sizes": [8],
    "save_model": False,
}


class Goal(gymnasium.Env):
    """Episodes of three steps with rewards 1, 2, 3, every second of which succeeds, says its last `info`."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    measures = ("rooms",)

    def __init__(self, key: str = "is_success") -> None:
        self.key, self.episodes = key, 0

    def reset(self, **given: Any) -> Any:
        self.steps, self.episodes = 0, self.episodes + 1
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        over = self.steps == 3
        info = {self.key: self.episodes % 2 == 0, "rooms": self.episodes} if over and self.key else {}
        return np.zeros(2, np.float32), float(self.steps), over, False, info


def rows(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]


# Hooks


def test_a_misspelt_hook_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as error:

        class Watch(whorl.Callback):
            def on_evaluate(self, trainer: Any, evaluation: Any) -> None: ...

    assert str(error.value) == (
        "Watch.on_evaluate would never be called, because callbacks have no such method; did you mean 'on_evaluation'?"
    )


def test_other_names_and_private_ones_are_ones_own() -> None:
    class Watch(whorl.Callback):
        on_screen = True

        def once(self) -> None: ...
        def _on_purpose(self) -> None: ...


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (whorl.WarmStart, r"contains the class WarmStart; give an object: WarmStart\(\)"),
        (print, "each must be derived from whorl.Callback"),
    ],
)
def test_what_is_no_callback_is_told(given: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        whorl.load("CartPole-v1", "ppo", SMALL, callbacks=[given])


class Random:
    """Takes part in an evaluation."""

    device = torch.device("cpu")
    tracks = False

    def begin(self, obs: Any, collecting: bool) -> dict[str, Any]:
        return {}

    def follow(self, memory: Any, *row: Any) -> tuple[Any, dict[str, Any]]:
        return memory, {}

    def act_tracked(self, obs: torch.Tensor, memory: Any, context: Any) -> Acted:
        return Acted(torch.zeros(len(obs), dtype=torch.int64), memory)


class Steps(whorl.Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_step(self, trainer: Any, step: Any) -> None:
        self.seen.append(
            (step.action.clone(), step.reward.clone(), step.next_reset.clone(), step.obs.clone())
        )


@pytest.mark.parametrize("central", [False, True])
def test_on_step_sees_every_step_of_all_environments_once(central: bool, tmp_path: Path) -> None:
    watch, rollouts = Steps(), []

    class Rollouts(whorl.Callback):
        def on_rollout(self, trainer: Any, rollout: Any) -> None:
            rollouts.append({k: getattr(rollout, k).clone() for k in ("action", "reward", "mask", "obs")})

    # With four environments per worker and two groups, steps of one group overlap with acting for the other.
    pool = {"workers": 1, "acting": "central", "num_envs": 4, "batch_size": 32} if central else {}
    settings = {**SMALL, **pool, "max_iterations": 2, "runs": str(tmp_path)}
    whorl.load(Goal, "ppo", settings, callbacks=[watch, Rollouts()]).train()
    assert len(watch.seen) == 16
    action, reward, reset, obs = (torch.stack(column) for column in zip(*watch.seen))
    assert torch.equal(action, torch.cat([r["action"] for r in rollouts]))
    assert torch.equal(reward * ~reset, torch.cat([r["reward"] for r in rollouts]))
    assert torch.equal(obs, torch.cat([r["obs"][:-1] for r in rollouts]))
    assert torch.equal(~reset, torch.cat([r["mask"] for r in rollouts]).bool())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"workers": 1},
            "a callback has on_step, but 1 workers act by themselves.* use acting central, or workers 0",
        ),
        (
            {"actors": 1},
            "a callback has on_step, but 1 actors make their steps by themselves.* use on_episode",
        ),
    ],
)
def test_on_step_is_refused_where_others_act(given: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    settings = {**SMALL, **given, "runs": str(tmp_path)}
    with pytest.raises(ConfigError, match=sentence):
        whorl.load(Goal, "ppo", settings, callbacks=[Steps()]).train()


class Episodes(whorl.Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_episode(self, trainer: Any, episode: Any) -> None:
        self.seen.append(episode)


@pytest.mark.parametrize("how", [{}, {"workers": 2}, {"actors": 2}])
def test_each_episode_is_seen_once_and_success_is_logged_without_being_asked(
    how: dict[str, Any], tmp_path: Path
) -> None:
    """Four rows are an episode and its reset: 24 rows of an environment are six episodes."""
    watch = Episodes()
    result = whorl.load(Goal, "ppo", {**SMALL, **how, "runs": str(tmp_path)}, callbacks=[watch]).train()
    assert Counter(episode.env_index for episode in watch.seen) == {0: 6, 1: 6}
    for env_index in (0, 1):
        mine = [episode for episode in watch.seen if episode.env_index == env_index]
        assert {(episode.total_reward, episode.length) for episode in mine} == {(6.0, 3)}
        assert [episode.success for episode in mine] == [False, True] * 3
        assert [episode.measures for episode in mine] == [{"rooms": float(n)} for n in range(1, 7)]
    assert [row["episode/success_rate"] for row in rows(result)] == [0.5, 0.5, 0.5]


def test_an_episode_that_spans_rollouts_is_counted_whole(tmp_path: Path) -> None:
    watch = Episodes()
    settings = {**SMALL, "num_steps": 5, "batch_size": 10, "max_iterations": 4, "runs": str(tmp_path)}
    whorl.load(lambda: Goal(""), "ppo", settings, callbacks=[watch]).train()
    assert [(e.total_reward, e.length, e.success, e.measures) for e in watch.seen] == [
        (6.0, 3, None, {})
    ] * 10


@pytest.mark.parametrize("hook", ["on_update", "on_evaluation"])
def test_the_row_of_an_iteration_that_a_callback_saves_is_there_after_a_resume(
    hook: str, tmp_path: Path
) -> None:
    class Saves(whorl.Callback):
        """Saves after the second iteration."""

    def save(self: Any, trainer: Any, what: Any) -> None:
        if trainer.iteration == 2:
            trainer.save()

    setattr(Saves, hook, save)
    given = {
        **SMALL,
        "save_model": True,
        "eval": True,
        "eval_freq": 1,
        "n_eval_episodes": 1,
        "max_iterations": 4,
    }
    run = whorl.load(Goal, "ppo", {**given, "runs": str(tmp_path)}, callbacks=[Saves()]).train()
    evaluated = [row["iteration"] for row in rows(run) if "evaluation/return" in row]
    learned = [row["iteration"] for row in rows(run) if "episodes" in row]
    assert evaluated == learned == [1, 2, 3, 4]
    again = whorl.resume(run.run_dir / "checkpoint_1", env=Goal, max_iterations=3)
    learned = [row["iteration"] for row in rows(again) if "episodes" in row]
    assert learned == [1, 2, 3]
    if hook == "on_evaluation":
        assert all("evaluation/return" in row for row in rows(again)) and len(rows(again)) == 3


@pytest.mark.parametrize("hook", ["on_step", "on_episode", "on_rollout"])
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_checkpoint_that_is_asked_for_within_an_iteration_is_written_at_its_end(
    hook: str, algorithm: str, tmp_path: Path
) -> None:
    """A run that continues from it is the uninterrupted one, bit for bit."""

    class Saves(whorl.Callback):
        """Asks in the second of four iterations."""

        def __init__(self) -> None:
            self.promised: list[Path] = []
            self.written: list[Path] = []

        def on_checkpoint(self, trainer: Any, folder: Path) -> None:
            self.written.append(folder)

    def save(self: Any, trainer: Any, what: Any) -> None:
        if trainer.iteration == 1:
            self.promised.append(trainer.save())

    setattr(Saves, hook, save)
    own = (
        {"hidden_sizes": [8], "buffer_size": 100, "learning_starts": 16, "updates_per_step": 0.5}
        if algorithm == "dqn"
        else {name: SMALL[name] for name in ("n_epochs", "actor_hidden_sizes", "critic_hidden_sizes")}
    )
    common = {name: value for name, value in SMALL.items() if not name.endswith(("_sizes", "n_epochs"))}
    given = {**common, **own, "save_model": True, "max_iterations": 4, "runs": str(tmp_path)}
    saves = Saves()
    whole = whorl.load("CartPole-v1", algorithm, given, callbacks=[saves]).train()
    assert set(saves.promised) == {whole.run_dir / "checkpoint_1"}
    assert saves.written == [whole.run_dir / f"checkpoint_{number}" for number in (1, 2)], "also at the end"
    found = checkpoint.load(whole.run_dir / "checkpoint_1")
    assert found.metadata["iterations"] == 2
    expected, learned = whorl.restore(whole.run_dir).agent.state_dict(), rows(whole)
    again = whorl.resume(whole.run_dir / "checkpoint_1")
    assert [row["iteration"] for row in learned] == [1, 2, 3, 4]
    assert [_timeless(row) for row in rows(again)] == [_timeless(row) for row in learned]
    for name, value in whorl.restore(again.run_dir).agent.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=0)


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith(("time/", "system/"))}


def test_nothing_is_saved_after_a_rollout_that_failed(tmp_path: Path) -> None:
    class Fails(whorl.Callback):
        def on_rollout(self, trainer: Any, rollout: Any) -> None:
            if trainer.iteration == 1:
                trainer.save()
                raise RuntimeError("a mistake of mine")

    trainer = whorl.load(
        Goal, "ppo", {**SMALL, "save_model": True, "runs": str(tmp_path)}, callbacks=[Fails()]
    )
    trainer.step()
    with pytest.raises(RuntimeError, match="a mistake of mine"):
        trainer.step()
    assert trainer.run_dir is not None
    saved = checkpoint.checkpoints(trainer.run_dir)
    assert [checkpoint.load(folder).metadata["iterations"] for folder in saved] == [1]
    with pytest.raises(CheckpointError, match=r"the last step failed; call close\(\), then whorl\.resume"):
        trainer.save()
    assert checkpoint.checkpoints(trainer.run_dir) == saved
    trainer.close()


def test_the_last_row_stays_where_a_callback_has_saved_before_it_was_written(tmp_path: Path) -> None:
    class Saves(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, float]) -> None:
            trainer.save()

    given = {**SMALL, "save_model": True, "log_freq": 10**6, "runs": str(tmp_path)}
    run = whorl.load(Goal, "ppo", given, callbacks=[Saves()]).train()
    assert [row["iteration"] for row in rows(run)] == [3]
    assert [row["iteration"] for row in rows(whorl.resume(run.run_dir, env=Goal))] == [3]


# Success


@pytest.mark.parametrize("key", ["is_success", "success"])
def test_success_in_info_is_logged_by_evaluations_too(key: str, tmp_path: Path) -> None:
    evaluation = {"eval": True, "eval_freq": 3, "n_eval_episodes": 6}
    result = whorl.load(lambda: Goal(key), "ppo", {**SMALL, **evaluation, "runs": str(tmp_path)}).train()
    assert rows(result)[-1]["episode/success_rate"] == 0.5
    assert rows(result)[-1]["evaluation/success_rate"] == 0.0, "the first episode of each environment fails"
    found = run_episodes(Random(), GymnasiumVector(lambda: Goal(key), 2, "goal"), 6, seed=0)  # type: ignore[arg-type]
    assert found.successes.count(True) == 2 and found.success_rate == pytest.approx(1 / 3)


def test_without_it_there_is_no_such_column(tmp_path: Path) -> None:
    result = whorl.load(lambda: Goal(""), "ppo", {**SMALL, "runs": str(tmp_path)}).train()
    assert not any(name.endswith(("success_rate", "rooms")) for row in rows(result) for name in row)


def test_something_else_called_success_is_no_number(tmp_path: Path) -> None:
    class Odd(Goal):
        def step(self, action: int) -> Any:
            *most, info = super().step(action)
            return *most, {**info, "success": {"at": "last"}}

    assert (
        "episode/success_rate"
        not in rows(whorl.load(lambda: Odd(""), "ppo", {**SMALL, "runs": str(tmp_path)}).train())[0]
    )


def test_success_in_a_batch_of_gymnasium(tmp_path: Path) -> None:
    def batch() -> Any:
        return gymnasium.vector.SyncVectorEnv([Goal, Goal])

    result = whorl.load(batch, "ppo", {**SMALL, "runs": str(tmp_path)}).train()
    assert [row["episode/success_rate"] for row in rows(result)] == [0.5, 0.5, 0.5]


# The reported mean return


def seen(episodes: int, total: float) -> dict[str, float]:
    return {"steps": 10.0, "episodes": float(episodes), "return": total, "length": 1.0}


def test_the_mean_return_is_of_the_last_hundred_episodes_or_the_few_more_of_one_rollout() -> None:
    counters = Counters()
    assert counters.mean_return != counters.mean_return
    counters.count(seen(30, 3000.0), ())
    assert counters.mean_return == 100.0
    counters.count(seen(60, 60.0), ())
    assert counters.mean_return == pytest.approx(3060 / 90), "all, as long as there are fewer"
    counters.count(seen(0, 0.0), ())
    counters.count(seen(50, 100.0), ())
    assert counters.mean_return == pytest.approx(160 / 110), "the first 30 are no longer needed"
    again = Counters()
    again.load_state_dict(json.loads(json.dumps(counters.state_dict())))
    again.count(seen(1, 5.0), ())
    counters.count(seen(1, 5.0), ())
    assert again.mean_return == counters.mean_return
    counters.evaluated_return = 7.0
    assert counters.mean_return == 7.0


def test_without_evaluation_the_result_is_the_mean_of_many_episodes_and_survives_a_resume(
    tmp_path: Path,
) -> None:
    watch, settings = Episodes(), {**SMALL, "save_model": True, "num_steps": 32, "batch_size": 64}
    whole = {**settings, "max_iterations": 14, "runs": str(tmp_path / "a")}
    result = whorl.load("CartPole-v1", "ppo", whole, callbacks=[watch]).train()
    half = {**settings, "max_iterations": 9, "lr_schedule": "constant", "runs": str(tmp_path / "b")}
    assert len(watch.seen) < 100
    assert result.mean_return == pytest.approx(np.mean([episode.total_reward for episode in watch.seen]))
    part = whorl.load("CartPole-v1", "ppo", half).train()
    resumed = whorl.resume(part.run_dir, max_iterations=14)
    straight = {**half, "max_iterations": 14, "runs": str(tmp_path / "c")}
    assert resumed.mean_return == whorl.load("CartPole-v1", "ppo", straight).train().mean_return


# Warm starts


def test_a_warm_start_from_another_environment_takes_what_fits_and_lists_the_rest(tmp_path: Path) -> None:
    given = {**SMALL, "runs": str(tmp_path), "save_model": True}
    first = whorl.load("CartPole-v1", "ppo", given).train()
    start = {**given, "load_model": True, "load_checkpoint_dir": str(first.run_dir)}
    trainer = whorl.load(
        "Acrobot-v1", "ppo", start
    )  # six observations instead of four, three actions instead of two
    with pytest.warns(UserWarning) as warned:
        trainer.step()
    (text,) = [str(one.message) for one in warned if "tensors" in str(one.message)]
    assert re.search(r"took \d+ of \d+ tensors; not taken: ", text)
    assert "actor.backbone.torso.layers.0.weight ([8, 4] there, [8, 6] here)" in text
    assert "actor.head.logits.bias ([2] there, [3] here)" in text and "layers.0.bias" not in text
    trainer.close()
    with pytest.raises(CheckpointError, match=r"took \d+ of \d+ tensors; .* leave strict out"):
        whorl.load("Acrobot-v1", "ppo", {**start, "load_strict": True}).train()
    with pytest.raises(CheckpointError, match=r"no weights in .* fit these settings"):
        whorl.load(
            "Acrobot-v1",
            "dqn",
            {"quiet": True, "runs": str(tmp_path), **{k: start[k] for k in start if k.startswith("load")}},
        ).train()


def test_an_optimizer_whose_weights_do_not_all_fit_starts_afresh(tmp_path: Path) -> None:
    given = {**SMALL, "runs": str(tmp_path), "save_model": True}
    first = whorl.load("CartPole-v1", "ppo", given).train()
    other = whorl.load("CartPole-v1", "ppo", {**given, "actor_hidden_sizes": [4]}).build()
    with pytest.warns(UserWarning, match="not taken: actor"):
        other.load_weights(first.run_dir)
    saved = checkpoint.use_newest(first.run_dir, pytest.fail, lambda loaded: loaded).state["agent"][
        "optimizers"
    ]
    now = other.agent.optimizer_state()
    assert all(not bool(entry["exp_avg"].any()) for entry in now["actor"])
    assert all(
        torch.equal(one["exp_avg"], two["exp_avg"]) for one, two in zip(now["critic"], saved["critic"])
    )
    assert any(bool(entry["exp_avg"].any()) for entry in now["critic"])
    other.close()


def test_a_hook_with_other_arguments_is_told_when_its_class_is_written() -> None:
    with pytest.raises(
        ConfigError, match=r"Short.on_episode must take the arguments \(self, trainer, episode\)"
    ):

        class Short(whorl.Callback):
            def on_episode(self, trainer: Any) -> None:  # type: ignore[override]  # the mistake
                pass


def test_methods_of_stable_baselines_callbacks_are_answered_with_those_here() -> None:
    with pytest.raises(
        ConfigError, match=r"_on_step would never be called.*on_step.trainer, step.*trainer.stop"
    ):

        class Theirs(whorl.Callback):
            def _on_step(self) -> bool:
                return True


def test_a_hook_may_be_a_static_method() -> None:
    class Static(whorl.Callback):
        @staticmethod
        def on_update(trainer: Any, metrics: dict[str, Any]) -> None: ...

    assert overridden([Static()], "on_update")


def test_a_metric_that_is_an_array_is_told(tmp_path: Path) -> None:
    class Arrays(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, Any]) -> None:
            metrics["mine/number"] = np.float32(2)
            metrics["mine/tensor"] = torch.tensor(2.0)
            metrics["mine/many"] = np.arange(3)

    with pytest.raises(
        ConfigError, match=r"set the metric 'mine/many' to an array of shape .3,.; a metric is one"
    ):
        whorl.train("CartPole-v1", "ppo", SMALL, runs=str(tmp_path), callbacks=[Arrays()])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (None, "None"),
        ({"a": 1}, "{'a': 1}"),
        (np.arange(3), "an array of shape (3,)"),
        (torch.arange(3), "an array of shape (3,)"),
    ],
    ids=["None", "dict", "array", "tensor"],
)
def test_a_metric_that_is_no_number_is_told_and_the_iteration_is_saved(
    wrong: Any, said: str, tmp_path: Path
) -> None:
    class Wrong(whorl.Callback):
        def on_update(self, trainer: Any, metrics: dict[str, Any]) -> None:
            metrics["mine/wrong"] = wrong
            metrics["mine/number"] = 2.0

    given = {**SMALL, "save_model": True, "runs": str(tmp_path)}
    sentence = f"set the metric 'mine/wrong' to {said}; a metric is one number; iteration 1"
    with pytest.raises(ConfigError, match=f"{re.escape(sentence)} .* is saved in checkpoint_1"):
        whorl.train("CartPole-v1", "ppo", given, callbacks=[Wrong()])
    (run,) = tmp_path.iterdir()
    (row,) = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert row["mine/number"] == 2.0 and "mine/wrong" not in row
