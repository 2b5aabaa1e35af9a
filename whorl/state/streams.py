"""Five named random streams: draws from one never change another.

env: resets and native environments · act: exploration · replay: sampling · learner: initial weights, noise in losses ·
eval: evaluation.
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

    Those for `devices` are created at once, others at their first use. The initial state of a generator depends only on
    (seed, name, part), not on the order of first uses or the number of streams.
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
        """A seed below 2**31, which every other package accepts."""
        return self._derive(name, part) & (2**31 - 1)

    def state_dict(self) -> dict[str, Tensor]:
        """The seed and the state of every generator created so far, as tensors."""
        positions = {key: generator.get_state() for key, generator in self._generators.items()}
        return {"seed": torch.tensor(self._seed), **positions}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore `state` in place: generators that are in use stay valid."""
        keys = [key for key in state if key != "seed"]
        for key in keys:
            self._check(key)
        self._seed = int(state["seed"].item())
        # A generator that the saved run had not created yet starts as it would have started there.
        for key, generator in self._generators.items():
            if key not in state:
                generator.manual_seed(self._derive(*_split(key)[:2]))
        for key in keys:
            name, part, device = _split(key)
            self.generator(name, device, part).set_state(state[key].cpu())

    def _derive(self, name: str, part: str) -> int:
        if name not in NAMES:
            raise ValueError(f"random stream {name!r} is unknown; choose one of: {', '.join(NAMES)}")
        entropy = [self._seed, NAMES.index(name)]
        if part:
            entropy.append(int.from_bytes(hashlib.sha256(part.encode()).digest()[:8], "little"))
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])

    def _check(self, key: str) -> None:
        name, _, device = _split(key)
        if name not in NAMES:
            raise CheckpointError(
                f"the checkpoint has a random stream {name!r} that is unknown to this version of Whorl"
            )
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise CheckpointError(
                f"the checkpoint has a random stream on {device}, but torch finds no GPU; resume on a machine with one"
            )


def _split(key: str) -> tuple[str, str, str]:
    stream, _, device = key.rpartition("@")
    name, _, part = stream.partition(".")
    return name, part, device


def _canonical(device: torch.device) -> torch.device:
    """'cuda' and 'cuda:0' are the same device, as are 'cpu' and 'cpu:0'."""
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
