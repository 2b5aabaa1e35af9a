"""Run a command while other processes keep the cores busy: `python tests/busy.py 8 pytest -n 2` makes a load of 8.

Two of the eight are the command's own.
"""

import subprocess
import sys


def main() -> int:
    load, command = int(sys.argv[1]), sys.argv[2:]
    spins = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load - 2)]
    try:
        return subprocess.call(command)
    finally:
        for spin in spins:
            spin.kill()
            spin.wait()


if __name__ == "__main__":
    raise SystemExit(main())
