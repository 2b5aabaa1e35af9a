"""Recorded episodes in Minari's format: read as rows of a replay buffer, and written."""
