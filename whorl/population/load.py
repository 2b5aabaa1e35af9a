"""A new population from its settings, or a saved one that continues."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from whorl.core.errors import ConfigError
from whorl.core.registry import only_trusted, require_part
from whorl.envs.make import find
from whorl.population import setup
from whorl.population.config import EvolveConfig
from whorl.population.evolver import Evolver, read_lineage
from whorl.run.prepare import as_options, env_options_in, prepare
from whorl.run.saved_env import source_of
from whorl.settings.merge import configure
from whorl.settings.presets import read_file
from whorl.settings.schema import build
from whorl.settings.trust import import_paths, paths_in
from whorl.state import code
from whorl.state.runfolder import new_run_folder


def load_population(
    config: str | Path | Mapping[str, Any],
    *,
    env: Any = None,
    env_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Evolver:
    """The population that `evolve` runs, in a new folder."""
    read = [*read_file(config), settings]
    algorithm = setup.named(read, "algorithm", "sac")
    own, drawn, layers = setup.split(read, algorithm)
    setup.check_layers(layers, algorithm)
    given = setup.named(layers, "env", "Pendulum-v1") if env is None else env
    layers = [
        {key: value for key, value in layer.items() if key not in ("algorithm", "env")} for layer in layers
    ]
    chosen = build(EvolveConfig, own)
    _require_copies(given, env_options_in([*layers, {"env_options": as_options(env_options)}]))
    source, base = prepare(given, algorithm, setup.budget(chosen), [setup.DEFAULTS, *layers], env_options, {})
    draws = setup.read_params(drawn, base)
    setup.check(chosen, base, draws, source.spec(base.run.num_envs))
    run = base.run
    folder = new_run_folder(
        Path(run.runs), f"evolve_{base.algorithm}", source.id, run.tag, run.name, run.seed
    )
    return Evolver(folder, source, base, chosen, draws)


def resume_population(
    folder: Path, changes: Mapping[str, Any], env: Any = None, trust: Sequence[str] = ()
) -> Evolver:
    """A population as it was after its last complete generation."""
    chosen, learners, drawn = setup.load(folder, changes)
    with only_trusted(code.expanded(trust)):
        base = configure(learners["algorithm"], learners["env"], learners, presets=False)
        # Learners are built in processes of their own, which import what their settings name.
        drawn_before = [row.params for row in read_lineage(folder)]
        for name in (*import_paths(base), *paths_in([drawn, drawn_before])):
            require_part(name)
        source = source_of(env, base, training=True)
    return Evolver(folder, source, base, chosen, setup.read_params(drawn, base))


def _require_copies(env: Any, options: Mapping[str, Any]) -> None:
    """Raise for an environment of which there is one, where each learner of a population needs its own."""
    if callable(env):
        return
    source = find(env, options if isinstance(env, str) else {})
    if source.alone:
        remedy = "train one learner with whorl train"
        if source.batch is not None:
            remedy = "pass a class or function that makes it"
        raise ConfigError(
            f"there is one {source.id}, but each learner of a population needs its own; {remedy}"
        )
