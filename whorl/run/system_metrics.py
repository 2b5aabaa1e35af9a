"""What the learner and its machine were busy with, between two rows of metrics."""

import os
import sys
import time

import torch


class SystemMetrics:
    """Rates and shares since the last row; `updates` were made before."""

    def __init__(self, updates: int) -> None:
        self._time, self._cpu, self._updates = time.perf_counter(), time.process_time(), updates

    def metrics(self, updates: int, waited: float) -> dict[str, float]:
        """`updates` so far; seconds `waited` for actors since the last row."""
        now, cpu = time.perf_counter(), time.process_time()
        span = max(now - self._time, 1e-9)
        found = {
            "learner/updates": float(updates),
            "learner/updates_per_second": (updates - self._updates) / span,
            "learner/waiting": min(waited / span, 1.0),
            "system/learner_cores": (cpu - self._cpu) / span,
        }
        if sys.platform != "win32":  # which knows neither
            found["system/learner_memory_mb"] = _peak_megabytes()
            found["system/load"] = os.getloadavg()[0]
        if torch.cuda.is_available():
            found["system/gpu_memory_mb"] = torch.cuda.memory_allocated() / 1e6
        self._time, self._cpu, self._updates = now, cpu, updates
        return found


def _peak_megabytes() -> float:
    import resource  # not everywhere

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)  # bytes there, kilobytes elsewhere
