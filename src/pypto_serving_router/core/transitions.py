"""How a slot moves: the legal transitions, `advance` for one event, `recover` for a restart of the router.

Theory of operation
-------------------
`advance` takes the slot and one event and returns the slot as it is afterwards, with the effects that this calls for.
Whoever calls it writes the new slot down, then carries the effects out, and feeds their outcomes back as
observations. Nothing here waits, reads a clock or touches a host, so every history that a fleet can have can be
replayed in a test.

A decision that TRANSITIONS does not list for the state is a bug and raises. An observation that it does not list is
late news and changes nothing.

Rules for editors
-----------------
1. Five laws keep a second process off cards that a first may still hold. With any one of them off,
   tests/core/test_slot_world.py fails within seconds.
     1. Write-ahead: a slot is on disk as launching before its start command leaves (the controller's part).
     2. Unknown is not gone: a start that erred after its command left goes to stopping, never to free.
     3. Unknown is not stopped: a stop that can't be confirmed goes to unconfirmed, never to free.
     4. Fence: confirming that a generation is gone forbids it to start later (the host's part). Hence only a
        confirmed stop, a refused start or the operator's word frees a slot; an inspection never does.
     5. Generations: an observation about another generation than the slot's is dropped.
2. Every change of state is listed in TRANSITIONS, from which the diagram in the documentation is generated.
3. `due` is one deadline whose meaning is the state's: of a launch (starting), of the patience with a failing replica
   or of the row of losses (ready), of a drain (draining), of a back-off (free).
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, assert_never

from pypto_serving_router.core.slot import (
    Answered,
    AskReplica,
    Cause,
    CheckAddress,
    Decision,
    Drain,
    Due,
    Effect,
    Event,
    Gone,
    Idle,
    InspectProcess,
    Launch,
    Launched,
    Observation,
    Occupied,
    Policy,
    Probed,
    Release,
    Silent,
    Slot,
    SlotState,
    StartProcess,
    Stop,
    StopConfirmed,
    StopProcess,
    StopUnconfirmed,
    Unknown,
)
from pypto_serving_router.errors import IllegalTransition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    Step: TypeAlias = tuple[Slot, tuple[Effect, ...]]


def _to(*states: SlotState) -> frozenset[SlotState]:
    return frozenset(states)


TRANSITIONS: Final[Mapping[SlotState, Mapping[type[Event], frozenset[SlotState]]]] = MappingProxyType(
    {
        SlotState.FREE: {
            Launch: _to(SlotState.LAUNCHING),
            Release: _to(SlotState.FREE),
        },
        SlotState.ABANDONED: {
            Launch: _to(SlotState.LAUNCHING),
        },
        SlotState.LAUNCHING: {
            Launched: _to(SlotState.STARTING, SlotState.STOPPING),
            Gone: _to(SlotState.FREE, SlotState.ABANDONED, SlotState.STARTING, SlotState.STOPPING),
            Unknown: _to(SlotState.STOPPING),
            Occupied: _to(SlotState.UNCONFIRMED),
            Drain: _to(SlotState.LAUNCHING),
        },
        SlotState.STARTING: {
            Launched: _to(SlotState.STARTING),
            Unknown: _to(SlotState.STARTING),
            Gone: _to(SlotState.STARTING, SlotState.STOPPING),
            Probed: _to(SlotState.STARTING, SlotState.READY),
            Due: _to(SlotState.STOPPING),
            Drain: _to(SlotState.STOPPING),
        },
        SlotState.READY: {
            Probed: _to(SlotState.READY),
            Due: _to(SlotState.READY, SlotState.DRAINING),
            Drain: _to(SlotState.DRAINING),
        },
        SlotState.DRAINING: {
            Idle: _to(SlotState.STOPPING),
            Due: _to(SlotState.STOPPING),
            Drain: _to(SlotState.DRAINING),
        },
        SlotState.STOPPING: {
            StopConfirmed: _to(SlotState.FREE, SlotState.ABANDONED, SlotState.UNCONFIRMED),
            StopUnconfirmed: _to(SlotState.UNCONFIRMED),
            Drain: _to(SlotState.STOPPING),
        },
        SlotState.UNCONFIRMED: {
            Stop: _to(SlotState.STOPPING, SlotState.UNCONFIRMED),
            Silent: _to(SlotState.FREE),
            Occupied: _to(SlotState.UNCONFIRMED),
            Probed: _to(SlotState.UNCONFIRMED),
            Answered: _to(SlotState.UNCONFIRMED, SlotState.STARTING, SlotState.READY),
            Release: _to(SlotState.FREE),
        },
    }
)


def advance(slot: Slot, event: Event, now: float, policy: Policy) -> Step:
    """Return the slot after the event, and the effects to carry out once the slot is written down.

    Raises:
        IllegalTransition: the event is a decision that the slot's state does not allow.
    """
    if not isinstance(event, Decision) and is_late(slot, event):
        return slot, ()
    allowed = TRANSITIONS[slot.state].get(type(event))
    if allowed is None:
        if isinstance(event, Decision):
            raise IllegalTransition(f"{event!r} on {slot!r}")
        return slot, ()
    after, effects = _STEPS[slot.state](slot, event, now, policy)
    if after.state not in allowed and after is not slot:
        raise IllegalTransition(f"{event!r} took {slot!r} to {after!r}")
    return after, effects


def recover(slot: Slot, answered: Answered | None, now: float, policy: Policy) -> Step:
    """Take up a slot as another run of the router recorded it; `answered` is None if nothing answers at its address.

    A replica that answers is adopted. One that does not keeps its slot reserved, even if its process is known to be
    gone: a host that was asked before its turn would say so, too. A stop that was under way is resumed.
    """
    match slot.state:
        case SlotState.LAUNCHING | SlotState.STARTING | SlotState.READY:
            if slot.leaving:
                return _stop(slot, Cause.OPERATOR)
            reserved = replace(
                slot, state=SlotState.UNCONFIRMED, cause=Cause.UNREACHABLE_AT_STARTUP, due=None, failing_since=None
            )
            return (reserved, ()) if answered is None else _recognise(reserved, answered, now, policy)
        case SlotState.DRAINING | SlotState.STOPPING:
            return _stop(slot, slot.cause or Cause.OPERATOR)
        case SlotState.FREE | SlotState.ABANDONED:
            return (_free(slot, now, policy) if slot.wanted else replace(slot, state=SlotState.FREE, losses=0)), ()
        case SlotState.UNCONFIRMED:
            return slot, ()
        case _:
            assert_never(slot.state)


def to_be_asked(slot: Slot) -> bool:
    """Whether `recover` wants to know what answers at the address of a recorded slot."""
    return slot.state in (SlotState.LAUNCHING, SlotState.STARTING, SlotState.READY) and not slot.leaving


def retirement(slot: Slot, cause: Cause) -> Decision | None:
    """Return the decision that empties the slot, or None where there is nothing to retire."""
    match slot.state:
        case SlotState.FREE:
            return Release(Cause.CANCELLED) if slot.wanted else None
        case SlotState.ABANDONED:
            return None
        case SlotState.UNCONFIRMED:
            return Stop(cause)
        case _:
            return Drain(cause)


def diagram() -> str:
    """Return the changes of state of TRANSITIONS as a Mermaid diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {SlotState.FREE}"]
    for state, events in TRANSITIONS.items():
        for target in SlotState:
            names = [event.__name__ for event, targets in events.items() if target in targets]
            if names and target is not state:
                lines.append(f"    {state} --> {target}: {', '.join(names)}")
    return "\n".join(lines) + "\n"


# --- the laws -------------------------------------------------------------------------------------


def is_late(slot: Slot, event: Observation) -> bool:
    """Law 5: whether the observation is about an instance that the slot no longer holds."""
    return event.generation != slot.generation


def start_unknown(slot: Slot, detail: str) -> Step:
    """Law 2: the start may have happened, or may yet; only a fence and a look can tell."""
    return _stop(_lost(slot), Cause.LAUNCH_UNCERTAIN, detail)


def stop_unconfirmed(slot: Slot, detail: str) -> Step:
    """Law 3: the devices may still be held."""
    return replace(slot, state=SlotState.UNCONFIRMED, cause=Cause.STOP_UNCONFIRMED, last_error=detail), ()


# --- one state each -------------------------------------------------------------------------------


def _free_or_abandoned(slot: Slot, event: Event, now: float, policy: Policy) -> Step:
    match event:
        case Launch(generation, cause):
            if generation <= slot.generation:
                raise IllegalTransition(f"generation {generation} is not above that of {slot!r}")
            again = cause is Cause.REPLACEMENT
            launching = replace(
                slot,
                state=SlotState.LAUNCHING,
                generation=generation,
                wanted=again,
                losses=slot.losses if again else 0,
                due=None,
                cause=cause,
            )
            return launching, (StartProcess(slot.id, generation),)
        case Release(cause):
            return _free(replace(slot, wanted=False, cause=cause), now, policy), ()
    return slot, ()


def _launching(slot: Slot, event: Event, now: float, policy: Policy) -> Step:
    match event:
        case Launched(handle=handle):
            return _started(replace(slot, handle=handle), now, policy)
        case Gone(refused=True, detail=detail):
            failed = replace(_lost(slot), cause=Cause.LAUNCH_FAILED, last_error=detail)
            return _free(failed, now, policy), ()
        case Gone(exit_status=0) if slot.wrapped:
            return _started(slot, now, policy)
        case Gone(detail=detail):
            return _stop(_lost(slot), Cause.EXITED, detail)
        case Unknown(detail=detail):
            return start_unknown(slot, detail)
        case Occupied(detail=detail):
            return _in_use(replace(slot, wanted=False, leaving=False), detail), ()
        case Drain():
            return replace(slot, wanted=False, leaving=True), ()
    return slot, ()


def _starting(slot: Slot, event: Event, now: float, policy: Policy) -> Step:
    match event:
        case Launched() | Unknown():
            return slot, (_look_again(slot, now, policy),)
        case Gone(exit_status=0) if slot.wrapped:
            return slot, ()  # submitted: the launch timeout decides
        case Gone(detail=detail):
            return _stop(_lost(slot), Cause.EXITED, detail)
        case Probed(healthy=True):
            ready = replace(slot, state=SlotState.READY, wanted=True, heard=True, cause=Cause.ANSWERED)
            return _steady(ready, now, policy), ()
        case Probed(status=status):
            return (slot if status is None else replace(slot, heard=True)), ()
        case Due() if _is_due(slot, now):
            return _stop(
                _lost(slot), Cause.LAUNCH_TIMEOUT, f"not ready within {policy.launch_timeout:g} s of its launch"
            )
        case Drain(cause):
            return _stop(replace(slot, wanted=False), cause)
    return slot, ()


def _ready(slot: Slot, event: Event, now: float, policy: Policy) -> Step:
    match event:
        case Probed(healthy=True) if slot.failing_since is not None:
            return _steady(slot, now, policy), ()
        case Probed(healthy=False) if slot.failing_since is None:
            return replace(slot, failing_since=now, due=now + policy.replace_after), ()
        case Due() if _is_due(slot, now) and slot.failing_since is None:
            return replace(slot, losses=0, due=None), ()
        case Due() if _is_due(slot, now):
            drain = min(policy.lost_drain, policy.drain_timeout)
            error = f"ready once, then out of rotation for {policy.replace_after:g} s"
            return replace(
                _lost(slot), state=SlotState.DRAINING, cause=Cause.LOST, due=now + drain, last_error=error
            ), ()
        case Drain(cause):
            return replace(
                slot, state=SlotState.DRAINING, wanted=False, cause=cause, due=now + policy.drain_timeout
            ), ()
    return slot, ()


def _draining(slot: Slot, event: Event, now: float, _policy: Policy) -> Step:
    match event:
        case Idle():
            return _stop(slot, Cause.IDLE)
        case Due() if _is_due(slot, now):
            return _stop(slot, Cause.DRAIN_TIMEOUT)
        case Drain():
            return replace(slot, wanted=False), ()
    return slot, ()


def _stopping(slot: Slot, event: Event, now: float, policy: Policy) -> Step:
    match event:
        case StopConfirmed(submitted=True) if not slot.heard:
            return stop_unconfirmed(
                slot, "its launch wrapper left it to a broker, and there is no stop_command to recall it"
            )
        case StopConfirmed():
            return _free(replace(slot, cause=Cause.STOPPED), now, policy), ()
        case StopUnconfirmed(detail=detail):
            return stop_unconfirmed(slot, detail)
        case Drain():
            return replace(slot, wanted=False), ()
    return slot, ()


def _unconfirmed(slot: Slot, event: Event, now: float, policy: Policy) -> Step:
    match event:
        case Stop() if slot.cause is Cause.ADDRESS_IN_USE:
            return slot, (CheckAddress(slot.id, slot.generation),)
        case Stop(cause):
            return _stop(replace(slot, wanted=False), cause)
        case Silent() if slot.cause is Cause.ADDRESS_IN_USE:
            return _free(replace(slot, wanted=False, cause=Cause.STOPPED), now, policy), ()
        case Occupied(detail=detail) if slot.cause is Cause.ADDRESS_IN_USE:
            return _in_use(slot, detail), ()
        case Probed(healthy=healthy, status=status) if slot.awaited and (healthy or status is not None):
            return slot, (AskReplica(slot.id, slot.generation),)
        case Answered() if slot.awaited:
            return _recognise(slot, event, now, policy)
        case Release(cause):
            return _free(replace(slot, wanted=False, cause=cause), now, policy), ()
    return slot, ()


_STEPS: Final[Mapping[SlotState, Callable[[Slot, Event, float, Policy], Step]]] = MappingProxyType(
    {
        SlotState.FREE: _free_or_abandoned,
        SlotState.ABANDONED: _free_or_abandoned,
        SlotState.LAUNCHING: _launching,
        SlotState.STARTING: _starting,
        SlotState.READY: _ready,
        SlotState.DRAINING: _draining,
        SlotState.STOPPING: _stopping,
        SlotState.UNCONFIRMED: _unconfirmed,
    }
)


# --- steps that several states share --------------------------------------------------------------


def _started(slot: Slot, now: float, policy: Policy) -> Step:
    if slot.leaving:
        return _stop(slot, Cause.OPERATOR)
    starting = replace(slot, state=SlotState.STARTING, cause=Cause.LAUNCHED, due=now + policy.launch_timeout)
    return starting, (_look_again(starting, now, policy),)


def _in_use(slot: Slot, detail: str) -> Slot:
    return replace(slot, state=SlotState.UNCONFIRMED, cause=Cause.ADDRESS_IN_USE, last_error=detail)


def _stop(slot: Slot, cause: Cause, error: str | None = None) -> Step:
    stopping = replace(
        slot,
        state=SlotState.STOPPING,
        leaving=False,
        due=None,
        failing_since=None,
        cause=cause,
        last_error=error or slot.last_error,
    )
    return stopping, (StopProcess(slot.id, slot.generation),)


def _lost(slot: Slot) -> Slot:
    """Count a loss, unless this was a first launch: those are not retried."""
    return replace(slot, losses=slot.losses + 1) if slot.wanted else slot


def _free(slot: Slot, now: float, policy: Policy) -> Slot:
    """Free the slot; one that is wanted cools first, and after too many losses in a row it is abandoned."""
    free = replace(slot, state=SlotState.FREE, handle=None, leaving=False, heard=False, due=None, failing_since=None)
    if not slot.wanted:
        return replace(free, losses=0)
    if slot.losses >= policy.losses:
        return replace(free, state=SlotState.ABANDONED, wanted=False)
    return replace(free, due=now + policy.backoff * 2 ** max(slot.losses - 1, 0))


def _steady(slot: Slot, now: float, policy: Policy) -> Slot:
    """Note that the replica is well: staying so ends the row of losses."""
    return replace(slot, failing_since=None, due=now + policy.stable_after if slot.losses else None)


def _recognise(slot: Slot, answered: Answered, now: float, policy: Policy) -> Step:
    """Adopt the replica that answers at a reserved slot's address, unless it is a stranger.

    A host that can't be asked leaves the answer to stand alone; a wrapper that exited 0 says nothing of its replica.
    """
    process = answered.process
    if isinstance(process, Gone) and not (slot.wrapped and process.exit_status == 0):
        stranger = f"a stranger answers at its address: {process.detail}"
        # While a start may yet arrive, the reservation must end in a fence, not in a look.
        return (_in_use(slot, stranger) if slot.handle else replace(slot, last_error=stranger)), ()
    handle = process.handle if isinstance(process, Launched) else slot.handle
    adopted = replace(slot, handle=handle, heard=True, cause=Cause.ADOPTED)
    if answered.healthy:
        return _steady(replace(adopted, state=SlotState.READY, wanted=True), now, policy), ()
    starting = replace(adopted, state=SlotState.STARTING, due=now + policy.launch_timeout)
    return starting, () if isinstance(process, Gone) else (_look_again(starting, now, policy),)


def _look_again(slot: Slot, now: float, policy: Policy) -> InspectProcess:
    """Look at a starting process ever more rarely: most that fail do so early."""
    age = now - ((slot.due or now) - policy.launch_timeout)
    return InspectProcess(slot.id, slot.generation, min(max(age, policy.inspect_first), policy.inspect_every))


def _is_due(slot: Slot, now: float) -> bool:
    return slot.due is not None and now >= slot.due
