"""What a run tells the world: metric files, TensorBoard, W&B, the console; plots, statistics and video of it.

Import `plot` and `video` where they are used: training should not pay for loading matplotlib and Pillow.
"""

from whorl.log.console import Console
from whorl.log.writers import ELAPSED, Log, LogFile, MetricFiles, Row, Sink, TensorBoard, WandB

__all__ = ["ELAPSED", "Console", "Log", "LogFile", "MetricFiles", "Row", "Sink", "TensorBoard", "WandB"]
