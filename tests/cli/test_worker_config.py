from __future__ import annotations

import pytest

from clipfleet.cli import worker_options
from clipfleet.cli.errors import CliError, Exit
from clipfleet.cli.settings import Flags, load
from clipfleet.cli.worker_config import build, parse_roots
from clipfleet.worker.config import WorkerConfig


def configured(environ=None, **flags) -> WorkerConfig:
    return build(load(Flags(redis_url="redis://h", queue="q"), environ or {}), flags)


def test_given_nothing_when_built_then_the_defaults_are_the_workers_own():
    assert configured() == WorkerConfig(redis_url="redis://h", queue="q")


def test_given_environment_and_flags_when_built_then_flags_win():
    environ = {
        "CLIPFLEET_MAX_BATCH_SIZE": "16",
        "CLIPFLEET_MAX_DELAY_MS": "2.5",
        "CLIPFLEET_PROCESSES": "2",
        "CLIPFLEET_ALLOW_URLS": "yes",
        "CLIPFLEET_PROVIDERS": "cuda, cpu",
        "CLIPFLEET_MODEL": "ViT-B-32/x",
        "MILVUS_URI": "http://milvus:19530",
        "MILVUS_TOKEN": "secret",
    }
    config = configured(environ, max_batch_size=32, model=None)
    assert config.max_batch_size == 32
    assert (config.max_delay_ms, config.processes, config.allow_urls) == (2.5, 2, True)
    assert (config.providers, config.model) == (("cuda", "cpu"), "ViT-B-32/x")
    assert (config.milvus_uri, config.milvus_token) == ("http://milvus:19530", "secret")


def test_given_a_delay_as_a_number_or_as_auto_when_built_then_it_is_one_or_the_other():
    assert configured({"CLIPFLEET_MAX_DELAY_MS": "auto"}).max_delay_ms == "auto"
    assert configured({"CLIPFLEET_MAX_DELAY_MS": "5"}, max_delay_ms="auto").most_delay_ms == 0.0
    assert configured({"CLIPFLEET_MAX_DELAY_MS": "auto"}, max_delay_ms="7.5").most_delay_ms == 7.5
    config = configured({}, max_delay_ms="auto", bulk_batch_ms=50.0)
    assert WorkerConfig.of_message(config.to_message()) == config


def test_given_nested_roots_when_built_then_they_are_directories_by_name(tmp_path):
    config = configured({"CLIPFLEET_ALLOW_ROOTS__PHOTOS": str(tmp_path)})
    assert config.allow_roots == {"photos": tmp_path.resolve()}


@pytest.mark.parametrize(
    ("environ", "flags", "named"),
    [
        ({"CLIPFLEET_CAPACITY": "many"}, {}, "CLIPFLEET_CAPACITY"),
        ({"CLIPFLEET_ALLOW_URLS": "perhaps"}, {}, "CLIPFLEET_ALLOW_URLS"),
        ({}, {"max_batch_size": 0}, "max_batch_size"),
        ({}, {"bulk_batch_ms": 0.0}, "bulk_batch_ms"),
        ({}, {"max_delay_ms": "soon"}, "--max-delay-ms cannot be 'soon'"),
        ({}, {"max_delay_ms": "nan"}, "max_delay_ms must be 0 to 60000"),
        ({"CLIPFLEET_MAX_DELAY_MS": "autos"}, {}, "CLIPFLEET_MAX_DELAY_MS cannot be 'autos'"),
        ({"CLIPFLEET_PROCESSES": "0"}, {}, "processes must be 1 to 256"),
    ],
)
def test_given_a_setting_that_cannot_be_when_built_then_a_usage_error_names_it(environ, flags, named):
    with pytest.raises(CliError, match=named) as caught:
        configured(environ, **flags)
    assert caught.value.exit is Exit.USAGE


@pytest.mark.parametrize("pair", ["photos", "=/tmp", "photos=", "photos=/nowhere/at/all"])
def test_given_no_name_and_directory_when_parsed_then_it_is_a_usage_error(pair):
    with pytest.raises(CliError) as caught:
        parse_roots([pair])
    assert caught.value.exit is Exit.USAGE


def test_every_field_of_the_configuration_that_a_flag_sets_is_one():
    fields = set(WorkerConfig.__dataclass_fields__)
    assert not worker_options.PLAIN_FLAGS - fields
    assert not set(worker_options.HANDED_ON) - fields
