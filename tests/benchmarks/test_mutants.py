"""Every planted mistake can still be planted, and what its tests said is told."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import mutants
from mutations import MUTATIONS, Mutation

ROOT = mutants.ROOT


def test_every_mutation_applies_exactly_once() -> None:
    for mutation in MUTATIONS:
        text = (ROOT / mutation.file).read_text()
        assert mutation.apply(text) != text


def test_the_tests_of_every_mutation_exist() -> None:
    for mutation in MUTATIONS:
        assert mutation.tests
        for test in mutation.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).is_file(), f"{mutation.name}: {file} is missing"
            assert not name or f"def {name}(" in (ROOT / file).read_text(), (
                f"{mutation.name}: {test} is missing"
            )


def test_no_two_mutations_are_called_the_same() -> None:
    assert max(Counter(mutation.name for mutation in MUTATIONS).values()) == 1


def test_a_text_that_is_gone_or_not_unique_is_an_error() -> None:
    mutation = Mutation("whorl/x.py", "a bug", "a + b", "a - b", ("tests/x.py",))
    assert mutation.apply("y = a + b") == "y = a - b"
    for text in ("y = a * b", "y = a + b\nz = a + b"):
        with pytest.raises(ValueError, match=r"x\.py: a bug: 'a \+ b' occurs [02] times in whorl/x\.py"):
            mutation.apply(text)


def test_survivors_are_named_with_their_reasons_and_killed_ones_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = [
        Mutation("whorl/ops/x.py", "sign", "a", "b", ()),
        Mutation("whorl/ops/x.py", "axis", "a", "b", (), "both axes have one entry"),
        Mutation("whorl/run/y.py", "counter", "a", "b", ()),
    ]
    monkeypatch.setattr(mutants, "MUTATIONS", table)
    outcomes = ("killed", "survived", "killed")
    records = {mutation.name: {"outcome": outcome, "by": ""} for mutation, outcome in zip(table, outcomes)}
    lines = mutants.summary(records).splitlines()
    assert lines[-2:] == [
        "survived: ops/x.py: axis (both axes have one entry)",
        "2 of 3 killed: 66.7 %",
    ]


def test_the_result_of_a_survivor_counts_until_its_file_or_its_tests_change(tmp_path: Path) -> None:
    mutation = MUTATIONS[0]
    record = {"name": mutation.name, "outcome": "survived", "by": "", "thorough": False}
    record["fingerprint"] = mutants.fingerprint(mutation, "")
    path = tmp_path / "mutants.jsonl"
    mutants.write({mutation.name: record, "gone: a bug": {"name": "gone: a bug"}}, path)
    records = mutants.load(path)
    assert records == {mutation.name: record}
    assert mutants.known(mutation, records, thorough=False)
    assert not mutants.known(mutation, records, thorough=True)
    assert not mutants.known(mutation, {mutation.name: {**record, "fingerprint": "other"}}, thorough=False)


def test_a_killed_one_depends_on_the_test_that_killed_it_and_not_on_its_neighbours(tmp_path: Path) -> None:
    mutation = Mutation("x.py", "a bug", "a", "b", ("test_x.py",))
    (tmp_path / "x.py").write_text("a = 1")

    def mark(text: str, by: str) -> str:
        (tmp_path / "test_x.py").write_text(text)
        return mutants.fingerprint(mutation, by, tmp_path)

    one, two = "def test_one():\n    assert a\n", "def test_two():\n    assert b\n"
    by = "test_x.py::test_one[3]"
    assert mark(one, by) == mark(two + one, by) != mark(one.replace("assert a", "assert c"), by)
    assert mark(two, by) not in (mark(one, by), mark(one, ""))
    assert mark(one, "") != mark(two + one, "")


def test_the_test_that_noticed_before_comes_first_if_it_is_still_one_of_its_tests() -> None:
    mutation = Mutation("x.py", "a bug", "a", "b", ("tests/test_x.py", "tests/test_y.py::test_one"))

    def first(by: str) -> str | None:
        return mutants.killer(mutation, {mutation.name: {"by": by}})

    assert first("tests/test_x.py::test_two[3]") == "tests/test_x.py::test_two[3]"
    assert first("tests/test_z.py::test_two") is None
    assert first("no end within 600 s") is None and first("") is None
    assert mutants.killer(mutation, {}) is None
