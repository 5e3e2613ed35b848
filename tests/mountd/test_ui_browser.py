"""The pages of `topicfs ui` in a real browser: live, by keyboard, by a screen reader, with hostile records."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, browser
from ui_site import Site, served

from topicfs import Record, Store
from topicfs.mountd.ui import records

NOW = 1_780_000_000_000
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>{{7*7}}"
RECORDS = "/topics/clicks/0/records"
ODD = (f"{RECORDS}?words=%3Cscript%3E", "/?filter=%22%3E%3Cimg%20src=x%20onerror=alert(4)%3E")
ALL = ("/", "/topics/orders", "/topics/orders/0", RECORDS, f"{RECORDS}/0", "/groups", "/upkeep", "/none")


@pytest.fixture(scope="module")
def backing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("browsed") / "data"
    with Store.open(place, create=True) as store:
        orders = store.create("orders", 0, {"internal.segment.bytes": "2000", "retention.ms": "-1"})
        for at in range(200):
            orders.append(Record(json.dumps({"at": at}).encode(), b"k%d" % at, NOW + at * 3_600_000))
        hostile = HOSTILE.encode()
        clicks = store.create("clicks", 0)
        clicks.append(
            [Record(hostile, hostile, NOW, [(HOSTILE, hostile)]), Record(b"\0\xff" * 300, None, NOW)]
        )
        store.create("a-topic-with-a-name-that-is-much-longer-than-what-a-telephone-has-room-for", 0)
    return place


@pytest.fixture(scope="module")
def site(backing: Path) -> Iterator[Site]:
    with served(backing) as found:
        yield found


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


def address(site: Site, path: str) -> str:
    return f"http://127.0.0.1:{site.port}{path}"


CONTRAST = """(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => parts(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (each) => {
    for (; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (!(parts(colour)[3] === 0)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("body *")]
    .filter((each) => each.checkVisibility() && !each.closest("svg")
      && [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
    .map((each) => {
      const [a, b] = [light(getComputedStyle(each).color), light(ground(each))].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), each.textContent.trim().slice(0, 40)];
    }).filter(([ratio]) => ratio < 4.5);
})()"""

NAMED = {
    "link",
    "button",
    "textbox",
    "searchbox",
    "image",
    "img",
    "region",
    "navigation",
    "progressbar",
    "heading",
}
"""The roles of what one can use or see."""


@dataclass
class Walked:
    """What was found on a page.

    complaints  what the browser has told, and dialogs
    brought     elements that a record or a parameter has brought
    headings    how many there are of the first rank, and how many cells of a head belong to nothing
    roles       of what has a name for a screen reader, and of what has none
    faint       by colour scheme: words that do not stand out from their ground
    grounds     by colour scheme: the ground
    width       of the page, where there is room for 360
    """

    complaints: list[str]
    brought: int
    headings: list[int]
    roles: tuple[list[str], list[str]]
    faint: dict[str, list[Any]] = field(default_factory=dict)
    grounds: dict[str, str] = field(default_factory=dict)
    width: int = 0


@pytest.fixture(scope="module")
def walked(site: Site, started: Browser) -> dict[str, Walked]:
    """Each page is opened once, for all that is asked of each. UI_PICTURES names a directory for their pictures."""
    return {path: look(site, started, path) for path in (*ALL, *ODD)}


def look(site: Site, page: Browser, path: str) -> Walked:
    page.complaints.clear()
    page.size(1280, 900)
    page.open(address(site, path))
    nodes = [
        node
        for node in page.call("Accessibility.getFullAXTree")["nodes"]
        if not node["ignored"] and node["role"]["value"] in NAMED
    ]
    names = [(node["role"]["value"], node.get("name", {}).get("value", "").strip()) for node in nodes]
    found = Walked(
        page.complaints,
        page.run("document.querySelectorAll('main script, main img, main svg [onload]').length"),
        page.run(
            "[document.querySelectorAll('h1').length, document.querySelectorAll('th:not([scope])').length]"
        ),
        ([role for role, name in names if name], [role for role, name in names if not name]),
    )
    for scheme in ("light", "dark"):
        page.colours(scheme)
        found.faint[scheme] = page.run(CONTRAST)
        found.grounds[scheme] = page.run("getComputedStyle(document.body).backgroundColor")
        picture(page, path, scheme)
    page.size(360, 700)
    found.width = page.run("document.documentElement.scrollWidth")
    picture(page, path, "small")
    found.complaints = [*page.complaints]
    return found


def picture(page: Browser, path: str, kind: str) -> None:
    if "UI_PICTURES" in os.environ and "?" not in path:
        name = path.strip("/").replace("/", "-") or "topics"
        (Path(os.environ["UI_PICTURES"]) / f"{name}-{kind}.png").write_bytes(page.picture())


@pytest.fixture
def page(started: Browser) -> Browser:
    started.complaints.clear()
    started.size(1280, 900)
    started.colours("light")
    return started


def test_no_record_runs_and_no_page_breaks_its_own_rules(walked: dict[str, Walked]) -> None:
    for path, found in walked.items():
        # Only the answer that there is no such page is told of, by the browser itself.
        assert [each for each in found.complaints if path != "/none" or "404" not in each] == [], path
        assert found.brought == 0, path


def test_a_hostile_record_is_shown_as_it_is(site: Site, page: Browser) -> None:
    page.open(address(site, f"{RECORDS}/0"))
    assert HOSTILE in page.run("document.querySelector('main').textContent")


def test_what_happens_shows_without_loading_the_page_again_and_the_focus_stays(
    site: Site, page: Browser, backing: Path
) -> None:
    page.open(address(site, "/topics/orders"))
    page.run("window.isSame = true; document.querySelector('tbody th a').focus()")
    with Store.open(backing) as store:
        store.partition("orders", 0).append([Record(b"more", None, NOW)] * 1000)
    page.wait(r"document.querySelector('#table').textContent.match(/1.200/)")
    assert page.run("window.isSame") is True
    assert page.run("document.activeElement.textContent") == "orders-0"
    assert page.complaints == []


def test_topics_are_found_by_keyboard_alone(site: Site, page: Browser) -> None:
    page.open(address(site, "/"))
    page.press("/", "/")
    for letter in "cli":
        page.press(letter, letter)
    page.wait("document.querySelectorAll('#table tbody tr').length === 1")
    assert page.run("document.querySelector('#table tbody th').textContent") == "clicks"
    assert page.run("location.search") == "?filter=cli"
    page.open(address(site, "/topics/orders/0/records"))
    page.press("ArrowLeft")
    page.wait("document.readyState === 'complete' && location.search.startsWith('?before=')")


def test_a_search_goes_on_by_itself_until_something_is_found(
    site: Site, page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SEARCH_S", 0.0)  # a record a request
    base = "/topics/orders/0/records"
    page.open(address(site, f"{base}?offset=180&words=k199"))
    assert page.run("document.querySelectorAll('#records tbody tr').length") == 0
    page.run("document.getElementById('onward').click()")
    page.wait("document.querySelectorAll('#records tbody tr').length === 1")
    assert page.run("location.search") == "?offset=199&words=k199"
    page.wait("document.getElementById('onward').hidden")
    assert page.complaints == []


def test_a_screen_reader_is_told_a_name_of_everything_that_one_can_use_or_see(
    walked: dict[str, Walked],
) -> None:
    for path, found in walked.items():
        named, nameless = found.roles
        assert len(named) > 5
        assert nameless == [], path
        assert found.headings == [1, 0], path


def test_every_word_stands_out_from_its_ground_in_dark_and_light(walked: dict[str, Walked]) -> None:
    for path, found in walked.items():
        assert found.faint == {"light": [], "dark": []}, path
        light, dark = (sum(map(int, found.grounds[each][4:-1].split(","))) for each in ("light", "dark"))
        assert dark < 150, path
        assert light > 600, path


def test_a_telephone_has_room_for_each_page(walked: dict[str, Walked]) -> None:
    assert {path: found.width for path, found in walked.items() if found.width > 360} == {}
