"""Settings that follow others: a value that the user did not choose is made to fit those that the user did.

    whorl train ppo Quadrotor-v0 --num-envs 32    # the preset's batch size for 512 environments shrinks with them

Where the user chose all values of a combination that can't work, none is changed, and training reports it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

LEAST_MINIBATCH = 64
"""rows below which minibatches do not shrink with a rollout, except to a smaller rollout's size"""

LEAST_STARTS = 3
"""rows of each environment at which samples of a replay buffer may start, at the least"""


def follow(values: Mapping[str, Any], before: Mapping[str, Any], given: Iterable[str]) -> dict[str, Any]:
    """The settings that change.

    Args:
        values: all settings of the run and the algorithm, with their defaults.
        before: the same without what the user chose.
        given: the names that the user chose.
    """
    now, chosen = dict(values), frozenset(given)
    _budget(now, chosen)
    _actors(now, chosen)
    if now["load_checkpoint_dir"] and "load_checkpoint_dir" in chosen and "load_model" not in chosen:
        now["load_model"] = True  # a folder to load from is named to be used
    _lookahead(now, chosen)
    if now.get("memory", "none") != "none":
        _sequences(now, chosen)
    if "buffer_size" in now:
        _replay(now, chosen)
    elif "batch_size" in now:
        _batch_size(now, before, chosen)
    followed = "reset_every" not in chosen and now["reset_every"] == before["checkpoint_freq"]
    if not now["reset_every"] or followed:  # a complete file has the number that it followed before
        now["reset_every"] = now["checkpoint_freq"]
    return {name: value for name, value in now.items() if value != values[name]}


def _budget(now: dict[str, Any], given: frozenset[str]) -> None:
    """A limit in iterations or episodes replaces the default number of steps."""
    if given & {"max_iterations", "total_episodes"} and "total_timesteps" not in given:
        limits = now["max_iterations"] or now["total_episodes"]
        now["total_timesteps"] = 0 if limits else now["total_timesteps"]


def _actors(now: dict[str, Any], given: frozenset[str]) -> None:
    """Actors and replay shards share the environments evenly."""
    counts = {name: now[name] for name in ("actors", "shards") if now.get(name, 0) >= 1}
    if "num_envs" not in given and given & counts.keys():
        together = math.lcm(*counts.values())
        now["num_envs"] = math.ceil(now["num_envs"] / together) * together
    for name, count in counts.items():
        if name not in given:
            now[name] = largest_divisor(now["num_envs"], count)


def _sequences(now: dict[str, Any], given: frozenset[str]) -> None:
    """With memory, rollouts are split into chunks of equal length; with replay, states are stored at intervals."""
    name = "sequence_stride" if "sequence_stride" in now else "chunk_length"
    length, steps = now.get(name, 1), now["num_steps"]
    if steps % length == 0:
        return
    if name in given or (name == "sequence_stride" and "num_steps" not in given):
        if "num_steps" not in given:
            now["num_steps"] = math.ceil(steps / length) * length
    else:
        now[name] = largest_divisor(steps, length)


def _lookahead(now: dict[str, Any], given: frozenset[str]) -> None:
    """Some rows of a rollout are followed by as many rows as learning needs."""
    if now.get("lookahead", 0) < now["num_steps"]:
        return
    if "lookahead" not in given:
        now["lookahead"] = now["num_steps"] // 2
    elif "num_steps" not in given:
        now["num_steps"] = 2 * now["lookahead"]


def _replay(now: dict[str, Any], given: frozenset[str]) -> None:
    """Size of the buffer and number of updates where they are set per environment and per iteration."""
    _of_part(now, given, "buffer_size", "buffer_size_per_env", now["num_envs"])
    _rows_in_buffer(now, given)
    rows = now["num_envs"] * now["num_steps"]
    _of_part(now, given, "updates_per_step", "updates_per_iteration", 1 / rows)


def _of_part(now: dict[str, Any], given: frozenset[str], whole: str, part: str, factor: float) -> None:
    """A number as a whole is `factor` times that of a part, unless the user chose the whole."""
    if whole in given and part not in given and part in now:
        now[part] = type(now[part])(0)
    elif now.get(part):  # an algorithm of one's own may do without
        now[whole] = now[part] * factor


def _rows_in_buffer(now: dict[str, Any], given: frozenset[str]) -> None:
    """A replay buffer holds a rollout and a sample more of each environment; see `check_replay`."""
    stride, sample = 1, now.get("n_step", 1)
    if now.get("memory", "none") != "none":
        stride = 1 if now.get("whole_episodes") else now.get("sequence_stride", 1)
        sample += now.get("burn_in", 0) + now.get("sequence_length", 1) - 1

    def needed(steps: int) -> int:
        return math.ceil((max(steps, stride, LEAST_STARTS) + sample) / stride) * stride

    def slots() -> int:
        return now["buffer_size"] // now["num_envs"] // stride * stride

    if slots() >= needed(now["num_steps"]):
        return
    if not given & {"buffer_size", "buffer_size_per_env"}:
        now["buffer_size"] = needed(now["num_steps"]) * now["num_envs"]
        if now.get("buffer_size_per_env"):
            now["buffer_size_per_env"] = needed(now["num_steps"])
        return
    least = needed(now["num_steps"] if "num_steps" in given else 1)
    if slots() < least and "num_envs" not in given and "buffer_size" in given:
        counts = {name: now[name] for name in ("actors", "shards") if now.get(name, 0) >= 1}
        together = math.lcm(*(counts[name] for name in counts if name in given))
        now["num_envs"] = now["buffer_size"] // least // together * together or now["num_envs"]
        _actors(now, given)
    if slots() >= least and "num_steps" not in given:
        now["num_steps"] = min(now["num_steps"], (slots() - sample) // stride * stride)


def _batch_size(now: dict[str, Any], before: Mapping[str, Any], given: frozenset[str]) -> None:
    """Minibatches divide a rollout, into whole chunks; a rollout of another size keeps their number, unless they
    would get smaller than `LEAST_MINIBATCH`."""
    rows, size = _rows(now), now["batch_size"]
    recurrent = now.get("memory", "none") != "none"
    unit = now.get("chunk_length", 1) if recurrent else 1
    if "batch_size" not in given:
        size = max(round(size * rows / _rows(before)), min(size, LEAST_MINIBATCH))
        fitting = [unit * n for n in divisors(rows // unit)]
        now["batch_size"] = min(fitting, key=lambda fit: (abs(fit - size), fit), default=size)
        return
    if rows % size:
        for name in ("num_steps", "num_envs"):
            if name not in given:
                step = size // math.gcd(size, rows // now[name])
                now[name] = max(1, round(now[name] / step)) * step
                break
    if not recurrent or "chunk_length" in given or "chunk_length" not in now:
        return  # an algorithm of one's own may do without
    chunk = largest_divisor(math.gcd(size, now["num_steps"]), unit)
    # A chunk of one row has no gradient through time.
    if chunk > 1 or "num_steps" not in given:
        now["chunk_length"] = chunk


def _rows(values: Mapping[str, Any]) -> int:
    """Steps of a rollout, over all environments that learning waits for."""
    envs, actors, share = values["num_envs"], values["actors"], values["trajectories_per_batch"]
    return (envs // actors * share if actors and share else envs) * values["num_steps"]


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return max(n for n in divisors(number) if n <= max(limit, 1))


def divisors(number: int) -> list[int]:
    """All divisors in ascending order."""
    small = [n for n in range(1, math.isqrt(max(number, 0)) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
