"""The page about the life of a slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from pypto_serving_router.core.slot import Decision, Event, Observation
from pypto_serving_router.core.transitions import diagram

if TYPE_CHECKING:
    from collections.abc import Iterable


def states() -> str:
    """What states a slot has, and what moves it."""
    return f"""# The life of a slot

A slot is a group of devices that holds at most one replica.
The worst that a router can do to a machine is to start a second process on devices that a first one still holds;
the next worst is to leave a process on devices that nobody remembers.
Everything on this page follows from that.

## States

| State | A process on its devices? | What happens next |
|---|---|---|
| `free` | no | Nothing; or, if it is *cooling*, a replacement once the back-off is over. |
| `launching` | perhaps | A launch is promised and written down, and its outcome is awaited. |
| `starting` | yes | The first successful probe makes it `ready`; an exit or the launch timeout ends it. |
| `ready` | yes | It serves, until it is retired or out of rotation for `--replace-after`. |
| `draining` | yes | No new requests; it is stopped when the last one has ended, or `--drain-timeout` is over. |
| `stopping` | perhaps | The host is asked to end it, and everything is looked at that could still be there. |
| `unconfirmed` | cannot be told | The devices count as taken, until an operator says or finds otherwise. |
| `abandoned` | no | Three replicas in a row were lost here: only an operator or a restart uses it again. |

Whether a `ready` replica is well at the moment is another question, which the health checks answer.

```mermaid
{diagram()}```

## What moves it

*Decisions* are an operator's, or a timer's.
One that the diagram does not have is a fault in the router.

{_table(get_args(Decision))}
*Observations* come from hosts, addresses, probes and clocks, and each is about one launch, which has a number: the
*generation*.
One that the diagram does not have is news that came too late, and changes nothing.

{_table(get_args(Observation))}
## Why a slot is unconfirmed

- `stop-unconfirmed`: the stop command did not succeed, a process is still there, or the address is not silent.
  `DELETE` tries all of it again.
- `unreachable-at-startup`: the state file says that a replica was launched here, and nothing answered when the router
  started.
  It may still be loading.
  The router goes on probing, and takes it back when it answers.
- `address-in-use`: something that the router did not launch answers at the slot's address.
  `DELETE` looks again, and touches nothing.
- `undeclared`: the state file has a replica on a slot that the fleet file does not have any more.
  No launch gets its devices, under any name.

`DELETE` with `?force=true` frees the slot on your word.
Give it only after you have looked at the machine.

## Five laws

1. **Write-ahead.**
   A launch is in the state file before its command leaves, so that no crash forgets a process.
2. **Unknown is not gone.**
   If a start ends in an error after its command has left, the slot is stopped, not free.
3. **Unknown is not stopped.**
   If a stop can't be confirmed, the slot is unconfirmed, not free.
4. **Fence.**
   A host that confirms a stop also refuses that generation from then on: a start that was delayed on its way starts
   nothing.
   That is why an inspection, which raises no fence, never frees a slot.
5. **Generations.**
   What is said of another launch than the present one is dropped.

`tests/core/test_slot_world.py` plays these rules against hosts that lose answers, run commands late and let processes
die, and kills the router at any moment.
With any one of the laws switched off, the same test fails.
"""


def _table(events: Iterable[type[Event]]) -> str:
    rows = [f"| `{event.__name__}` | {' '.join((event.__doc__ or '').split())} |\n" for event in events]
    return "".join(["| Event | Meaning |\n", "|---|---|\n", *rows])
