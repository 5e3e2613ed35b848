"""The server of the pages. It stops at Ctrl-C and SIGTERM, without waiting for browsers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvicorn

from topicfs.mountd.tree import Tree
from topicfs.mountd.ui.app import application
from topicfs.mountd.ui.guard import Guard

_MOST_CONNECTIONS: Final = 64


def server(
    tree: Tree, directory: Callable[[str], Path], listener: socket.socket, host: str, token: str | None
) -> uvicorn.Server:
    """Return a server of the pages, which has not begun.

    directory  gives the directory in which the segments of a partition are, by its name
    host       the address that was asked for, by which a browser may call it"""
    guard = Guard(application(tree, directory), host, listener.getsockname()[1], token)
    # Its log would have the token in an address, and a line for each look.
    return uvicorn.Server(
        uvicorn.Config(
            guard,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
    )


def serve(
    tree: Tree, directory: Callable[[str], Path], listener: socket.socket, host: str, token: str | None
) -> None:
    """Serve until a signal comes."""
    server(tree, directory, listener, host, token).run([listener])
