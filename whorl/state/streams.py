"""Five named random streams, so that drawing from one never shifts another.

env: resets and worlds · act: exploration · replay: sampling · learner: weights, noise in losses · eval.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from whorl.core.errors import CheckpointError

NAMES = ("env", "act", "replay", "learner", "eval")


class Streams:
    """The random generators of a run, all derived from one seed.

    Those for `devices` exist from construction, others from their first use. Where a generator starts depends
    only on (seed, name, part), so neither the order of first uses nor the number of streams matters.
    """

    def __init__(self, seed: int, devices: Iterable[torch.device | str] = ("cpu",)) -> None:
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed {seed} is out of range; choose one from 0 to 2**63 - 1")
        self._seed = seed
        self._generators: dict[str, torch.Generator] = {}
        for device in devices:
            for name in NAMES:
                self.generator(name, device)

    def generator(self, name: str, device: torch.device | str, part: str = "") -> torch.Generator:
        """The generator of a stream, or of a named part of it; the same arguments give the same object."""
        device = _canonical(torch.device(device))
        key = f"{name}.{part}@{device}"
        if key not in self._generators:
            seed = self._derive(name, part)
            self._generators[key] = torch.Generator(device).manual_seed(seed)
        return self._generators[key]

    def seed(self, name: str, part: str = "") -> int:
        """A seed below 2**31, which every outside package accepts, for what draws its own numbers."""
        return self._derive(name, part) & (2**31 - 1)

    def state_dict(self) -> dict[str, Tensor]:
        """The seed and the position of every generator made so far, as tensors."""
        positions = {key: generator.get_state() for key, generator in self._generators.items()}
        return {"seed": torch.tensor(self._seed), **positions}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from `state`, in place: generators already handed out stay the ones in use."""
        keys = [key for key in state if key != "seed"]
        for key in keys:
            self._check(key)
        self._seed = int(state["seed"])
        # A generator that the saved run had not made yet starts where it would have started there.
        for key, generator in self._generators.items():
            if key not in state:
                generator.manual_seed(self._derive(*_split(key)[:2]))
        for key in keys:
            name, part, device = _split(key)
            self.generator(name, device, part).set_state(state[key].cpu())

    def _derive(self, name: str, part: str) -> int:
        if name not in NAMES:
            raise ValueError(f"no random stream {name!r}; choose one of: {', '.join(NAMES)}")
        entropy = [self._seed, NAMES.index(name)]
        if part:
            entropy.append(int.from_bytes(hashlib.sha256(part.encode()).digest()[:8], "little"))
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])

    def _check(self, key: str) -> None:
        name, _, device = _split(key)
        if name not in NAMES:
            raise CheckpointError(
                f"the checkpoint has a random stream {name!r} that this version does not know"
            )
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise CheckpointError(
                f"the checkpoint has a random stream on {device}, which is not here; resume where it is"
            )


def _split(key: str) -> tuple[str, str, str]:
    stream, _, device = key.rpartition("@")
    name, _, part = stream.partition(".")
    return name, part, device


def _canonical(device: torch.device) -> torch.device:
    """'cuda' and 'cuda:0', 'cpu' and 'cpu:0' are one device each."""
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
