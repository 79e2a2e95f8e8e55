"""A webhook that keeps what it is sent."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

DEADLINE_S = 10
SECRET = "s3cr3t-key"


class Receiver:
    """An HTTP server that keeps what it is sent and answers as told."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.arrived = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                with outer.arrived:
                    outer.requests.append((self.path, dict(self.headers), json.loads(data)))
                    answer = outer.answers.pop(0) if outer.answers else (200, {}, b"ok")
                    outer.arrived.notify_all()
                self.send_response(answer[0])
                for name, value in answer[1].items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer[2])

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/hook/{SECRET}"

    def until(self, count: int) -> list[Any]:
        """Wait until so many requests came; return their bodies."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.requests) >= count, DEADLINE_S)
            return [data for _, _, data in self.requests]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
