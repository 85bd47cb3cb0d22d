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
from urllib.parse import unquote

Revisions = Mapping[str, Path]
"""Folders of a model by revision; `main` is the one that is given if none is asked for."""


def commit_of(revision: str) -> str:
    """The commit that a revision has on this hub."""
    return hashlib.sha1(revision.encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, models: Mapping[str, Revisions], gated: set[str], *args) -> None:
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
        if len(parts) < 4:
            # What the library asks beside models.
            return self._send(404, b"", with_body, {})
        if parts[:2] == ["api", "models"]:
            name, revision = "/".join(parts[2:4]), "/".join(parts[5:6]) or "main"
        else:
            name, revision = "/".join(parts[:2]), parts[3]
        revision = unquote(revision)
        if name in self._gated:
            return self._send(403, b"", with_body, {"X-Error-Code": "GatedRepo"})
        if name not in self._models:
            return self._send(404, b"", with_body, {"X-Error-Code": "RepoNotFound"})
        named = [each for each in self._models[name] if revision in (each, commit_of(each))]
        if not named:
            return self._send(404, b"", with_body, {"X-Error-Code": "RevisionNotFound"})
        folder, commit = self._models[name][named[0]], commit_of(named[0])
        if parts[:2] == ["api", "models"] and len(parts) > 6:
            # The listing of a folder within, such as the one for chat templates: there is none.
            return self._send(404, b"", with_body, {"X-Error-Code": "EntryNotFound"})
        if parts[:2] == ["api", "models"]:
            return self._describe(name, folder, commit, "tree" in parts, with_body)
        path = folder / "/".join(parts[4:])
        if not path.is_file():
            return self._send(404, b"", with_body, {"X-Error-Code": "EntryNotFound"})
        body = path.read_bytes()
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        return self._send(200, body, with_body, {"ETag": etag, "X-Repo-Commit": commit})

    def _describe(
        self, name: str, folder: Path, commit: str, is_listing: bool, with_body: bool
    ) -> None:
        paths = sorted(folder.iterdir())
        if is_listing:
            oids = {path: hashlib.sha1(path.read_bytes()).hexdigest() for path in paths}
            about: object = [
                {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": oid}
                for path, oid in oids.items()
            ]
        else:
            files = [{"rfilename": path.name} for path in paths]
            about = {"id": name, "modelId": name, "sha": commit, "siblings": files, "tags": []}
        return self._send(200, json.dumps(about).encode(), with_body, {})

    def _send(self, status: int, body: bytes, with_body: bool, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def on_hub(address: str, cache: Path) -> dict[str, str]:
    """The environment of a fresh process that asks this hub: its address is read on import."""
    return {
        "HF_ENDPOINT": address,
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
    }


@contextmanager
def serve(models: Mapping[str, Path | Revisions], *, gated: set[str]) -> Iterator[str]:
    """Serves `models` (name -> folder, or folders) on this machine; gives the address."""
    revisions = {
        name: {"main": given} if isinstance(given, Path) else given
        for name, given in models.items()
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, revisions, gated))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
