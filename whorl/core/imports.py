"""Imports of modules that import hundreds of others."""

import gc
from importlib import import_module
from types import ModuleType


def imported(name: str) -> ModuleType:
    """A module, imported without garbage collections, which would take a sixth of the time and find nothing."""
    if not gc.isenabled():
        return import_module(name)
    gc.disable()
    try:
        return import_module(name)
    finally:
        # What was imported counts as old, and the next collection leaves it alone.
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
