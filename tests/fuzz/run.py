"""Feed one target to atheris: ``run.py TARGET FOLDER SECONDS``; see the script ``run`` beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

# startswith and endswith are C, and would tell nothing of themselves. (atheris 3.0.0 has a hook for regular expressions
# too, which fails on those for bytes, of which Pillow has many.)
atheris.enabled_hooks.add("str")

with atheris.instrument_imports(include=["clipfleet", "PIL", "ftfy", "html", "fuzz"], enable_loader_override=False):
    from fuzz.targets import CORPUS, TARGETS, seeds

MAX_BYTES = {"wire": 4_096, "image": 20_000, "text": 8_192, "filters": 4_096, "url": 1_024}


def main() -> None:
    """Start from seeds and corpus, keep whatever breaks the target in the corpus."""
    name, folder, seconds = sys.argv[1:]
    found = Path(folder)
    found.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(name)):
        (found / f"seed-{number}").write_bytes(seed[: MAX_BYTES[name]])
    (CORPUS / name).mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_BYTES[name]}",
        f"-artifact_prefix={CORPUS / name}/",
        "-timeout=20",
        "-rss_limit_mb=3000",
        "-print_final_stats=1",
        "-verbosity=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(found), str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()


main()
