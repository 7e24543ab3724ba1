"""The health endpoint of the controller, for kubelet's probes."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["serve_health"]

Probe = Callable[[], tuple[bool, dict[str, Any]]]


def serve_health(address: str, port: int, probes: dict[str, Probe]) -> http.server.ThreadingHTTPServer:
    """Serve each probe at its path (`/healthz`) in a thread: 200 or 503, with JSON. Port 0 takes a free one.

    Raises OSError if the address or port cannot be used.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            probe = probes.get(self.path.partition("?")[0])
            ok, told = probe() if probe else (False, {"error": "no such path"})
            body = json.dumps(told).encode() + b"\n"
            self.send_response(200 if ok else 503 if probe else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing: probes come every few seconds."""

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        daemon_threads = True

    server = Server((address, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True, name="health").start()
    return server
