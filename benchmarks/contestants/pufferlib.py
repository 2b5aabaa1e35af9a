"""PufferLib: only its vector environments; its trainer takes environments written for it, and its settings differ."""

from typing import Any

from contestants import Work, drawn, make_env, per_second

PACKAGES = ("pufferlib",)
WAYS = {"stepping": ("Serial", "Multiprocessing")}
ABSENT = {"": "its trainer has rules of its own (V-trace, Muon), which equal settings would not describe"}


def load() -> None:
    import pufferlib.pufferl

    _ = pufferlib


def one_env(id: str, buf: Any = None, seed: int = 0) -> Any:
    import pufferlib.emulation

    return pufferlib.emulation.GymnasiumPufferEnv(make_env(id), buf=buf, seed=seed)


def stepping(work: Work) -> float:
    from functools import partial

    import pufferlib.vector

    more = {"num_workers": 2} if work.way == "Multiprocessing" else {}
    backend = getattr(pufferlib.vector, work.way)
    envs = pufferlib.vector.make(partial(one_env, work.env), num_envs=work.num_envs, backend=backend, **more)
    envs.reset()
    actions = drawn(work)
    try:
        return per_second(lambda: envs.step(next(actions)), work.seconds, work.num_envs)
    finally:
        envs.close()
