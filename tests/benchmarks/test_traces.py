"""Two records of a run are equal, or the comparison says what differs; names alone make no difference."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import traces
from trace_cases import cases, content, flat
from traces import Compared, compare, compare_metrics, compare_settings, compare_tensors, first_difference

TENSORS = {"actor.weight": "aa", "actor.bias": "bb", "critic.bias": "bb"}
METRICS = {"steps": [64, 128, 192], "loss/critic": [0.5, None, 0.25], "time/elapsed": [1.0, 2.0, 3.0]}
RECORD = {"tensors": TENSORS, "metrics": METRICS, "counters": {"steps": 192}, "actions": ["[1]", "[0]"]}


def tensors(new: dict[str, str]) -> Compared:
    found = Compared()
    compare_tensors(TENSORS, new, found)
    return found


def metrics(new: dict[str, list[Any]]) -> Compared:
    found = Compared()
    compare_metrics(METRICS, new, found)
    return found


def test_a_record_equals_itself() -> None:
    assert compare(RECORD, RECORD) == Compared()


def test_a_tensor_of_other_content_is_a_difference() -> None:
    found = tensors({**TENSORS, "actor.weight": "cc"})
    assert found.differences == ["1 of 3 tensors differ: actor.weight"]


def test_a_tensor_that_is_gone_is_a_difference() -> None:
    found = tensors({"actor.weight": "aa", "actor.bias": "bb"})
    assert found.differences == ["1 of 3 tensors are missing: critic.bias"]


def test_of_two_equal_tensors_the_one_that_changed_is_named() -> None:
    found = tensors({**TENSORS, "actor.bias": "cc"})
    assert found.differences == ["1 of 3 tensors differ: actor.bias"]


def test_a_renamed_tensor_is_no_difference() -> None:
    found = tensors({"policy.weight": "aa", "actor.bias": "bb", "critic.bias": "bb"})
    assert found == Compared([], ["renamed tensors: actor.weight"])


def test_an_added_tensor_is_listed_and_is_no_difference() -> None:
    assert tensors({**TENSORS, "rnd.weight": "dd"}) == Compared([], ["new tensors: rnd.weight"])


def test_the_first_row_in_which_a_metric_differs_is_told() -> None:
    found = metrics({**METRICS, "loss/critic": [0.5, None, 0.125]})
    assert found.differences == ["1 of 3 metrics differ: loss/critic from row 2 on: 0.25, now 0.125"]


def test_of_several_metrics_the_one_that_differs_first_is_told() -> None:
    found = metrics({**METRICS, "steps": [64, 128, 191], "loss/critic": [0.25, None, 0.25]})
    assert found.differences == ["2 of 3 metrics differ: loss/critic from row 0 on: 0.5, now 0.25"]


def test_a_metric_with_fewer_rows_is_a_difference() -> None:
    found = metrics({**METRICS, "steps": [64, 128]})
    assert found.differences == ["1 of 3 metrics differ: steps from row 2 on: 192, now no row"]


def test_times_are_not_compared() -> None:
    assert metrics({**METRICS, "time/elapsed": [9.0, 9.0, 9.0]}) == Compared()


def test_a_metric_under_a_new_name_is_found_by_its_content() -> None:
    found = metrics({"steps": METRICS["steps"], "train/value_loss": METRICS["loss/critic"]})
    assert found == Compared([], ["metric loss/critic is called train/value_loss"])


def test_a_metric_under_a_listed_new_name_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(traces.RENAMED, "loss/critic", "train/value_loss")
    found = metrics({"steps": METRICS["steps"], "train/value_loss": [0.5, None, 0.75]})
    assert found.differences == ["1 of 3 metrics differ: loss/critic from row 2 on: 0.25, now 0.75"]


def test_a_metric_that_is_gone_is_a_difference() -> None:
    assert metrics({"steps": METRICS["steps"]}).differences == ["metric loss/critic is missing"]


def test_counters_and_actions_are_compared() -> None:
    found = compare(RECORD, {**RECORD, "counters": {"steps": 191}, "actions": ["[1]", "[1]"]})
    assert found.differences == ["steps: 192, now 191", "the trained policy's actions from number 1 on"]


def test_a_run_that_failed_is_a_difference() -> None:
    assert compare(RECORD, {"error": "ConfigError: no"}).differences == ["new failed: ConfigError: no"]


def test_settings_of_a_preset_are_compared_under_their_new_names() -> None:
    found, old = Compared(), {"ppo CartPole-v1": {"lanes": 8, "seed": 1, "gone": 2}}
    compare_settings(old, {"ppo CartPole-v1": {"num_envs": 4, "seed": 1}}, found)
    assert found.differences == [
        "preset ppo CartPole-v1, lanes: 8, now 4",
        "setting gone is missing in 1 presets; add its new name to RENAMED_SETTINGS",
    ]


def test_settings_in_groups_are_found_by_their_bare_names() -> None:
    part = {"class": "Adam", "eps": 1e-5}
    assert flat({"run": {"seed": 1}, "optimizer": part}) == {"seed": 1, "optimizer": part}


def test_content_tells_type_shape_and_sign_of_zero_apart() -> None:
    zero = torch.zeros(2)
    others = [zero.double(), zero.reshape(2, 1), -zero, torch.zeros(2, dtype=torch.int32)]
    assert len({content(value) for value in (zero, *others)}) == 5
    assert content(zero) == content(torch.zeros(4)[::2])


def test_sequences_of_different_length_differ_where_the_shorter_one_ends() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_every_update_rule_has_a_case() -> None:
    rules = {path.stem for path in (Path(traces.ROOT) / "whorl" / "algorithms").glob("[a-z]*.py")}
    assert rules <= {case.algorithm for case in cases()}
