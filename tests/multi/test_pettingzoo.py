"""Agents of an environment with PettingZoo's parallel API as rows of batches: who is where, alive, ended or waiting."""

import numpy as np
import pytest
import torch
from zoo import LENGTH, Corridors, Meadow

import whorl
from whorl.core.errors import ConfigError, EnvError, WhorlError
from whorl.envs.adapters.imported import module_of
from whorl.envs.adapters.parallel import PettingZooEnv
from whorl.envs.behaviors import OneBehavior
from whorl.envs.make import find


def meadow(copies: int = 1, **options) -> PettingZooEnv:
    source = find(Meadow, {"copies": copies, **options})
    return source.adapter.behavior_env(source)


def act(env: PettingZooEnv, value: float = 0.0) -> dict:
    actions = {}
    for name, spec in env.specs.items():
        shape = (spec.num_envs,) if name.startswith("runner") else (spec.num_envs, 1)
        kind = torch.int64 if name.startswith("runner") else torch.float32
        actions[name] = torch.full(shape, value).to(kind)
    return env.step(actions)


def test_agents_of_one_type_share_a_behaviour_with_its_own_spaces():
    env = meadow(2)
    assert {name: spec.num_envs for name, spec in env.specs.items()} == {"runner": 4, "guard": 2}
    assert env.specs["runner"].observation.shape == (4,)
    assert env.specs["guard"].observation.shape == (3,)


def test_an_episode_row_by_row():
    """runner_1 dies at 3, guard_0 comes at 2, runner_0 is cut at 6; the copy is reset by the step after that."""
    env = meadow()
    first = env.reset(0)
    assert first["runner"][:, :3].tolist() == [[1, 1, 0], [2, 1, 0]]
    assert first["guard"].tolist() == [[0, 0, 0]]  # nobody there
    seen = []
    for _ in range(LENGTH + 1):
        step = act(env)
        runner, guard = step["runner"], step["guard"]
        rows = [*zip(runner.waits.tolist(), runner.reward.tolist(), runner.reset.tolist())]
        rows += [*zip(guard.waits.tolist(), guard.reward.tolist(), guard.reset.tolist())]
        ends = torch.cat((runner.terminated, guard.terminated)).tolist()
        cuts = torch.cat((runner.truncated, guard.truncated)).tolist()
        seen.append((rows, ends, cuts))
    wait, none = (True, 0.0, False), [False] * 3
    assert seen == [
        ([(False, 101.0, False), (False, 201.0, False), wait], none, none),
        ([(False, 102.0, False), (False, 202.0, False), (False, 0.0, True)], none, none),
        ([(False, 103.0, False), (False, 203.0, False), (False, 303.0, False)], [False, True, False], none),
        ([(False, 104.0, False), wait, (False, 304.0, False)], none, none),
        ([(False, 105.0, False), wait, (False, 305.0, False)], none, none),
        ([(False, 106.0, False), wait, (False, 306.0, False)], [False, False, True], [True, False, False]),
        ([(False, 0.0, True), (False, 0.0, True), wait], none, none),
    ]
    assert step["runner"].obs[:, :3].tolist() == [[1, 2, 0], [2, 2, 0]]


def test_actions_reach_the_agent_that_they_are_for():
    env = meadow(2)
    env.reset(0)
    for _ in range(3):
        step = env.step(
            {"runner": torch.tensor([0, 1, 1, 0]), "guard": torch.tensor([[0.5], [-1.0]])}
        )  # guards are there at the third
    assert step["guard"].waits.tolist() == [False, False]
    first, second = (copy.received[-1] for copy in env._envs)
    assert (first["runner_0"], first["runner_1"], second["runner_0"], second["runner_1"]) == (0, 1, 1, 0)
    assert (first["guard_0"].tolist(), second["guard_0"].tolist()) == ([1.0], [-2.0])  # of [-2, 2]


def test_copies_have_seeds_of_their_own_and_the_same_seed_repeats():
    env = meadow(2)
    one, two = env.reset(0)["runner"][:, 3].tolist()[::2]
    assert one != two
    assert env.reset(0)["runner"][::2, 3].tolist() == [one, two]
    assert env.reset(1)["runner"][::2, 3].tolist() != [one, two]


def test_a_snapshot_continues_in_the_middle_of_an_episode():
    env, other = meadow(2), meadow(2)
    env.reset(3)
    other.reset(4)
    for _ in range(4):
        act(env)
    other.restore(env.snapshot())
    for _ in range(2 * LENGTH):
        mine, theirs = act(env), act(other)
        for name in mine:
            for column in ("obs", "reward", "terminated", "truncated", "reset", "waits"):
                assert torch.equal(getattr(mine[name], column), getattr(theirs[name], column)), (name, column)


@pytest.mark.parametrize(
    ("sharing", "names"),
    [
        ("none", ["runner_0", "runner_1", "guard_0"]),
        ({"fast": "runner_*", "slow": ["guard_0"]}, ["fast", "slow"]),
    ],
)
def test_sharing_decides_who_has_a_policy_in_common(sharing, names):
    assert list(meadow(sharing=sharing).specs) == names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharing": "all"}, "runner_0 and guard_0 of meadow have different spaces"),
        ({"sharing": "kind"}, "sharing is 'kind'; use type, none, all"),
        ({"sharing": True}, "sharing is True; use type, none, all"),
        ({"sharing": {"fast": 3}}, "sharing is {'fast': 3}; use type, none, all or a mapping"),
        ({"sharing": {"fast": "runner_*"}}, "agent 'guard_0' of meadow belongs to no behaviour"),
        ({"sharing": {"a": "*", "b": "guard_0"}}, "agent 'guard_0' of meadow belongs to a and b"),
        ({"sharing": {"a": "*_[01]", "b": "x"}}, "no agent of meadow is in behaviour 'b'"),
        ({"behavior": "guards"}, "no behaviour 'guards'; did you mean 'guard'"),
        ({"frame_stack": 4}, "frame_stack can't change"),
        ({"copies": 0}, "copies"),
        ({"level": 3}, "takes no option 'level'"),
    ],
)
def test_mistakes_in_options_are_one_sentence(options, message):
    with pytest.raises(WhorlError, match=r".") as error:
        whorl.load(Meadow, "ppo", env_options=options)
    assert message in str(error.value)


def test_one_behaviour_alone_is_an_ordinary_run_and_the_others_do_nothing():
    env = OneBehavior(meadow(1, behavior="guard"))
    env.reset(0)
    for _ in range(3):
        step = env.step(torch.tensor([[0.5]]))
    assert env.env._envs[0].received[-1] == {"runner_0": 0, "runner_1": 0, "guard_0": pytest.approx(1.0)}
    assert step.reward.tolist() == [303.0]


class Vanishing(Meadow):
    def step(self, actions):
        obs, reward, terminated, truncated, infos = super().step(actions)
        if self.time == 3:
            terminated["runner_1"] = False
        return obs, reward, terminated, truncated, infos


class Blind(Meadow):
    def step(self, actions):
        obs, *rest = super().step(actions)
        obs.pop("runner_0")
        return (obs, *rest)


class Lingering(Meadow):
    """Keeps agents in its list that have ended."""

    def step(self, actions):
        self.agents = [agent for agent in self.agents if agent in actions]
        result = super().step(actions)
        self.agents += [agent for agent in actions if agent not in self.agents]
        return result


def test_agents_that_ended_get_no_action_even_where_the_environment_keeps_them():
    source = find(Lingering, {"copies": 1})
    env = source.adapter.behavior_env(source)
    env.reset(0)
    steps = [act(env)["runner"].waits.tolist() for _ in range(LENGTH + 1)]
    assert steps == [[False, False]] * 3 + [[False, True]] * 3 + [[False, False]]
    assert [sorted(one) for one in env._envs[0].received[3:]] == [["guard_0", "runner_0"]] * 3


class Ghostly(Meadow):
    """Agents that have ended are there until the reset, with observations, and are terminated at each step."""

    def step(self, actions):
        self.agents = list(actions)
        obs, reward, terminated, truncated, infos = super().step(actions)
        appeared = [agent for agent in obs if agent not in actions]
        self.ghosts = dict.fromkeys([*(self.ghosts if self.time > 1 else ()), *actions, *appeared])
        self.agents = list(self.ghosts)
        ended = {agent: terminated.get(agent, agent not in obs) for agent in self.agents}
        return self._observe(self.agents), reward, ended, truncated, infos


def test_an_agent_that_ended_and_stays_in_the_list_stays_ended_until_the_reset():
    plain, source = meadow(), find(Ghostly, {"copies": 1})
    env = source.adapter.behavior_env(source)
    plain.reset(0)
    env.reset(0)
    for _ in range(2 * LENGTH + 2):
        expected, found = act(plain), act(env)
        for name in ("runner", "guard"):
            for column in ("obs", "reward", "terminated", "truncated", "reset", "waits"):
                assert torch.equal(getattr(found[name], column), getattr(expected[name], column)), column


class Failing(Meadow):
    def step(self, actions):
        raise KeyError("wind")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Vanishing, "agent 'runner_1' left copy 0 of vanishing and is neither terminated nor truncated"),
        (Blind, "returns no observation for agent 'runner_0', which is alive"),
        (Failing, "copy 0 of failing, step() raised KeyError"),
    ],
)
def test_mistakes_of_an_environment_name_the_agent_and_the_copy(kind, message):
    source = find(kind, {"copies": 1})
    env = source.adapter.behavior_env(source)
    env.reset(0)
    with pytest.raises(EnvError) as error:
        for _ in range(LENGTH):
            act(env)
    assert message in str(error.value)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr("whorl.envs.adapters.pettingzoo.find_spec", lambda name: None)
    with pytest.raises(WhorlError, match=r"pettingzoo is not installed; install it with: .*\[pettingzoo\]"):
        whorl.load("pettingzoo:butterfly.pistonball_v6", "ppo")


def test_ids_name_modules_and_foreign_ones_need_trust():
    assert module_of("pettingzoo:butterfly.pistonball_v6") == ""
    assert module_of("pettingzoo:mpe2.simple_tag_v3") == "mpe2.simple_tag_v3"
    assert module_of("pettingzoo:zoo:Meadow") == "zoo"
    handler = (
        "pettingzoo:pettingzoo.utils.deprecated_module:deprecated_handler"  # imports what its arguments name
    )
    assert module_of(handler) == "pettingzoo.utils.deprecated_module"
    assert find("pettingzoo:zoo:Meadow", {"copies": 3}).behavior("runner").num_envs == 6
    with pytest.raises(EnvError, match="zoo has no Valley"):
        whorl.load("pettingzoo:zoo:Valley", "ppo")


def test_parameters_are_shared_by_the_agents_of_one_behaviour(tmp_path):
    """Two runners of two copies are four rows of one agent, whose rollout has rows of both."""
    trainer = whorl.load(
        Corridors,
        "ppo",
        env_options={"behavior": "runner", "copies": 2},
        num_steps=8,
        runs=str(tmp_path),
        quiet=True,
        tensorboard=False,
        eval=False,
    ).build()
    assert trainer.settings.run.num_envs == 4
    assert trainer.agent.spec.num_envs == 4


def test_num_envs_that_agents_cannot_share_is_an_error():
    with pytest.raises(ConfigError, match="num_envs is 3, which 2 agents"):
        whorl.load(Meadow, "ppo", env_options={"behavior": "runner"}, num_envs=3).build()


def test_check_plays_with_random_actions_and_names_the_first_mistake():
    assert whorl.check(Meadow) == []
    assert whorl.check("pettingzoo:zoo:Rounds") == []
    assert whorl.check(Vanishing) == [
        "agent 'runner_1' left copy 0 of vanishing and is neither terminated nor truncated"
    ]
    assert "lead to other episodes" in whorl.check(Restless)[0]


class Restless(Meadow):
    """Draws random numbers that the seed does not determine."""

    def reset(self, seed=None, options=None):
        self.random = np.random.default_rng()
        return super().reset(None, options)
