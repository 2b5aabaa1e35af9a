"""Pictures of attention weights."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from whorl.log.plot import check_ending, new_figure, save_figure

SIDE = 2.6
"""of a panel, in inches"""


def plot_attention(weights: Mapping[str, np.ndarray], output: Path, title: str) -> Path:
    """One row of panels per layer and one panel per head of weights [heads, steps, steps]."""
    check_ending(output)
    columns = max(len(heads) for heads in weights.values())
    figure = new_figure((SIDE * columns + 0.8, SIDE * len(weights) + 0.6))
    panels = figure.subplots(len(weights), columns, squeeze=False)
    for row, (name, heads) in zip(panels, weights.items()):
        for number, panel in enumerate(row):
            if number >= len(heads):
                panel.remove()
                continue
            shown = panel.imshow(heads[number], vmin=0, vmax=1, cmap="magma", interpolation="nearest")
            panel.set_title(f"{name}\nhead {number + 1}" if number == 0 else f"head {number + 1}", fontsize=8)
            panel.tick_params(labelsize=7)
            panel.set_xlabel("step attended to", fontsize=7)
        row[0].set_ylabel("acting step", fontsize=7)
    figure.colorbar(shown, ax=panels, shrink=0.7).ax.tick_params(labelsize=7)
    figure.suptitle(title, fontsize=10, fontweight="bold")
    return save_figure(figure, output)
