"""One slot: its state, what can happen to it, and what can be done about it. How it moves: core/transitions.py.

An event is a *decision* (an operator's, or a timer's) or an *observation* (an adapter's, about one generation of the
slot). An *effect* is something to be done in the world; its end is an observation. A *generation* names one launched
instance, so that nothing said about one is ever taken for another.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from pypto_serving_router.core.ids import HostId, SlotId


class SlotState(StrEnum):
    """Where a slot is in its life, as the API, the metrics and the logs name it."""

    FREE = "free"
    """No process. Cooling if `wanted`: it will be launched on again when due."""
    LAUNCHING = "launching"
    """A launch is promised and written down; its outcome is not known."""
    STARTING = "starting"
    """The process exists; no probe has succeeded."""
    READY = "ready"
    """A probe has succeeded. Whether the replica is well right now is health's business."""
    DRAINING = "draining"
    """No new requests; it is stopped when idle or overdue."""
    STOPPING = "stopping"
    """The stop is under way."""
    UNCONFIRMED = "unconfirmed"
    """We asked and cannot tell whether its devices are held: they count as taken."""
    ABANDONED = "abandoned"
    """Free, but it lost too many replicas in a row: only an operator or a restart uses it again."""


class Cause(StrEnum):
    """Why a slot is in the state it is in."""

    INITIAL = "initial"
    OPERATOR = "operator"
    REPLACEMENT = "replacement"
    ADOPTED = "adopted"
    SHUTDOWN = "shutdown"
    LAUNCHED = "launched"
    ANSWERED = "answered"
    LAUNCH_FAILED = "launch-failed"
    LAUNCH_UNCERTAIN = "launch-uncertain"
    LAUNCH_TIMEOUT = "launch-timeout"
    EXITED = "exited"
    LOST = "lost"
    IDLE = "idle"
    DRAIN_TIMEOUT = "drain-timeout"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    PLACE_TAKEN = "place-taken"
    FORCED = "forced"
    STOP_UNCONFIRMED = "stop-unconfirmed"
    UNREACHABLE_AT_STARTUP = "unreachable-at-startup"
    ADDRESS_IN_USE = "address-in-use"
    UNDECLARED = "undeclared"

    @property
    def is_fault(self) -> bool:
        """Whether this is something that nobody decided and that an operator should know of."""
        return self in _FAULTS


_FAULTS: Final = frozenset(
    {
        Cause.LAUNCH_FAILED,
        Cause.LAUNCH_UNCERTAIN,
        Cause.LAUNCH_TIMEOUT,
        Cause.EXITED,
        Cause.LOST,
        Cause.STOP_UNCONFIRMED,
        Cause.UNREACHABLE_AT_STARTUP,
        Cause.ADDRESS_IN_USE,
        Cause.UNDECLARED,
    }
)


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    """What tells one process of a host from every other, reused pids and reboots included."""

    pid: int
    started_at: str
    boot_id: str


@dataclass(frozen=True, slots=True)
class Policy:
    """The patience of the fleet, in seconds (`losses`: a count)."""

    launch_timeout: float
    drain_timeout: float
    replace_after: float
    stop_grace: float = 30.0
    confirm_grace: float = 10.0
    backoff: float = 10.0
    losses: int = 3
    stable_after: float = 300.0
    lost_drain: float = 5.0
    """What a dead replica's requests get: they are not coming back, and the replacement waits for them."""
    inspect_first: float = 1.0
    inspect_every: float = 5.0
    """A starting process is looked at after `inspect_first`, then ever more rarely down to every `inspect_every`."""


@dataclass(frozen=True, slots=True, repr=False)
class Slot:
    """One device group, and all that is known of the replica on it."""

    id: SlotId
    host: HostId
    address: str
    port: int
    devices: tuple[int, ...]
    wrapped: bool = False
    """Its command goes through a `launch_wrapper`, whose exit 0 means submitted."""
    has_stop_command: bool = False

    state: SlotState = SlotState.FREE
    generation: int = 0
    handle: ProcessHandle | None = None
    """The launched process; None until the host has told."""
    wanted: bool = False
    """The router is to launch here again by itself when this replica is gone."""
    leaving: bool = False
    """To be stopped as soon as the outcome of its launch is known."""
    heard: bool = False
    """Something has answered at its address since this launch."""
    losses: int = 0
    """Replicas lost in a row."""
    due: float | None = None
    failing_since: float | None = None
    cause: Cause | None = None
    last_error: str | None = None
    """The last failed launch or loss; it outlives the replica."""
    since: float = 0.0
    """When it entered this state, in seconds since the epoch. Stamped by whoever has a clock; never read here."""

    @property
    def taken(self) -> bool:
        """Whether a process holds its devices, or may."""
        return self.state not in (SlotState.FREE, SlotState.ABANDONED)

    @property
    def cooling(self) -> bool:
        """Whether it is free and waits to be launched on again."""
        return self.state is SlotState.FREE and self.wanted

    @property
    def present(self) -> bool:
        """Whether it has a replica that the API lists."""
        return self.taken and self.state is not SlotState.UNCONFIRMED

    @property
    def probed(self) -> bool:
        """Whether its replica's health is worth asking for."""
        return self.state in (SlotState.STARTING, SlotState.READY, SlotState.DRAINING) or self.awaited

    @property
    def awaited(self) -> bool:
        """Whether it is reserved for a replica that did not answer when the router started."""
        return self.state is SlotState.UNCONFIRMED and self.cause is Cause.UNREACHABLE_AT_STARTUP

    @property
    def where(self) -> str:
        """Its address and port, as people write them."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def place(self) -> tuple[str, int, tuple[int, ...]]:
        """Where it is: address, port, devices."""
        return self.address, self.port, self.devices

    def __repr__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        return f"<Slot {self.id} {self.state}{cause} g{self.generation}{' wanted' if self.wanted else ''}>"


# --- decisions: an operator's, or a timer's ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch a replica as `generation`, which is above every earlier one of the slot."""

    generation: int
    cause: Cause = Cause.OPERATOR


@dataclass(frozen=True, slots=True)
class Drain:
    """Retire the replica: drain it, stop it, and don't replace it."""

    cause: Cause = Cause.OPERATOR


@dataclass(frozen=True, slots=True)
class Stop:
    """Try again to confirm that an unconfirmed slot is empty."""

    cause: Cause = Cause.OPERATOR


@dataclass(frozen=True, slots=True)
class Release:
    """Forget: the replacement that a cooling slot waits for, or, on the operator's word, an unconfirmed process."""

    cause: Cause = Cause.CANCELLED


# --- observations: an adapter's, about one generation --------------------------------------------


@dataclass(frozen=True, slots=True)
class Launched:
    """The process lives."""

    generation: int
    handle: ProcessHandle


@dataclass(frozen=True, slots=True)
class Gone:
    """The launched process has ended, though it may have left others; `refused`: nothing ran, and nothing will.

    `detail` says why, with the last lines of the log where there is one. `exit_status` is None where it is not known.
    """

    generation: int
    exit_status: int | None
    detail: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """The host could not be asked, or its answer settles nothing."""

    generation: int
    detail: str


@dataclass(frozen=True, slots=True)
class Occupied:
    """The slot's address is not silent, and nothing of ours was started there."""

    generation: int
    detail: str


@dataclass(frozen=True, slots=True)
class Silent:
    """The slot's address refuses connections."""

    generation: int


@dataclass(frozen=True, slots=True)
class Answered:
    """Something at the slot's address answers HTTP; `process` is what the host says of the recorded process."""

    generation: int
    process: Launched | Gone | Unknown
    healthy: bool


@dataclass(frozen=True, slots=True)
class StopConfirmed:
    """The generation is fenced, none of its processes lives, and its address is silent.

    `submitted`: its wrapper had left the work to a broker before, and nothing was run that could recall it.
    """

    generation: int
    submitted: bool = False


@dataclass(frozen=True, slots=True)
class StopUnconfirmed:
    """The stop was asked for and one of its conditions could not be confirmed."""

    generation: int
    detail: str


@dataclass(frozen=True, slots=True)
class Probed:
    """The replica's health as judged after a probe; `status` is what the probe was answered, if anything."""

    generation: int
    healthy: bool
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Idle:
    """No request is in flight to the replica."""

    generation: int


@dataclass(frozen=True, slots=True)
class Due:
    """The slot's deadline may have passed."""

    generation: int


# --- effects: what is to be done; each is idempotent and ends in an observation --------------------


@dataclass(frozen=True, slots=True)
class StartProcess:
    """See that the address is silent, then start: Launched, Gone, Unknown or Occupied."""

    slot: SlotId
    generation: int


@dataclass(frozen=True, slots=True)
class StopProcess:
    """Fence, stop, and see that it is gone: StopConfirmed or StopUnconfirmed."""

    slot: SlotId
    generation: int


@dataclass(frozen=True, slots=True)
class InspectProcess:
    """After `delay` seconds, ask the host whether the process lives: Launched, Gone or Unknown."""

    slot: SlotId
    generation: int
    delay: float


@dataclass(frozen=True, slots=True)
class CheckAddress:
    """See whether the address is silent, and touch nothing: Silent or Occupied."""

    slot: SlotId
    generation: int


@dataclass(frozen=True, slots=True)
class AskReplica:
    """Ask the address for its health and the host for the process: Answered, or nothing if nothing answers."""

    slot: SlotId
    generation: int


Decision: TypeAlias = Launch | Drain | Stop | Release
Observation: TypeAlias = (
    Launched | Gone | Unknown | Occupied | Silent | Answered | StopConfirmed | StopUnconfirmed | Probed | Idle | Due
)
Event: TypeAlias = Decision | Observation
Effect: TypeAlias = StartProcess | StopProcess | InspectProcess | CheckAddress | AskReplica
