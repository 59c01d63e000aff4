"""What nobody can try without a container engine: that the compose file and the Dockerfile hold together."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from clipfleet.cli.settings import Flags, load
from clipfleet.worker.config import WorkerConfig

REPOSITORY = Path(__file__).parents[2]
if not (REPOSITORY / "schemas").is_dir():
    pytest.skip("the tests were copied away from the sources, to try the wheel", allow_module_level=True)
COMPOSE = YAML(typ="safe").load(REPOSITORY / "docker-compose.yml")
SERVICES = COMPOSE["services"]
DOCKERFILE = (REPOSITORY / "deploy/Dockerfile").read_text(encoding="utf-8")
OURS = [name for name, service in SERVICES.items() if "build" in service]
WORKERS = [name for name in OURS if name.startswith("worker-")]


def interpolated(text, environment):
    """As compose does it: ``${NAME:-default}`` is the default when NAME is empty, too."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: environment.get(match[1]) or match[2], text)


def stages():
    return {name: base for base, name in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, flags=re.MULTILINE)}


def sources():
    """The paths that the Dockerfile copies out of the repository."""
    copies = [shlex.split(line) for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
    return [path for words in copies if not words[1].startswith("--from") for path in words[1:-1]]


def redis_options(environment):
    words = [interpolated(word, environment) for word in SERVICES["redis"]["command"]]
    return dict(zip(words[1::2], words[2::2], strict=True))


def test_the_compose_file_is_one():
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        "docker-compose.yml",
    ]
    checked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_whoever_is_waited_for_exists_and_can_be_healthy():
    waits = [
        (who, whom, how) for who, service in SERVICES.items() for whom, how in service.get("depends_on", {}).items()
    ]
    assert waits
    for who, whom, how in waits:
        assert whom in SERVICES, f"{who} waits for {whom}"
        assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[whom], (
            f"{who} waits for {whom} for ever"
        )
        # A service of a profile that nobody asked for is not started.
        assert "profiles" not in SERVICES[whom]


def test_only_what_exists_is_in_the_file():
    assert set(SERVICES) == {"redis", "etcd", "minio", "milvus", "worker-cpu", "worker-gpu", "cli"}
    used = {volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert used == set(COMPOSE["volumes"])


def test_ports_are_open_on_this_machine_alone():
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(isinstance(port, str) and port.startswith("127.0.0.1:") for port in ports)


def test_images_of_others_are_of_one_release():
    for name in set(SERVICES) - set(OURS):
        tag = SERVICES[name]["image"].rpartition(":")[2]
        assert re.search(r"\d", tag), f"{name} is whatever is newest"


def test_redis_loses_nothing_that_it_accepted():
    options = redis_options({})
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] in {"everysec", "always"}
    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--maxmemory"] != "0"
    assert any(volume.endswith(":/data") for volume in SERVICES["redis"]["volumes"])


@pytest.mark.parametrize("password", ["", "a-word"])
def test_the_password_of_redis_is_that_of_whoever_speaks_to_it(password):
    environment = {"REDIS_PASSWORD": password} if password else {}
    assert redis_options(environment)["--requirepass"] == password
    assert interpolated(SERVICES["redis"]["environment"]["REDISCLI_AUTH"], environment) == password
    for name in OURS:
        url = interpolated(SERVICES[name]["environment"]["CLIPFLEET_REDIS_URL"], environment)
        assert url == f"redis://:{password}@redis:6379"


@pytest.mark.parametrize("name", OURS)
def test_our_services_read_what_they_are_told(name):
    environment = {key: interpolated(value, {}) for key, value in SERVICES[name]["environment"].items()}
    settings = load(Flags(), environment)
    assert settings.redis_url.endswith("@redis:6379")
    assert settings.queue == "clip"
    assert settings.milvus_uri == ("http://milvus:19530" if name in WORKERS else None)
    fields = {f"CLIPFLEET_{field.upper()}" for field in WorkerConfig.__dataclass_fields__}
    assert {key for key in environment if key.startswith("CLIPFLEET_")} <= fields


@pytest.mark.parametrize("name", OURS)
def test_our_services_are_confined(name):
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is (name != "worker-gpu")


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_is_given_more_time_to_stop_than_it_takes(name):
    assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) > WorkerConfig().grace_s


@pytest.mark.parametrize("name", OURS)
def test_our_images_are_built_from_targets_that_exist(name):
    build = SERVICES[name]["build"]
    assert (REPOSITORY / build["context"]).resolve() == REPOSITORY
    assert REPOSITORY / build["dockerfile"] == REPOSITORY / "deploy/Dockerfile"
    assert build["target"] in stages()


@pytest.mark.parametrize("name", OURS)
def test_our_images_do_not_run_as_root(name):
    target = SERVICES[name]["build"]["target"]
    own_lines = DOCKERFILE.partition(f" AS {target}\n")[2].partition("\nFROM ")[0].splitlines()
    users = [line.split()[1] for line in own_lines if line.startswith("USER ")]
    assert users == ["clipfleet"]
    assert own_lines.index("USER clipfleet") > max(i for i, line in enumerate(own_lines) if line.startswith("RUN "))


def test_each_stage_stands_on_one_above_it():
    seen = {"${PYTHON_IMAGE}"}
    for name, base in stages().items():
        assert base in seen
        seen.add(name)
    for source in re.findall(r"from=(\w+)", DOCKERFILE):
        assert source in seen


def test_what_the_images_are_made_of_exists_and_is_let_through():
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").split()
    assert lines[0] == "*"
    let_through = {line[1:] for line in lines if line.startswith("!")}
    assert set(sources()) == let_through
    assert all((REPOSITORY / path).exists() for path in sources())
