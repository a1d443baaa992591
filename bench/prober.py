"""Asks a server for the same small thing over and over on one connection, and says how long each answer took.

    python -m bench.prober PORT PATH SECONDS

A process of its own, so that a busy load generator does not add to what it measures. Prints JSON: milliseconds.
"""

import json
import socket
import sys
import time

_EVERY = 0.01


def probe(port: int, path: str, seconds: float) -> list[float]:
    """Send a request each 10 ms for so long; return the answers' times in milliseconds."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    took: list[float] = []
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            begun = time.monotonic()
            connection.sendall(request)
            answer = connection.recv(65536)
            took.append((time.monotonic() - begun) * 1e3)
            if not answer or b"\r\nconnection: close" in answer.lower():
                connection.close()
                connection = socket.create_connection(("127.0.0.1", port), timeout=30)
            time.sleep(max(0.0, _EVERY - (time.monotonic() - begun)))
    finally:
        connection.close()
    return took


if __name__ == "__main__":
    print(json.dumps(probe(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))))
