"""Two test processes share two cores: torch's own threads would only get in each other's way."""

import torch

torch.set_num_threads(1)
