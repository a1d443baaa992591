"""The JSON Schema of the fleet file."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.json_schema import is_valid

from pypto_serving_router.config.load import parse_fleet
from pypto_serving_router.config.schema import fleet_schema
from pypto_serving_router.errors import ConfigError

SCHEMA = json.loads(json.dumps(fleet_schema()))
REPLICA = {"host": "10.0.0.2", "port": 8001}
HOST = {"devices": [0], "model": "/m"}
FULL = {
    "replicas": [REPLICA | {"name": "lab", "scheme": "https", "ca_file": None}],
    "hosts": [
        {
            "name": "big",
            "ssh": "serving@big",
            "address": "10.0.0.9",
            "identity_file": "~/.ssh/id",
            "devices": [0, 1],
            "devices_per_replica": 2,
            "port_base": 9000,
            "model": "/m",
            "served_model_name": "m",
            "serve_args": ["--tp", "2"],
            "serve_command": ["python3", "-m", "pypto_serving.cli"],
            "env": {"A": "{slot}"},
            "launch_wrapper": ["task-submit", "--run"],
            "stop_command": ["task-cancel", "{slot}"],
            "workdir": "/scratch",
            "log_dir": "/scratch/logs",
        }
    ],
}
ROOT = Path(__file__).parents[2]
EXAMPLES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "examples" / "fleets").rglob("*.json")}
EXAMPLES["fleet-file.md"] = (ROOT / "docs/reference/fleet-file.md").read_text(encoding="utf-8").split("```")[1][4:]


def loads(document: object) -> bool:
    """Whether the loader takes the document."""
    try:
        parse_fleet(json.dumps(document).encode(), source="x")
    except ConfigError:
        return False
    return True


def test_the_schema_describes_every_key() -> None:
    """It is JSON Schema 2020-12, closed, and says what each key means (spec 2.1)."""
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["$defs"]["ReplicaSpec"]["required"] == ["host", "port"]
    assert SCHEMA["$defs"]["HostSpec"]["required"] == ["devices", "model"]
    for definition in SCHEMA["$defs"].values():
        assert definition["additionalProperties"] is False
        assert all(each["description"] for each in definition["properties"].values())


@pytest.mark.parametrize(
    "document", [{"replicas": [REPLICA]}, {"hosts": [HOST]}, {"replicas": [], "hosts": [HOST]}, FULL]
)
def test_a_good_document_satisfies_schema_and_loader(document: dict[str, Any]) -> None:
    """What loads is valid by the printed schema (spec 2.1)."""
    assert loads(document)
    assert is_valid(document, SCHEMA)


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_every_example_satisfies_schema_and_loader(example: str) -> None:
    """The examples that are shipped work (spec 2.1)."""
    document = json.loads(example)

    assert loads(document)
    assert is_valid(document, SCHEMA)


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"replicas": []},
        {"replicas": [], "hosts": []},
        {"replica": [REPLICA]},
        {"replicas": [REPLICA], "extra": 1},
        {"replicas": [{"host": "a"}]},
        {"replicas": [REPLICA | {"port": 0}]},
        {"replicas": [REPLICA | {"port": 65536}]},
        {"replicas": [REPLICA | {"port": "8001"}]},
        {"replicas": [REPLICA | {"port": True}]},
        {"replicas": [REPLICA | {"name": "a b"}]},
        {"replicas": [REPLICA | {"scheme": "ftp"}]},
        {"hosts": [{"devices": [0]}]},
        {"hosts": [HOST | {"devices": []}]},
        {"hosts": [HOST | {"devices": [0, 0]}]},
        {"hosts": [HOST | {"devices": [-1]}]},
        {"hosts": [HOST | {"devices_per_replica": 0}]},
        {"hosts": [HOST | {"model": ""}]},
        {"hosts": [HOST | {"model": None}]},
        {"hosts": [HOST | {"serve_args": "x"}]},
        {"hosts": [HOST | {"serve_command": []}]},
        {"hosts": [HOST | {"env": {"A": 1}}]},
        {"hosts": [HOST | {"divices": [0]}]},
    ],
)
def test_a_bad_document_satisfies_neither(document: object) -> None:
    """What the schema can say, it says as the loader does (spec 2.1)."""
    assert not loads(document)
    assert not is_valid(document, SCHEMA)
