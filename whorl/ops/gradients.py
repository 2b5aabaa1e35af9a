"""Sums of gradients of several losses."""

from collections.abc import Sequence

import torch
from torch import Tensor


def add_agreeing_(
    total: Sequence[Tensor],
    further: Sequence[Tensor],
    main: Sequence[Tensor],
    shared: Sequence[int],
    separately: bool,
) -> None:
    """Add the gradients of a further loss to `total`, for shared parameters only where they agree with the main ones.

    total_i += further_i * [<main, further> > 0] for i in `shared`, total_i += further_i for all others

    Args:
        main: gradients of the main loss; may be `total` itself.
        shared: indices of the parameters that the main loss trains too.
        separately: decide for each parameter by its own gradients; else by those of all shared parameters together.
    """
    here, other = [main[i] for i in shared], [further[i] for i in shared]
    products = [(a * b).sum() for a, b in zip(here, other)]
    if products and not separately:
        products = [torch.stack(products).sum()] * len(products)
    agree = dict(zip(shared, products))
    for number, (sum_, added) in enumerate(zip(total, further)):
        sum_.add_(torch.where(agree[number] > 0, added, 0.0) if number in agree else added)
