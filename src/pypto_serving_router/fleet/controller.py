"""The fleet's mailbox loop: event, new slot, written down, published, effects.

Theory of operation
-------------------
One task owns the slots: `run`. Everybody else, the API and timers and finished effects included, posts work to its
mailbox. In each pass it works the mailbox off, writes the state file if what is recorded has changed, publishes the
changed slots, answers those who wait, and only then lets effects go. What to do is decided in core/transitions.py;
here is only how many replicas there may be and which slot is next.

Rules for editors
-----------------
1. Slots change in `_take` alone, and `_take` runs within a pass alone. There is no lock.
2. Law 1: an effect leaves after the state file has its cause. If the file can't be written, starts are taken back;
   stops go on.
3. A read that gates a change happens in the same pass as the change.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from pypto_serving_router.core.slot import (
    Answered,
    AskReplica,
    Cause,
    Due,
    Effect,
    Event,
    Gone,
    Idle,
    Launch,
    Occupied,
    Policy,
    Probed,
    Release,
    Silent,
    Slot,
    SlotState,
    StartProcess,
)
from pypto_serving_router.core.transitions import advance, recover, retirement, to_be_asked
from pypto_serving_router.errors import JournalError, LaunchFailed, PoolFull, RouterError, SlotBusy, UnknownSlot
from pypto_serving_router.fleet.effects import Launcher, Performer, unknown
from pypto_serving_router.fleet.journal import Journal, record
from pypto_serving_router.fleet.mailbox import Mailbox
from pypto_serving_router.fleet.pool import Capacity, SlotPool, tell_place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from pypto_serving_router.core.ids import HostId, SlotId

_LEAVING: Final = (SlotState.DRAINING, SlotState.STOPPING)
SAVE_AGAIN: Final = 1.0
"""Seconds after which a state file that could not be written is tried again."""


class Log(Protocol):
    """The two levels that the fleet logs at: what happened, and what should not have."""

    def info(self, event: str, **fields: Any) -> Any:
        """Log what happened."""

    def warning(self, event: str, **fields: Any) -> Any:
        """Log what should not have happened."""


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """The slot whose launch was accepted: its replica is starting."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class RetireResult:
    """What became of a retirement; if not `confirmed`, the slot stays reserved for its `cause`."""

    slot: Slot
    confirmed: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A launch that somebody wants, on one slot, or on one host's, or anywhere."""

    cause: Cause
    slot: SlotId | None = None
    host: HostId | None = None
    waiter: asyncio.Future[LaunchResult] | None = None


class Controller:
    """Owns the slots, given in the order in which they are to be taken.

    `ceiling` is how many may be held at once. `publish` is told of each slot that has changed, with the slot as it
    is; a slot on its way out is STOPPING, and whoever still relays from its replica is to let go. `outstanding` counts
    the requests in flight to a slot's replica. `changed` is told each transition. `clock` is monotonic, `wall` the time
    of day: from it come generations that no earlier run without a state file can have used.
    """

    def __init__(
        self,
        slots: Iterable[Slot],
        *,
        ceiling: int,
        policy: Policy,
        launcher: Launcher,
        journal: Journal | None,
        publish: Callable[[Slot], None],
        outstanding: Callable[[SlotId], int],
        silent: Callable[[Slot], Awaitable[bool | None]],
        ask: Callable[[Slot], Awaitable[int | None]],
        clock: Callable[[], float],
        wall: Callable[[], float],
        log: Log,
        changed: Callable[[Slot, Slot], None] = lambda _before, _after: None,
    ) -> None:
        self._policy = policy
        self._launcher = launcher
        self._journal = journal
        self._publish = publish
        self._outstanding = outstanding
        self._performer = Performer(launcher=launcher, policy=policy, silent=silent, ask=ask, clock=clock)
        self._clock = clock
        self._wall = wall
        self._log = log
        self._changed = changed

        # For the life of the fleet
        self._pool = SlotPool(slots, ceiling)
        self._timers: dict[SlotId, asyncio.TimerHandle] = {}
        self._launching: dict[SlotId, _Request] = {}
        self._retiring: dict[SlotId, list[asyncio.Future[RetireResult]]] = {}
        self._owed: set[SlotId] = set()  # to be launched on once an earlier run's stop is done
        self._running: set[asyncio.Task[None]] = set()
        self._asking: set[SlotId] = set()
        self._mailbox = Mailbox()
        self._closing = False
        self._closed = asyncio.Event()
        self._unsaved = False
        self._save_again: float | None = None  # set while the state file can't be written

        # For one pass
        self._touched: dict[SlotId, Slot] = {}  # as it was published last
        self._todo: list[tuple[Effect, Slot]] = []

    # --- the API ---------------------------------------------------------------------------------

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Every declared slot, in order."""
        return tuple(self._pool.slots.values())

    @property
    def shown(self) -> tuple[Slot, ...]:
        """Every slot as operators see it, those included that are held and not declared any more."""
        return tuple(self._pool.as_of(self._touched).shown())

    def capacity(self) -> Capacity:
        """Count what is held and what is left, as it was published last."""
        return self._pool.as_of(self._touched).capacity()

    async def launch(self, *, slot: SlotId | None = None, host: HostId | None = None) -> LaunchResult:
        """Launch a replica on that slot, on that host or on the next free slot; return once its start is accepted.

        Raises:
            PoolFull: nothing is free there, or the ceiling is reached.
            UnknownSlot: there is no such slot or host.
            SlotBusy: the slot asked for is taken, or something answers at its address.
            LaunchFailed: the start failed; no other slot was tried.
        """
        return await self._mailbox.call(lambda waiter: self._choose(_Request(Cause.OPERATOR, slot, host, waiter)))

    async def retire(self, slot: SlotId, *, force: bool = False) -> RetireResult:
        """Drain and stop a slot's replica, cancel its replacement, or look again at an unconfirmed slot.

        Concurrent calls share one retirement, and it goes on if the caller leaves. `force` frees an unconfirmed slot
        on the operator's word.

        Raises:
            UnknownSlot: there is no such slot, or no replica on it.
        """
        return await self._mailbox.call(partial(self._retire, slot, force))

    async def log(self, slot: SlotId, lines: int) -> bytes:
        """Fetch the end of a slot's startup log.

        Raises:
            UnknownSlot: there is no such slot.
            TransportError: its host could not be asked.
        """
        if slot not in self._pool.slots:
            raise UnknownSlot(f"no slot is called {slot}")
        return await self._launcher.log(slot, lines=lines)

    def on_probe(self, slot: SlotId, generation: int, healthy: bool, status: int | None) -> None:  # noqa: FBT001 - a callback
        """Take the replica's health as judged after a probe, and the status the probe was answered, if any."""
        self._mailbox.post(partial(self._observe, slot, Probed(generation, healthy, status)))

    def idle(self, slot: SlotId, generation: int) -> None:
        """Take note that no request is in flight to the replica."""
        self._mailbox.post(partial(self._observe, slot, Idle(generation)))

    async def recover(self, until: asyncio.Event | None = None) -> None:
        """Take up what the state file says; `run` must be running, and nothing else may be asked of the fleet yet.

        All recorded slots are reserved first, then all addresses and all hosts are asked at the same time, once each.
        Whoever has not answered when `until` is set is not waited for.

        Raises:
            JournalError: the state file can't be read.
        """
        if self._journal is None:
            return
        recorded = await asyncio.to_thread(self._journal.load)
        reserved = await self._mailbox.do(partial(self._reserve, recorded))
        asked: dict[HostId, list[Slot]] = {}
        for slot in filter(to_be_asked, reserved):
            asked.setdefault(slot.host, []).append(slot)
        answers: dict[SlotId, Answered] = {}
        async with asyncio.TaskGroup() as tasks:  # whichever of the two ends first ends the other
            asking = tasks.create_task(self._recognise(asked.values(), answers))
            stop = tasks.create_task((until or asyncio.Event()).wait())
            asking.add_done_callback(lambda _: stop.cancel())
            stop.add_done_callback(lambda _: asking.cancel())
        await self._mailbox.do(partial(self._take_up, reserved, answers))

    async def start_initial(self, count: int) -> None:
        """Have `count` replicas, recovered ones included: take the slots now; their launches go on by themselves."""
        await self._mailbox.do(partial(self._take_initial, count))

    async def shutdown(self) -> bool:
        """Stop every owned replica; return whether every stop was confirmed. `run` ends then."""
        await self._mailbox.do(self._close)
        await self._closed.wait()
        return not any(
            slot.state is SlotState.UNCONFIRMED and slot.cause is not Cause.ADDRESS_IN_USE for slot in self.slots
        )

    # --- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Own the slots until `shutdown` is complete."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while not (self._closing and self._mailbox.empty and not any(slot.present for slot in self.slots)):
                    await self._mailbox.wait()
                    await self._pass(tasks)
                for task in self._running:
                    task.cancel()
        finally:
            self._mailbox.close()
            self._closed.set()
            for timer in self._timers.values():
                timer.cancel()

    async def _pass(self, tasks: asyncio.TaskGroup) -> None:
        self._mailbox.work_off()
        await self._write_ahead()
        touched, self._touched = self._touched, {}
        todo, self._todo = self._todo, []
        for name in touched:
            slot = self._pool.slots[name]
            self._publish(slot)
            if slot.state is SlotState.DRAINING and not self._outstanding(name):
                self.idle(name, slot.generation)
        self._mailbox.send_answers()
        for effect, slot in todo:
            task = tasks.create_task(self._perform(effect, slot))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _write_ahead(self) -> None:
        """Law 1. A start whose promise can't be written down is taken back before anybody hears of it."""
        if self._journal is None or not self._unsaved:
            return
        starts = [slot for effect, slot in self._todo if isinstance(effect, StartProcess)]
        patient = self._save_again is not None and self._clock() < self._save_again
        if patient and not starts and not self._closing:
            return
        try:
            await self._journal.save(self._pool.recorded())
        except JournalError as problem:
            if self._save_again is None:
                self._log.warning("state file not written", error=str(problem))
            self._save_again = self._clock() + SAVE_AGAIN
            asyncio.get_running_loop().call_later(SAVE_AGAIN, self._mailbox.wake)
            self._todo = [(effect, slot) for effect, slot in self._todo if not isinstance(effect, StartProcess)]
            for slot in starts:
                self._observe(slot.id, Gone(slot.generation, None, str(problem), refused=True))
            return
        self._unsaved = False
        if self._save_again is not None:
            self._save_again = None
            self._log.info("state file written again")

    async def _perform(self, effect: Effect, slot: Slot) -> None:
        try:
            observation = await self._performer.perform(effect, slot)
        except Exception as problem:  # noqa: BLE001 - one of three named places: unforeseen means unknown
            observation = unknown(effect, repr(problem))
            self._log.warning("effect failed", slot=slot.id, host=slot.host, error=repr(problem), exc_info=True)
        if isinstance(effect, AskReplica):
            self._asking.discard(slot.id)
        if observation is not None:
            self._mailbox.post(partial(self._observe, slot.id, observation))

    # --- changing slots --------------------------------------------------------------------------

    def _observe(self, name: SlotId, event: Event) -> None:
        if name in self._pool.slots:
            before = self._pool.slots[name]
            self._take(before, *advance(before, event, self._clock(), self._policy), event)

    def _take(self, before: Slot, after: Slot, effects: tuple[Effect, ...], event: Event | None = None) -> None:
        moved = (before.state, before.generation, before.cooling) != (after.state, after.generation, after.cooling)
        if moved:
            after = replace(after, since=self._wall())
        after = self._pool.put(after)
        if after is not before:  # most news is none: this is where hundreds of probes a second end
            self._unsaved = self._unsaved or record(after) != record(before)
            self._touched.setdefault(after.id, before)
        for effect in effects:
            self._plan(effect, after)
        if after.due != before.due:
            self._set_timer(after)
        if moved:
            self._changed(before, after)
        if moved or (event is None and after.taken):
            self._tell(before, after)
        self._settle_launch(before, after)
        if after.id in self._owed and after.state not in _LEAVING:
            self._owed.discard(after.id)
            if after.state is SlotState.FREE and not self._closing:
                self._choose(_Request(Cause.INITIAL))
        if not after.present and (moved or isinstance(event, Silent | Occupied | Release)):
            result = RetireResult(after, confirmed=after.state is not SlotState.UNCONFIRMED)
            for waiter in self._retiring.pop(after.id, ()):
                self._mailbox.answer(waiter, result)

    def _plan(self, effect: Effect, slot: Slot) -> None:
        if isinstance(effect, AskReplica):
            if slot.id in self._asking:
                return
            self._asking.add(slot.id)
        self._todo.append((effect, slot))

    def _tell(self, before: Slot, after: Slot) -> None:
        bad = after.state is SlotState.ABANDONED or (after.cause is not None and after.cause.is_fault)
        handle = after.handle or before.handle
        (self._log.warning if bad else self._log.info)(
            "slot changed",
            slot=after.id,
            host=after.host,
            generation=after.generation,
            **{"from": before.state.value},
            to=after.state.value,
            cause=after.cause and after.cause.value,
            pid=handle and handle.pid,
            **({"error": after.last_error} if bad else {}),
        )

    def _set_timer(self, slot: Slot) -> None:
        if (timer := self._timers.pop(slot.id, None)) is not None:
            timer.cancel()
        if slot.due is not None:
            wait = max(slot.due - self._clock(), 0.0)
            self._timers[slot.id] = asyncio.get_running_loop().call_later(
                wait, self._mailbox.post, partial(self._due, slot.id)
            )

    # --- launching -------------------------------------------------------------------------------

    def _choose(self, request: _Request) -> None:
        try:
            if self._closing:
                raise PoolFull("the router is shutting down")
            slot = self._pool.pick(request.slot, request.host)
        except RouterError as problem:
            self._fail(request, problem)
        else:
            self._launch(slot, request)

    def _launch(self, slot: Slot, request: _Request) -> None:
        self._launching[slot.id] = request
        # The time of day keeps it above those of a router that left no state file: the host refuses what it has seen.
        generation = max(slot.generation + 1, int(self._wall() * 1000))
        self._observe(slot.id, Launch(generation, request.cause))

    def _settle_launch(self, before: Slot, after: Slot) -> None:
        """Answer the request for a launch, once its outcome is known; an address in use sends it to the next slot."""
        if after.state is SlotState.LAUNCHING or (request := self._launching.pop(after.id, None)) is None:
            return
        error = after.last_error or str(after.cause)
        if before.leaving:
            self._fail(request, LaunchFailed(after.id, f"{after.id} was retired while it was launched"))
        elif after.state is SlotState.STARTING:
            self._mailbox.answer(request.waiter, LaunchResult(after))
        elif after.state is not SlotState.UNCONFIRMED:
            self._fail(request, LaunchFailed(after.id, error))
        elif request.slot is not None:
            self._fail(request, SlotBusy(error))
        elif request.cause is not Cause.REPLACEMENT:
            self._choose(request)

    def _fail(self, request: _Request, problem: RouterError) -> None:
        if request.cause is Cause.INITIAL:
            self._log.warning("initial replica not launched", error=str(problem))
        self._mailbox.answer(request.waiter, problem)

    def _due(self, name: SlotId) -> None:
        slot, now = self._pool.slots[name], self._clock()
        if slot.due is None:
            return
        if now < slot.due:  # the loop's clock ran ahead, or the deadline has moved
            self._set_timer(slot)
        elif not slot.cooling:
            self._observe(name, Due(slot.generation))
        elif self._save_again is not None:  # the start would be refused, and count as a loss
            self._set_timer(replace(slot, due=now + SAVE_AGAIN))
        elif self._pool.full or slot not in self._pool.free():
            self._observe(name, Release(Cause.PLACE_TAKEN))
        else:
            self._launch(slot, _Request(Cause.REPLACEMENT))

    def _take_initial(self, count: int) -> None:
        """Choose for each missing replica; one warning says how many found no slot."""
        missing = count - sum(slot.cooling or (slot.taken and slot.state not in _LEAVING) for slot in self.slots)
        picked = self._pool.pick_some(missing)
        for slot in picked:
            self._launch(slot, _Request(Cause.INITIAL))
        leaving = [slot.id for slot in self.slots if slot.state in _LEAVING]  # an earlier run's stops, resumed
        self._owed = set(leaving[: max(missing - len(picked), 0)])
        if left := max(missing - len(picked) - len(self._owed), 0):
            try:
                self._pool.pick()
            except PoolFull as problem:
                self._log.warning("initial replicas not launched", replicas=left, error=str(problem))

    # --- retiring --------------------------------------------------------------------------------

    def _retire(self, name: SlotId, force: bool, waiter: asyncio.Future[RetireResult]) -> None:  # noqa: FBT001 - internal
        slot = self._pool.slots.get(name) or self._pool.undeclared.get(name)
        self._owed.discard(name)
        decision = retirement(slot, Cause.OPERATOR) if slot else None
        if slot is None or decision is None:
            why = f"no replica is on {name}" if slot else f"there is no slot {name}"
            self._mailbox.answer(waiter, UnknownSlot(why))
            return
        if name in self._pool.undeclared:  # nobody knows how to ask its host
            if force:
                del self._pool.undeclared[name]
                self._unsaved = True
            self._mailbox.answer(waiter, RetireResult(slot, confirmed=force))
            return
        if slot.state is SlotState.UNCONFIRMED and force:
            decision = Release(Cause.FORCED)
        self._retiring.setdefault(name, []).append(waiter)
        self._observe(name, decision)

    # --- the beginning and the end ---------------------------------------------------------------

    def _reserve(self, recorded: tuple[Slot, ...]) -> tuple[Slot, ...]:
        """Take every recorded slot, before anything is asked; return those that are still declared."""
        for slot in recorded:
            kept = self._pool.restore(slot)
            if slot.taken and (kept is None or kept.place != self._pool.declared[slot.id].place):
                event = "slot is not declared any more" if kept is None else "slot is declared elsewhere now"
                self._log.warning(
                    event, slot=slot.id, host=slot.host, generation=slot.generation, error=tell_place(slot)
                )
        return tuple(self._pool.slots[slot.id] for slot in recorded if slot.id in self._pool.slots)

    async def _recognise(self, asked: Iterable[list[Slot]], answers: dict[SlotId, Answered]) -> None:
        """Collect the answers about the slots of each host, as they come."""

        async def ask(slots: list[Slot]) -> None:
            try:
                answers.update(await self._performer.recognise(slots))
            except Exception as problem:  # noqa: BLE001 - as in `_perform`: unforeseen means unknown, and the slots stay reserved
                self._log.warning("effect failed", host=slots[0].host, error=repr(problem), exc_info=True)

        await asyncio.gather(*map(ask, asked))

    def _take_up(self, reserved: tuple[Slot, ...], answers: Mapping[SlotId, Answered]) -> None:
        for slot in reserved:
            self._take(slot, *recover(slot, answers.get(slot.id), self._clock(), self._policy))
            self._touched.setdefault(slot.id, slot)

    def _close(self) -> None:
        self._closing = True
        for slot in self.slots:
            decision = retirement(slot, Cause.SHUTDOWN)
            if decision is not None and slot.cause is not Cause.ADDRESS_IN_USE:
                self._observe(slot.id, decision)
