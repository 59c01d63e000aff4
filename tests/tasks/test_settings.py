"""Where Celery finds its broker, what a source may be, and what the configuration promises."""

from __future__ import annotations

import os

import pytest

from clipfleet.index.sources import SourceError
from clipfleet.tasks import settings
from clipfleet.tasks.app import app
from clipfleet.tasks.plan import make_plan

OPTIONS = {"collection": "images", "columns": {}, "step_s": 1.0, "patience_s": 60.0, "shards": 2}


@pytest.mark.parametrize(
    ("environment", "broker", "backend"),
    [
        ({}, "redis://localhost:6379/1", "redis://localhost:6379/1"),
        ({"REDIS_URL": "redis://u:p@r:7000/4"}, "redis://u:p@r:7000/5", "redis://u:p@r:7000/5"),
        ({"REDIS_URL": "rediss://r"}, *["rediss://r/1?ssl_cert_reqs=CERT_REQUIRED"] * 2),
        ({"REDIS_URL": "unix:///run/redis.sock"}, *["redis+socket:///run/redis.sock?virtual_host=1"] * 2),
        ({"REDIS_URL": "unix:///run/redis.sock?db=1"}, *["redis+socket:///run/redis.sock?virtual_host=2"] * 2),
        ({"REDIS_URL": "redis://r?db=3"}, *["redis://r/4"] * 2),
        (
            {"REDIS_URL": "rediss://r?ssl_check_hostname=true"},
            *["rediss://r/1?ssl_check_hostname=true&ssl_cert_reqs=CERT_REQUIRED"] * 2,
        ),
        ({"CELERY_BROKER_URL": "amqp://r", "CELERY_RESULT_BACKEND": "rpc://"}, "amqp://r", "rpc://"),
        (
            {"CLIPFLEET_CELERY_BROKER_URL": "redis://a/2", "CELERY_BROKER_URL": "redis://b"},
            "redis://a/2",
            "redis://a/2",
        ),
    ],
)
def test_given_an_environment_when_read_then_celery_is_beside_the_fleet_or_where_it_says(environment, broker, backend):
    read = settings.read(environment)
    assert (read.broker_url, read.result_backend) == (broker, backend)
    assert "p@r" not in repr(read)


def test_the_configuration_is_json_alone_late_acks_and_unacked_tables_of_our_own():
    conf = app.conf
    assert (conf.accept_content, conf.task_serializer, conf.result_serializer) == (["json"], "json", "json")
    assert (conf.task_acks_late, conf.task_reject_on_worker_lost, conf.worker_prefetch_multiplier) == (True, True, 1)
    assert conf.task_default_queue == "clipfleet"
    options = conf.broker_transport_options
    assert {name for name, value in options.items() if value == f"clipfleet.{name.removesuffix('_key')}"} == {
        *("unacked_key", "unacked_index_key", "unacked_mutex_key")
    }


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root" / "pictures").mkdir(parents=True)
    (tmp_path / "root" / "{odd}").mkdir()
    (tmp_path / "root" / "out").symlink_to(tmp_path)
    (tmp_path / "root" / "[out]").symlink_to(tmp_path)
    (tmp_path / "out.mp4").touch()
    (tmp_path / "root" / "video.mp4").symlink_to(tmp_path / "out.mp4")
    (tmp_path / "root" / "s-0.tar").touch()
    (tmp_path / "root" / "s-2.tar").touch()
    return tmp_path / "root"


@pytest.mark.parametrize(
    "name",
    [
        *("", "..", "../root", "pictures/../../root", "/etc", "/etc/*.png", "out", "out/*.png", "../*.csv", "../x.tar"),
        *("{pictures,..}", "{pictures,../..}", "{pictures,/etc}", "{pictures,out}/**", "{1..99999999}"),
        *("[out]", "video.mp4", "v*.mp4"),
    ],
)
def test_given_a_source_outside_of_the_root_when_planned_then_it_is_refused(root, name):
    with pytest.raises(SourceError):
        make_plan([name], root, **OPTIONS)


def test_given_columns_that_lead_out_or_are_unknown_when_planned_then_they_are_refused(root):
    for columns in ({"root": ".."}, {"root": "/"}, {"link": "url"}):
        with pytest.raises(SourceError):
            make_plan(["pictures"], root, **{**OPTIONS, "columns": columns})


def test_given_sources_in_the_root_when_planned_then_shards_share_them(root):
    plan = make_plan(["s-{0..3}.tar", "pictures", os.fspath(root / "pictures"), "{odd}"], root, **OPTIONS)
    assert [unit.names for unit in plan.units] == [
        ("pictures", os.fspath(root / "pictures"), "{odd}"),
        *((f"s-{number}.tar",) for number in range(4)),
    ]
    dealt = [[unit.names[0] for unit in plan.units_of(number)] for number in range(2)]
    assert dealt == [["pictures", "s-1.tar", "s-3.tar"], ["pictures", "s-0.tar", "s-2.tar"]]
    assert type(plan).of(plan.to_json()) == plan


@pytest.mark.parametrize(
    "name",
    [
        *("s3://other/a", "s3://shop-of-others/a", "s3://shop/../other/a", "s3://shop/a::file:///etc", "file:///etc"),
        *("s3://{shop,other}/a", "gs://shop/a.tar", "S3://shop/a", "memory://a"),
    ],
)
def test_given_an_address_that_is_not_allowed_when_planned_then_it_is_refused(root, name):
    with pytest.raises(SourceError, match="CLIPFLEET_SOURCES_ADDRESSES"):
        make_plan([name], root, ("s3://shop",), **OPTIONS)


def test_given_several_allowed_addresses_when_read_then_each_is_one():
    read = settings.read(
        {"CLIPFLEET_SOURCES_ADDRESSES": "s3://shop/pictures  gs://other", "CLIPFLEET_SOURCES_ROOT": "/d"}
    )
    assert (read.sources_addresses, str(read.sources_root)) == (("s3://shop/pictures", "gs://other"), "/d")
