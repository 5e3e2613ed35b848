"""`topicfs ui`: a store in a browser. The web framework and the engine are loaded only when it runs."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path
from typing import Final

import click

from topicfs.mountd import kernels, mounts
from topicfs.mountd.progress import say
from topicfs.mountd.tree import RefusedError, opened, refusals

_PACKAGES: Final = ("starlette", "uvicorn", "jinja2")
_PORT: Final = 8642


@click.command("ui")
@click.argument("where", metavar="BACKING|MOUNT", type=click.Path(path_type=Path))
@click.option(
    "--host", default="127.0.0.1", metavar="ADDRESS", help="127.0.0.1, if not given: this machine only."
)
@click.option(
    "--port",
    default=_PORT,
    type=click.IntRange(0, 65535),
    metavar="N",
    help="8642, if not given; 0 takes a free one.",
)
@click.option(
    "--token", "with_token", is_flag=True, help="Ask readers for a token, which the printed address has."
)
def ui_command(where: Path, host: str, port: int, with_token: bool) -> None:
    """Show a store in a browser, until Ctrl-C: topics, segments, groups, records, what upkeep will do. Read-only.

    Whoever reaches the port can read all records, other users of this machine too: --token has them show a token first.
    With another address than this machine's own there always is one. Needs the extra: pip install 'topicfs[ui]'."""
    with refusals():
        for package in _PACKAGES:
            if importlib.util.find_spec(package) is None:
                raise RefusedError(f"expected {package}, found none: pip install 'topicfs[ui]'")
        _serve(where, host, port, with_token)


def _serve(where: Path, host: str, port: int, with_token: bool) -> None:
    from topicfs.mountd.ui.guard import is_loopback, new_token  # noqa: PLC0415 - loads the web framework

    token = new_token() if with_token or not is_loopback(host) else None
    # The port first: that it is taken is known before the engine is loaded.
    with listening(host, port) as listener, opened(where) as tree:
        with kernels.loading():
            from topicfs.engine.unlocked.place import place_of  # noqa: PLC0415 - loads the engine
            from topicfs.mountd.ui import server  # noqa: PLC0415 - loads the engine

        place = place_of(str(mounts.real(where)), or_logs=True)
        number = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        say(f"{tree.title}: http://{shown}:{number}/" + (f"?token={token}" if token else ""))
        server.serve(tree, lambda name: place.logs_of(name) / name, listener, host, token)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. RefusedError where it cannot."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while")[
            0
        ]  # with the address behind, which is named here
        raise RefusedError(f"{host}:{port}: {why}: --port names another one") from None
