"""Durable state: run folders, checkpoints that survive a kill at any moment, named random streams."""
