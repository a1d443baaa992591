"""Installs our own router and the peers under bench/out/envs, as any user, and leaves the rest of the machine as it is.

    python -m bench.install [NAME ...]

Routers get an environment each; ours is installed from the checkout, compiled. nginx, HAProxy and wrk, where they are
not on PATH already, come as Debian packages that are downloaded and unpacked there: no root, and no service that would
start. What cannot be had is said and left out.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.catalogue import (
    ENVIRONMENTS,
    OURS,
    PYPI_PEERS,
    ROOT,
    SYSTEM_PROGRAMS,
    NotFound,
    Programs,
    installed_is_current,
    source_digest,
)

_SYSTEM = ENVIRONMENTS / "system"
_TIMEOUT = 900


class InstallFailed(Exception):
    """A peer could not be installed."""


def _run(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise InstallFailed(str(exc)) from exc
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise InstallFailed(lines[-1] if lines else f"{argv[0]} ended with {done.returncode}")
    return done.stdout


def install_from_pypi(name: str) -> None:
    """Install one of the routers from PyPI in an environment of its own.

    Raises:
        InstallFailed: pip could not.
    """
    folder = ENVIRONMENTS / name
    done = folder / ".ready"
    if done.exists():
        return
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    python = str(folder / "bin" / "python")
    _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PYPI_PEERS[name]])
    done.touch()


def install_ours() -> None:
    """Install our own router as users do, which compiles its data path where a C compiler is at hand.

    Raises:
        InstallFailed: pip could not.
    """
    if installed_is_current():
        return
    folder = ENVIRONMENTS / OURS
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    python = str(folder / "bin" / "python")
    variables = {name: value for name, value in os.environ.items() if name != "PYPTO_COMPILE"}
    _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(ROOT)], variables)
    (folder / ".ready").write_text(source_digest())


def _apt_get(*words: str) -> str:
    """Run apt-get with lists, caches and locks of its own, so that it needs no root and changes nothing."""
    for part in ("lists/partial", "archives/partial"):
        (_SYSTEM / part).mkdir(parents=True, exist_ok=True)
    return _run(
        [
            "apt-get",
            "-o",
            "Debug::NoLocking=1",
            "-o",
            f"Dir::State::lists={_SYSTEM}/lists",
            "-o",
            f"Dir::Cache::archives={_SYSTEM}/archives",
            "-o",
            "Dir::Cache::pkgcache=",
            "-o",
            "Dir::Cache::srcpkgcache=",
            *words,
        ]
    )


def unpack_from_debian(name: str) -> None:
    """Download a Debian package and what it needs, unpack them, and make a command of it.

    Raises:
        InstallFailed: there is no apt-get, no such package, or the program does not run.
    """
    if shutil.which("apt-get") is None:
        raise InstallFailed("no apt-get; install it by hand, or give --bin")
    if not any(_SYSTEM.glob("lists/*Packages*")):
        _apt_get("update")
    _apt_get("--yes", "--no-install-recommends", "--download-only", "install", name)
    root = _SYSTEM / "root"
    for package in sorted((_SYSTEM / "archives").glob("*.deb")):
        _run(["dpkg-deb", "--extract", str(package), str(root)])
        package.unlink()
    for unused in ("usr/share", "etc", "var"):
        shutil.rmtree(root / unused, ignore_errors=True)
    program = next((path for path in root.glob(f"usr/*bin/{name}") if os.access(path, os.X_OK)), None)
    if program is None:
        raise InstallFailed(f"the package holds no program {name}")
    command = ENVIRONMENTS / "bin" / name
    command.parent.mkdir(exist_ok=True)
    libraries = ":".join(sorted({str(path.parent) for path in root.glob("usr/lib/**/*.so*")}))
    command.write_text(
        f'#!/bin/sh\nLD_LIBRARY_PATH="{libraries}" exec "{program}" "$@"\n',
    )
    command.chmod(0o755)
    # Whether all its libraries are there shows when it runs; wrk -v ends with 1 where the others end with 0.
    answer = subprocess.run([command, "-v"], capture_output=True, text=True, timeout=20, check=False)
    if "error while loading" in answer.stderr or answer.returncode > 1:
        command.unlink()
        raise InstallFailed(answer.stderr.strip())


def main() -> None:
    """Install what is asked for, or everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [OURS, *SYSTEM_PROGRAMS, *PYPI_PEERS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    names = parser.parse_args().names or known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no peer {unknown[0]!r}; there are {', '.join(known)}")
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    for name in names:
        try:
            print(f"{name}: {_install(name)}", flush=True)
        except InstallFailed as exc:
            print(f"{name}: could not be installed, the benchmark goes on without it: {exc}", flush=True)


def _install(name: str) -> str:
    if name == OURS:
        install_ours()
        return str(_shown(ENVIRONMENTS / OURS))
    if name in PYPI_PEERS:
        install_from_pypi(name)
        return str(_shown(ENVIRONMENTS / name))
    try:
        return Programs({}).find(name)
    except NotFound:
        unpack_from_debian(name)
        return str(_shown(ENVIRONMENTS / "bin" / name))


def _shown(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


if __name__ == "__main__":
    main()
