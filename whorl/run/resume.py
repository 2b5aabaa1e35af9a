"""Saved runs that continue: their settings, the changes that are allowed, and their state."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whorl.core import messages
from whorl.core.errors import CheckpointError, ConfigError
from whorl.core.registry import only_trusted, require_part
from whorl.run.behaviors.trainer import BehaviorTrainer
from whorl.run.callbacks import Callback
from whorl.run.checkpointing import use_checkpoint
from whorl.run.reporting import LoggerFactory
from whorl.run.saved_env import check_spaces, source_of
from whorl.run.trainer import Trainer
from whorl.settings.behaviors import BEHAVIORS, read_saved
from whorl.settings.draws import is_random
from whorl.settings.merge import Settings, configure
from whorl.settings.run import MAY_CHANGE
from whorl.settings.trust import import_paths
from whorl.state import checkpoint, code
from whorl.state.runfolder import resolve_run
from whorl.state.saved_spec import unpack_spec


def load_run(
    run: str | Path,
    changes: Mapping[str, Any],
    *,
    env: Any = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | LoggerFactory] = (),
    trust: Sequence[str] = (),
) -> Trainer:
    """The trainer of a saved run, continued from its newest complete checkpoint or from the one that `run` names."""
    if any(map(is_random, changes)):
        raise ConfigError(
            "random_params are drawn once, when a run starts: the values of a saved run are in its config.yaml; leave "
            "random_params out to resume it"
        )
    folder = resolve_run(run)

    def trainer(config: Mapping[str, Any], where: Path) -> Trainer:
        if BEHAVIORS in config:
            return _load_behaviors(config, where, changes, env, callbacks, loggers)
        with checkpoint.reading(where, checkpoint.CONFIG):
            saved = configure(config["algorithm"], config["env"], config, presets=False)
        settings = configure(saved.algorithm, saved.env, saved.plain(), presets=False, changes=changes)
        check_changes(saved, settings)
        # Networks and loggers are made later, in training. What the caller asks for now is trusted.
        for name in import_paths(settings):
            if name in import_paths(saved):
                require_part(name)
        return Trainer(source_of(env, settings, training=True), settings, callbacks, loggers)

    def resumed(found: checkpoint.Loaded) -> Trainer:
        with only_trusted(code.admit(found.code, trust), code.hint(found.folder, found.code)):
            return attached(found)

    def attached(found: checkpoint.Loaded) -> Trainer:
        if not found.state:
            raise CheckpointError(
                f"{found.folder} holds only a policy, not the state that training needs; resume "
                f"{found.folder.parent}, or start a new run with load_model and load_checkpoint_dir"
            )
        checkpoint.number(found.folder)  # raises for a renamed one, which a run could not continue from
        made = trainer(found.config, found.folder)
        steps, asked = int(found.metadata["steps"]), made.settings.run.total_timesteps
        if asked != found.config.get("total_timesteps") and 0 < asked <= steps:
            messages.warn(
                f"the run has {steps:,} steps and total_timesteps counts from its start, so {asked:,} adds none; give "
                f"more than {steps:,}"
            )
        with checkpoint.reading(found.folder, checkpoint.POLICY):
            policies = found.policy.get(BEHAVIORS, {"": found.policy})
            specs = {name: unpack_spec(policy["spec"]) for name, policy in policies.items()}
        for name, saved in specs.items():
            source = made.source.behavior(name) if name else made.source
            check_spaces(saved, source.spec(saved.num_envs), source.id)
        return made.attach(found.folder.parent, found)

    unsaved = checkpoint.run_config(folder)
    if unsaved is not None:
        with only_trusted(code.expanded(trust)):
            made = trainer(unsaved, folder)
            if not made.settings.run.save_model:
                raise CheckpointError(
                    f"{folder} was trained with save_model false, so there is no checkpoint to continue from; "
                    "train again, or leave save_model true"
                )
            return made.attach_new(folder)
    return use_checkpoint(folder, resumed)


def _load_behaviors(
    config: Mapping[str, Any],
    where: Path,
    changes: Mapping[str, Any],
    env: Any,
    callbacks: Sequence[Callback],
    loggers: Sequence[str | LoggerFactory],
) -> BehaviorTrainer:
    """The trainer of a saved run with several behaviours."""
    with checkpoint.reading(where, checkpoint.CONFIG):
        saved = read_saved(config)
    settings = read_saved(saved.plain(), changes)
    for name, one in settings.behaviors.items():
        check_changes(saved.behaviors[name], one)
        for path in import_paths(one):
            if path in import_paths(saved.behaviors[name]):
                require_part(path)
    return BehaviorTrainer(source_of(env, settings, training=True), settings, callbacks, loggers)  # type: ignore[arg-type]


def check_changes(saved: Settings, asked: Settings) -> None:
    """Raise for a change that a resumed run can't make."""
    kept, wanted = saved.saved(), asked.saved()
    for name in sorted(set(kept) - set(MAY_CHANGE)):
        if wanted.get(name) != kept[name]:
            raise ConfigError(
                f"a resumed run can't change {name!r}, which is {kept[name]!r} in the saved run (whorl resume --help "
                "lists what it can change); start a new run from its weights with load_checkpoint_dir"
            )
