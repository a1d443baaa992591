"""The composition root: builds everything, runs it, shuts it down."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import ssl
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from pypto_serving_router import process
from pypto_serving_router.admin.routes import Admin
from pypto_serving_router.admin.wall_clock import WallClock
from pypto_serving_router.config.load import Plan, canonical, resolve
from pypto_serving_router.core.ids import HostId
from pypto_serving_router.core.routing import Routing
from pypto_serving_router.core.session_sources import SessionSources
from pypto_serving_router.core.slot import Policy, Slot
from pypto_serving_router.errors import ConfigError, Problem, RouterError
from pypto_serving_router.fleet.address import silent
from pypto_serving_router.fleet.controller import Controller
from pypto_serving_router.fleet.journal import Journal
from pypto_serving_router.launch.launcher import Launcher
from pypto_serving_router.probe.monitor import Monitor, ask
from pypto_serving_router.proxy.client import Limits
from pypto_serving_router.proxy.connector import Connector
from pypto_serving_router.proxy.dispatcher import Dispatcher
from pypto_serving_router.proxy.exchange import Exchange
from pypto_serving_router.proxy.frontend import Frontend
from pypto_serving_router.proxy.mint import Mint
from pypto_serving_router.proxy.pool import ConnectionPool
from pypto_serving_router.proxy.shared import Proxy
from pypto_serving_router.table import Table
from pypto_serving_router.telemetry import loop_delay
from pypto_serving_router.telemetry.access import AccessLog
from pypto_serving_router.telemetry.floodgate import Floodgate
from pypto_serving_router.telemetry.log import Logs, configure
from pypto_serving_router.telemetry.metrics import Metrics
from pypto_serving_router.telemetry.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pypto_serving_router.config.model import Fleet, Settings
    from pypto_serving_router.core.balancer import Replica

ORDERLY: Final = 0
UNCONFIRMED: Final = 3
"""Exit status where an owned replica may still run."""

_ALL_IPV4: Final = "0.0.0.0"  # noqa: S104 - a fleet is for other machines
_BACKLOG: Final = 4096  # connections that wait to be accepted; a burst of clients must not be refused
_SWEEP: Final = 0.5  # seconds between two looks at every deadline; the longest of them is a fraction late
_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
_SIGNALS: Final = (*_STOPPING, signal.SIGHUP)
_LAST_WORDS: Final = 1.0  # seconds for the log to be written at the end
_QUIET: Final = 10.0  # seconds between two records of the same trouble
_REMINDER: Final = 10.0  # seconds between two records of what an orderly stop waits for
_SWEPT_PINS: Final = 2000  # pins removed in one turn of the loop: about 1 ms


def run(settings: Settings, fleet: Fleet) -> int:
    """Run the router until it is told to stop; return its exit status.

    Raises:
        ConfigError: the options contradict the fleet file, or the address can't be bound.
        JournalError: the state file can't be read, or is held by another router.
    """
    process.keep_memory()
    logs = configure(settings.log_level, settings.log_format)
    # `asyncio.run` would run the loop again once all is done, and for each run uvloop wants two more descriptors.
    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(App(settings, fleet, resolve(settings, fleet), logs).run())
    finally:
        loop.close()
        for number in _SIGNALS:  # a late one finds nothing to stop, and must not change how this ended
            signal.signal(number, signal.SIG_IGN)
        logs.sink.flush(_LAST_WORDS)  # what the caller may have to complain of comes after it


class App:
    """One router."""

    def __init__(self, settings: Settings, fleet: Fleet, plan: Plan, logs: Logs) -> None:
        self._settings = settings
        self._plan = plan
        self._log = logs.log
        self._sink = logs.sink
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        now = time.monotonic

        self._routing = Routing(slack=settings.affinity_slack, ttl=settings.session_ttl, capacity=settings.max_sessions)
        tls = {replica.name: _tls_context(replica.ca_file) for replica in fleet.replicas if replica.scheme == "https"}
        self._pool = ConnectionPool(now=now)
        self._metrics = Metrics(
            Sources(
                balancer=self._routing.balancer,
                sessions=self._routing.sessions,
                client_connections=lambda: len(self._frontend.connections),
                tasks=lambda: len(asyncio.all_tasks()),
                upstream_connections=lambda: self._pool.open,
                slots=lambda: self._fleet.shown,
                log_records_lost=lambda: logs.sink.lost,
                compiled=process.is_compiled(),
            )
        )
        self._access = None
        if settings.access_log:
            self._access = AccessLog(logs.sink, settings.log_format, time.time, coloured=logs.coloured)
        self._floodgate = Floodgate(now)
        self._table = Table(self._routing, now=now, log=self._log, floodgate=self._floodgate, let_go=self._let_go)
        self._monitor = self._table.monitor = Monitor(
            interval=settings.health_interval,
            timeout=settings.connect_timeout,
            on_probe=self._on_probe,
            on_fault=self._on_probe_fault,
            is_loading=self._table.is_loading,
        )
        self._journal = None if settings.state_file is None else Journal.open(Path(settings.state_file))
        self._fleet = self._build_fleet(fleet, now)
        self._table.on_health = self._fleet.on_probe
        self._routing.balancer.on_idle = self._on_idle
        self._proxy = Proxy(
            routing=self._routing,
            pool=self._pool,
            connect=Connector(self._pool, timeout=settings.connect_timeout, tls=tls).connect,
            now=now,
            mint=Mint(),
            spawn=self._spawn,
            on_fault=self._table.on_fault,
            record=self._metrics.exchange_ended if self._access is None else self._record,
            chunk_gap=self._metrics.chunk_gap,
            request_timeout=settings.request_timeout,
            max_body_size=settings.max_body_size,
            connect_retries=settings.connect_retries,
            sources=_sources(settings),
        )
        self._admin = Admin(
            balancer=self._routing.balancer,
            sessions=self._routing.sessions,
            decisions=self._routing.decisions,
            fleet=self._fleet,
            token=settings.admin_token,
            metrics=self._metrics,
            recent=logs.recent,
            now=now,
            wall_time=WallClock(now, time.time),
            floodgate=self._floodgate,
            log=self._log,
        )
        self._frontend = Frontend(
            open=Dispatcher(self._proxy, serve=self._admin.handle, spawn=self._spawn).open,
            limits=Limits(max_connections=process.raise_descriptor_limit()),
            now=now,
            on_refused=self._on_refused,
        )
        for replica in fleet.replicas:
            self._table.add_static(replica, tls.get(replica.name))

    # --- its life ----------------------------------------------------------------------------

    async def run(self) -> int:
        """Listen and serve until a signal says to stop."""
        sockets = _bind(self._settings.host, self._settings.port)
        if self._fleet.slots and self._settings.admin_token is None:
            self._log.warning(
                "anyone who can reach this port can launch and stop replicas",
                remedy="set --admin-token, or PYPTO_ROUTER_ADMIN_TOKEN in the environment",
            )
        loop = asyncio.get_running_loop()
        for number in _STOPPING:
            loop.add_signal_handler(number, self._on_signal, signal.Signals(number))
        loop.add_signal_handler(signal.SIGHUP, self._log.info, "SIGHUP is ignored")
        try:
            # The fleet's loop ends with its shutdown. If it fails, nothing that waits for it may wait for ever.
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._fleet.run())
                confirmed = await self._serve(sockets)
        except* RouterError as errors:
            raise errors.exceptions[0] from None
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._journal is not None:
                self._journal.close()
        return ORDERLY if confirmed else UNCONFIRMED

    async def _serve(self, sockets: list[socket.socket]) -> bool:
        """Take up the fleet, then listen until told to stop; return whether every stop was confirmed."""
        await self._fleet.recover(until=self._stop)
        if self._stop.is_set():  # it means the same at any time: what is recorded is ours, and a stop needs no answers
            for sock in sockets:
                sock.close()
            return await self._shut_down()
        await self._fleet.start_initial(self._plan.initial_replicas)
        self._spawn(self._monitor.run())
        self._spawn(self._sweep())
        self._spawn(
            loop_delay.watch(self._metrics.loop_delay, self._log, now=time.monotonic, floodgate=self._floodgate)
        )
        servers = [
            await asyncio.get_running_loop().create_server(self._frontend.connect, sock=sock, backlog=_BACKLOG)
            for sock in sockets
        ]
        process.collect_rarely()
        for sock in sockets:
            self._log.info("listening", url=_url(sock), replicas=len(self._routing.balancer.replicas))
        await self._stop.wait()
        for server in servers:
            server.close()
        return await self._shut_down()

    async def _shut_down(self) -> bool:
        """Let requests end and stop what the router launched; return whether every stop was confirmed."""
        self._frontend.close()
        confirmed, _ = await asyncio.gather(self._fleet.shutdown(), self._last_requests())
        self._frontend.abort()
        self._pool.close()
        for number in _STOPPING:
            asyncio.get_running_loop().add_signal_handler(number, _do_nothing)
        self._log.info("stopped", confirmed=confirmed)
        return confirmed

    async def _last_requests(self) -> None:
        """Let requests end for as long as a drain may take, and tell now and then that they are waited for."""
        left = self._settings.drain_timeout
        until, pause = time.monotonic() + left, min(_REMINDER, left / 4)
        while not self._frontend.empty.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pause, left)):
                    await self._frontend.empty.wait()
                    return
            left, requests = until - time.monotonic(), len(self._frontend.handlers())
            if left <= 0:
                self._log.warning("requests cut off", requests=requests)
                return
            self._log.info("waiting for requests", requests=requests, seconds_left=math.ceil(left))

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._stop.is_set():
            self._log.info("stopping", signal=number.name, requests=len(self._frontend.handlers()))
            self._stop.set()
            return
        left = [slot.id for slot in self._fleet.slots if slot.taken]
        self._log.error("stopped at once by a second signal", signal=number.name, left_running=left)
        self._sink.flush(_LAST_WORDS)
        os._exit(UNCONFIRMED)

    async def _sweep(self) -> None:
        interval = min(_SWEEP, self._settings.request_timeout / 4)
        while True:
            await asyncio.sleep(interval)
            self._frontend.sweep()
            self._pool.sweep()
            while self._routing.sessions.sweep(time.monotonic(), _SWEPT_PINS):  # noqa: ASYNC110 - to let others go first
                await asyncio.sleep(0)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task, keep it, and let no failure of it pass in silence."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        suppressed = self._floodgate.once_per(("task failed", type(error)), _QUIET)
        if suppressed is not None:
            self._log.error("task failed", error=repr(error), exc_info=error, suppressed=suppressed)

    # --- between its parts -------------------------------------------------------------------

    def _on_refused(self, status: int) -> None:
        self._metrics.refused(status)

    def _on_probe(self, replica: Replica, healthy: bool, status: int | None, seconds: float, error: str | None) -> None:  # noqa: FBT001 - a callback
        self._metrics.probed(replica.id, seconds, ok=healthy)
        self._table.on_probe(replica, healthy, status, error)

    def _on_probe_fault(self, replica: Replica, fault: Exception) -> None:
        suppressed = self._floodgate.once_per("probe fault", _QUIET)
        if suppressed is not None:
            self._log.error("probe failed here", replica=replica.id, error=repr(fault), suppressed=suppressed)

    def _on_idle(self, replica: Replica) -> None:
        if replica.slot is not None:
            self._fleet.idle(replica.slot, replica.generation)

    async def _ask(self, slot: Slot) -> int | None:
        status, _ = await ask(slot.address, slot.port, timeout=self._settings.connect_timeout)
        return status

    def _let_go(self, replica: Replica) -> None:
        """End whatever still uses a replica that is being stopped."""
        self._pool.forget(replica)
        for handler in self._frontend.handlers():
            if isinstance(handler, Exchange):
                handler.replica_gone(replica)

    def _record(self, exchange: Exchange) -> None:
        self._metrics.exchange_ended(exchange)
        assert self._access is not None
        lease = exchange.lease
        self._access.write(
            exchange.head.method,
            exchange.head.target,
            exchange.status,
            "" if lease is None else lease.replica.id,
            "" if lease is None else lease.placement,
            exchange.outcome,
            exchange.session,
            exchange.client.peer,
            exchange.received,
            exchange.relayed,
            exchange.first_byte - exchange.started if exchange.first_byte else -1.0,
            exchange.ended - exchange.started,
            exchange.request_id,
        )

    def _build_fleet(self, fleet: Fleet, now: Callable[[], float]) -> Controller:
        settings = self._settings
        slots = [
            Slot(
                id=spec.id,
                host=HostId(spec.host.name),
                address=spec.address,
                port=spec.port,
                devices=spec.devices,
                wrapped=bool(spec.host.launch_wrapper),
                has_stop_command=spec.host.stop_command is not None,
            )
            for spec in fleet.slots
        ]
        return Controller(
            slots,
            ceiling=self._plan.ceiling,
            policy=Policy(
                launch_timeout=settings.launch_timeout,
                drain_timeout=settings.drain_timeout,
                replace_after=self._plan.replace_after,
            ),
            launcher=Launcher(fleet.slots, observe=self._metrics.host_command, log=self._log),
            journal=self._journal,
            publish=self._table.publish,
            outstanding=self._table.outstanding,
            silent=silent,
            ask=self._ask,
            clock=now,
            wall=time.time,
            log=self._log,
            changed=lambda before, after: self._metrics.slot_changed(before, after, now()),
        )


def _sources(settings: Settings) -> SessionSources | None:
    """Return where else to look for session ids, if anywhere: the usual request is not to be searched in vain."""
    if settings.session_header or settings.session_field:
        return SessionSources(settings.session_header, settings.session_field)
    return None


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _bind(host: str, port: int) -> list[socket.socket]:
    """Take the addresses to listen on, before anything is launched for clients who could never come.

    `::` is all of this machine's, but its socket is for IPv6 alone, so that clients' IPv4 addresses stay as they are.
    """
    sockets: list[socket.socket] = []
    names = [host, _ALL_IPV4] if canonical(host) == "::" else [host]
    try:
        found = [
            address
            for name in names
            for address in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ]
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = sockets[0].getsockname()[1] if len(sockets) > 1 else port
            sock.bind((address[0], chosen, *address[2:]))
    except (OSError, UnicodeError) as error:  # the latter for what can be no name of a host
        for sock in sockets:
            sock.close()
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ConfigError(Problem("--host, --port", f"{host}:{port} can't be bound: {reason}")) from error
    return sockets


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _do_nothing() -> None:
    """Let a signal pass."""
