"""Demonstrations of QuadInvPendulum-v0: a regulator swings the chain up, and its episodes become a dataset."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("minari")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import swing_up

from whorl.datasets.minari import open_dataset


def test_demonstrations_end_upright_and_hold_what_the_environment_gave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swing_up.record(8, tmp_path / "shown", steps=200, disturbed=0.1, noise=0.1, seed=0)
    assert "episodes end upright" in capsys.readouterr().out
    episodes = list(open_dataset(str(tmp_path / "shown")).iterate_episodes())
    assert len(episodes) >= 4
    for episode in episodes:
        assert episode.observations.shape == (201, 14) and episode.actions.shape == (200, 1)
        assert episode.rewards[-20:].mean() > 0.7 and abs(episode.actions).max() <= 1
        assert episode.truncations.tolist() == [False] * 199 + [True] and not episode.terminations.any()
