"""State of runs: run folders, checkpoints that are complete even if the process is killed, random streams."""
