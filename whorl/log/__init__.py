"""Loggers (metric files, TensorBoard, W&B), the console, plots, statistics and video.

Import `plot` and `video` where they are used, so that training does not load matplotlib and Pillow.
"""

from whorl.log.console import Console
from whorl.log.writers import ELAPSED, Log, LogFile, Logger, MetricFiles, Row, TensorBoard, WandB

__all__ = ["ELAPSED", "Console", "Log", "LogFile", "Logger", "MetricFiles", "Row", "TensorBoard", "WandB"]
