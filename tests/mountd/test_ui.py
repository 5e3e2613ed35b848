"""The pages of `topicfs ui`, asked for as a browser does, without one: what they show, bound and refuse."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from daemon_place import Place
from patience import PATIENCE_S
from ui_site import Site, running, served

from topicfs import Record, Store
from topicfs.engine.cleaner.clean import Cleaner
from topicfs.engine.groups.groups import Groups
from topicfs.mountd.cli import main
from topicfs.mountd.tree import MountedTree, OpenedTree, opened
from topicfs.mountd.ui import looks, records
from topicfs.mountd.ui import server as serving
from topicfs.mountd.ui.command import listening
from topicfs.mountd.ui.guard import HEADERS
from topicfs.mountd.ui.shown import indented

ROOT = Path(__file__).parents[2]
NOW = 1_780_000_000_000
HOUR_MS = 3_600_000
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>"
NAMES = ("orders", "clicks", "compacted")


@pytest.fixture(scope="module")
def backing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ui") / "data"
    with Store.open(place, create=True) as store:
        orders = store.create("orders", 0, {"internal.segment.bytes": "2000", "retention.ms": "-1"})
        for at in range(300):
            value = json.dumps({"user": "ann" if at % 100 == 7 else "bob", "at": at}).encode()
            orders.append(Record(value, b"k%d" % at, NOW + at * HOUR_MS))
        store.create("orders", 1)
        clicks = store.create("clicks", 0)
        clicks.append(
            [
                Record(HOSTILE.encode(), HOSTILE.encode(), NOW, [(HOSTILE, HOSTILE.encode())]),
                Record(bytes(range(256)), b"\xff", NOW),
                Record(None, None, NOW),
                Record("moc.\u202eexe\x1b[31m".encode(), b"", NOW),
                Record(b'{"b": [1.50, {"c": "}, \\" {"}], "a": {}, "d": [], "b": 1}', None, NOW),
            ]
        )
        keys = store.create("compacted", 0, {"cleanup.policy": "compact"})
        keys.append([Record(b"old", b"k", NOW)] * 2000 + [Record(b"new", b"k", NOW)])
    return place


@pytest.fixture(scope="module")
def site(backing: Path) -> Iterator[Site]:
    with served(backing) as found:
        yield found


# -- pages ----------------------------------------------------------------------------------------------------


def test_the_first_page_has_each_topic_with_its_numbers(site: Site) -> None:
    page = site.get("/")
    assert page.code == 200
    assert re.search(r"orders\n2\n300\n", page.text)
    assert re.search(r"clicks\n1\n5\n492 B\n|clicks\n1\n5\n", page.text)
    assert {f"/topics/{name}" for name in NAMES} <= set(page.links)


def test_topics_are_filtered_by_name_and_sorted_by_a_column(site: Site) -> None:
    shown = [link for link in site.get("/?filter=C").links if link.startswith("/topics/")]
    assert shown == ["/topics/clicks", "/topics/compacted"]
    shown = [link for link in site.get("/?sort=records").links if link.startswith("/topics/")]
    assert shown == ["/topics/compacted", "/topics/orders", "/topics/clicks"]


def test_a_topic_has_its_partitions_and_its_own_settings_first(site: Site) -> None:
    page = site.get("/topics/orders")
    assert re.search(r"orders-0\n0\n300\n300\n", page.text)
    assert page.text.partition("Settings")[2].split("\n")[4:8] == [
        "internal.segment.bytes",
        "2000",
        "topic",
        "retention.ms",
    ]


def test_a_partition_has_its_segments_to_scale_and_in_a_table(site: Site, backing: Path) -> None:
    page = site.get("/topics/orders/0")
    bases = sorted(int(file.stem) for file in (backing / "logs" / "orders-0").glob("*.log"))
    assert len(bases) > 5
    widths = [float(width) for width in re.findall(r'y="26" width="([\d.]+)"', page.html)]
    ends = [*bases[1:], 300]
    for base, end, width in zip(bases, ends, widths, strict=True):
        assert width == pytest.approx((end - base) / 300 * 1000, abs=0.06)
    times = [float(width) for width in re.findall(r'y="130" width="([\d.]+)"', page.html)]
    assert times[1] == pytest.approx((ends[1] - 1 - bases[1]) / 299 * 1000, abs=0.06)
    listed = re.findall(
        r'<th scope="row" class="n"><a href="/topics/orders/0/records\?offset=(\d+)"', page.html
    )
    assert [int(base) for base in listed] == bases[::-1]


def test_a_partition_tells_what_upkeep_does_next(site: Site) -> None:
    assert "Retention\nremoves nothing" in site.get("/topics/orders/0").text
    assert "Compaction\nnot now: " in site.get("/topics/compacted/0").text
    assert re.search(r"clicks-0\ndelete\nsegment 0", site.get("/upkeep").text)


def test_a_partition_shows_its_numbers_where_its_directory_cannot_be_read(
    backing: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    with (
        listening("127.0.0.1", 0) as listener,
        opened(backing) as tree,
        running(serving.server(tree, lambda name: file / name, listener, "127.0.0.1", None), listener),
    ):
        page = Site(listener.getsockname()[1]).get("/topics/orders/0")
    assert page.code == 200
    assert "The segments cannot be drawn: " in page.text
    assert "Next offset\n300\n" in page.text


def test_the_segments_that_retention_removes_are_those_of_the_plan(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data", create=True) as store:
        old = store.create("old", 0, {"internal.segment.bytes": "500", "retention.ms": "3600000"})
        now = time.time_ns() // 1_000_000
        for at in range(60):
            old.append(Record(b"x" * 50, None, now - (90 - at) * 120_000))
    done = CliRunner().invoke(main, ["plan", str(tmp_path / "data"), "--json"])
    removed = [each["segment"] for each in json.loads(done.stdout)[0]["remove"]]
    assert len(removed) > 3
    with served(tmp_path / "data") as found:
        page = found.get("/topics/old/0")
    told = re.findall(r"offset=(\d+)[^\n]*retention removes it now, for time</td>", page.html)
    assert sorted(map(int, told)) == removed
    assert re.search(rf"segment {removed[0]} now, for time\n?, and {len(removed) - 1} more: ", page.text)


def test_groups_have_their_positions_and_their_lag(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data", create=True) as store:
        store.create("orders", 0).append([Record(b"x", None, NOW)] * 10)
        groups = Groups.of(store)
        groups.create("a/b <c>")
        groups.commit("a/b <c>", {("orders", 0): 3})
    with served(tmp_path / "data") as found:
        page = found.get("/groups")
        assert "a/b <c>\nEmpty\n0\n1\n7\n" in page.text + "\n"
        (link,) = [link for link in page.links if link.startswith("/groups/")]
        assert "orders-0\n3\n10\n7\n" in found.get(link).text
        # What Kafka's own topics hold are objects in jsonl, and a search reads them as they are shown.
        told = [each for each in found.get("/topics/__consumer_offsets").links if each.endswith("/records")]
        pages = [found.get(f"{each}?words=%22topic%22:%20%22orders%22").text for each in told]
        assert sum(page.count('"group": "a/b <c>", "topic": "orders", "partition": 0') for page in pages) == 1


def test_what_is_not_there_is_told_in_words_and_with_404(site: Site) -> None:
    odd = (
        "/topics/..%2f..%2fetc/0",
        "/topics/%2e%2e/0/records",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        f"/topics/orders/{'1' * 5000}",
        f"/topics/orders/0/records/{'1' * 5000}/value",
    )
    missing = (
        "/topics/none",
        "/topics/orders/7",
        "/topics/orders/0/records/300",
        "/topics/orders/0/records/300/value",
        "/groups/none",
        "/none",
    )
    for path in (*missing, *odd):
        page = site.get(path)
        assert page.code == 404, path
        assert "import" not in page.html


# -- records --------------------------------------------------------------------------------------------------


def shown(text: str) -> list[int]:
    """The offsets of a page of records."""
    return [int(found) for found in re.findall(r"records/(\d+)\"", text)]


def test_records_are_browsed_by_offset_in_both_directions(site: Site) -> None:
    base = "/topics/orders/0/records"
    page = site.get(f"{base}?offset=100")
    assert shown(page.html) == list(range(100, 150))
    assert {f"{base}?before=100", f"{base}?offset=150"} <= set(page.links)
    assert shown(site.get(f"{base}?before=100").html) == list(range(50, 100))
    newest = site.get(base)
    assert shown(newest.html) == list(range(250, 300))
    assert "Newer" not in newest.text
    assert shown(site.get(f"{base}?offset=290").html) == list(range(290, 300))


def test_records_are_found_by_time(site: Site) -> None:
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((NOW + 42 * HOUR_MS) / 1000))
    for words in (when, when.replace("T", "%20")):
        assert shown(site.get(f"/topics/orders/0/records?time={words}").html)[:2] == [42, 43]


def test_pages_in_both_directions_have_each_record_once_beyond_gaps_of_compaction(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data", create=True) as store:
        keys = store.create("k", 0, {"cleanup.policy": "compact", "internal.segment.bytes": "20000"})
        keys.append(Record(b"first", b"a", NOW))
        for at in range(40):
            keys.append([Record(b"v" * 20, b"b%d" % (at % 2 * key), NOW) for key in range(100)])
        cleaner = Cleaner.create(1 << 20, 0.75, 1 << 20, lambda _: None, bytes(16))
        cleaner.clean(keys.log, 0, keys.log.chain.active.base_offset, keys.log.clock(), lambda: None)
        there = [record.offset for record in keys.records()]
    assert max(after - before for before, after in pairwise(there)) > 500
    with served(tmp_path / "data") as found:
        base = "/topics/k/0/records"
        backwards, page = [], found.get(base)
        while True:
            backwards += shown(page.html)[::-1]
            older = re.search(r'before=(\d+)" rel="prev"', page.html)
            if older is None:
                break
            page = found.get(f"{base}?before={older[1]}")
        assert backwards == there[::-1]
        forwards, page = [], found.get(f"{base}?offset=0")
        while True:
            forwards += shown(page.html)
            newer = re.search(r'offset=(\d+)" rel="next"', page.html)
            if newer is None:
                break
            page = found.get(f"{base}?offset={newer[1]}")
        assert forwards == there


def test_a_search_finds_words_in_keys_values_and_headers(site: Site) -> None:
    assert shown(site.get("/topics/orders/0/records?words=ann").html) == [7, 107, 207]
    assert shown(site.get("/topics/orders/0/records?words=k42").html) == [42]
    assert shown(site.get("/topics/clicks/0/records?words=alert(2)").html) == [0]
    nothing = site.get("/topics/orders/0/records?words=zebra").text
    assert "None of the 300 records that were searched has “zebra” in it." in nothing


def test_a_search_is_bounded_and_says_where_it_goes_on(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SEARCH_S", 0.0)
    page = site.get("/topics/orders/0/records?words=ann")
    assert "1 records were searched, to the offset 0 of 299." in page.text
    assert "/topics/orders/0/records?offset=1&words=ann" in page.links


def test_a_page_asks_for_no_more_of_the_log_than_it_shows(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look up a name takes the longer the more records it stands for, whatever is read of it then."""
    asked: list[str] = []
    pieces = OpenedTree.pieces

    def noted(tree: OpenedTree, path: str) -> Iterator[bytes]:
        asked.append(path)
        return pieces(tree, path)

    monkeypatch.setattr(OpenedTree, "pieces", noted)
    for query in ("offset=100", "before=150", "words=ann&offset=250", ""):
        site.get(f"/topics/orders/0/records?{query}")
    assert asked == [f"orders-0/offset/{part}.jsonl" for part in ("100-149", "100-149", "250-299", "250-299")]


def test_a_record_that_is_too_large_for_a_page_is_told_of_and_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "data", create=True) as store:
        large = store.create("large", 0, {"max.message.bytes": "9000000"})
        for value in (b"before", b"x" * 3_000_000, b"behind"):
            large.append(Record(value, None, NOW))
    monkeypatch.setattr(records, "MOST_BYTES", 1 << 20)
    with served(tmp_path / "data") as found:
        base, seen, at = "/topics/large/0/records", [], 0
        for _ in range(3):
            page = found.get(f"{base}?offset={at}")
            seen += shown(page.html)
            onward = re.search(r"offset=(\d+)\" rel=\"next\"", page.html)
            if onward is None:
                break
            at = int(onward[1])
        assert seen == [0, 1, 2]
        assert "too large for a page: it can be downloaded" in found.get(f"{base}/1").text
        assert found.get(f"{base}/1/value").body == b"x" * 3_000_000


def test_what_a_reader_mistypes_is_answered_in_words(site: Site) -> None:
    base = "/topics/orders/0/records"
    assert "offset: expected a number, found 'ten'" in site.get(f"{base}?offset=ten").text
    assert "expected a time, as in" in site.get(f"{base}?time=yesterday").text
    for odd in (
        "offset=99999999999999999999",
        "offset=-1",
        "before=x",
        "time=../../status",
        "offset=%00",
        "words=%ff",
    ):
        assert site.get(f"{base}?{odd}").code == 200, odd
    assert site.get(f"{base}/{10**30}").code == 404


# -- hostile records --------------------------------------------------------------------------------------------


def test_no_page_has_markup_that_a_record_brought(site: Site) -> None:
    base = "/topics/clicks/0/records"
    for path in (
        base,
        f"{base}/0",
        f"{base}?words=%3Cscript%3E",
        f"{base}?offset=%22%3E%3Cscript%3E",
        f"/?filter={'%3Cscript%3E'}",
    ):
        page = site.get(path)
        assert page.html.count("<script") == 1, path  # its own
        assert "<img" not in page.html
    assert HOSTILE in site.get(f"{base}/0").text


def test_nothing_invisible_in_a_record_reaches_the_page(site: Site) -> None:
    page = site.get("/topics/clicks/0/records")
    assert "moc.\\u202eexe\\x1b[31m" in page.text
    assert not set(page.html) & {"\u202e", "\x1b"}


def test_binary_values_are_shown_as_digits_and_given_byte_for_byte(site: Site) -> None:
    page = site.get("/topics/clicks/0/records/1")
    assert "0040  40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f" in page.text
    value = site.get("/topics/clicks/0/records/1/value")
    assert value.body == bytes(range(256))
    assert value.headers["content-type"] == "application/octet-stream"
    assert value.headers["content-disposition"] == 'attachment; filename="clicks-0-1.bin"'


def test_json_is_indented_with_its_words_as_they_are() -> None:
    text = '{"b": [1.50, {"c": "}, \\" {"}], "a": {}, "d": [], "b": 1}'
    shown = indented(text)
    assert shown is not None
    assert "".join(shown.split()) == "".join(text.split())
    assert json.loads(shown) == json.loads(text)
    assert shown.splitlines()[:3] == ["{", '  "b": [', "    1.50,"]
    assert '  "a": {},' in shown.splitlines()
    assert indented("{" * 60_000) is indented("12") is indented("{x") is None


# -- who may read -----------------------------------------------------------------------------------------------


def test_every_answer_has_the_headers_that_keep_scripts_and_others_out(site: Site) -> None:
    for path in ("/", "/none", "/static/style.css", "/topics/clicks/0/records/1/value"):
        headers = site.get(path).headers
        assert HEADERS.items() <= headers.items(), path
        assert not [name for name in headers if name.startswith("access-control")]
    assert "unsafe" not in HEADERS["content-security-policy"]


class Inline(HTMLParser):
    """What of a page is inline, or from elsewhere: its content security policy forbids both."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags += 1
        given = dict(attrs)
        if tag == "style" or (tag == "script" and not given.get("src")):
            self.found.append(tag)
        self.found += [
            f"{tag} {name}={value}"
            for name, value in attrs
            if name == "style"
            or name.startswith("on")
            or (name in ("href", "src", "action") and not str(value).startswith(("/", "#")))
        ]


def test_a_page_needs_nothing_inline_and_nothing_from_elsewhere(site: Site) -> None:
    records = "/topics/clicks/0/records"
    for path in ("/", "/topics/orders", "/topics/orders/0", records, f"{records}/0", "/groups", "/upkeep"):
        read = Inline()
        read.feed(site.get(path).html)
        assert read.tags > 20
        assert not read.found, path


def test_a_request_by_another_name_is_refused(site: Site) -> None:
    assert site.get("/", Host="evil.example").code == 421
    assert site.get("/", Host="evil.example:8642").code == 421
    assert site.get("/", Host="127.0.0.1.evil.example").code == 421
    for host in (f"127.0.0.1:{site.port}", f"localhost:{site.port}", "[::1]:8642", "192.168.1.7"):
        assert site.get("/", Host=host).code == 200, host


def test_nothing_is_taken_but_get_and_head(site: Site) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert site.get("/topics/orders/0", method).code == 405
    assert site.get("/", "HEAD").body == b""


def test_a_token_is_asked_for_and_becomes_a_cookie(backing: Path) -> None:
    with served(backing, token="s3cret") as found:
        for path in ("/", "/static/style.css", "/?token=wrong", "/topics/orders/0/records/0/value?token="):
            refused = found.get(path)
            assert (refused.code, b"orders" in refused.body) == (401, False), path
        assert found.get("/", Authorization="Bearer s3cret").code == 200
        assert found.get("/", Authorization="Bearer s3cre").code == 401
        entered = found.get("//evil.example/?token=s3cret&sort=size")
        assert (entered.code, entered.headers["location"]) == (303, "/evil.example/?sort=size")
        assert re.fullmatch(
            r"topicfs-\d+=s3cret; HttpOnly; Path=/; SameSite=strict", entered.headers["set-cookie"]
        )
        assert found.get("/").code == 200
        assert HEADERS.items() <= found.get("/", Cookie="a=b; topicfs-1=s3cret").headers.items()
        assert found.get("/", Cookie=f"topicfs-{found.port}=s3cre\u00e9").code == 401


# -- mounts, and many partitions --------------------------------------------------------------------------------


def test_a_mount_shows_its_rates_and_its_daemon_and_its_end(
    real_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVERY_S", "_REST"):  # each page looks anew, and none has to wait
        monkeypatch.setattr(looks, name, 0)
    with Store.open(real_place.backing, create=True) as store:
        store.create("orders", 0).append(Record(b"x", None, NOW))
    real_place.up("-o", "log.retention.ms=-1")
    with served(real_place.mount) as found:
        page = found.get("/")
        assert f"{real_place.backing}, mounted at {real_place.mount}" in page.html
        assert re.search(r"^orders\n1\n1\n", page.text, re.MULTILINE)
        with (real_place.mount / "orders-0" / "log.txt").open("a") as file:
            file.writelines("more\n" for _ in range(500))
        page = found.get("/")
        row = re.search(r"^orders\n1\n501\n[^\n]*\n([^\n]*)\nfine", page.text, re.MULTILINE)
        assert row is not None
        assert row[1] != "0"
        assert re.search(r"^Daemon\n\d+ %\nof a processor, ", page.text, re.MULTILINE)
        assert shown(found.get("/topics/orders/0/records").html)[-1] == 500
        real_place.down()
        page = found.get("/")
        assert page.code == 200
        assert "What is below is old: " in page.text
        assert found.get("/groups").code == 503


class ManyPartitions(MountedTree):
    """The tree of a daemon that has 1,000 partitions in use, as far as the first page asks for it."""

    def __init__(self) -> None:
        super().__init__(Path("/none"), Path("/none"))
        self.statuses = 0
        self.keys = [(f"topic-{topic}", number) for topic in range(20) for number in range(50)]
        names = (
            "start_offset",
            "stable_offset",
            "end_offset",
            "recovery_point",
            "size_bytes",
            "segments",
            "pinned_bytes",
        )
        self.metrics = "".join(
            f'topicfs_partition_{name}{{partition="{number}",topic="{topic}"}} {7 + at}.0\n'
            for at, name in enumerate(names)
            for topic, number in self.keys
        ).encode()

    def names(self, path: str) -> list[str]:
        return sorted({key[0] for key in self.keys} if path else {f"{key[0]}-{key[1]}" for key in self.keys})

    def pieces(self, path: str) -> Iterator[bytes]:
        if path != "metrics":
            self.statuses += 1
            time.sleep(0.001)  # as long as a real one takes through a mount
        topic, _, number = path.partition("/")[0].rpartition("-")
        offsets = {"start_offset": 7, "end_offset": 9, "log_bytes": 11, "segments": 12}
        yield (
            self.metrics
            if path == "metrics"
            else json.dumps({"topic": topic, "partition": number, **offsets}).encode()
        )


def test_the_first_page_of_a_thousand_partitions_takes_little_of_the_processor() -> None:
    """Of 0.3 s in all, the daemon takes 0.12 s for its metrics and the statuses."""
    taken = []
    for _ in range(3):
        tree = ManyPartitions()
        with listening("127.0.0.1", 0) as listener:
            site = Site(listener.getsockname()[1])
            with running(serving.server(tree, Path, listener, "127.0.0.1", None), listener):
                began = time.process_time()
                page = site.get("/")
                taken.append(time.process_time() - began)
        assert "Partitions\n1\u202f000\n" in page.text
        assert 0 < tree.statuses < 200
    assert min(taken) < 0.15


def test_a_look_that_takes_long_is_followed_by_a_rest() -> None:
    now_s = 0.0

    class Slow(ManyPartitions):
        def pieces(self, path: str) -> Iterator[bytes]:
            nonlocal now_s
            now_s += 1.5
            yield from super().pieces(path)

    found = looks.Looks(tree := Slow(), lambda: now_s)
    for moment_s, count in ((0.0, 1), (13.0, 1), (30.0, 2)):
        now_s = max(now_s, moment_s)
        found.refresh()
        assert tree.statuses == count  # one takes longer than a look may, so that each look has one


# -- the command ------------------------------------------------------------------------------------------------


def commands() -> list[list[str]]:
    """The page's commands, each in words."""
    section = (
        (ROOT / "mountd" / "COMMANDS.md").read_text().partition("## In a browser\n")[2].partition("\n## ")[0]
    )
    return [
        shlex.split(line, comments=True) for line in section.splitlines() if line.startswith("    topicfs ")
    ]


def test_the_pages_commands_serve_until_ctrl_c_and_change_nothing(backing: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in backing.rglob("*")}
    for name in ("mnt", "data"):
        (tmp_path / name).symlink_to(backing)
    plain, guarded = commands()
    assert plain == ["topicfs", "ui", "mnt"]
    # Another port is all that it is told otherwise: the named ones may be taken.
    words = [sys.executable, "-m", "topicfs.mountd.cli", *guarded[1:], "--port", "0"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as command:
        assert command.stderr is not None
        said = command.stderr.readline()
        found = re.fullmatch(
            rf"topicfs: {backing}, not mounted: http://127\.0\.0\.1:(\d+)/\?token=(\S+)\n", said
        )
        assert found is not None, said
        site = Site(int(found[1]))
        assert site.get("/").code == 401
        assert site.get(f"/?token={found[2]}").code == 303
        assert "orders" in site.get("/").text
        command.send_signal(signal.SIGINT)
        _, rest = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode, rest) == (130, "topicfs: interrupted\n")
    assert {path: path.stat().st_mtime_ns for path in backing.rglob("*")} == before


def test_where_others_reach_it_there_is_always_a_token(
    backing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str | None] = []
    monkeypatch.setattr(serving, "serve", lambda *words: given.append(words[-1]))
    for host in ("0.0.0.0", "127.0.0.1", "::1", "::"):
        done = CliRunner().invoke(main, ["ui", str(backing), "--host", host, "--port", "0"])
        assert done.exit_code == 0, done.output
    assert [token is not None for token in given] == [True, False, False, True]
    assert given[0] != given[3]


def refused(*words: object) -> str:
    """What the command says that cannot serve."""
    done = CliRunner().invoke(main, ["ui", *map(str, words)])
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "jinja2"])
def test_without_its_packages_it_says_the_one_command_to_run(
    backing: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert refused(backing) == f"topicfs: expected {package}, found none: pip install 'topicfs[ui]'"


def test_a_port_that_is_taken_is_told(backing: Path, site: Site) -> None:
    said = refused(backing, "--port", site.port)
    assert said == f"topicfs: 127.0.0.1:{site.port}: Address already in use: --port names another one"


def test_another_place_than_a_store_is_refused(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "empty")
    assert "expected a backing directory" in refused(tmp_path / "empty", "--port", 0)
