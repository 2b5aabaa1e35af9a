"""Searching for settings: `whorl sweep`, on Optuna (extra `sweep`)."""
