"""Pictures of environments."""
