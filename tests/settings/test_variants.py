"""Named variants inside one file of settings, and the template of a run folder's name."""

import socket
from pathlib import Path

import pytest

import whorl
from whorl.core.errors import ConfigError
from whorl.settings.presets import read_file
from whorl.settings.run import RunConfig
from whorl.settings.schema import build

TEXT = """
gamma: 0.9
num_envs: 4
variants:
  wide: {net_arch: [128, 128], num_envs: 8}
  deep: {net_arch: [32, 32, 32]}
  wide_slow: {inherits: wide, learning_rate: 1e-5}
  both: {inherits: [wide, deep], num_envs: 16}
  turning: {inherits: round}
  round: {inherits: turning}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    return str(path)


def test_without_a_name_the_variants_are_left_out(file: str) -> None:
    assert read_file(file) == [{"gamma": 0.9, "num_envs": 4}]


def test_a_variant_comes_over_the_file_and_over_what_it_inherits_from(file: str) -> None:
    settings = whorl.load("CartPole-v1", "ppo", files=[f"{file}:wide_slow"]).settings
    assert (settings.gamma, settings.num_envs, settings.actor_lr) == (0.9, 8, 1e-5)
    assert settings.actor_hidden_sizes == (128, 128)
    settings = whorl.load("CartPole-v1", "ppo", files=[f"{file}:both"]).settings
    assert (settings.num_envs, settings.actor_hidden_sizes) == (16, (32, 32, 32))


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("wid", "has no variant 'wid'; did you mean 'wide'"),
        ("round", "variant 'round' in .* inherits from itself"),
    ],
)
def test_a_wrong_variant_is_one_sentence(variant: str, message: str, file: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_file(f"{file}:{variant}")


def test_variants_must_be_mappings(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("variants: [wide]")
    with pytest.raises(ConfigError, match="must be a mapping of names to settings"):
        read_file(path)


def test_a_file_with_a_colon_in_its_name_is_that_file(tmp_path: Path) -> None:
    for name, text in (("a.yaml", "variants: {b: {gamma: 0.1}}"), ("a.yaml:b", "gamma: 0.2")):
        (tmp_path / name).write_text(text)
    assert read_file(tmp_path / "a.yaml:b") == [{"gamma": 0.2}]


def test_the_name_of_a_run_folder_is_filled_in(tmp_path: Path) -> None:
    small = {
        "num_envs": 2,
        "num_steps": 8,
        "max_iterations": 1,
        "batch_size": 16,
        "quiet": True,
        "eval": False,
    }
    small |= {"save_model": False, "tensorboard": False, "runs": str(tmp_path), "seed": 7, "tag": "try"}
    name = "{algo}-{env}-{seed}-{host}-{tag}"
    folders = [whorl.train("CartPole-v1", "ppo", name=name, **small).run_dir.name for _ in range(2)]
    assert folders[0] == f"ppo-CartPole-v1-7-{socket.gethostname()}-try"
    assert folders[1] == f"{folders[0]}_2"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{sed}", r"name is '\{sed\}'; \{sed\} is not known: did you mean 'seed'"),
        ("{seed", "which is not a template"),
        ("{time:03d}", r"name is '\{time:03d\}'; words in braces take no format: \{time\}"),
        ("{seed!x}", r"words in braces take no format: \{seed\}"),
        ("{tag:{env}}", r"words in braces take no format: \{tag\}"),
    ],
)
def test_a_wrong_template_is_one_sentence(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(RunConfig, {"name": name})
