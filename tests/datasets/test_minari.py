"""Datasets in Minari's format: what is recorded is what was played, and what is read is what was recorded."""

from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
import torch
from gymnasium import spaces
from scripted import NETS, SETTINGS, Match, random_episode, scripted, written

import whorl
from whorl.core import tree
from whorl.core.errors import ConfigError, WhorlError
from whorl.core.spec import MASK_KEY, Array, Discrete, Spec, as_nested, to_env
from whorl.data.batch import LAST
from whorl.data.replay import Replay, starts
from whorl.data.views import Sequences, Transitions
from whorl.datasets.minari import Episode, Writer, free_id, open_dataset
from whorl.datasets.rows import read
from whorl.envs.adapters.gymnasium import to_spec
from whorl.envs.spaces import make_layout

BOX = spaces.Box(np.float32([-1, 0]), np.float32([1, 5]))
ACTIONS: dict[str, spaces.Space] = {
    "continuous": BOX,
    "discrete": spaces.Discrete(4, start=2),
    "multi-discrete": spaces.MultiDiscrete([3, 2]),
    "multi-binary": spaces.MultiBinary(3),
    "tuple": spaces.Tuple((spaces.Discrete(3), BOX)),
    "dict": spaces.Dict(
        {"move": BOX, "tools": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Discrete(2)))}
    ),
}
OBSERVATIONS: dict[str, spaces.Space] = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "doubles": spaces.Box(-1, 1, (3,), np.float64),
    "image": spaces.Box(0, 255, (40, 36, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=1),
    "dict": spaces.Dict(
        {
            "z": spaces.Box(-1, 1, (2,), np.float32),
            "a": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))),
        }
    ),
}
PLAIN = spaces.Box(-1, 1, (1,), np.float32)


def spec_of(observation: spaces.Space, action: spaces.Space, num_envs: int = 1, **options: Any) -> Spec:
    return to_spec(make_layout(observation, action, **options), num_envs)


def numbered(values: list[float], ends: str) -> Episode:
    """An episode whose observations are these numbers, with actions of a tenth and rewards of twice as much."""
    steps = len(values) - 1
    last = [False] * (steps - 1)
    return Episode(
        observations=[np.float32([value]) for value in values],
        actions=[np.float32([value / 10]) for value in values[:-1]],
        rewards=[2 * value for value in values[:-1]],
        terminations=[*last, ends == "terminated"],
        truncations=[*last, ends == "truncated"],
    )


def replay(spec: Spec, view: Any, folder: Path, **options: Any) -> Replay:
    """A replay buffer filled from a dataset."""
    found = Replay(
        spec,
        "cpu",
        torch.Generator().manual_seed(0),
        view=view,
        gamma=0.5,
        buffer_size=200,
        batch_size=4,
        **options,
    )
    memory = options.get("memory")
    rows = read(str(folder), spec, view.span - 1, max(view.stride, found.ring.stride))
    expanded = (
        None if memory is None else tree.map(lambda leaf: leaf.expand(spec.num_envs, *leaf.shape[1:]), memory)
    )
    found.fill(rows.rollouts(expanded, found.ring.stride), rows.hash)
    return found


def every_start(found: Replay) -> torch.Tensor:
    start = starts(found.ring, found.view, 0, found.ring.rows - found.view.span)
    return start[found.view.allowed(found.ring, start)]


@pytest.mark.parametrize("action", ACTIONS)
def test_actions_of_every_kind_come_back_as_they_were_taken(action: str, tmp_path: Path) -> None:
    observed, space = OBSERVATIONS["vector"], ACTIONS[action]
    space.seed(3)
    episode = random_episode(observed, space, 6, terminated=True)
    spec = spec_of(observed, space)
    rows = read(str(written(tmp_path / "d", observed, space, [episode])), spec)
    back = as_nested(spec.action, tree.map(lambda leaf: leaf.numpy(), to_env(spec.action, rows.action)))
    for t, taken in enumerate(episode.actions):
        one = _at(back, t)
        assert _close(one, taken), (one, taken)


def _at(batch: Any, t: int) -> Any:
    if isinstance(batch, dict):
        return {key: _at(value, t) for key, value in batch.items()}
    return tuple(_at(value, t) for value in batch) if isinstance(batch, tuple) else batch[t, 0]


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_close(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return all(_close(a, b) for a, b in zip(one, other, strict=True))
    return one.shape == np.shape(other) and np.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_observations_of_every_kind_are_what_the_environment_would_give(kind: str, tmp_path: Path) -> None:
    space = OBSERVATIONS[kind]
    space.seed(5)
    episode = random_episode(space, PLAIN, 4, terminated=False)

    class Shows(gymnasium.Env):
        observation_space, action_space = space, PLAIN

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.time = 0
            return episode.observations[0], {}

        def step(self, action: Any) -> Any:
            self.time += 1
            return episode.observations[self.time], 0.0, False, self.time == 4, {}

    vector = whorl.make(Shows).source.vector(1)
    rows = read(str(written(tmp_path / "d", space, PLAIN, [episode])), vector.spec)
    seen = [tree.clone(vector.reset(0))]
    seen += [tree.clone(vector.step(torch.zeros(1, 1)).obs) for _ in range(4)]
    for t, obs in enumerate(seen):
        for mine, theirs in zip(tree.leaves(tree.index(rows.frames, t)), tree.leaves(obs), strict=True):
            assert mine.dtype == theirs.dtype
            assert mine.equal(theirs)


def test_a_terminal_state_ends_the_return_and_a_time_limit_bootstraps_from_the_final_observation(
    tmp_path: Path,
) -> None:
    episodes = [
        numbered([1, 2, 3], "terminated"),
        numbered([4, 5, 6], "truncated"),
        numbered([7, 8], "stops"),
    ]
    folder = written(tmp_path / "d", spaces.Box(0, 10, (1,), np.float32), PLAIN, episodes)
    found = replay(spec_of(spaces.Box(0, 10, (1,), np.float32), PLAIN), Transitions(), folder)
    batch = found.view.gather(found.ring, every_start(found), found.discounting)
    assert batch.obs[..., 0].tolist() == [[1, 2, 4, 5, 7], [2, 3, 5, 6, 8]]  # the final observation of each
    assert batch.reward[0].tolist() == [2, 4, 8, 10, 14]
    assert batch.discount[0].tolist() == [0.5, 0.0, 0.5, 0.5, 0.5]  # 0 after the terminal state alone
    assert batch.keep[0].tolist() == [1, 0, 1, 0, 0]
    torch.testing.assert_close(batch.action[0, :, 0], torch.tensor([0.1, 0.2, 0.4, 0.5, 0.7]))
    assert int(found.sampler.count) == 5  # every transition can be drawn
    assert not list(found.due())


def test_n_step_returns_stop_at_the_end_of_an_episode_and_reach_every_transition(tmp_path: Path) -> None:
    box = spaces.Box(0, 10, (1,), np.float32)
    episodes = [numbered([1, 2, 3], "terminated"), numbered([4, 5, 6], "truncated")]
    folder = written(tmp_path / "d", box, PLAIN, episodes)
    found = replay(spec_of(box, PLAIN), Transitions(n_step=3), folder)
    assert int(found.sampler.count) == 4
    batch = found.view.gather(found.ring, every_start(found), found.discounting)
    # 2 + .5 * 4, 4, then 8 + .5 * 10 and 10, which bootstrap from 6
    assert batch.reward[0].tolist() == [4, 4, 13, 10]
    assert batch.discount[0].tolist() == [0, 0, 0.25, 0.5]
    assert batch.obs[1, :, 0].tolist() == [3, 3, 6, 6]


def test_episodes_are_spread_over_environments_and_the_hash_is_of_the_data_alone(tmp_path: Path) -> None:
    box = spaces.Box(0, 20, (1,), np.float32)
    episodes = [numbered([n, n + 1, n + 2], "terminated") for n in (1, 4, 7)]
    folder = str(written(tmp_path / "d", box, PLAIN, episodes))
    spec = spec_of(box, PLAIN)
    one, two = read(folder, spec), read(folder, spec.with_num_envs(2))
    assert (one.rows, two.rows) == (9, 6)
    assert two.frames[:, :, 0].tolist() == [[1, 4], [2, 5], [3, 6], [7, 0], [8, 0], [9, 0], [0, 0]]
    assert two.mask.sum(0).tolist() == [4, 2]
    assert one.steps == two.steps == 6
    assert one.hash == two.hash
    assert one.returns == [6.0, 18.0, 30.0]
    episodes[1].rewards[0] += 1
    other = read(str(written(tmp_path / "e", box, PLAIN, episodes)), spec)
    assert other.hash != one.hash


def test_more_environments_than_episodes_leave_columns_empty(tmp_path: Path) -> None:
    box = spaces.Box(0, 20, (1,), np.float32)
    folder = written(tmp_path / "d", box, PLAIN, [numbered([1, 2, 3], "truncated")])
    found = replay(spec_of(box, PLAIN, 3), Transitions(), folder)
    assert int(found.sampler.count) == 2


def test_frame_stacks_are_those_of_the_episode(tmp_path: Path) -> None:
    box = spaces.Box(0, 20, (1,), np.float32)
    folder = written(
        tmp_path / "d", box, PLAIN, [numbered([1, 2, 3], "truncated"), numbered([7, 8], "truncated")]
    )
    spec = spec_of(box, PLAIN, stack=3)
    rollout = next(read(str(folder), spec).rollouts())
    stacks = [[1, 1, 1], [1, 1, 2], [1, 2, 3], [7, 7, 7], [7, 7, 8]]
    assert rollout.obs[:5, 0].tolist() == stacks
    found = replay(spec, Transitions(), folder)
    batch = found.view.gather(found.ring, every_start(found), found.discounting)
    assert batch.obs[1].tolist() == [stacks[1], stacks[2], stacks[4]]


def test_chunks_of_rows_are_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whorl.datasets.rows.CHUNK", 4)
    box = spaces.Box(0, 20, (1,), np.float32)
    folder = written(
        tmp_path / "d", box, PLAIN, [numbered(list(range(n, n + 6)), "truncated") for n in (1, 7)]
    )
    found = replay(spec_of(box, PLAIN), Transitions(), folder)
    batch = found.view.gather(found.ring, every_start(found), found.discounting)
    assert batch.obs[0, :, 0].tolist() == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert batch.obs[1, :, 0].tolist() == [2, 3, 4, 5, 6, 8, 9, 10, 11, 12]


def test_sequences_know_the_last_action_and_reward_before_their_first_row(tmp_path: Path) -> None:
    box = spaces.Box(0, 20, (1,), np.float32)
    folder = written(
        tmp_path / "d", box, PLAIN, [numbered([1, 2, 3, 4, 5, 6], "truncated"), numbered([7, 8], "stops")]
    )
    last = {"action": torch.zeros(1, 1), "reward": torch.zeros(1)}
    view = Sequences(3, stride=2, last=("action", "reward"))
    memory = {"net": torch.zeros(1, 2), LAST: last}
    found = replay(spec_of(box, PLAIN), view, folder, memory=memory, stride=2)
    batch = found.view.gather(found.ring, torch.tensor([1, 3]), found.discounting)  # rows 2 and 6
    torch.testing.assert_close(batch.last["action"][:, 0, 0], torch.tensor([0.2, 0.3, 0.4, 0.5]))
    assert batch.last["reward"][:, 0].tolist() == [4, 6, 8, 10]
    assert batch.last["reward"][0, 1] == 0  # row 6 starts an episode
    assert batch.mask.T.tolist() == [[1, 1, 1], [1, 0, 0]]


def test_masks_are_read_from_infos(tmp_path: Path) -> None:
    space, box = spaces.Discrete(3), spaces.Box(0, 20, (1,), np.float32)
    episode = numbered([1, 2, 3], "terminated")
    episode.actions = [0, 2]
    spec = Spec(
        {"obs": Array((1,), low=0.0, high=20.0), MASK_KEY: Array((3,), "bool", 0.0, 1.0)}, Discrete(3), 1
    )
    folder = written(tmp_path / "without", box, space, [episode])
    with pytest.raises(ConfigError, match="has none for each observation under infos"):
        read(str(folder), spec)
    masks = [np.array([1, 0, 1], bool), np.array([0, 0, 1], bool), np.array([1, 1, 1], bool)]
    episode.infos = {MASK_KEY: masks}
    rows = read(str(written(tmp_path / "with", box, space, [episode])), spec)
    assert rows.frames[MASK_KEY][:3, 0].tolist() == [list(mask) for mask in masks]


def test_what_does_not_fit_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    box = spaces.Box(0, 20, (1,), np.float32)
    folder = written(tmp_path / "d", box, PLAIN, [numbered([1, 2], "terminated")])
    with pytest.raises(
        ConfigError, match=r"has other spaces than the environment: action was Box.* and is Discrete"
    ):
        read(str(folder), spec_of(box, spaces.Discrete(2)))
    with pytest.raises(ConfigError, match=r"there is no dataset in '.*': metadata\.json is missing"):
        open_dataset(str(tmp_path))
    with pytest.raises(ConfigError, match="neither a folder nor an id with a version"):
        open_dataset("nothing")
    with pytest.raises(ConfigError, match=r"there is no dataset in '~/nothing': metadata\.json is missing"):
        open_dataset("~/nothing")
    with pytest.raises(ConfigError, match=r"there is a dataset in .* already"):
        written(tmp_path / "d", box, PLAIN, [])
    short = numbered([1, 2, 3], "terminated")
    del short.observations[-1]
    with pytest.raises(ConfigError, match=r"episode 0 .* has 2 observations for 2 steps"):
        read(str(written(tmp_path / "short", box, PLAIN, [short])), spec_of(box, PLAIN))


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    scripted(tmp_path / "mine", 2)
    assert open_dataset("~/mine").total_episodes == 2


def test_actions_beyond_their_bounds_are_clipped_to_them(tmp_path: Path) -> None:
    box = spaces.Box(0, 20, (1,), np.float32)
    episode = numbered([30, 2], "terminated")  # the action is 3, the bound 1
    rows = read(str(written(tmp_path / "d", box, PLAIN, [episode])), spec_of(box, PLAIN))
    assert rows.action[0].tolist() == [[1.0]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a policy of `Match`, hardly trained."""
    folder = tmp_path_factory.mktemp("runs")
    settings = {**SETTINGS, **NETS, "max_iterations": 2, "runs": str(folder), "name": "match"}
    return whorl.train(Match, "sac", settings).run_dir


def test_a_recording_is_loaded_by_minari_and_holds_what_the_policy_did(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    found = whorl.record(run, 5, env=Match)
    assert found.id == "whorl/Match/sac-v0"
    dataset = minari.load_dataset(found.id)
    assert (dataset.total_episodes, dataset.total_steps) == (5, 25) == (len(found.returns), found.steps)
    policy = whorl.restore(run)
    for episode in dataset:
        assert len(episode.observations) == 6
        assert episode.truncations.tolist() == [False] * 4 + [True]
        assert not episode.terminations.any()
        np.testing.assert_allclose(policy.act(episode.observations[:5]), episode.actions, atol=1e-6)
        earned = -np.abs(episode.actions - episode.observations[:5] / 2).sum(-1)
        np.testing.assert_allclose(earned, episode.rewards, atol=1e-6)
    assert sorted(found.returns) == pytest.approx(sorted(float(episode.rewards.sum()) for episode in dataset))
    assert dataset.storage.metadata["algorithm_name"] == "sac"
    assert free_id("whorl/Match/sac") == "whorl/Match/sac-v1"


def test_a_dict_whose_keys_gymnasium_sorts_is_read_in_the_order_of_the_environment(tmp_path: Path) -> None:
    settings = {**SETTINGS, **NETS, "num_envs": 2, "runs": str(tmp_path)}
    run = whorl.train("PointReach-v0", "sac", settings).run_dir
    whorl.record(run, 1, output=tmp_path / "data", max_steps=3)
    spec = whorl.make("PointReach-v0").source.spec(1)
    frames = read(str(tmp_path / "data"), spec).frames
    assert list(frames) == list(spec.observation) == ["observation", "achieved_goal", "desired_goal"]
    episode = next(minari.MinariDataset(tmp_path / "data" / "data").iterate_episodes())
    for key, values in frames.items():
        np.testing.assert_array_equal(values[:4, 0], episode.observations[key])


class Steered(gymnasium.Env):
    """Actions whose keys are not in alphabetical order."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Dict([("turn", spaces.Discrete(2)), ("go", spaces.Box(-1, 1, (1,)))])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.zeros(2, np.float32), float(action["go"][0]), False, self.count == 4, {}


def test_actions_whose_keys_gymnasium_sorts_are_read_in_the_order_of_the_environment(tmp_path: Path) -> None:
    small = {"num_envs": 2, "num_steps": 8, "total_timesteps": 16, "eval": False, "quiet": True, "workers": 0}
    run = whorl.train(Steered, "ppo", small, runs=str(tmp_path)).run_dir
    whorl.record(run, 1, env=Steered, output=tmp_path / "data" / "steered-v0")
    spec = whorl.make(Steered).source.spec(1)
    assert list(spec.action) == ["turn", "go"]
    found = read(str(tmp_path / "data" / "steered-v0"), spec)
    assert list(open_dataset(str(tmp_path / "data" / "steered-v0")).action_space) == ["go", "turn"]
    np.testing.assert_allclose(found.action["go"][:4, 0, 0], found.reward[:4, 0], atol=1e-6)
    assert found.action["turn"].dtype == torch.int64


def test_noise_without_continuous_actions_and_a_file_in_the_way_are_one_sentence(tmp_path: Path) -> None:
    small = {
        "num_envs": 2,
        "num_steps": 8,
        "batch_size": 16,
        "max_iterations": 1,
        "quiet": True,
        "eval": False,
    }
    chooses = whorl.train("CartPole-v1", "ppo", small, runs=str(tmp_path / "runs")).run_dir
    with pytest.raises(ConfigError, match="noise is for continuous actions, and this policy has none"):
        whorl.record(chooses, 1, output=tmp_path / "a", noise=0.1, max_steps=3)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(WhorlError, match=r"can't be written to .*file"):
        whorl.record(chooses, 1, output=tmp_path / "file", max_steps=3)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_recording_repeats_and_noise_and_epsilon_change_its_actions(run: Path, tmp_path: Path) -> None:
    policy = whorl.restore(run)

    def actions(name: str, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        found = whorl.record(policy, 4, env=Match, output=tmp_path / name, **options)
        episodes = list(minari.MinariDataset(found.folder / "data"))
        taken = np.concatenate([one.actions for one in episodes])
        return taken, np.concatenate([policy.act(one.observations[:-1]) for one in episodes])

    again, _ = actions("a")
    same, greedy = actions("b")
    np.testing.assert_array_equal(again, same)
    np.testing.assert_allclose(same, greedy, atol=1e-6)
    random, greedy = actions("c", epsilon=1.0)
    assert (np.abs(random - greedy).sum(-1) > 1e-3).all()
    some, greedy = actions("d", epsilon=0.5)
    assert 0.2 < (np.abs(some - greedy).sum(-1) > 1e-3).mean() < 0.8
    noisy, greedy = actions("e", noise=0.1)
    distance = (noisy - greedy) / np.float32([1, 1.25])  # scaled to [-1, 1]
    assert 0.05 < distance.std() < 0.2
    sampled, greedy = actions("f", deterministic=False)
    assert (np.abs(sampled - greedy).sum(-1) > 1e-3).all()
    assert (noisy >= [-1, -0.5]).all()
    assert (noisy <= [1, 2]).all()


def test_max_steps_truncates_a_recorded_episode(run: Path, tmp_path: Path) -> None:
    found = whorl.record(run, 2, env=lambda: Match(ends=True), output=tmp_path / "d", max_steps=3)
    for episode in minari.MinariDataset(found.folder / "data"):
        assert len(episode.observations) == 4
        assert episode.truncations.tolist() == [False, False, True]
        assert not episode.terminations.any()


def test_recording_is_interrupted_without_a_trace(run: Path, tmp_path: Path) -> None:
    class Breaks(Match):
        def step(self, action: Any) -> Any:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        whorl.record(run, 2, env=Breaks, output=tmp_path / "d")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="epsilon is 2"):
        whorl.record(run, 2, env=Match, output=tmp_path / "d", epsilon=2)
    with pytest.raises(WhorlError, match="episode"):
        whorl.record(run, 0, env=Match, output=tmp_path / "d")


def test_a_recurrent_policy_is_recorded_with_its_memory_and_the_actions_it_took(tmp_path: Path) -> None:
    settings = {
        **SETTINGS,
        **NETS,
        "memory": "gru",
        "memory_size": 4,
        "sequence_length": 4,
        "sequence_stride": 5,
    }
    settings |= {
        "last_action": True,
        "last_reward": True,
        "max_iterations": 2,
        "runs": str(tmp_path / "runs"),
    }
    policy = whorl.restore(whorl.train(Match, "sac", settings).run_dir)
    found = whorl.record(
        policy, 18, env=Match, output=tmp_path / "d", epsilon=0.3
    )  # two in some environments
    shares = []
    for episode in minari.MinariDataset(found.folder / "data"):
        policy.reset()
        same = []
        for t in range(5):
            reward = np.float32(0.0 if t == 0 else episode.rewards[t - 1])
            action = policy.act(episode.observations[t], reward=reward)
            same.append(np.allclose(action, episode.actions[t], atol=1e-6))
            policy.took(episode.actions[t])  # which may have been random
        shares.append(np.mean(same))
    assert min(shares) >= 0.2
    assert 0.6 < np.mean(shares) < 0.8


def test_a_scripted_dataset_has_the_spaces_of_its_environment(tmp_path: Path) -> None:
    folder = scripted(tmp_path / "d", 3)
    rows = read(str(folder), whorl.make(Match).source.spec(2))
    assert rows.steps == 15


def test_an_unreachable_server_is_one_sentence_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Minari itself, whose client would retry for half a minute, is not asked."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.delenv("MINARI_REMOTE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(minari, "load_dataset", lambda *given, **options: pytest.fail("asked"))
    with pytest.raises(ConfigError, match="can't be downloaded: the Hugging Face hub can't be reached"):
        open_dataset("D4RL/door/human-v2")


def test_an_environment_registered_by_a_function_is_recorded_without_its_registration(tmp_path: Path) -> None:
    registered = gymnasium.envs.registration.EnvSpec("ByFunction-v0", entry_point=lambda: None)
    with pytest.warns(UserWarning, match="does not say how to make its environment: Callable found"):
        writer = Writer("mine-v0", tmp_path / "mine", PLAIN, PLAIN, registered)
    writer.add(numbered([0.1, 0.2, 0.3], "terminated"))
    writer.finish()
    assert open_dataset(str(tmp_path / "mine")).total_episodes == 1
