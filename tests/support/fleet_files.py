"""Entries of fleet files, and a table of every mistake that a fleet file may hold."""

from __future__ import annotations

from typing import Any

SECRET_KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----"


def replica(**fields: object) -> dict[str, object]:
    """Write a `replicas` entry."""
    return {"host": "10.0.0.2", "port": 8001} | fields


def host(**fields: object) -> dict[str, object]:
    """Write a `hosts` entry."""
    return {"devices": [0], "model": "/m"} | fields


REFUSALS: list[tuple[str, dict[str, Any], str, str]] = [
    # spec 2.1
    ("nothing in it", {}, "fleet.json", "at least one"),
    ("two empty arrays", {"replicas": [], "hosts": []}, "fleet.json", "at least one"),
    ("unknown key", {"replica": [replica()]}, "replica", "did you mean `replicas`?"),
    ("unknown key below", {"hosts": [host(device_per_replica=1)]}, "hosts[0].device_per_replica", "did you mean"),
    ("array expected", {"replicas": {}}, "replicas", "found an object; allowed is an array"),
    ("object expected", {"replicas": ["10.0.0.2:8001"]}, "replicas[0]", "allowed is an object"),
    # spec 2.2
    ("no host", {"replicas": [{"port": 1}]}, "replicas[0].host", "is missing"),
    ("no port", {"replicas": [{"host": "a"}]}, "replicas[0].port", "is missing"),
    ("a URL for a host", {"replicas": [replica(host="http://a")]}, "replicas[0].host", "no scheme"),
    ("a port in the host", {"replicas": [replica(host="a:1")]}, "replicas[0].host", "no scheme, port"),
    ("an option for a host", {"replicas": [replica(host="-a")]}, "replicas[0].host", "starts with `-`"),
    ("wrong scheme", {"replicas": [replica(scheme="ftp")]}, "replicas[0].scheme", "`http` or `https`"),
    ("no name to derive", {"replicas": [replica(host="a.b" * 50)]}, "replicas[0].name", "is required"),
    ("ca_file without TLS", {"replicas": [replica(ca_file="/ca")]}, "replicas[0].ca_file", "`https`"),
    ("no such user", {"replicas": [replica(scheme="https", ca_file="~no-such-user/ca")]}, "replicas[0].ca_file", "`~`"),
    # spec 2.3
    ("no devices", {"hosts": [{"model": "/m"}]}, "hosts[0].devices", "is missing"),
    ("empty devices", {"hosts": [host(devices=[])]}, "hosts[0].devices", "is empty"),
    ("no model", {"hosts": [{"devices": [0]}]}, "hosts[0].model", "is missing"),
    ("empty model", {"hosts": [host(model="")]}, "hosts[0].model", "not empty"),
    ("device twice", {"hosts": [host(devices=[1, 2, 1])]}, "hosts[0].devices[2]", "found 1 again"),
    ("device text", {"hosts": [host(devices=[1, 2, "x"])]}, "hosts[0].devices[2]", 'found "x"; allowed is a whole'),
    ("device negative", {"hosts": [host(devices=[-1])]}, "hosts[0].devices[0]", "0 or more"),
    ("remainder", {"hosts": [host(devices=[0, 1, 2], devices_per_replica=2)]}, "hosts[0].devices", "a multiple of"),
    ("too few", {"hosts": [host(devices=[0], devices_per_replica=8)]}, "hosts[0].devices", "lists 1 devices"),
    ("no group", {"hosts": [host(devices_per_replica=0)]}, "hosts[0].devices_per_replica", "1 or more"),
    ("key material", {"hosts": [host(ssh="a", identity_file=SECRET_KEY)]}, "hosts[0].identity_file", "key material"),
    ("option for a key", {"hosts": [host(ssh="a", identity_file="-v")]}, "hosts[0].identity_file", "starts with `-`"),
    ("option for ssh", {"hosts": [host(ssh="-oProxyCommand=x")]}, "hosts[0].ssh", "starts with `-`"),
    ("shell for ssh", {"hosts": [host(ssh="a;b")]}, "hosts[0].ssh", "contains ';'"),
    ("option behind @", {"hosts": [host(ssh="a@-b")]}, "hosts[0].address", "is required"),
    ("option for address", {"hosts": [host(address="-b")]}, "hosts[0].address", "starts with `-`"),
    ("no serving program", {"hosts": [host(serve_command=[])]}, "hosts[0].serve_command", "is empty"),
    ("nameless program", {"hosts": [host(serve_command=["", "x"])]}, "hosts[0].serve_command[0]", "name of a program"),
    ("nameless wrapper", {"hosts": [host(launch_wrapper=[""])]}, "hosts[0].launch_wrapper[0]", "name of a program"),
    ("nameless stop", {"hosts": [host(stop_command=[""])]}, "hosts[0].stop_command[0]", "name of a program"),
    ("no stop program", {"hosts": [host(stop_command=[])]}, "hosts[0].stop_command", "is empty"),
    ("one text for a command", {"hosts": [host(serve_args="--tp 2")]}, "hosts[0].serve_args", "allowed is an array"),
    ("number in arguments", {"hosts": [host(serve_args=["--tp", 2])]}, "hosts[0].serve_args[1]", "found 2; allowed"),
    ("number in env", {"hosts": [host(env={"A": 1})]}, "hosts[0].env.A", "allowed is text"),
    ("env without a name", {"hosts": [host(env={"": "x"})]}, 'hosts[0].env[""]', "environment variable"),
    ("the router's own env", {"hosts": [host(env={"PYPTO_ROUTER_X": ""})]}, "hosts[0].env.PYPTO_ROUTER_X", "reserved"),
    ("NUL", {"hosts": [host(serve_args=["a\0"])]}, "hosts[0].serve_args[0]", "NUL"),
    ("NUL in env", {"hosts": [host(env={"A": "\0"})]}, "hosts[0].env.A", "NUL"),
    ("line break in a path", {"hosts": [host(log_dir="/a\nb")]}, "hosts[0].log_dir", "control character"),
    ("unprintable ssh", {"hosts": [host(ssh="\x80")]}, "hosts[0].ssh", "control character '\\x80'"),
    ("line break in workdir", {"hosts": [host(workdir="/a\nb")]}, "hosts[0].workdir", "control character"),
    ("line break in model", {"hosts": [host(model="/a\nb")]}, "hosts[0].model", "control character"),
    # spec 2.4
    ("placeholder", {"hosts": [host(serve_args=["{devcies}"])]}, "hosts[0].serve_args[0]", "did you mean `devices`?"),
    ("placeholder in env", {"hosts": [host(env={"A": "{HOME}"})]}, "hosts[0].env.A", "{{HOME}}"),
    ("placeholder in command", {"hosts": [host(serve_command=["{x}"])]}, "hosts[0].serve_command[0]", "{x}"),
    ("placeholder in wrapper", {"hosts": [host(launch_wrapper=["{x}"])]}, "hosts[0].launch_wrapper[0]", "{x}"),
    ("placeholder in stop", {"hosts": [host(stop_command=["{x}"])]}, "hosts[0].stop_command[0]", "{x}"),
    ("placeholder in log_dir", {"hosts": [host(log_dir="/{x}")]}, "hosts[0].log_dir", "{x}"),
    # spec 2.6
    (
        "replica name twice",
        {"replicas": [replica(), replica(name="10.0.0.2:8001", port=8002)]},
        "replicas[1].name",
        "used by replicas[0].name",
    ),
    (
        "host name twice",
        {"hosts": [host(name="a"), host(name="a", ssh="b")]},
        "hosts[1].name",
        "used by hosts[0].name",
    ),
    (
        "default host name taken",
        {"hosts": [host(name="host1"), host(ssh="b")]},
        "hosts[1].name",
        "used by hosts[0].name",
    ),
    (
        "slot named like a replica",
        {"replicas": [replica(name="a-d0")], "hosts": [host(name="a")]},
        "hosts[0].devices[0]",
        "a-d0 is already used by replicas[0].name",
    ),
    (
        "slot at a replica's address",
        {"replicas": [replica(host="LOCALHOST")], "hosts": [host()]},
        "hosts[0].devices[0]",
        "port 8001 of 127.0.0.1 is already used by replicas[0]",
    ),
    (
        "one server twice",
        {"replicas": [replica(host="localhost"), replica(host="localhost")]},
        "replicas[1]",
        "port 8001 of localhost is already used by replicas[0]",
    ),
    (
        "one server under two names",
        {"replicas": [replica(name="a", host="LOCALHOST"), replica(name="b", host="127.0.0.1")]},
        "replicas[1]",
        "port 8001 of 127.0.0.1 is already used by replicas[0]",
    ),
    (
        "two spellings of one server",
        {"replicas": [replica(name="a", host="2001:DB8:0::7"), replica(name="b", host="2001:db8::7")]},
        "replicas[1]",
        "port 8001 of 2001:db8::7 is already used by replicas[0]",
    ),
    ("numbers that are no address", {"replicas": [replica(host="256.1.1.1")]}, "replicas[0].host", "neither a host"),
    ("an empty label", {"hosts": [host(address="a..b")]}, "hosts[0].address", "neither a host name nor an IP address"),
    (
        "two slots at one address",
        {"hosts": [host(devices=[1]), host(devices=[0], port_base=8002)]},
        "hosts[1].devices[0]",
        "port 8002 of 127.0.0.1 is already used by hosts[0].devices[0]",
    ),
    (
        "device of the router's machine twice",
        {"hosts": [host(devices=[0, 4]), host(devices=[4], port_base=9000)]},
        "hosts[1].devices[0]",
        "device 4 of this machine is already used by hosts[0].devices[1]",
    ),
    (
        "device of an ssh destination twice",
        {"hosts": [host(ssh="a@b"), host(ssh="a@b", address="10.0.0.3")]},
        "hosts[1].devices[0]",
        "device 0 of this machine",
    ),
    (
        "device of an address twice",
        {"hosts": [host(ssh="a@b"), host(ssh="c@B.", port_base=9000)]},
        "hosts[1].devices[0]",
        "device 0 of this machine",
    ),
    (
        "device that is not the first of its group",
        {"hosts": [host(devices=[0, 1], devices_per_replica=2), host(devices=[1])]},
        "hosts[1].devices[0]",
        "already used by hosts[0].devices[1]",
    ),
    ("port 0", {"replicas": [replica(port=0)]}, "replicas[0].port", "from 1 to 65535"),
    ("port above", {"replicas": [replica(port=65536)]}, "replicas[0].port", "from 1 to 65535"),
    ("port text", {"replicas": [replica(port="8001")]}, "replicas[0].port", 'found "8001"'),
    ("port_base above", {"hosts": [host(port_base=65536)]}, "hosts[0].port_base", "from 1 to 65535"),
    ("slot port above", {"hosts": [host(devices=[0, 9], port_base=65530)]}, "hosts[0].devices[1]", "gives port 65539"),
    ("bad name", {"replicas": [replica(name="a b")]}, "replicas[0].name", "1 to 128 of the characters"),
    ("empty name", {"hosts": [host(name="")]}, "hosts[0].name", "1 to 128 of the characters"),
    ("name with a line end", {"hosts": [host(name="a\n")]}, "hosts[0].name", "1 to 128 of the characters"),
    ("long name", {"hosts": [host(name="a" * 129)]}, "hosts[0].name", "1 to 128 of the characters"),
    ("long slot name", {"hosts": [host(name="a" * 126)]}, "hosts[0].devices[0]", "longer than 128"),
]
"""A description, a document with one mistake, the place of its problem, and a part of the message."""
