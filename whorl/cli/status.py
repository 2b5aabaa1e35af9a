"""Exit statuses of the command `whorl`, besides 0 and 1."""

MISTAKE = 2
"""the command could not do what it was asked for"""
INTERRUPTED, TERMINATED = 130, 143
"""Ctrl-C or SIGTERM ended it, as shells expect it"""
