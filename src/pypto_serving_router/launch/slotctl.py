"""Start, inspect, stop and read the replicas of slots: the one program that runs on a host.

Theory of operation. The router sends this text to `python3 -` on the host, followed by one line that calls `main` with
the job; the answer is one line of JSON behind a marker of the job's choosing. Beside the log `<slot>.log` lie
`<slot>.json`, the record of the slot's latest launch, and `<slot>.lock`, held while the record is decided upon.

- *Start* forks a supervisor, which runs the command in a session of its own, records it, keeps its exit status, and
  does not reap it before its group is empty: so long, nothing else can get its pid, and the group is provably ours.
- *The fence*: a stop of generation n writes n into the record, and a start wants a generation above everything the
  record has seen. A start that arrives late, after the router has given up on it, finds that and refuses.
- *The family* of a launch is what `find_family` finds: its group and session, whatever carries its mark in the
  environment, and their descendants. A process is known by pid and start time; the boot id tells a reboot.

Rules for editors.

1. Only the standard library of Python 3.7, and nothing of the package: this text runs alone.
2. Nothing may happen before the call of `main`: a connection that breaks hands python the beginning of this text.
3. No process is signalled unless it was seen in a family, with its start time, within the same round.
4. *Refused* means that nothing has run and nothing will; *gone*, that nothing is left, and after a stop that nothing
   will start. What cannot be told is never reported as either.
5. The lock is never held while waiting for a process to end.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

    Answer = dict[str, Any]
    Handle = dict[str, Any]  # pid, started_at, boot_id: what tells a process from any other that ever has its pid
    Job = dict[str, Any]
    Table = dict[int, "Process"]  # by pid
    Record = dict[str, Any]  # fence, and of the latest launch: generation, handle, exit_status, offset in the log

MARK = "PYPTO_SLOT_MARK"
"""The variable in a replica's environment that says which launch it belongs to."""

LOCK_PATIENCE = 10.0  # the lock is held for milliseconds, unless a file system hangs
STATUS_PATIENCE = 2.0  # for the status of a process that has ended, which its supervisor is about to write
KILL_PATIENCE = 10.0  # from SIGKILL until a process that is still there is given up on
DETAIL_LINES, DETAIL_BYTES = 20, 4096  # of the log, in the detail of a failure
LOG_BYTES = 1 << 20  # of the log, when it is asked for


# --- processes -------------------------------------------------------------------------------


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    threads: int
    started_at: str
    mark: str  # which launch it says it belongs to

    @property
    def lives(self) -> bool:
        """False for a zombie, which still answers to signals; a dead first thread may have living others."""
        return self.state not in "ZX" or self.threads > 1


class Family(NamedTuple):
    """The processes of a launch: its first one, be it a zombie; the living of its group; the other living ones."""

    leader: Process | None
    group: list[Process]
    strays: list[Process]

    @property
    def living(self) -> list[Process]:
        """Everything that is still there."""
        return self.group + self.strays


def find_process(pid: int) -> Process | None:
    """Look one process up; None if there is no such, or none that may be seen."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, tail = file.read().rpartition(")")  # the name before it may contain anything
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    field = tail.split()
    parent, group, session = map(int, field[1:4])
    name, mark = head.partition("(")[2], read_mark(pid)
    return Process(pid, name, field[0], parent, group, session, int(field[17]), field[19], mark)


def list_processes() -> Table:
    """Read the whole process table."""
    found = (find_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process}


def read_mark(pid: int) -> str:
    """Tell which launch a process says it belongs to; empty if it says nothing, or not to us."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read().split(b"\0")
    except OSError:
        return ""
    prefix = os.fsencode(MARK + "=")
    return next((os.fsdecode(item[len(prefix) :]) for item in environment if item.startswith(prefix)), "")


def read_boot_id() -> str:
    """Tell this boot of the machine from any other. All containers of a machine share it."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def find_family(mark: str, handle: Handle | None, table: Table, seen: dict[int, str] | None = None) -> Family:
    """Find the processes of a launch: those of the handle's session, those with its mark, and their descendants.

    A mark is recognised by its beginning. `seen` keeps who was found in earlier rounds: a descendant is hard to
    recognise once its parent has gone.
    """
    seen = {} if seen is None else seen
    leader = table.get(handle["pid"]) if handle and handle["boot_id"] == read_boot_id() else None
    if leader and handle and leader.started_at != handle["started_at"]:
        leader = None  # somebody else, who got its pid
    # A group outlives its leader. Without the leader nothing proves that a group of that number is ours.
    ours = {pid for pid, process in table.items() if leader and leader.pid in (process.group, process.session)}
    ours |= {pid for pid, process in table.items() if seen.get(pid) == process.started_at}
    ours |= {pid for pid, process in table.items() if process.mark.startswith(mark)}
    children = ours
    while children:
        children = {pid for pid, process in table.items() if process.parent in ours} - ours
        ours |= children
    seen.update((pid, table[pid].started_at) for pid in ours)
    living = [table[pid] for pid in sorted(ours) if table[pid].lives]
    group = [process for process in living if leader and process.group == leader.pid]
    return Family(leader, group, [process for process in living if process not in group])


def signal_all(processes: list[Process], number: int) -> None:
    """Signal each process that is still the one that was seen; a caller who cares looks at what remains."""
    for process in processes:
        now = find_process(process.pid)
        if now and now.started_at == process.started_at:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def describe(processes: list[Process]) -> str:
    """Name processes for people."""
    return ", ".join(f"process {p.pid} ({p.name}, state {p.state})" for p in processes[:5])


# --- the slot's files ------------------------------------------------------------------------


class Slot:
    """The files of one slot, and the launch of it that a job is about."""

    def __init__(self, job: Job) -> None:
        self.log = os.path.abspath(os.path.expanduser(job["log"]))
        self.base: str = os.path.splitext(self.log)[0]
        self.generation: int = job["generation"]
        self.marks = f"{self.base}#"  # the beginning that the marks of all the slot's launches have in common
        self.mark = f"{self.marks}{self.generation}#"

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the slot's lock; its file descriptor is given.

        Raises:
            OSError: The files cannot be written, or another command holds the lock.
        """
        folder = os.path.dirname(self.log)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        owner, parent = os.stat(folder).st_uid, os.stat(os.path.dirname(folder))
        if parent.st_mode & stat.S_ISVTX and owner not in (0, os.geteuid(), parent.st_uid):
            raise PermissionError(0, "the folder was made by another user", folder)  # who may lie to us in the record
        lock = os.open(self.base + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        give_up_at = time.monotonic() + LOCK_PATIENCE
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up_at:
                        raise OSError(0, "held by another command", self.base + ".lock") from None
                    time.sleep(0.02)
            yield lock
        finally:
            os.close(lock)

    def read(self) -> Record:
        """Read the record; an empty one if there is none."""
        record: Record = {"fence": 0, "generation": 0}
        try:
            with open(self.base + ".json", encoding="utf-8") as file:
                record.update(json.load(file))
        except FileNotFoundError:
            pass
        except ValueError:
            raise OSError(0, "damaged; remove it when nothing of the slot runs", self.base + ".json") from None
        return record

    def write(self, record: Record) -> None:
        """Replace the record, whole and for good; only under the lock."""
        new = self.base + ".json.new"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(record, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.base + ".json")

    def tail(self, offset: int, lines: int, limit: int) -> bytes:
        """Read the last lines of the log, not from before `offset`, and no more than `limit` bytes."""
        try:
            with open(self.log, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(offset if offset <= size else 0, size - limit))  # a log that shrank was rotated
                return b"".join(file.read(limit).splitlines(keepends=True)[-lines:])
        except FileNotFoundError:
            return b""

    def quote(self, detail: str, offset: int) -> str:
        """Add the end of the log to a detail."""
        text = self.tail(offset, DETAIL_LINES, DETAIL_BYTES).decode(errors="replace").strip()
        return f"{detail}; its log ends:\n{text}" if text else detail


# --- start -----------------------------------------------------------------------------------


def start(job: Job) -> Answer:
    """Run the job's command, unless the fence or an earlier launch forbids it."""
    slot = Slot(job)
    try:
        with slot.locked() as lock:
            record = slot.read()
            if slot.generation == record["generation"]:
                return inspect(job)
            latest = max(record["fence"], record["generation"])
            if slot.generation <= latest:
                return refused(f"the fence is up: this is launch {slot.generation}, and the slot is at {latest}")
            earlier = find_family(slot.marks, record.get("handle"), list_processes()).living
            if earlier:
                return {"state": "occupied", "detail": "an earlier process of this slot lives: " + describe(earlier)}
            log = os.open(slot.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            os.write(log, f"--- {os.path.basename(slot.base)} launch {slot.generation} at {when}\n".encode())
            record.update(generation=slot.generation, handle=None, exit_status=None, offset=os.fstat(log).st_size)
            slot.write(record)  # from here on this generation is spent, whatever becomes of us
            answers, reply = os.pipe()
            if os.fork() == 0:
                supervise(slot, job, record, lock=lock, log=log, reply=reply)
    except OSError as problem:
        return refused(tell(problem))
    os.close(reply)
    with open(answers, "rb") as file:
        answer: Answer = json.loads(file.read())
    return answer


def refused(detail: str) -> Answer:
    """Answer that nothing was started."""
    return {"state": "refused", "detail": detail}


def tell(problem: Exception) -> str:
    """Word what the system would not do."""
    if isinstance(problem, OSError) and problem.filename:
        return f"{problem.strerror}: {os.fsdecode(problem.filename)}"
    return str(problem)


def supervise(slot: Slot, job: Job, record: Record, *, lock: int, log: int, reply: int) -> NoReturn:
    """Be the parent of the command for as long as it runs, and record how it ended."""
    try:
        os.setsid()
        let_go(log, keep={lock, reply})
        process, answer = launch(slot, job, record)
        os.chdir("/")
        os.close(lock)
        with contextlib.suppress(BrokenPipeError):  # nobody waits for the answer any more; the record has it
            os.write(reply, json.dumps(answer).encode())
        os.close(reply)
        if process:
            watch(slot, process)
    finally:
        problem = sys.exc_info()[1]
        if problem:
            os.write(2, f"--- the launch is no longer watched: {problem!r}\n".encode())
        os._exit(0)


def let_go(log: int, keep: set[int]) -> None:
    """Give up everything the starter had open or ignored: ssh stays for as long as its output is held."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        if number > 2 and number not in keep:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(number)
    # SIGPIPE stays ignored here, so that an answer nobody reads is harmless; `Popen` gives it back to the command.
    for number in set(range(1, signal.NSIG)) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def launch(slot: Slot, job: Job, record: Record) -> tuple[subprocess.Popen[bytes] | None, Answer]:
    """Run the command and write down which process that is."""
    try:
        process = run(job, job["argv"], {MARK: slot.mark}, output=1)
    except (OSError, ValueError) as problem:
        return None, refused(f"cannot run {job['argv'][0]}: {tell(problem)}")
    found = find_process(process.pid)
    assert found, "a child that was not waited for is in the process table"
    handle = {"pid": found.pid, "started_at": found.started_at, "boot_id": read_boot_id()}
    try:
        slot.write({**record, "handle": handle})
    except OSError as problem:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None, refused(tell(problem))
    return process, {"state": "running", **handle}


def run(job: Job, argv: list[str], extra: dict[str, str], output: int) -> subprocess.Popen[bytes]:
    """Run a command of the slot in a session of its own, without what is the router's or the connection's."""
    mine = (MARK, "PYPTO_ROUTER_", "SSH_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    folder = job["workdir"] and os.path.expanduser(job["workdir"])
    return subprocess.Popen(
        argv, env={**inherited, **job["env"], **extra}, cwd=folder, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=output, stderr=output,
    )  # fmt: skip


def watch(slot: Slot, process: subprocess.Popen[bytes]) -> None:
    """Record the exit status of a child, and reap it once nothing of its group is left."""
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert ended, "without WNOHANG it waits"
    with slot.locked():
        record = slot.read()
        if record["generation"] == slot.generation:
            status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            slot.write({**record, "exit_status": status})
    while any(process.pid in (p.group, p.session) and p.lives for p in list_processes().values()):
        time.sleep(1)
    process.wait()


# --- inspect, stop, log ----------------------------------------------------------------------


def inspect(job: Job) -> Answer:
    """Tell whether the launch runs, is gone, or has ended and left processes behind."""
    answer: Answer = inspect_all({"launches": [job]})["answers"][0]
    return answer


def inspect_all(job: Job) -> Answer:
    """Inspect several launches with one look at the processes; each has the answer that it would have alone."""
    found = [(one, attempt(lambda one: {"launch": find_launch(Slot(one), one)}, one)) for one in job["launches"]]
    table = list_processes()  # after the records: what they tell of is in the table, if it lives
    give_up_at = time.monotonic() + STATUS_PATIENCE
    answers = [
        attempt(judge, one, *record["launch"], table, give_up_at) if "launch" in record else record
        for one, record in found
    ]
    return {"state": "inspected", "answers": answers}


def judge(job: Job, record: Record, handle: Handle | None, table: Table, give_up_at: float) -> Answer:
    """Tell what the process table says of a launch that was found before it was read."""
    slot = Slot(job)
    family = find_family(slot.mark, handle, table)
    if handle and family.leader and family.leader.lives:
        return {"state": "running", **handle}
    status = read_status(slot, family.leader, give_up_at) if record else None
    detail = tell_end(status, handle)
    if family.living and handle and job["wrapped"] and status == 0:  # a broker left it running on this host
        return {"state": "running", **handle}
    if family.living:
        return {"state": "left", "exit_status": status, "detail": f"{detail}; it left {describe(family.living)}"}
    if job["wrapped"] and handle and status is None:
        return {"state": "unknown", "detail": f"{detail}, nor whether it had submitted its work"}
    if record:
        detail = slot.quote(detail, record["offset"])
    return {"state": "gone", "exit_status": status, "detail": detail}


def find_launch(slot: Slot, job: Job) -> tuple[Record, Handle | None]:
    """Read the launch's record, empty if the slot's is about another one, and its handle, the job's if need be."""
    record = slot.read()
    if record["generation"] != slot.generation:
        record = {}
    return record, record.get("handle") or job["handle"]  # a folder for temporary files may have been swept


def read_status(slot: Slot, zombie: Process | None, give_up_at: float) -> int | None:
    """Read how the launch of the record ended, which is written down before the process is reaped."""
    while True:
        status: int | None = slot.read().get("exit_status")
        if status is not None or not zombie or time.monotonic() > give_up_at:
            return status
        time.sleep(0.02)


def tell_end(status: int | None, handle: Handle | None) -> str:
    """Word how a launch ended."""
    if status is not None:
        names = {number.value: number.name for number in signal.Signals}
        return f"exited with status {status}" if status >= 0 else f"ended by {names.get(-status, 'signal')} ({-status})"
    if handle is None:
        return "nothing of this launch is on the host"
    if handle["boot_id"] != read_boot_id():
        return "the host was rebooted"
    return f"process {handle['pid']} is not there any more; how it ended is not known"


def stop(job: Job) -> Answer:
    """Forbid the launch to start from now on, end what it has started, and look whether that is gone."""
    slot = Slot(job)
    kill_at = time.monotonic() + job["grace"]
    with slot.locked():
        record = slot.read()
        newer = record["generation"] > slot.generation
        if slot.generation > max(record["fence"], record["generation"]):
            slot.write({**record, "fence": slot.generation})
    handle = find_launch(slot, job)[1]
    seen: dict[int, str] = {}
    family = find_family(slot.mark, handle, list_processes(), seen)
    # A stop command knows only the slot's name: it must not end a newer launch that has taken the slot.
    if job["stop_argv"] and (handle or family.living) and not newer:
        failure = run_stop_command(slot, job)
        if failure:
            return {"state": "left", "detail": failure}
    elif family.leader:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # as in `signal_all`
            os.killpg(family.leader.pid, signal.SIGTERM)
    left = end_family(slot, handle, seen, kill_at)
    if left:
        return {"state": "left", "detail": "still there after SIGKILL: " + describe(left)}
    return {"state": "gone", "exit_status": None, "detail": "stopped" if handle else tell_end(None, None)}


def run_stop_command(slot: Slot, job: Job) -> str | None:
    """Run the command that stops the replica; what went wrong is given, if anything did."""
    try:
        with open(slot.log, "ab") as log:
            offset = log.tell()
            process = run(job, job["stop_argv"], {}, output=log.fileno())
    except (OSError, ValueError) as problem:
        return f"the stop command did not run: {tell(problem)}"
    try:
        status = process.wait(job["grace"])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return slot.quote(f"the stop command was not done after {job['grace']} s", offset)
    return slot.quote(f"the stop command {tell_end(status, None)}", offset) if status else None


def end_family(slot: Slot, handle: Handle | None, seen: dict[int, str], kill_at: float) -> list[Process]:
    """Wait for a family to end, and from `kill_at` on make it; who is left in the end is given."""
    asked: set[tuple[int, str]] = set()
    pause = 0.02
    while True:
        family = find_family(slot.mark, handle, list_processes(), seen)
        now = time.monotonic()
        if not family.living or now > kill_at + KILL_PATIENCE:
            return family.living
        if now >= kill_at:
            signal_all(family.living, signal.SIGKILL)
        elif not family.group:
            # Who left the group may be ended by its leader, in its own way, while that lives; then it is our turn.
            signal_all([p for p in family.strays if (p.pid, p.started_at) not in asked], signal.SIGTERM)
            asked.update((p.pid, p.started_at) for p in family.strays)
        time.sleep(min(pause, max(kill_at - now, 0.02)))
        pause = min(pause * 1.5, 0.5)


def log(job: Job) -> Answer:
    """Read the end of the slot's log, whichever launch wrote it."""
    data = Slot(job).tail(0, job["lines"], LOG_BYTES)
    return {"state": "log", "data": base64.b64encode(data).decode()}


def attempt(act: Callable[..., Answer], *arguments: Any) -> Answer:
    """Give the answer of an action, or why the system would not do it."""
    try:
        return act(*arguments)
    except OSError as problem:
        return {"state": "failed", "detail": tell(problem)}


def main(text: str) -> None:
    """Do the job written in `text` and print the answer on a line of its own."""
    job: Job = json.loads(text)
    actions: dict[str, Callable[[Job], Answer]] = {
        "start": start, "inspect": inspect, "inspect-all": inspect_all, "stop": stop, "log": log,
    }  # fmt: skip
    answer = attempt(actions[job["action"]], job)
    sys.stdout.write(f"\n{job['marker']} {json.dumps(answer)}\n")
