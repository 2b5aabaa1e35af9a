"""Random cases of four kinds; see cases.py. In the gate few of each, `make test-full` runs thousands."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
import cases
import checkpoints
import command_lines
import configurations
import spaces


def test_random_settings_resolve_or_are_refused_in_one_sentence() -> None:
    ends = cases.run_all(configurations.resolve, configurations.__file__, 100)
    assert ends["resolved"] >= sum(ends.values()) // 4


def test_random_settings_train_or_are_refused_in_one_sentence() -> None:
    ends = cases.run_all(configurations.train, configurations.__file__, 15, "train")
    assert ends["trained"] >= sum(ends.values()) // 5


def test_random_spaces_go_through_check_training_and_a_saved_policy() -> None:
    ends = cases.run_all(spaces.travel, spaces.__file__, 5)
    assert ends["acts"] >= sum(ends.values()) // 2


def test_damaged_runs_load_what_was_saved_or_nothing() -> None:
    ends = cases.run_all(checkpoints.load, checkpoints.__file__, 12)
    assert ends["policy"] and ends["state"]


def test_random_command_lines_end_with_a_status_and_a_sentence() -> None:
    ends = cases.run_all(command_lines.run, command_lines.__file__, 50)
    assert ends["status 0"] >= sum(ends.values()) // 5


@pytest.mark.full
def test_two_thousand_random_settings() -> None:
    cases.run_all(configurations.resolve, configurations.__file__, 2000)


@pytest.mark.full
def test_two_thousand_random_settings_are_trained() -> None:
    cases.run_all(configurations.train, configurations.__file__, 2000, "train")


@pytest.mark.full
def test_three_hundred_random_spaces() -> None:
    cases.run_all(spaces.travel, spaces.__file__, 300)


@pytest.mark.full
def test_a_thousand_damaged_runs() -> None:
    cases.run_all(checkpoints.load, checkpoints.__file__, 1000)


@pytest.mark.full
def test_three_thousand_command_lines() -> None:
    cases.run_all(command_lines.run, command_lines.__file__, 3000)


def test_a_failure_names_the_command_that_repeats_it() -> None:
    def fails(draw: object, folder: Path) -> str:
        raise KeyError("a raw error")

    with pytest.raises(
        AssertionError, match=r"2 of 2 cases failed; .*\npython .*spaces\.py 0 train\n    KeyError"
    ):
        cases.run_all(fails, spaces.__file__, 2, "train")
