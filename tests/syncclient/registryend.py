"""
A registry's far end that answers what a test has written down, on a real socket.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class RegistryEnd:
    """
    @ivar answers: by method and path, status and body; a body that is no bytes goes as JSON.
    @ivar asked: what came: method, path, body.
    """

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.asked: list[tuple[str, str, bytes]] = []
        end = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                end.asked.append((self.command, self.path, body))
                status, answer = end.answers.get(
                    (self.command, self.path),
                    (404, {"error_code": 404, "message": "HTTP 404 Not Found"}),
                )
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer

            def log_message(self, *arguments: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def schema(self, schemaId: int, text: str) -> None:
        """Let it know a schema."""
        self.answers["GET", f"/schemas/ids/{schemaId}"] = (200, {"schema": text})

    def close(self) -> None:
        """It is gone."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
