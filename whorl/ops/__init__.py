"""Pure tensor functions: no state, no host sync, no shapes that depend on values."""

from whorl.ops.distributions import (
    Categorical,
    Distribution,
    Joint,
    MultiCategorical,
    Normal,
    TanhNormal,
)
from whorl.ops.losses import (
    blank,
    clipped_surrogate,
    clipped_value_loss,
    contrast,
    explained_variance,
    huber,
    masked_mean,
    masked_normalize,
    quantile_huber,
    row_weight,
    sorted_quantile_huber,
    squared,
)
from whorl.ops.returns import (
    discounted_return,
    gae,
    lambda_return,
    n_step_return,
    n_step_vtrace,
    retrace,
    reverse_scan,
    vtrace,
)
from whorl.ops.targets import hard_update_, polyak_
from whorl.ops.transforms import (
    categorical_projection,
    value_rescale,
    value_rescale_inverse,
)

__all__ = [
    "Categorical",
    "Distribution",
    "Joint",
    "MultiCategorical",
    "Normal",
    "TanhNormal",
    "blank",
    "categorical_projection",
    "clipped_surrogate",
    "clipped_value_loss",
    "contrast",
    "discounted_return",
    "explained_variance",
    "gae",
    "hard_update_",
    "huber",
    "lambda_return",
    "masked_mean",
    "masked_normalize",
    "n_step_return",
    "n_step_vtrace",
    "polyak_",
    "quantile_huber",
    "retrace",
    "reverse_scan",
    "row_weight",
    "sorted_quantile_huber",
    "squared",
    "value_rescale",
    "value_rescale_inverse",
    "vtrace",
]
