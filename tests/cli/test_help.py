from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clipfleet.cli import main
from support.cli import Done

if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS = (
    "up",
    "worker",
    "index",
    "search",
    "embed",
    "delete",
    "export",
    "import",
    "status",
    "dead",
    "doctor",
    "model",
    "operators",
    "pipeline",
    "demo",
)
LEAVES = (
    *[[name] for name in COMMANDS if name not in {"dead", "model", "operators", "pipeline"}],
    *[["dead", name] for name in ("list", "retry", "drop")],
    *[["model", name] for name in ("list", "info", "export")],
    *[["operators", name] for name in ("list", "info", "new", "fit-pca")],
    *[["pipeline", name] for name in ("show", "run", "build")],
)


@pytest.fixture
def ask(capsys) -> Callable[..., Done]:
    """A command line in this process: for help, which runs nothing."""

    def run(*args: str) -> Done:
        code = main(args)
        return Done(code, *capsys.readouterr())

    return run


def test_when_asked_for_help_then_every_command_is_named_and_the_way_in_is_shown(ask):
    done = ask("--help")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.partition("Commands:")[2].splitlines() if line.strip()] == [
        *(
            "up",
            "worker",
            "index",
            "search",
            "embed",
            "delete",
            "export",
            "import",
            "status",
            "doctor",
            "demo",
            "dead",
            "model",
            "operators",
            "pipeline",
        ),
    ]
    assert "clipfleet up" in done.out
    assert "Exit codes" in done.out


@pytest.mark.parametrize("command", LEAVES, ids=" ".join)
def test_when_a_command_is_asked_for_help_then_it_teaches_by_examples(ask, command):
    done = ask(*command, "--help")
    assert done.code == 0
    assert f"clipfleet {' '.join(command)}" in done.out.partition("Examples:")[2]


@pytest.mark.parametrize("flag", ["--redis-url", "--milvus-uri", "--queue", "--local", "--json"])
@pytest.mark.parametrize("command", ["worker", "index", "search", "embed", "status", "doctor"])
def test_every_command_that_speaks_to_a_fleet_takes_the_common_flags(ask, command, flag):
    assert f"{flag} " in ask(command, "--help").out


def test_given_no_command_when_run_then_help_and_a_usage_error(ask):
    done = ask()
    assert done.code == 2
    assert "Commands:" in done.out + done.err


@pytest.mark.parametrize("args", [["nonsense"], ["embed", "--nonsense"], ["search", "x", "--limit", "0"], ["index"]])
def test_given_wrong_usage_when_run_then_exit_code_2(ask, args):
    done = ask(*args)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_given_a_model_that_is_not_here_when_asked_for_then_it_failed(ask):
    done = ask("model", "info", "nope/nope")
    assert done.code == 1
    assert "clipfleet model export nope/nope" in done.out


def test_given_a_store_that_the_command_cannot_use_when_asked_then_it_is_said(ask):
    done = ask("status", "--redis-url", "redis://127.0.0.1:1", "--milvus-uri", "http://milvus:1")
    assert done.code == 4
    assert "milvus http" not in done.err
    assert "--milvus-uri does nothing for status" in done.err


def test_given_version_when_run_then_it_is_printed(cli):
    done = cli("--version")
    assert (done.code, done.out.split()[0]) == (0, "clipfleet")


def test_given_a_base_install_when_run_then_the_line_that_installs_what_is_missing():
    script = "import sys; sys.modules['typer'] = None; from clipfleet.cli import main; sys.exit(main(['embed', 'x']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'pip install "clipfleet[cli]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_given_a_base_install_when_asked_for_the_version_then_it_answers():
    script = "import sys; sys.modules['typer'] = None; from clipfleet.cli import main; sys.exit(main(['--version']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "clipfleet")


def test_when_asked_for_help_then_nothing_heavy_is_imported():
    script = (
        "import sys; from clipfleet.cli import main; main(['--help']);"
        "heavy = {'numpy', 'redis', 'hiredis', 'rich', 'structlog', 'pymilvus', 'onnxruntime'};"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def processor_seconds(*args: str) -> float:
    """The least of five runs: what the machine does besides only adds."""
    best = float("inf")
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, *args], stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        best = min(best, after.children_user + after.children_system - before.children_user - before.children_system)
    return best


def test_help_costs_little_more_than_typer_itself():
    # By ratio, since seconds depend on the machine: here typer alone is about half of the command's 0.2 s.
    assert processor_seconds("-m", "clipfleet.cli", "--help") < 3 * processor_seconds("-c", "import typer.main")
