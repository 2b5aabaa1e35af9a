"""The plumbing that every algorithm calls: base class, optimizers, target networks, components."""
