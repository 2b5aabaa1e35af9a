"""The toys of the conformance suite serve here too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "conformance"))
