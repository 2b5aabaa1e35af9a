"""The trust that a run needs to be loaded again, and the code of its own that is saved with it."""

from whorl.core import messages
from whorl.core.registry import KINDS, registered
from whorl.envs.adapters.imported import module_of
from whorl.settings.behaviors import BehaviorSettings
from whorl.settings.merge import Settings
from whorl.settings.secrets import values_in
from whorl.settings.trust import own_paths, words_in
from whorl.state import code


def trust_for(settings: Settings | BehaviorSettings) -> list[str]:
    """What a run's own environments, networks and other parts need to be loaded again."""
    return list(dict.fromkeys(filter(None, [_env_module(settings), *own_paths(settings)])))


def trust_flag(settings: Settings | BehaviorSettings) -> list[str]:
    """The same as a flag of the command line, where there are any."""
    found = trust_for(settings)
    return ["--trust", *found] if found else []


def own_code(settings: Settings | BehaviorSettings) -> dict[str, bytes]:
    """The source files of a run's own environment, networks and other parts, registered ones too."""
    if not settings.run.save_code:
        return {}
    plain = settings.plain()
    names = set(words_in([value for key, value in plain.items() if key != "env_options"]))
    things = [thing for kind in KINDS for name, thing in registered(kind).items() if name in names]
    modules = [str(getattr(thing, "__module__", "")) for thing in things]
    modules += [name.rpartition(".")[0] for name in own_paths(settings)]
    found = code.gather(filter(None, [*modules, _env_module(settings)]))
    secrets = [secret.encode() for secret in values_in(plain)]
    for name in [name for name, text in found.items() if any(secret in text for secret in secrets)]:
        del found[name]
        messages.warn(f"{name} holds a password, key or token, so it is not saved with the run")
    return found


def _env_module(settings: Settings | BehaviorSettings) -> str:
    known = any(settings.env in registered(kind) for kind in KINDS)
    return "" if known else module_of(settings.env)
