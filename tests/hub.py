"""A stand-in for the model hub: serves folders the way huggingface_hub asks for them."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_COMMIT = "0" * 40


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, models: Mapping[str, Path], gated: set[str], *args) -> None:
        self._models, self._gated = models, gated
        super().__init__(*args)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) > 4:
            # The listing of a folder, such as the one for chat templates: there is none.
            return self._send(404, b"", with_body, {"X-Error-Code": "EntryNotFound"})
        if parts[:2] == ["api", "models"]:
            return self._describe("/".join(parts[2:4]), with_body)
        name = "/".join(parts[:2])
        if name in self._gated:
            return self._send(403, b"", with_body, {"X-Error-Code": "GatedRepo"})
        if name not in self._models:
            return self._send(404, b"", with_body, {"X-Error-Code": "RepoNotFound"})
        path = self._models[name] / "/".join(parts[4:])
        if not path.is_file():
            return self._send(404, b"", with_body, {"X-Error-Code": "EntryNotFound"})
        body = path.read_bytes()
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        return self._send(200, body, with_body, {"ETag": etag, "X-Repo-Commit": _COMMIT})

    def _describe(self, name: str, with_body: bool) -> None:
        if name not in self._models:
            return self._send(404, b"", with_body, {"X-Error-Code": "RepoNotFound"})
        files_here = sorted(path.name for path in self._models[name].iterdir())
        files = [{"rfilename": name} for name in files_here]
        about = {"id": name, "modelId": name, "sha": _COMMIT, "siblings": files, "tags": []}
        return self._send(200, json.dumps(about).encode(), with_body, {})

    def _send(self, status: int, body: bytes, with_body: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@contextmanager
def serve(models: Mapping[str, Path], *, gated: set[str]) -> Iterator[str]:
    """Serves `models` (name -> folder) on this machine; gives the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, models, gated))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
