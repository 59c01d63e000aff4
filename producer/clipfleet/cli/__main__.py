"""``python -m clipfleet.cli``: what ``up`` starts its worker with, whatever is on PATH."""

from __future__ import annotations

import sys

from clipfleet.cli import main

if __name__ == "__main__":
    sys.exit(main())
