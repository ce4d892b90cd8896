"""`python -m pytest_specdec`, the same as the command `pytest-specdec`."""

import sys

from pytest_specdec.cli import main

sys.exit(main())
