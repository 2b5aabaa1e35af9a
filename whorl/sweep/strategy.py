"""Samplers and pruners of Optuna by name."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from whorl.core.errors import ConfigError, WhorlError, missing_extra, misspelt, nearest
from whorl.core.registry import Part
from whorl.sweep.space import Space

SAMPLERS = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "grid": "GridSampler",
    "qmc": "QMCSampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
}
NEEDED = {"qmc": "scipy", "gp": "scipy", "cmaes": "cmaes"}
"""packages that Optuna imports at a sampler's first use"""
PRUNERS = {
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "hyperband": "HyperbandPruner",
    "successive_halving": "SuccessiveHalvingPruner",
    "none": "NopPruner",
}


def import_optuna() -> Any:
    """Optuna, which prints nothing of its own."""
    try:
        import optuna
    except ImportError:
        raise missing_extra("optuna", "sweep") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def check_names(sampler: Part, pruner: Part) -> None:
    """Raise for a sampler or pruner that does not exist, or whose package is not installed."""
    _class_name("sampler", sampler, SAMPLERS)
    if (package := NEEDED.get(sampler.name.lower())) and find_spec(package) is None:
        raise _not_installed("sampler", sampler, package)
    _class_name("pruner", pruner, PRUNERS)


def make_sampler(part: Part, spaces: Sequence[Space], seed: int, earlier: int) -> Any:
    """A sampler.

    Args:
        earlier: number of existing trials; a continued sweep must not draw the first ones again.
    """
    name = part.name.lower()
    options: dict[str, Any] = {"seed": seed + earlier}
    if name == "grid":
        if conditional := [space.name for space in spaces if space.when]:
            raise ConfigError(
                f"a grid takes no conditions, but {conditional[0]} has some; use another sampler"
            )
        options = {"search_space": {space.name: space.grid() for space in spaces}, "seed": seed}
    if name == "tpe":
        # Settings depend on each other, as the learning rate and the number of epochs do.
        options |= {"multivariate": True, "group": any(space.when for space in spaces)}
    if name == "qmc":  # its sequence is found by the number of trials
        options = {"seed": seed, "scramble": True, "warn_asynchronous_seeding": False}
    if name in ("qmc", "gp", "cmaes"):
        options["warn_independent_sampling"] = False
    sampler = _made("sampler", part, SAMPLERS, options)
    if name == "grid":
        # It would stop the study after the last point, which fails outside of `optimize`; the sweep counts itself.
        sampler.after_trial = lambda *_: None
    return sampler


def make_pruner(part: Part, eval_freq: int, total: int) -> Any:
    """A pruner, which counts in environment steps."""
    options: dict[str, dict[str, Any]] = {
        "percentile": {"percentile": 50.0},
        "hyperband": {"min_resource": eval_freq, "max_resource": max(total, eval_freq)},
        "successive_halving": {"min_resource": eval_freq, "reduction_factor": 3},
    }
    return _made("pruner", part, PRUNERS, options.get(part.name.lower(), {}))


def _class_name(kind: str, part: Part, known: Mapping[str, str]) -> str:
    name = part.name.lower()
    if name not in known:
        raise ConfigError(f"no {kind} is called {part.name!r}; {nearest(name, known)}")
    return known[name]


def _made(kind: str, part: Part, known: Mapping[str, str], options: Mapping[str, Any]) -> Any:
    optuna = import_optuna()
    cls = getattr(getattr(optuna, f"{kind}s"), _class_name(kind, part, known))
    taken = [name for name in inspect.signature(cls).parameters if name != "search_space"]
    for key in part.options:
        if key not in taken:
            word = misspelt(str(key), taken)
            hint = f"did you mean {word!r}?" if word else f"it takes {', '.join(taken) or 'none'}"
            raise ConfigError(f"{kind} {part.name} has no option {key!r}; {hint}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that something is experimental
            return cls(**{**options, **part.options})
    except ImportError as error:
        raise _not_installed(kind, part, (error.name or str(error)).partition(".")[0]) from None
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{key}={value!r}" for key, value in part.options.items())
        raise ConfigError(f"{kind} {part.name} can't be made with {given}: {error}") from None


def _not_installed(kind: str, part: Part, package: str) -> WhorlError:
    return WhorlError(
        f"{kind} {part.name} needs the package {package}, which is not installed; install it with: "
        f"pip install {package}"
    )
