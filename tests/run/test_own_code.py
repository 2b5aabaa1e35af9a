"""Networks of the user's own: heads as well as torsos, saved with the run and trusted by their hash."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import whorl
from whorl.core.errors import CheckpointError, ConfigError
from whorl.core.registry import _registered
from whorl.state import checkpoint, code

SOURCE = """
import torch
from torch import nn

import whorl

print("own code runs")


class Torso(nn.Module):
    def __init__(self, inputs, width=8):
        super().__init__()
        self.layer = nn.Linear(inputs, width)

    def forward(self, value):
        return self.layer(value).relu()


@whorl.register("head", "scaled")
class Scaled(nn.Module):
    def __init__(self, inputs, outputs, scale=1.0):
        super().__init__()
        self.layer, self.scale = nn.Linear(inputs, outputs), scale

    def forward(self, value):
        return self.scale * self.layer(value)
"""
SMALL: dict[str, Any] = {
    "quiet": True,
    "tensorboard": False,
    "eval": False,
    "num_envs": 2,
    "num_steps": 16,
    "max_iterations": 1,
    "batch_size": 16,
    "device": "cpu",
    "workers": 0,
}
SAC = {**SMALL, "learning_starts": 16, "random_steps": 0, "buffer_size": 200, "updates_per_step": 0.2}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path with the module whorl_own_nets."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "whorl_own_nets.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.import_module("whorl_own_nets")
    yield folder
    leave()
    code._admitted.clear()


def leave() -> None:
    """Forget the module, as another machine that never had it."""
    sys.modules.pop("whorl_own_nets", None)
    _registered["head"].pop("scaled", None)
    sys.path[:] = [path for path in sys.path if not Path(path, "whorl_own_nets.py").exists()]
    importlib.invalidate_caches()


@pytest.fixture
def run(here: Path, tmp_path: Path) -> Path:
    given = {
        **SMALL,
        "runs": str(tmp_path / "runs"),
        "actor_network": "whorl_own_nets.Torso",
        "actor_head": {"class": "scaled", "scale": 2.0},
    }
    return whorl.train("CartPole-v1", "ppo", given).run_dir


def test_the_source_is_saved_with_every_checkpoint(run: Path) -> None:
    assert (run / "checkpoint_1" / "code" / "whorl_own_nets.py").read_text() == SOURCE
    assert checkpoint.load(run / "checkpoint_1").code == {"code/whorl_own_nets.py": SOURCE.encode()}


def test_a_run_restores_with_its_own_networks_where_they_are_not_installed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = whorl.restore(run, trust=["whorl_own_nets"]).agent.state_dict()
    flag = code.flag(checkpoint.load(run / "checkpoint_1").code)
    leave()
    capsys.readouterr()
    policy = whorl.restore(run, trust=[flag])
    assert "own code runs" in capsys.readouterr().out
    assert policy.agent.actor.head.logits.scale == 2.0
    assert all(torch.equal(value, weights[key]) for key, value in policy.agent.state_dict().items())
    assert whorl.evaluate(run, 1, max_steps=3, trust=[flag]).lengths
    assert whorl.resume(run, max_iterations=2, trust=[flag]).iterations == 2


def test_nothing_of_it_runs_without_the_flag(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flag = code.flag(checkpoint.load(run / "checkpoint_1").code)
    leave()
    capsys.readouterr()
    for load in (whorl.restore, whorl.resume, whorl.evaluate):
        with pytest.raises(ConfigError, match=rf"if you trust it.*saved in .*checkpoint_1.code.*{flag}"):
            load(run)
    assert "own code runs" not in capsys.readouterr().out
    assert "whorl_own_nets" not in sys.modules


def test_the_hash_of_a_result_is_that_of_the_saved_files(here: Path, tmp_path: Path) -> None:
    """Not of the files as they are when training ends: they may have been edited since."""

    class Edits(whorl.Callback):
        def on_rollout(self, trainer: Any, rollout: Any) -> None:
            (here / "whorl_own_nets.py").write_text("edited = True\n")

    given = {**SMALL, "runs": str(tmp_path / "runs"), "actor_network": "whorl_own_nets.Torso"}
    result = whorl.load("CartPole-v1", "ppo", given, callbacks=[Edits()]).train()
    assert "edited" in (here / "whorl_own_nets.py").read_text()
    assert result.code == code.flag(checkpoint.load(result.run_dir / "checkpoint_1").code)


def test_a_hash_in_capitals_is_the_same_hash(run: Path) -> None:
    flag = code.flag(checkpoint.load(run / "checkpoint_1").code)
    leave()
    assert whorl.restore(run, trust=[f"code:{flag.removeprefix('code:').upper()}"])


@pytest.mark.parametrize("layers", [{"whorl_own_nets.Torso": 1}, {"whorl_own_nets.Torso"}, "Tanh", None])
def test_layers_are_a_list_so_that_trust_is_asked_for_each(here: Path, layers: Any) -> None:
    leave()
    for setting in ("trunk_network", "advantage_network"):
        trainer = whorl.load("CartPole-v1", "dqn", {**SAC, setting: {"class": "layers", "layers": layers}})
        with pytest.raises(ConfigError, match=r"layers is .*; it must be a list"):
            trainer.build()
    assert "whorl_own_nets" not in sys.modules


def test_altered_code_is_refused_and_does_not_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flag = code.flag(checkpoint.load(run / "checkpoint_1").code)
    leave()
    capsys.readouterr()
    (run / "checkpoint_1" / "code" / "whorl_own_nets.py").write_text(SOURCE.replace("own code", "OWN CODE"))
    with pytest.raises(CheckpointError, match="does not match its sha256"):
        whorl.restore(run / "checkpoint_1", trust=[flag])
    found = checkpoint.Loaded(run, {}, {}, {}, {}, {"code/whorl_own_nets.py": b"print('OWN CODE runs')"})
    with pytest.raises(ConfigError, match=r"has another hash \(code:[0-9a-f]{32}\): it was altered"):
        code.admit(found.code, [flag])
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("code:12ab", "at least 32 hexadecimal digits"),
        ("code:", "at least 32 hexadecimal digits"),
        ("code:" + "z" * 32, "at least 32 hexadecimal digits"),
    ],
)
def test_a_hash_that_is_too_short_to_trust_is_refused(entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        code.admit({"code/mine.py": b"x = 1"}, [entry])


def test_a_hash_for_a_run_without_code_says_so() -> None:
    with pytest.raises(ConfigError, match="no code is saved with this run"):
        code.admit({}, ["code:" + "0" * 32])


def test_another_module_of_the_same_name_is_not_mistaken_for_it(run: Path, here: Path) -> None:
    flag = code.flag(checkpoint.load(run / "checkpoint_1").code)
    (here / "whorl_own_nets.py").write_text(SOURCE + "\nother = 1\n")
    with pytest.raises(ConfigError, match="on this machine is another one; trust that one by its name"):
        whorl.restore(run, trust=[flag])


def test_a_package_that_is_a_module_here_is_refused_in_one_sentence() -> None:
    saved = {"code/abc/nets.py": b"value = 1\n"}
    with pytest.raises(ConfigError, match=r"the code saved with this run can't be imported: abc\.nets"):
        code.admit(saved, [code.flag(saved)])


def test_names_that_lead_out_of_the_folder_are_no_code(run: Path) -> None:
    for name in ("code/../x.py", "code/.hidden.py", "/code/x.py", "code/x.pyc", "code/a b.py", "code/x.so"):
        assert checkpoint._CODE.fullmatch(name) is None
    assert checkpoint._CODE.fullmatch("code/mypackage/__init__.py")


def test_save_code_false_saves_none(here: Path, tmp_path: Path) -> None:
    given = {
        **SMALL,
        "runs": str(tmp_path / "runs"),
        "actor_network": "whorl_own_nets.Torso",
        "save_code": False,
    }
    run = whorl.train("CartPole-v1", "ppo", given).run_dir
    assert not (run / "checkpoint_1" / "code").exists()


def test_a_run_without_code_of_its_own_saves_none(tmp_path: Path) -> None:
    run = whorl.train("CartPole-v1", "ppo", {**SMALL, "runs": str(tmp_path)}).run_dir
    assert not (run / "checkpoint_1" / "code").exists()


# Heads


class Doubled(nn.Module):
    """A head with twice the linear output."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * self.layer(value)


class Narrow(nn.Module):
    """A head with too few outputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 1)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.layer(value)


@pytest.mark.parametrize(
    ("algorithm", "env", "places"),
    [
        ("ppo", "CartPole-v1", {"actor.head.logits": 2, "critic.head": 1}),
        ("ppo", "Pendulum-v1", {"actor.head.mean": 1, "critic.head": 1}),
        ("sac", "Pendulum-v1", {"actor.head.both": 2, "critic.nets.heads.0": 1, "critic.nets.heads.1": 1}),
        ("sac", "CartPole-v1", {"actor.head.logits": 2, "critic.nets.heads.0": 2}),
        ("tqc", "Pendulum-v1", {"actor.head.both": 2, "critic.nets.heads.4": 25}),
        ("td3", "Pendulum-v1", {"actor.head.action": 1, "critic.nets.heads.1": 1}),
        ("ddpg", "Pendulum-v1", {"actor.head.action": 1, "critic.nets.heads.0": 1}),
    ],
)
def test_a_head_of_ones_own_is_used_and_trained(
    algorithm: str, env: str, places: dict[str, int], tmp_path: Path
) -> None:
    small = SMALL if algorithm == "ppo" else SAC
    given = {
        **small,
        "runs": str(tmp_path),
        "actor_head": Doubled,
        "critic_head": Doubled,
        "save_code": False,
    }
    with whorl.load(env, algorithm, given).build() as trainer:
        before = {name: value.clone() for name, value in trainer.agent.state_dict().items()}
        trainer.step()
        after = trainer.agent.state_dict()
        for place, outputs in places.items():
            head = trainer.agent.get_submodule(place)
            assert isinstance(head, Doubled) and head.layer.out_features == outputs
            assert not torch.equal(before[f"{place}.layer.weight"], after[f"{place}.layer.weight"])


def test_a_head_described_by_hidden_layers_ends_in_a_linear_one(tmp_path: Path) -> None:
    given = {**SMALL, "runs": str(tmp_path), "actor_head": [{"class": "Linear", "out_features": 5}, "ELU"]}
    with whorl.load("CartPole-v1", "ppo", given).build() as trainer:
        head = trainer.agent.actor.head.logits
        assert [type(layer).__name__ for layer in head] == ["Linear", "ELU", "Linear"]
        assert head[2].in_features == 5 and head[2].out_features == 2


def test_a_head_with_too_few_outputs_is_refused() -> None:
    with pytest.raises(ConfigError, match="has 1 outputs for 64 inputs; this action space needs 2"):
        whorl.load("CartPole-v1", "ppo", {**SMALL, "actor_head": Narrow}).build()


def test_mean_init_needs_the_linear_head() -> None:
    with pytest.raises(ConfigError, match=r"mean_init is 0\.5, which needs actor_head linear"):
        whorl.load("Pendulum-v1", "ppo", {**SMALL, "actor_head": Doubled, "mean_init": 0.5}).build()
