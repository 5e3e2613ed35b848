"""The pages: what each address shows. Templates make the HTML, and escape whatever a record or a name brings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from topicfs.mountd.tables import size_text, time_text
from topicfs.mountd.targets import GROUPS, TOPICS
from topicfs.mountd.tree import MountedTree, RefusedError, Tree
from topicfs.mountd.ui import records, segments
from topicfs.mountd.ui.looks import EVERY_S, Looks
from topicfs.mountd.ui.shown import clean, indented

_HERE: Final = Path(__file__).parent
_ROWS: Final = 200
"""Rows of a table on one page."""

_GROUPS: Final = 50
"""Groups on one page: for each a status is read."""

_LINE_WIDTH, _LINE_HEIGHT = 160, 28
_UPKEEP_BUDGET_S: Final = 0.15
_SORTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "topic": lambda topic: topic.name,
    "partitions": lambda topic: (-len(topic.numbers), topic.name),
    "records": lambda topic: (-topic.records, topic.name),
    "size": lambda topic: (-topic.bytes, topic.name),
    "rate": lambda topic: (-topic.records_per_s, topic.name),
    "state": lambda topic: (not topic.wrong, topic.name),
}


class _Number(IntegerConvertor):
    """The number of a partition, or an offset, in an address: with more digits there is none, and Python reads no more
    than some thousands."""

    regex = "[0-9]{1,19}"


register_url_convertor("number", _Number())


class _MissingError(Exception):
    """There is no such page; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of a store.

    tree       the store's tree
    looks      what is known of its partitions
    directory  gives the directory in which the segments of a partition are, by its name
    templates  the templates of the pages
    """

    tree: Tree
    looks: Looks
    directory: Callable[[str], Path]
    templates: jinja2.Environment

    def topics(self, request: Request) -> Response:
        """Show all topics."""
        self.looks.refresh()
        given = request.query_params
        sort, words = given.get("sort", "topic"), given.get("filter", "").strip()
        key = _SORTS.get(sort, _SORTS["topic"])
        every = self.looks.all_topics()
        chosen = sorted((topic for topic in every if words.lower() in topic.name.lower()), key=key)
        shown, pages = _paged(chosen, request)
        return self._page(
            "topics.html", request, every=every, topics=shown, pages=pages, sort=sort, words=words
        )

    def topic(self, request: Request) -> Response:
        """Show a topic: its partitions, its settings, its readers."""
        self.looks.refresh()
        name: str = request.path_params["topic"]
        if name not in self.looks.topics:
            raise _MissingError(f"there is no topic {name}")
        shown, pages = _paged(self.looks.topics[name], request)
        self.looks.read((name, number) for number in shown if not self.looks.seen(name, number).status)
        rows = [(number, self.looks.seen(name, number)) for number in shown]
        config = self.tree.read(f"{TOPICS}/{name}/config").decode()
        return self._page(
            "topic.html",
            request,
            topic=self.looks.topic(name),
            rows=rows,
            pages=pages,
            settings=_settings(config),
        )

    def partition(self, request: Request) -> Response:
        """Show a partition: its offsets, its segments to scale, and what upkeep will do with it."""
        self.looks.refresh()
        topic, number = self._partition(request)
        self.looks.read([(topic, number)])
        name, seen = f"{topic}-{number}", self.looks.seen(topic, number)
        found: list[segments.SegmentSeen] = []
        left, said = 0, ""
        try:
            found, left = segments.seen(self.directory(name), seen.status, lambda: self._config(topic))
        except RefusedError as error:
            said = str(error)
        drawing = segments.drawn(found, left, seen.status)
        return self._page(
            "partition.html", request, topic=topic, number=number, seen=seen, status=seen.status,
            segments=found, drawing=drawing, said=said,
        )  # fmt: skip

    def records(self, request: Request) -> Response:
        """Show records of a partition, as the parameters choose them."""
        topic, number = self._partition(request)
        name, given = f"{topic}-{number}", request.query_params
        words, offset, before = (
            given.get("words", ""),
            given.get("offset", "").strip(),
            given.get("before", ""),
        )
        said = ""
        first = end = 0
        found, is_newest = records.Found(), False
        try:
            first, end = records.bounds(self.tree, name)
            if given.get("time", "").strip():
                offset = str(records.offset_at(self.tree, name, given["time"].strip()))
            if before:
                found = records.page_before(self.tree, name, _number(before, "before"))
            elif offset or words:
                found = records.page(self.tree, name, _number(offset or "0", "offset"), words)
            else:
                found, is_newest = records.page_before(self.tree, name, end), True
        except RefusedError as error:
            said = str(error)
        return self._page(
            "records.html", request, topic=topic, number=number, found=found, words=words, said=said,
            first=first, end=end, is_newest=is_newest, when=given.get("time", ""), offset=offset,
            before=found.records[0].offset if found.records and found.records[0].offset > first else None,
        )  # fmt: skip

    def record(self, request: Request) -> Response:
        """Show one record."""
        topic, number = self._partition(request)
        offset = request.path_params["offset"]
        shown = records.record(self.tree, f"{topic}-{number}", offset)
        if shown is None:
            raise _MissingError(f"{topic}-{number} has no record of the offset {offset}")
        return self._page(
            "record.html", request, topic=topic, number=number, record=shown,
            indented=indented(shown.value.text) if shown.value.kind != "binary" and not shown.value.is_cut else None,
        )  # fmt: skip

    def value(self, request: Request) -> Response:
        """Give the value of a record, byte for byte, as a file to be kept: never as something that a browser shows."""
        topic, number = self._partition(request)
        offset = request.path_params["offset"]
        first_offset, end = records.bounds(self.tree, f"{topic}-{number}")
        if not first_offset <= offset < end:
            raise _MissingError(f"{topic}-{number} has no record of the offset {offset}")
        pieces = self.tree.pieces(f"{topic}-{number}/offset/{offset}")
        first = next(pieces, b"")  # what is refused is refused before the answer has begun

        def whole() -> Iterator[bytes]:
            yield first
            yield from pieces

        name = f"{topic}-{number}-{offset}.bin"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(whole(), media_type="application/octet-stream", headers=headers)

    def groups(self, request: Request) -> Response:
        """Show the consumer groups."""
        shown, pages = _paged(self.tree.names(GROUPS), request, _GROUPS)
        rows = [(name, self.tree.status(f"{GROUPS}/{name}")) for name in shown]
        return self._page("groups.html", request, rows=rows, pages=pages)

    def group(self, request: Request) -> Response:
        """Show a consumer group: its members, and how far it is."""
        name = request.path_params["group"]
        if name not in self.tree.names(GROUPS):
            raise _MissingError(f"there is no group {name}")
        group = self.tree.status(f"{GROUPS}/{name}")
        positions, pages = _paged(group["positions"], request)
        return self._page("group.html", request, group=group, positions=positions, pages=pages)

    def upkeep(self, request: Request) -> Response:
        """Show what retention and compaction will do next, and what is wrong."""
        self.looks.refresh()
        keys = [(topic, number) for topic, numbers in self.looks.topics.items() for number in numbers]
        self.looks.read((key for key in keys if not self.looks.seen(*key).status), _UPKEEP_BUDGET_S)
        known = [(key, self.looks.seen(*key)) for key in keys]
        due = sorted(
            ((key, seen) for key, seen in known if _is_due(seen.status)), key=lambda row: _when(row[1].status)
        )
        wrong = [(key, seen.wrong) for key, seen in known if seen.wrong]
        shown, pages = _paged(due, request)
        unseen = sum(not seen.status for _, seen in known)
        return self._page(
            "upkeep.html", request, rows=shown, pages=pages, wrong=wrong[:_ROWS], more_wrong=max(0, len(wrong) - _ROWS),
            unseen=unseen,
        )  # fmt: skip

    def _config(self, topic: str) -> dict[str, str]:
        config = self.tree.read(f"{TOPICS}/{topic}/config").decode()
        return {name: value for name, value, _ in _settings(config)}

    def _partition(self, request: Request) -> tuple[str, int]:
        # A name becomes a path only where it is one of the store's own.
        topic, number = request.path_params["topic"], request.path_params["number"]
        if number not in self.looks.topics.get(topic, ()) and number not in self.tree.topics().get(topic, ()):
            raise _MissingError(f"there is no partition {topic}-{number}")
        return topic, number

    def _page(self, template: str, request: Request, code: int = 200, **values: Any) -> Response:
        made = self.templates.get_template(template).render(
            title=self.tree.title,
            is_mounted=isinstance(self.tree, MountedTree),
            looks=self.looks,
            path=request.url.path,
            link=functools.partial(_link, request),
            **values,
        )
        return HTMLResponse(made, code)

    def failure(self, request: Request, words: str, code: int) -> Response:
        """Show why there is nothing else to show."""
        return self._page("failure.html", request, code, words=words)


def application(tree: Tree, directory: Callable[[str], Path]) -> Starlette:
    """Return the pages of a store as a web application."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "size": size_text,
        "time": time_text,
        "count": count_text,
        "rate": rate_text,
        "clean": clean,
        "segment": functools.partial(quote, safe=""),
    }
    templates.globals |= {
        "line": line_points,
        "line_width": _LINE_WIDTH,
        "line_height": _LINE_HEIGHT,
        "every_s": EVERY_S,
    }
    pages = Pages(tree, Looks(tree), directory, templates)

    def missing(request: Request, error: Exception) -> Response:
        words = str(error) if isinstance(error, _MissingError) else "there is no such page"
        return pages.failure(request, words, 404)

    def refused(request: Request, error: Exception) -> Response:
        return pages.failure(request, str(error), 503)

    async def missing_page(request: Request, error: Exception) -> Response:
        return await run_in_threadpool(missing, request, error)

    async def refused_page(request: Request, error: Exception) -> Response:
        return await run_in_threadpool(refused, request, error)

    partition = "/topics/{topic}/{number:number}"
    return Starlette(
        routes=[
            Route("/", pages.topics),
            Route("/topics/{topic}", pages.topic),
            Route(partition, pages.partition),
            Route(f"{partition}/records", pages.records),
            Route(partition + "/records/{offset:number}", pages.record),
            Route(partition + "/records/{offset:number}/value", pages.value),
            Route("/groups", pages.groups),
            Route("/groups/{group}", pages.group),
            Route("/upkeep", pages.upkeep),
            Route("/topics", lambda request: RedirectResponse("/")),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
        ],
        exception_handlers={404: missing_page, _MissingError: missing_page, RefusedError: refused_page},
    )


def count_text(number: float) -> str:
    """Return a number as people read it."""
    return f"{number:,.0f}".replace(",", "\u202f")


def rate_text(number: float) -> str:
    """Return a rate as people read it."""
    return "0" if not number else f"{number:.1f}" if number < 10 else count_text(number)


def line_points(values: Sequence[float]) -> str:
    """Return the points of a line that shows numbers over time, the newest at the right end."""
    most = max(values, default=0.0) or 1.0
    step = _LINE_WIDTH / max(1, len(values) - 1)
    return " ".join(
        f"{at * step:.1f},{_LINE_HEIGHT - 2 - (_LINE_HEIGHT - 4) * value / most:.1f}"
        for at, value in enumerate(values)
    )


def _link(request: Request, **changes: object) -> str:
    """Return this page's address with other parameters; None takes one away."""
    given = {name: value for name, value in request.query_params.items() if name not in changes}
    given |= {name: str(value) for name, value in changes.items() if value is not None}
    return request.url.path + (f"?{urlencode(given)}" if given else "")


def _paged(rows: Sequence[Any], request: Request, size: int = _ROWS) -> tuple[Sequence[Any], dict[str, int]]:
    """Return the rows of the page that is asked for, and where it stands among the others."""
    pages = max(1, -(-len(rows) // size))
    text = request.query_params.get("page", "1")
    at = min(pages, max(1, int(text))) if text.isascii() and text.isdecimal() and len(text) < 10 else 1
    return rows[(at - 1) * size : at * size], {"at": at, "of": pages, "rows": len(rows)}


def _settings(config: str) -> list[tuple[str, str, str]]:
    """Return the lines of `config` that are settings: name, value, source; the topic's own first."""
    found = []
    for line in config.splitlines():
        setting, _, source = line.rpartition(" # ")
        name, equals, value = setting.rstrip().partition("=")
        if equals:
            found.append((name, value, source))
    return sorted(found, key=lambda row: (row[2] != "topic", row[0]))


def _is_due(status: Mapping[str, Any]) -> bool:
    return bool(status.get("next_removal") or (status.get("cleaning") or {}).get("eligible"))


def _when(status: Mapping[str, Any]) -> tuple[float, str]:
    removal = status.get("next_removal") or {}
    if removal.get("reason") or (status.get("cleaning") or {}).get("eligible"):
        return 0.0, status["topic"]
    at = removal.get("at_ms")
    return float("inf") if at is None else float(at), status["topic"]


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise RefusedError(f"{name}: expected a number, found {text[:40]!r}")
    return int(text)
