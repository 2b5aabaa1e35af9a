"""Rendered frames of the native environments."""
