"""What a trained memory by attention looks at: the weights of one episode."""

from collections.abc import Callable

import numpy as np
import torch

from whorl.agents.agent import Agent
from whorl.core.errors import WhorlError
from whorl.nets.attention import Block


def attention_weights(agent: Agent, play: Callable[[], int]) -> dict[str, np.ndarray]:
    """Weights [heads, steps, steps] by layer: row t is the step that acts, and column s how much it attends to step s.

    Args:
        play: plays one episode of one environment with `agent`, and returns its length.
    """
    blocks = {name: module for name, module in agent.named_modules() if isinstance(module, Block)}
    if not blocks:
        raise WhorlError("this policy has no memory by attention; train one with --memory attention")
    for block in blocks.values():
        block.weights = []
    try:
        steps = play()
        found = {name: block.weights[:steps] for name, block in blocks.items() if block.weights}
    finally:
        for block in blocks.values():
            block.weights = None
    return {_label(name): _squared(torch.cat(rows, 2)[0]) for name, rows in found.items()}


def _label(name: str) -> str:
    """actor.backbone.memories.0.blocks.1: actor, layer 2"""
    network, *_, memory, _, layer = name.split(".")
    return f"{network}{f' {int(memory) + 1}' if memory != '0' else ''}, layer {int(layer) + 1}"


def _squared(weights: torch.Tensor) -> np.ndarray:
    """Weights [heads, steps, window] over windows that end with the acting step, by the steps attended to."""
    heads, steps, window = weights.shape
    found = np.zeros((heads, steps, steps))
    for step in range(steps):
        held = min(window, step + 1)
        found[:, step, step + 1 - held : step + 1] = weights[:, step, window - held :].cpu().numpy()
    return found
