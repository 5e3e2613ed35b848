"""The lines of kcat -J: those of an export are the same, and kcat's own are imported as the records that they show."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from kafka_broker import Broker
from kafka_topics import topics_of
from patience import PATIENCE_S

from topicfs.engine.record import Record
from topicfs.engine.store.store import Store
from topicfs.mountd.cli import main

NOW = 1_780_000_000_000
RECORDS = [
    Record(b"v", b"k", NOW, (("a", b"b"), ("a", None), ("\u00fc", b"\xff"))),
    Record(None, b"gone", NOW + 1),
    Record(b'\x00\x1f " \\ / \n \x7f \xc3\xa9', None, NOW + 2),
    Record(b"\xff\xfe", b"\xff", NOW + 3),
    Record(b"", b"", NOW + 4),
]


def topicfs(*words: object) -> bytes:
    done = CliRunner().invoke(main, list(map(str, words)), catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout_bytes


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_an_export_has_the_lines_of_kcat_and_its_lines_are_imported(tmp_path: Path) -> None:
    backing = tmp_path / "backing"
    with Store.open(backing, create=True) as store:
        store.create("orders").append(RECORDS)
        store.create("copy")
    ours = topicfs("export", backing, "orders", "--format", "kcat-json")
    logs = backing / "logs"
    topics = topics_of(logs, {"orders": {}, "copy": {}})
    with Broker.start(logs, tmp_path / "home", metadata_dir=tmp_path / "metadata", topics=topics) as broker:
        command = ["kcat", "-b", broker.bootstrap, "-C", "-t", "orders", "-o", "beginning", "-e", "-q", "-J"]
        theirs = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S).stdout
    # A store has no broker, and hexadecimal digits are large in kcat's lines.
    small = re.sub(rb"\\u00[0-9A-F]{2}", lambda found: found[0].lower(), theirs)
    assert re.sub(rb'"broker":\d+,', b"", small) == ours
    (tmp_path / "kcat.json").write_bytes(theirs)
    topicfs("import", backing, "copy", tmp_path / "kcat.json", "--format", "kcat-json")
    with Store.open(backing, read_only=True) as store:
        found = [
            (each.value, each.key, each.timestamp, each.headers)
            for each in store.partition("copy-0").records()
        ]
    assert found == [(each.value, each.key, each.timestamp, each.headers) for each in RECORDS]
