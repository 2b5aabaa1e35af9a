"""What all fuzz tests share: a case is a number, from which everything in it is drawn.

A test runs many cases and names the command that runs each one that failed again, with its traceback. `FUZZ_SEED` in
the environment is the number of the first case (default 0), `FUZZ_COUNT` how many are run (default: the test's own).
"""

import os
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from whorl.core.errors import WhorlError

Case: TypeAlias = Callable[[random.Random, Path], str]
"""runs a case in a folder of its own and says in a word how it ended; raises where it found a mistake"""
LONGEST = 900
"""characters of a message that is still one sentence; some of them list all valid names"""


def run(case: Case, number: int) -> str:
    """Run one case; a WhorlError of one sentence is a good end, any other exception is not."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return case(random.Random(number), Path(folder))
        except WhorlError as error:
            check_sentence(error)
            return type(error).__name__


def check_sentence(error: WhorlError) -> None:
    """A message that a user can act upon: not empty, one line, not a dump of something."""
    text = error.message
    assert text and "\n" not in text and len(text) <= LONGEST, (
        f"{type(error).__name__} is no sentence: {text!r}"
    )
    assert "Traceback" not in text and "object at 0x" not in text, f"internals in a message: {text!r}"


def run_all(case: Case, script: str, count: int, *flags: str) -> Counter[str]:
    """Run `count` cases; how often each end was reached. The error names the command of each case that failed."""
    first, count = int(os.environ.get("FUZZ_SEED", "0")), int(os.environ.get("FUZZ_COUNT", count))
    ends: Counter[str] = Counter()
    failures = []
    for number in range(first, first + count):
        try:
            end = run(case, number)
        except Exception as error:  # every exception is a finding
            command = " ".join(["python", os.path.relpath(script), str(number), *flags])
            failures.append(f"{command}\n    {type(error).__name__}: {str(error)[:400]}")
        else:
            ends[end] += 1
    assert not failures, f"{len(failures)} of {count} cases failed; run one again with\n" + "\n".join(
        failures
    )
    return ends


def main(cases: dict[str, Case]) -> None:
    """The command line of a script: the number of a case and, where there are several kinds, its kind."""
    number, *kind = sys.argv[1:]
    name = kind[0] if kind else next(iter(cases))
    sys.stdout.write(f"{run(cases[name], int(number))}\n")
