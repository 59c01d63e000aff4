"""One part in a process of its own: ``python -m bench.one MODULE:FUNCTION OPTIONS OUT``.

OPTIONS is a file that ``python -m bench`` has written, OUT becomes the part as JSON;
what went wrong, if anything did, becomes a line in OUT.why.
"""

from __future__ import annotations

import importlib
import json
import pickle
import signal
import sys
from pathlib import Path


def main(place: str, options: str, out: str) -> None:
    # By an exception, so that all that was started is stopped: some of it has process groups of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    module, _, function = place.partition(":")
    try:
        part = getattr(importlib.import_module(module), function)(pickle.loads(Path(options).read_bytes()))
    except Exception as error:
        Path(f"{out}.why").write_text(" ".join(f"{type(error).__name__}: {error}".split())[:300], encoding="utf-8")
        raise
    Path(out).write_text(json.dumps(part.to_json()), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
