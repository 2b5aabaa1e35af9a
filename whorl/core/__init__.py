"""What everything else stands on: trees, specs, errors, the registry, CUDA graphs, collectives."""
