"""`python -m whorl` is the command `whorl`."""

import sys

from whorl.cli import run

if __name__ == "__main__":
    sys.exit(run())
