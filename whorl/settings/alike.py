"""Settings that an unknown name may mean though it is no misspelling: the same in other words, or about the same thing.

`eval_interval` is `eval_freq`, `lr_actor` is `actor_lr`; of `epsilon_min` all that can be said is which settings are
about epsilon.
"""

from collections.abc import Mapping
from typing import Any

from whorl.settings.aliases import ALIASES, canonical

MOST_LISTED = 5

_SAME = {
    word: group.split()[0]
    for group in (
        "freq frequency interval every period",
        "coef coefficient coeff weight",
        "n num number",
        "total max",
        "initial init start begin",
        "final end min",
        "size sizes dim dims units",
        "steps timesteps frames",
        "episodes episode",
        "iterations iteration iters",
        "entropy ent",
        "epsilon eps",
        "obs observation observations",
        "normalize norm normalise normalization normalized",
        "gradient grad",
        "scale scaling",
        "checkpoint save",
        "log print logging",
        "eval evaluate evaluation evals",
        "actor policy pi",
        "critic value vf q qf",
        "dir folder path",
    )
    for word in group.split()
}
"""words of names, and the one that stands for all that mean the same"""

_VAGUE = {
    *(
        "n",
        "total",
        "size",
        "freq",
        "coef",
        "steps",
        "initial",
        "final",
        "use",
        "dir",
        "scale",
        "update",
        "batch",
    ),
    *("actor", "critic", "env", "target", "normalize", "per", "length", "on"),
}
"""words that say too little of what a setting is about"""


def _words(name: str) -> frozenset[str]:
    name = name.lower().replace("-", "_").replace("learning_rate", "lr")
    return frozenset(_SAME.get(word, word) for word in name.split("_") if word)


def same_meaning(name: str, hints: Mapping[str, Any]) -> list[str]:
    """The settings among `hints` whose names or aliases say the same as `name`, in other words or another order."""
    spellings = [*hints, *(alias for alias in ALIASES if canonical(alias, hints) in hints)]
    return sorted({canonical(one, hints) for one in spellings if _words(one) == _words(name)})


def same_topic(name: str, hints: Mapping[str, Any]) -> list[str]:
    """The settings among `hints` that share a word with `name`; none where they are too many to help."""
    about = _words(name) - _VAGUE
    found = sorted(setting for setting in hints if _words(setting) & about)
    return found if len(found) <= MOST_LISTED else []
