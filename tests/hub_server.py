"""A stand-in for the Hugging Face hub on loopback: creates repositories, takes commits, serves files."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_only_in_this_test"


class Hub:
    """Repositories by name, each its files by path. Writing needs the token."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self.answer(401, {"error": "Invalid username or password."})
                elif self.path == "/api/validate-yaml":
                    self.answer(200, {"errors": [], "warnings": []})
                elif self.path == "/api/repos/create":
                    asked = json.loads(body)
                    name = "/".join(filter(None, [asked.get("organization"), asked["name"]]))
                    outer.repos.setdefault(name, {})
                    if asked.get("private"):
                        outer.private.add(name)
                    self.answer(200, {"url": f"{outer.url}/{name}"})
                else:
                    self.commit(body)

            def commit(self, body: bytes) -> None:
                _, _, _, owner, name, what, _ = self.path.partition("?")[0].split("/")
                files = outer.repos[f"{owner}/{name}"]
                if what == "preupload":
                    paths = [file["path"] for file in json.loads(body)["files"]]
                    modes = [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]
                    self.answer(200, {"files": modes})
                    return
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                done = {
                    "commitUrl": f"{outer.url}/{owner}/{name}/commit/{SHA}",
                    "commitOid": SHA,
                    "success": True,
                }
                self.answer(200, done)

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path.startswith("/api/models/"):
                    _, _, _, owner, name, *rest = path.split("/")
                    files = outer.repos.get(f"{owner}/{name}")
                    if files is None:
                        headers = {"X-Error-Code": "RepoNotFound"}
                        self.answer(404, {"error": "Repository not found"}, headers)
                    elif rest and rest[0] == "tree":
                        self.answer(200, [entry(path, data) for path, data in sorted(files.items())])
                    else:
                        found = {
                            "id": f"{owner}/{name}",
                            "sha": SHA,
                            "private": False,
                            "tags": [],
                            "downloads": 0,
                        }
                        self.answer(200, {**found, "siblings": [{"rfilename": path} for path in files]})
                    return
                _, owner, name, _, _, *rest = path.split("/")
                data = outer.repos[f"{owner}/{name}"]["/".join(rest)]
                headers = {"X-Repo-Commit": SHA, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
                self.answer(200, data, headers)

            do_HEAD = do_GET

            def answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


SHA = "a" * 40


def entry(path: str, data: bytes) -> dict[str, Any]:
    """A file in the listing of a repository."""
    return {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
