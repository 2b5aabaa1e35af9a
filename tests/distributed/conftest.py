"""The toys of the conformance suite are used here too; Ray clusters are protected from other users of the machine."""

import os
import secrets
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "conformance"))
# A cluster runs whatever it is sent, so only these tests may connect to it. Ray reads this when it is imported.
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
