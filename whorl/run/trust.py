"""The trust that a run needs to be loaded again."""

from whorl.core.registry import KINDS, registered
from whorl.envs.adapters.imported import module_of
from whorl.settings.merge import Settings
from whorl.settings.trust import own_paths


def trust_flag(settings: Settings) -> list[str]:
    """The flag that lets a run's own environments, networks and other parts be loaded again, where there are any."""
    known = any(settings.env in registered(kind) for kind in KINDS)
    found = list(
        dict.fromkeys(filter(None, ["" if known else module_of(settings.env), *own_paths(settings)]))
    )
    return ["--trust", *found] if found else []
