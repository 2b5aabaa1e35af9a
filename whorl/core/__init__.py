"""Foundation of all other packages: trees, specs, errors, the registry, CUDA graphs, collectives."""
