"""Pictures of attention: the weights of an episode, by the steps that were attended to."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import whorl
from whorl.cli import main
from whorl.core.errors import WhorlError
from whorl.log.attention import plot_attention
from whorl.run.attention import attention_weights

SMALL = {
    "num_envs": 4,
    "num_steps": 16,
    "batch_size": 32,
    "chunk_length": 16,
    "n_epochs": 1,
    "total_timesteps": 64,
    "eval": False,
    "quiet": True,
}


def trained(folder: Path, **settings: object) -> Path:
    return Path(whorl.train("TMaze-v0", "ppo", {**SMALL, **settings, "runs": str(folder)}).run_dir)


def test_each_step_attends_to_its_window_and_the_weights_sum_to_one(tmp_path: Path) -> None:
    run = trained(
        tmp_path, memory="attention", memory_window=5, memory_heads=2, memory_size=8, memory_layers=2
    )
    policy = whorl.restore(run)
    lengths: list[int] = []

    def play() -> int:
        lengths.extend(whorl.evaluate(policy, 1).lengths)
        return lengths[0]

    found = attention_weights(policy.agent, play)
    assert list(found)[:2] == ["actor, layer 1", "actor, layer 2"]
    weights, steps = found["actor, layer 2"], lengths[0]
    assert weights.shape == (2, steps, steps)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    rows, columns = np.indices((steps, steps))
    outside = (columns > rows) | (columns <= rows - 5)
    assert (weights[:, outside] == 0).all() and (weights[:, ~outside] > 0).all()
    assert whorl.evaluate(policy, 1).lengths == lengths  # nothing is recorded any more, and nothing changed

    assert main(["plot", str(run), "--attention"]) == 0
    assert (run / "attention.png").stat().st_size > 5000


def test_a_policy_without_attention_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, memory="gru", memory_size=4)
    with pytest.raises(WhorlError, match="has no memory by attention; train one with --memory attention"):
        attention_weights(whorl.restore(run).agent, lambda: 0)
    assert main(["plot", str(run), str(run), "--attention"]) != 0
    assert "--attention draws one run, but 2 were named" in capsys.readouterr().err


def test_pictures_are_written_as_other_plots_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"actor, layer 1": np.eye(3)[None]}
    with pytest.raises(WhorlError, match=r"a plot can't be written as 'a\.gif'; end the name in \.png"):
        plot_attention(weights, tmp_path / "a.gif", "attention")
    first, second = (
        plot_attention(weights, tmp_path / name, "attention").read_bytes() for name in ("a.svg", "b.svg")
    )
    assert first == second

    def disk_full(figure: Figure, path: Path, **_: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", disk_full)
    with pytest.raises(OSError, match="no space left"):
        plot_attention(weights, tmp_path / "a.svg", "attention")
    assert (tmp_path / "a.svg").read_bytes() == first and len(list(tmp_path.iterdir())) == 2
