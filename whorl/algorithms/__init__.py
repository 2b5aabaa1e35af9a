"""One file per update rule.

`whorl.algorithms()` lists them by name: importing any of them would hide the function of that name behind this package,
so the package can be called too.
"""

import sys
from types import ModuleType


class _Package(ModuleType):
    def __call__(self) -> dict[str, str]:
        from whorl.settings.presets import algorithms

        return algorithms()


sys.modules[__name__].__class__ = _Package
