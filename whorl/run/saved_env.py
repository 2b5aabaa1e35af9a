"""The environment of a saved run, or another one with the same spaces."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from whorl.core import tree
from whorl.core.errors import CheckpointError, EnvError, WhorlError
from whorl.core.registry import require_trust
from whorl.core.spec import Array, Spec, differences, without_keys
from whorl.envs.adapter import adapter_of
from whorl.envs.adapters.imported import module_of
from whorl.envs.adapters.pettingzoo import OPTIONS as PARALLEL_OPTIONS
from whorl.envs.make import Made, Source, find, takes
from whorl.envs.wrappers import split
from whorl.run.prepare import as_options
from whorl.settings.behaviors import BehaviorSettings
from whorl.settings.merge import Settings
from whorl.settings.secrets import HIDDEN, require_secrets


def source_of(
    env: Any,
    settings: Settings | BehaviorSettings,
    env_options: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
    *,
    training: bool = False,
) -> Source:
    """The environment of a saved run, or the one given instead; the run's options apply where they fit, and
    options for training alone only with `training`."""
    asked, saved = as_options(env_options), dict(settings.env_options)
    found = _source(env, settings.env, asked, saved, render_mode)
    kept = found.without_training(found.options)
    if training or kept.keys() | asked.keys() >= found.options.keys():
        return found
    # Options for training alone apply where they are asked for.
    return found.with_options(
        {key: value for key, value in found.options.items() if key in {**kept, **asked}}
    )


def _source(
    env: Any, id: str, asked: dict[str, Any], saved: dict[str, Any], render_mode: str | None
) -> Source:
    drawn = {} if render_mode is None else {"render_mode": render_mode}
    if env is None:
        require_secrets({**saved, **asked})
        return _saved_source(id, {**saved, **asked}, drawn)
    if isinstance(env, str):
        _check_drawn(env, drawn)
        # A class that the run was given has its name as id, and is found by module and name: my_envs:Corridor.
        same = find(env).id == id or (id.isidentifier() and env.endswith(f":{id}"))
        options = {**(saved if same else {}), **asked, **drawn}
        require_secrets(options)
        return find(env, options)
    saved = {name: value for name, value in saved.items() if value != HIDDEN}
    if isinstance(env, Made):
        source = env.source
        fits = source.named or (source.given is not None and takes(source.given, {**source.options, **drawn}))
        return source.with_options({**source.options, **asked, **(drawn if fits else {})})
    if not callable(env) or isinstance(env, gymnasium.Env):
        return find(env, {**saved, **asked})
    own, wrapping = split(saved)
    if not takes(env, own):
        wrapping |= {name: own.pop(name) for name in PARALLEL_OPTIONS if name in own}
    options = {**(own if takes(env, {**own, **split(asked)[0]}) else {}), **wrapping, **asked}
    return find(env, options | (drawn if takes(env, {**split(options)[0], **drawn}) else {}))


def _saved_source(id: str, options: Mapping[str, Any], drawn: Mapping[str, Any]) -> Source:
    if module := module_of(id):
        require_trust(module, "an environment of")
    _check_drawn(id, drawn)
    try:
        return find(id, {**options, **drawn})
    except WhorlError as error:
        if id.isidentifier():
            raise CheckpointError(
                f"the environment of the run, {id}, was given as a class or an object and can't be found by its name; "
                f"pass it as env={id}, or name its module, as in env='my_envs:{id}' (--env my_envs:{id})"
            ) from None
        raise CheckpointError(
            f"{error.message} (if the run was made with an environment of your own, pass it as env=)",
            error.details,
        ) from None


def _check_drawn(id: str, drawn: Mapping[str, Any]) -> None:
    """Raise where something is to be drawn that has no pictures."""
    if drawn and not adapter_of(id).renders:
        raise WhorlError(
            f"{id} is a batch of environments, which is not rendered: neither a video nor a window can show it; leave "
            "out video and render (on the command line --video and --render)"
        )


def check_spaces(saved: Spec, now: Spec, id: str, privileged: Sequence[str] = ()) -> None:
    """Raise where an environment has other spaces than the one that a policy was trained on.

    Args:
        privileged: keys of the observation that the environment may have or not.
    """
    found = differences(*(without_keys(spec, privileged) for spec in (saved, now)))
    if found:
        numbers = _read_as_numbers(saved, now)
        raise EnvError(f"{id} has other spaces than the environment of the run: {'; '.join(found)}{numbers}")


def _read_as_numbers(saved: Spec, now: Spec) -> str:
    """What to do with runs from before MultiDiscrete observations were read as one-hots."""
    before = dict(tree.items(saved.observation))
    if not any(
        leaf.nvec and before.get(path) == Array(leaf.entries, "float32", 0.0, before[path].high)
        for path, leaf in tree.items(now.observation)
        if path in before
    ):
        return ""
    return (
        "; MultiDiscrete observations are read as one-hots since this run was made: whorl.restore still gives its "
        "policy, and env=... takes the environment with a Box in place of the MultiDiscrete space"
    )
