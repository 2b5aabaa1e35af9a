"""Collecting rollouts: stepping environments with a policy."""
