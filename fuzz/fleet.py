"""Fleet files: a plan that can be carried out, or what is wrong with them, one line each."""

from __future__ import annotations

import re
from typing import Any

from fuzz.documents import SCRAPS, documents
from fuzz.target import Target
from pypto_serving_router.config.load import parse_fleet, resolve
from pypto_serving_router.config.model import HostSpec, ReplicaSpec, Settings
from pypto_serving_router.errors import ConfigError
from pypto_serving_router.launch.command import slot_command
from pypto_serving_router.launch.launcher import Launcher

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")

_SAMPLES: list[Any] = [
    {"replicas": [{"name": "n0", "host": "127.0.0.1", "port": 8001}, {"host": "10.0.0.2", "port": 8001}]},
    {"replicas": [{"host": "::1", "port": 443, "scheme": "https", "name": "tls"}]},
    {"hosts": [{"name": "node01", "devices": [4], "port_base": 8001, "model": "/m", "env": {"A": "b{device}"}}]},
    {
        "hosts": [
            {
                "ssh": "user@node02",
                "identity_file": "~/.ssh/id",
                "devices": [0, 1, 2, 3],
                "devices_per_replica": 2,
                "model": "/m",
                "served_model_name": "q",
                "serve_args": ["--x", "{port}"],
                "serve_command": ["python3", "-m", "serve"],
                "launch_wrapper": ["task", "{device}"],
                "stop_command": ["kill", "{slot}"],
                "log_dir": "/var/log/{host}",
                "workdir": "/w",
                "address": "10.0.0.9",
            }
        ],
        "replicas": [{"host": "a", "port": 1}],
    },
]
_KEYS = [field for spec in (HostSpec, ReplicaSpec) for field in spec.__struct_fields__] + ["replicas", "hosts", "x"]


def check(data: bytes) -> None:
    """Read a fleet file, and come as far as the commands that would be run."""
    try:
        fleet = parse_fleet(data, source="fleet.json")
        resolve(Settings(replicas="fleet.json"), fleet)
    except ConfigError as error:
        assert error.problems, "refused without a word"
        for problem in error.problems:
            assert str(problem).strip(), "an empty problem"
            assert not _CONTROL.search(str(problem)), f"a problem that is no line of text: {problem!r}"
        return
    names = [replica.name for replica in fleet.replicas] + [slot.id for slot in fleet.slots]
    assert len(set(names)) == len(names)
    assert all(_NAME.fullmatch(name) for name in names)
    for slot in fleet.slots:
        assert 1 <= slot.port <= 65535
        command = slot_command(slot)
        texts = [*command.argv, *command.env, *command.env.values(), command.log_path, *(command.stop_argv or ())]
        for text in texts:
            assert "\0" not in text
            text.encode()
        assert not any(name.startswith("PYPTO_ROUTER_") for name in command.env)
        if slot.host.ssh is not None:
            assert not slot.host.ssh.startswith("-")
    Launcher(fleet.slots)


TARGET = Target("fleet", documents(_SAMPLES, _KEYS), SCRAPS, check)
