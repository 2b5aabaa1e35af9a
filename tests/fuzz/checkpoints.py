"""Damaged run folders: what is loaded is what one of its checkpoints held, bit for bit, or nothing is."""

import filecmp
import hashlib
import os
import random
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

import whorl
from whorl.core.errors import CheckpointError
from whorl.run.resume import load_run
from whorl.run.trainer import Trainer

sys.path.append(str(Path(__file__).parent))
import cases

SHORT = {
    "quiet": True,
    "eval": False,
    "tensorboard": False,
    "num_envs": 2,
    "num_steps": 8,
    "checkpoint_freq": 1,
}
RUNS: dict[str, dict[str, Any]] = {
    "ppo": {"actor_hidden_sizes": [8], "critic_hidden_sizes": [8], "batch_size": 16},
    "prioritized_dqn": {"hidden_sizes": [8], "batch_size": 4, "buffer_size": 100, "learning_starts": 8},
    "drqn": {
        "hidden_sizes": [8],
        "memory_size": 4,
        "batch_size": 4,
        "buffer_size": 100,
        "learning_starts": 8,
    },
}
_folder = tempfile.TemporaryDirectory()


@cache
def whole_run(algorithm: str) -> tuple[Path, dict[str, tuple[str, str]]]:
    """A run with three checkpoints, and the policy and the state of each when nothing is damaged."""
    settings = {**SHORT, **RUNS[algorithm], "max_iterations": 3, "total_timesteps": 0}
    settings |= {"sequence_length": 4, "sequence_stride": 4} if algorithm == "drqn" else {}
    run = whorl.train("CartPole-v1", algorithm, settings, runs=_folder.name).run_dir
    whole = {}
    for folder in run.glob("checkpoint_*"):
        whole[folder.name] = digest(whorl.restore(folder).agent.state_dict()), state_of(load_run(folder, {}))
    assert len({state for _, state in whole.values()}) == 3, "the checkpoints are alike"
    return run, whole


def digest(value: Any) -> str:
    """A checksum over all tensors and plain values of a tree."""
    found = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, dict):
            for key in sorted(part, key=str):
                found.update(str(key).encode())
                add(part[key])
        elif isinstance(part, list | tuple):
            for item in part:
                add(item)
        elif isinstance(part, torch.Tensor):
            found.update(str(part.dtype).encode() + part.detach().cpu().contiguous().numpy().tobytes())
        else:
            found.update(repr(part).encode())

    add(value)
    return found.hexdigest()


def state_of(trainer: Trainer) -> str:
    """A checksum of the agent, optimizers and counters of a resumed run, and of the rows of its replay buffer."""
    with trainer:
        state = {name: trainer.state()[name] for name in ("agent", "streams", "counters")}
        ring = getattr(trainer.experience, "ring", None)
        return digest([state, None if ring is None else (ring.columns, ring.memories)])


def damage(draw: random.Random, run: Path) -> None:
    """Change one file of a run folder at random, as a failing disk or a full one does."""
    every = [path for path in sorted(run.rglob("*")) if path.is_file()]
    vital = [path for path in every if path.suffix == ".pt" or path.parent.name == "replay"]
    victim = draw.choice(every if draw.random() < 0.3 else vital)
    data = bytearray(victim.read_bytes())
    kind = draw.choice(("flip", "flip", "byte", "truncate", "extend", "zero", "delete", "other"))
    at = draw.randrange(len(data)) if data else 0
    if kind == "flip" and data:
        data[at] ^= 1 << draw.randrange(8)
    elif kind == "byte" and data:
        data[at] = (data[at] + draw.randrange(1, 256)) % 256
    elif kind == "truncate":
        del data[at:]
    elif kind == "extend":
        data += draw.randbytes(draw.choice((1, 100)))
    elif kind == "zero":
        data[at : at + 512] = bytes(len(data[at : at + 512]))
    elif kind == "other":
        siblings = [path for path in sorted(run.rglob(victim.name)) if path != victim]
        data = bytearray(draw.choice(siblings).read_bytes()) if siblings else data
    if kind == "delete":
        os.remove(victim)
    else:
        victim.write_bytes(data)


def expected(run: Path, source: Path, asked: Path, resumes: bool) -> str | None:
    """The newest checkpoint none of whose files was changed; to resume, none of the replay buffer's either.

    Where a file of the replay buffer is missing, the checkpoint's own link to it serves.
    """

    def whole(name: str) -> bool:
        return (run / name).is_file() and filecmp.cmp(run / name, source / name, shallow=False)

    for folder in [asked] if asked != run else sorted(run.glob("checkpoint_*"), reverse=True):
        own = [path for path in (source / folder.name).iterdir() if path.is_file()]
        listed = yaml.safe_load((source / folder.name / "metadata.yaml").read_text()).get("segments", [])
        rows = [
            f"replay/{name}" if (run / "replay" / name).exists() else f"{folder.name}/replay/{name}"
            for name in (listed if resumes else ())
        ]
        if all(whole(name) for name in [*(f"{folder.name}/{path.name}" for path in own), *rows]):
            return folder.name
    return None


def load(draw: random.Random, folder: Path) -> str:
    """A damaged run gives the policy or the state of its newest whole checkpoint; without one, an error."""
    source, whole = whole_run(draw.choice(list(RUNS)))
    run = Path(shutil.copytree(source, folder / source.name))
    for _ in range(draw.choice((1, 1, 2, 4, 9))):
        damage(draw, run)
    asked = draw.choice([run, run, run / "checkpoint_2"])
    resumes = draw.random() < 0.5
    name = expected(run, source, asked, resumes)
    try:
        found = state_of(load_run(asked, {})) if resumes else digest(whorl.restore(asked).agent.state_dict())
    except CheckpointError:
        assert name is None, f"{name} is whole, but was not loaded"
        raise
    assert name is not None and found == whole[name][resumes], (
        f"not what was saved; {name} is the newest whole one"
    )
    return "state" if resumes else "policy"


if __name__ == "__main__":
    cases.main({"load": load})
