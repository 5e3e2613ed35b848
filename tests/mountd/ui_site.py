"""The pages of a store, served to a test: in this process, by the real server, on a port of its own."""

from __future__ import annotations

import html
import http.client
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvicorn
from patience import PATIENCE_S, ended, eventually

from topicfs.engine.unlocked.place import place_of
from topicfs.mountd.tree import opened
from topicfs.mountd.ui.command import listening
from topicfs.mountd.ui.server import server


@dataclass(frozen=True)
class Answer:
    """What the server has answered."""

    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def html(self) -> str:
        return self.body.decode()

    @property
    def text(self) -> str:
        """What a reader of the page reads, a line for each piece of text."""
        body = re.sub(r"<title>.*?</title>", "", self.html.partition("<main")[2])
        lines = (html.unescape(each).strip() for each in re.split(r"<[^>]*>", body))
        return "\n".join(line for line in lines if line)

    @property
    def links(self) -> list[str]:
        return [html.unescape(each) for each in re.findall(r'href="([^"]*)"', self.html)]


@dataclass
class Site:
    """A server and a reader of it, who keeps cookies as a browser does."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            given.setdefault("Cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))
        try:
            connection.request(method, path, headers=given)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        found = {name.lower(): value for name, value in answer.getheaders()}
        if "set-cookie" in found:
            name, _, value = found["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
        return Answer(answer.status, found, body)


@contextmanager
def running(serving: uvicorn.Server, listener: socket.socket) -> Iterator[None]:
    """Have a server answer meanwhile."""
    thread = threading.Thread(target=serving.run, args=([listener],), daemon=True)
    thread.start()
    eventually(lambda: serving.started, "the server answers")
    try:
        yield
    finally:
        serving.should_exit = True
        ended(thread)


@contextmanager
def served(where: Path, token: str | None = None) -> Iterator[Site]:
    """Serve the pages of a backing directory or a mount."""
    place = place_of(str(where), or_logs=True)
    with listening("127.0.0.1", 0) as listener, opened(where) as tree:
        serving = server(tree, lambda name: place.logs_of(name) / name, listener, "127.0.0.1", token)
        with running(serving, listener):
            yield Site(listener.getsockname()[1])
