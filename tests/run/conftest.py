"""The toys of the conformance suite serve here too, and clusters of Ray are for the tests alone."""

import os
import secrets
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "conformance"))
# A cluster runs what it is told, and whoever else is on this machine must not be able to tell it. Ray reads this when
# it is imported.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
