"""The program between pytest and a server's command: when pytest is gone, however it went, so is the server.

It leads the process group, runs the command given on its own command line, ends with its exit status, and ends the
whole group once its parent is no longer there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

PARENT_CHECK_SECONDS = 1.0


def follow_parent(parent: int) -> None:
    """End the whole process group once the parent is gone."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os.killpg(0, signal.SIGKILL)


def main() -> int:
    """Run the command and wait for it."""
    parent = os.getppid()
    threading.Thread(target=follow_parent, args=(parent,), daemon=True).start()
    return subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL).wait()


if __name__ == "__main__":
    sys.exit(main())
