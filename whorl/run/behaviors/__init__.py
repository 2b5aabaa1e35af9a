"""Runs with several behaviours in one environment; each file is the counterpart of one in `whorl.run`."""
