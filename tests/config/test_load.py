"""Fleet files, good and bad."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fleet_files import REFUSALS, SECRET_KEY, host, replica

from pypto_serving_router.config.load import Plan, canonical, load_fleet, parse_fleet, resolve
from pypto_serving_router.config.model import Fleet, HostSpec, Settings
from pypto_serving_router.errors import ConfigError, Problem
from pypto_serving_router.launch.command import slot_command


def parse(document: object) -> Fleet:
    """Load a document."""
    return parse_fleet(json.dumps(document).encode(), source="fleet.json")


def refused(document: object) -> dict[str, str]:
    """Load a document that must be refused; give its problems by place."""
    with pytest.raises(ConfigError) as caught:
        parse(document)
    return {problem.place: problem.message for problem in caught.value.problems}


# --- what is accepted ------------------------------------------------------------------------


def test_a_static_replica_gets_its_defaults() -> None:
    """`name` is `host:port`, `scheme` is http (spec 2.2)."""
    (spec,) = parse({"replicas": [{"host": "10.0.0.2", "port": 8001}]}).replicas

    assert (spec.name, spec.scheme, spec.ca_file, spec.url) == ("10.0.0.2:8001", "http", None, "http://10.0.0.2:8001")


def test_an_ipv6_replica_has_a_usable_name() -> None:
    """A literal IPv6 address needs no name of its own (symptom M4, spec 2.2)."""
    (spec,) = parse({"replicas": [replica(host="2001:db8::7")]}).replicas

    assert (spec.name, spec.url) == ("2001:db8::7:8001", "http://[2001:db8::7]:8001")


def test_a_local_host_gets_its_defaults() -> None:
    """Every field but `devices` and `model` can be left out (spec 2.3)."""
    (spec,) = parse({"hosts": [host()]}).hosts

    assert msgspec.structs.asdict(spec) == {
        "name": "host0",
        "ssh": None,
        "address": "127.0.0.1",
        "identity_file": None,
        "devices": (0,),
        "devices_per_replica": 1,
        "port_base": 8001,
        "model": "/m",
        "served_model_name": None,
        "serve_args": (),
        "serve_command": ("pypto-serving",),
        "env": {},
        "launch_wrapper": (),
        "stop_command": None,
        "workdir": None,
        "log_dir": spec.log_dir,
    }
    assert Path(spec.log_dir).name == f"pypto-serving-router-{os.getuid()}"


@pytest.mark.parametrize(
    ("ssh", "address", "log_dir"),
    [
        ("user@node02", "node02", "/tmp/pypto-serving-router-user"),
        ("alias", "alias", f"/tmp/pypto-serving-router-{os.getuid()}"),
        ("ssh://user@node02:2222", "node02", "/tmp/pypto-serving-router-user"),
        ("ssh://node02", "node02", f"/tmp/pypto-serving-router-{os.getuid()}"),
        ("ssh://user@[2001:db8::7]:22", "2001:db8::7", "/tmp/pypto-serving-router-user"),
        ("user@2001:db8::7", "2001:db8::7", "/tmp/pypto-serving-router-user"),
        ("user@corp@node02", "node02", "/tmp/pypto-serving-router-user@corp"),
    ],
)
def test_an_ssh_host_is_reached_at_the_host_part_of_its_destination(ssh: str, address: str, log_dir: str) -> None:
    """`address` and `log_dir` follow from `ssh` (spec 2.3)."""
    (spec,) = parse({"hosts": [host(ssh=ssh)]}).hosts

    assert (spec.ssh, spec.address, spec.log_dir) == (ssh, address, log_dir)


def test_an_alias_that_is_no_address_can_have_one() -> None:
    """`address` overrides the host part of `ssh` (spec 2.3)."""
    (spec,) = parse({"hosts": [host(ssh="gpu%one", address="10.0.0.9")]}).hosts

    assert spec.address == "10.0.0.9"
    assert set(refused({"hosts": [host(ssh="gpu%one")]})) == {"hosts[0].address"}


def test_a_path_of_this_machine_may_begin_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` expands in `identity_file` and `ca_file` (spec 2.2, 2.3)."""
    monkeypatch.setenv("HOME", "/home/me")
    fleet = parse(
        {
            "hosts": [host(ssh="n", identity_file="~/.ssh/id_ed25519")],
            "replicas": [replica(scheme="https", ca_file="~/ca.pem")],
        }
    )

    assert fleet.hosts[0].identity_file == "/home/me/.ssh/id_ed25519"
    assert fleet.replicas[0].ca_file == "/home/me/ca.pem"


def test_line_breaks_are_allowed_in_arguments_and_values() -> None:
    """An argument or a value may be any text that a program can be given (spec 2.3)."""
    (spec,) = parse({"hosts": [host(serve_args=["--prompt", "a\nb\t'c'"], env={"A": "1\n2"})]}).hosts

    assert spec.serve_args == ("--prompt", "a\nb\t'c'")
    assert spec.env == {"A": "1\n2"}


def test_null_is_the_absence_of_an_optional_field() -> None:
    """A field without a default can be given as null (spec 2.3)."""
    assert parse({"hosts": [host(ssh=None, stop_command=None, workdir=None)]}) == parse({"hosts": [host()]})


def test_one_device_id_on_two_machines_is_fine() -> None:
    """Devices are told apart by machine (spec 2.6)."""
    assert len(parse({"hosts": [host(), host(ssh="a@x"), host(ssh="a@y")]}).slots) == 3


def test_two_entries_may_share_a_machine() -> None:
    """Different devices of one machine may serve different models (spec 2.6)."""
    assert len(parse({"hosts": [host(), host(devices=[1], model="/other")]}).slots) == 2


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(("document", "place", "message"), [row[1:] for row in REFUSALS], ids=[r[0] for r in REFUSALS])
def test_a_wrong_file_is_refused_at_its_place(document: dict[str, Any], place: str, message: str) -> None:
    """Each mistake is one problem with its place, what was found and what is allowed (spec 1.5, 2.1-2.6)."""
    problems = refused(document)

    assert list(problems) == [place]
    assert message in problems[place]
    assert problems[place].isprintable()


def test_all_problems_of_a_file_come_at_once() -> None:
    """A fault in one field hides nothing else, in the same entry neither (spec 1.5)."""
    problems = refused(
        {
            "replicas": [replica(name="n"), replica(name="n", prot=1, port=0)],
            "hosts": [
                host(model=3, devices=[0, 1, 2], devices_per_replica=2, port_base=65535),
                host(devices=[1, 2], port_base="x", env={"PYPTO_ROUTER_A": "{x}"}),
                {"ssh": "-v", "identity_file": 3, "name": "a/b"},
            ],
            "host": [],
        }
    )

    assert set(problems) == {
        "host",
        "replicas[1].prot",
        "replicas[1].port",
        "replicas[1].name",
        "hosts[0].model",
        "hosts[0].devices",
        "hosts[0].devices[2]",
        "hosts[1].port_base",
        "hosts[1].env.PYPTO_ROUTER_A",
        "hosts[1].devices[0]",
        "hosts[1].devices[1]",
        "hosts[2].ssh",
        "hosts[2].identity_file",
        "hosts[2].name",
        "hosts[2].devices",
        "hosts[2].model",
    }


@pytest.mark.parametrize("field", ["identity_file", "env"])
def test_a_secret_in_the_file_is_not_repeated(field: str) -> None:
    """Messages show neither keys nor the values of variables (spec 1.3, 2.3)."""
    value: object = SECRET_KEY if field == "identity_file" else {"API_KEY": f"{SECRET_KEY}\0"}

    assert "b3BlbnNzaC1rZXk" not in str(refused({"hosts": [host(ssh="a", **{field: value})]}))


# --- files -----------------------------------------------------------------------------------


def problem_with(path: Path) -> Problem:
    """Load a file that has one problem."""
    with pytest.raises(ConfigError) as caught:
        load_fleet(path)
    (problem,) = caught.value.problems
    return problem


def test_a_file_is_loaded(tmp_path: Path) -> None:
    """The fleet file is JSON in UTF-8 (spec 2.1)."""
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"hosts": [host(model="/modèles/ü")]}, ensure_ascii=False), encoding="utf-8")

    assert load_fleet(path).hosts[0].model == "/modèles/ü"


def test_a_file_that_cannot_be_read_is_one_problem(tmp_path: Path) -> None:
    """A missing file, a directory, a path no file can have (spec 1.4, 1.5)."""
    assert problem_with(tmp_path / "none") == Problem(
        str(tmp_path / "none"), "can't be read: No such file or directory"
    )
    assert problem_with(tmp_path) == Problem(str(tmp_path), "can't be read: Is a directory")
    assert "can't be read" in problem_with(Path("a\0b")).message


def test_a_file_without_an_end_is_refused() -> None:
    """A wrong path does not fill the memory (spec 1.5)."""
    assert "is larger than" in problem_with(Path("/dev/zero")).message


def test_a_ca_file_must_hold_certificates(tmp_path: Path) -> None:
    """An unusable `ca_file` is found at the start, not at the first request (spec 2.2)."""
    (tmp_path / "empty.pem").write_text("no certificate")
    path = tmp_path / "fleet.json"
    files = [str(tmp_path / name) for name in ("none.pem", "empty.pem")]
    entries = [replica(scheme="https", port=port, ca_file=file) for port, file in enumerate(files, start=1)]
    path.write_text(json.dumps({"replicas": entries}))

    with pytest.raises(ConfigError) as caught:
        load_fleet(path)
    assert [problem.place for problem in caught.value.problems] == ["replicas[0].ca_file", "replicas[1].ca_file"]
    assert "No such file" in caught.value.problems[0].message


# --- any document ----------------------------------------------------------------------------

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 70_000)
    | st.floats()
    | st.sampled_from(
        ["", "a", "-a", "user@b", "localhost", "::1", "https", "{port}", "{x}", "~", "~x/y", "\0", "a\nb"]
    )
    | st.text("ab-. ", max_size=3)
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("aA=", max_size=2), inner, max_size=3),
    max_leaves=4,
)
_devices = st.lists(st.integers(0, 5), min_size=1, max_size=4)
_strings = st.lists(st.text("ab{}port'\" \n", max_size=8), max_size=3)


def _entry(required: dict[str, st.SearchStrategy[Any]], fields: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """Draw an entry that is mostly right."""
    right = st.fixed_dictionaries(required, optional={"name": st.sampled_from("abc"), "serve_args": _strings})
    wrong = st.fixed_dictionaries({}, optional=dict.fromkeys((*fields, "else"), _values))
    return right | st.tuples(right, wrong).map(lambda pair: pair[0] | pair[1]) | wrong


_documents = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.lists(
            _entry({"host": st.sampled_from(["a", "::1"]), "port": st.integers(1, 9)}, ("scheme", "ca_file")),
            max_size=3,
        )
        | _values,
        "hosts": st.lists(_entry({"devices": _devices, "model": st.just("/m")}, HostSpec.__struct_fields__), max_size=3)
        | _values,
    },
)


@settings(max_examples=200)
@given(_documents | _values)
def test_any_json_document_loads_or_is_refused(document: Any) -> None:
    """Nothing but a fleet or a ConfigError comes out, and a fleet keeps the promises of its slots (spec 2.1-2.7)."""
    try:
        fleet = parse(document)
    except ConfigError as error:
        problems = error.problems
    else:
        _check_promises(fleet)
        return
    assert problems
    assert all(problem.place and str(problem).isprintable() for problem in problems)


def _check_promises(fleet: Fleet) -> None:
    slots = fleet.slots
    names = [*(slot.id for slot in slots), *(replica.name for replica in fleet.replicas)]
    devices = [(slot.host.ssh, device) for slot in slots for device in slot.devices]
    addresses = [(canonical(slot.address), slot.port) for slot in slots]

    assert len(set(names)) == len(names)
    assert len(set(devices)) == len(devices)
    assert len(set(addresses)) == len(addresses)
    for slot in slots:
        assert 1 <= slot.port <= 65535
        assert slot_command(slot).argv


@given(st.binary(max_size=40) | st.text('{}[]":,\\u0123 ', max_size=40).map(str.encode))
def test_any_bytes_load_or_are_refused(data: bytes) -> None:
    """No file makes anything but a ConfigError (spec 1.5)."""
    with pytest.raises(ConfigError):
        parse_fleet(data, source="fleet.json")


# --- options and file ------------------------------------------------------------------------

FIVE = parse({"hosts": [host(devices=[0, 1]), host(ssh="b", devices=[0, 1, 2])]})
STATIC = parse({"replicas": [replica()]})


@pytest.mark.parametrize(
    ("fleet", "options", "plan"),
    [
        (FIVE, Settings(), Plan(ceiling=5, initial_replicas=1, replace_after=30)),
        (STATIC, Settings(), Plan(ceiling=0, initial_replicas=0, replace_after=30)),
        (FIVE, Settings(initial_replicas=5), Plan(ceiling=5, initial_replicas=5, replace_after=30)),
        (FIVE, Settings(initial_replicas=0), Plan(ceiling=5, initial_replicas=0, replace_after=30)),
        (FIVE, Settings(max_replicas=2), Plan(ceiling=2, initial_replicas=1, replace_after=30)),
        (FIVE, Settings(max_replicas=9), Plan(ceiling=5, initial_replicas=1, replace_after=30)),
        (FIVE, Settings(max_replicas=0), Plan(ceiling=0, initial_replicas=0, replace_after=30)),
        (FIVE, Settings(demo=3), Plan(ceiling=5, initial_replicas=3, replace_after=30)),
        (FIVE, Settings(demo=3, max_replicas=2), Plan(ceiling=2, initial_replicas=2, replace_after=30)),
        (FIVE, Settings(health_interval=15), Plan(ceiling=5, initial_replicas=1, replace_after=30)),
        (FIVE, Settings(health_interval=20), Plan(ceiling=5, initial_replicas=1, replace_after=40)),
        (FIVE, Settings(replace_after=1), Plan(ceiling=5, initial_replicas=1, replace_after=10)),
        (FIVE, Settings(replace_after=99), Plan(ceiling=5, initial_replicas=1, replace_after=99)),
    ],
)
def test_options_and_file_are_settled_together(fleet: Fleet, options: Settings, plan: Plan) -> None:
    """Ceiling, initial replicas and the floor of replace-after follow from both (spec 1.2, 2.7)."""
    assert resolve(options, fleet) == plan


@pytest.mark.parametrize(
    ("fleet", "options", "message"),
    [
        (FIVE, Settings(initial_replicas=6), "found 6; allowed is at most 5, the number of slots"),
        (FIVE, Settings(initial_replicas=3, max_replicas=2), "found 3; allowed is at most 2, as --max-replicas says"),
        (STATIC, Settings(initial_replicas=1), "found 1; allowed is at most 0, the number of slots"),
    ],
)
def test_more_initial_replicas_than_the_ceiling_are_refused(fleet: Fleet, options: Settings, message: str) -> None:
    """`--initial-replicas` above the ceiling contradicts the file (spec 2.7)."""
    with pytest.raises(ConfigError) as caught:
        resolve(options, fleet)

    assert caught.value.problems == (Problem("--initial-replicas", message),)


@pytest.mark.parametrize(
    ("listen", "port", "refuses"),
    [
        ("0.0.0.0", 8001, True),
        ("::", 8001, True),
        ("localhost", 8001, True),
        ("127.0.0.1", 8001, True),
        ("10.0.0.1", 8001, False),
        ("0.0.0.0", 8000, False),
        ("0.0.0.0", 0, False),
    ],
)
def test_the_router_does_not_route_to_itself(listen: str, port: int, refuses: bool) -> None:
    """A replica at the router's own address would be a loop, or a launch that never succeeds (spec 1.4)."""
    for fleet in (parse({"hosts": [host()]}), parse({"replicas": [replica(host="127.0.0.1")]})):
        options = Settings(host=listen, port=port)
        if refuses:
            with pytest.raises(ConfigError, match=f"^--port: found {port}, where the replica"):
                resolve(options, fleet)
        else:
            assert isinstance(resolve(options, fleet), Plan)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("localhost", "127.0.0.1"),
        ("Node02", "node02."),
        ("2001:DB8:0::7", "2001:db8::7"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
    ],
)
def test_spellings_of_one_address_are_equal(one: str, other: str) -> None:
    """An address is compared by what it means (spec 2.6)."""
    assert canonical(one) == canonical(other)
    assert canonical(one) != canonical("10.0.0.2")
