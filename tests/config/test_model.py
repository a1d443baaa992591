"""Settings and specs as values."""

import msgspec
import pytest
from msgspec import inspect

from pypto_serving_router.config import document
from pypto_serving_router.config.model import Fleet, HostSpec, ReplicaSpec, Settings


def host(name: str, devices: tuple[int, ...], **fields: object) -> HostSpec:
    """Build a host as the loader would."""
    known = {"name": name, "devices": devices, "address": "127.0.0.1", "model": "/m", "log_dir": "/logs"}
    return msgspec.convert(known | fields, HostSpec)


def test_defaults_are_those_of_the_specification() -> None:
    """Names and defaults of the options are exactly so (spec 1.2)."""
    assert msgspec.structs.asdict(Settings()) == {
        "replicas": None,
        "host": "0.0.0.0",
        "port": 8000,
        "session_ttl": 600,
        "affinity_slack": 8,
        "session_header": (),
        "session_field": (),
        "health_interval": 5,
        "request_timeout": 3600,
        "connect_timeout": 5,
        "connect_retries": 0,
        "initial_replicas": None,
        "max_replicas": None,
        "launch_timeout": 600,
        "drain_timeout": 300,
        "replace_after": 30,
        "state_file": None,
        "admin_token": None,
        "max_sessions": 100_000,
        "max_body_size": 100 * 1024 * 1024,
        "access_log": False,
        "log_level": "info",
        "log_format": "text",
        "demo": None,
    }


def test_repr_never_shows_the_token() -> None:
    """A token is never logged (spec 1.3)."""
    settings = Settings(admin_token="hunter2", port=8080)

    assert "hunter2" not in repr(settings)
    assert "hunter2" not in f"{settings}"
    assert "port=8080" in repr(settings)
    assert "admin_token=None" in repr(Settings())


@pytest.mark.parametrize("struct", [Settings, Fleet, ReplicaSpec, HostSpec])
def test_every_field_says_what_it_means(struct: type[msgspec.Struct]) -> None:
    """Help, schema and reference have a sentence for each field (spec 1.2, 2.1)."""
    for field in msgspec.structs.fields(struct):
        _, notes, _ = document.plain(inspect.type_info(field.type))
        assert notes["description"].endswith("."), field.name


@pytest.mark.parametrize(
    ("address", "scheme", "url"),
    [
        ("10.0.0.2", "http", "http://10.0.0.2:8001"),
        ("node02", "https", "https://node02:8001"),
        ("::1", "http", "http://[::1]:8001"),
    ],
)
def test_an_ipv6_address_is_bracketed_in_a_url(address: str, scheme: str, url: str) -> None:
    """A literal IPv6 address does not break a replica's URL (symptom M4, spec 4.8)."""
    assert msgspec.convert({"host": address, "port": 8001, "scheme": scheme}, ReplicaSpec).url == url


def test_slots_come_in_launch_order() -> None:
    """Local hosts first, then file order; device order within a host (spec 7.1)."""
    far = host("far", (3, 1), ssh="u@far", address="far")
    near = host("near", (9, 8, 2, 5), devices_per_replica=2, port_base=100)
    last = host("last", (0,), ssh="u@last", address="::1")
    fleet = Fleet(hosts=(far, near, last))

    assert [(slot.id, slot.devices, slot.port, slot.url) for slot in fleet.slots] == [
        ("near-d9", (9, 8), 109, "http://127.0.0.1:109"),
        ("near-d2", (2, 5), 102, "http://127.0.0.1:102"),
        ("far-d3", (3,), 8004, "http://far:8004"),
        ("far-d1", (1,), 8002, "http://far:8002"),
        ("last-d0", (0,), 8001, "http://[::1]:8001"),
    ]
    assert fleet.slots is fleet.slots
    assert {slot.host.name: slot.address for slot in fleet.slots} == {"near": "127.0.0.1", "far": "far", "last": "::1"}


def test_a_fleet_of_static_replicas_has_no_slots() -> None:
    """Static replicas take no slot (spec 2.1)."""
    assert Fleet(replicas=(ReplicaSpec(host="a", port=1, name="a"),)).slots == ()
