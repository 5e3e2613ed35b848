"""A full disk under a daemon that is killed and started again, with transactions in the log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from daemon_mount import append, fill, full_disk
from entries import read

from topicfs.engine.format.transaction_index import NOT_KNOWN
from topicfs.engine.partition.partition import Producer
from topicfs.engine.record import Record
from topicfs.engine.store.store import Store


def test_a_full_disk_shows_no_aborted_record_after_a_crash(tmp_path: Path) -> None:
    """regression: where no transaction index could be written anew, the partition was offline (E19)"""
    with full_disk(tmp_path) as (served, filler):
        for words in (
            "o space left on device",
            "made anew",
            "unclean stop",
            "no offset index",
            "no time index",
        ):
            served.expect(words)
        partition = served.new()
        topic = served / "topics" / partition.name[:-2]
        (served / "transactions/t1").mkdir()
        (served / "transactions/t1" / f"{partition.name}.txt").write_bytes(b"committed\n" * 9)
        (served / "transactions/t1").rename(served / "transactions/t1.commit")
        (topic / "inbox/_batch.txt").write_bytes(b"from a file\n")
        (topic / "inbox/_batch.txt").rename(topic / "inbox/batch.txt")
        assert served.stop() == 0
        with Store.open(served.backing) as store:
            log = store.partition(partition.name[:-2], 0)
            for number in range(90):
                log.append([Record(b"of transaction %d" % number)] * 20, Producer(77, 0, 20 * number, True))
                log.end_transaction(77, 0, commit=number % 3 == 0)
                if number % 30 == 29:
                    log.roll()
        served.start()
        append(partition / "log.txt", b"last\n")
        shown = read(partition)
        assert shown.count(b"\n") == 9 + 1 + 30 * 20 + 1
        served.kill()
        files = served.backing / "logs" / partition.name
        aborting = [path for path in files.glob("*.txnindex") if path.stat().st_size]
        assert len(aborting) == 3
        os.truncate(max(files.glob("*.log")), max(files.glob("*.log")).stat().st_size)
        # The daemon's log alone has room: the test goes by what it says.
        said = served.backing / "topicfs.log"
        subprocess.run(["fallocate", "--keep-size", "--length", "1MiB", said], check=True)
        # As a loss of power can leave them: names without content, and no names.
        for index in files.glob("*index"):
            index.unlink() if index.suffix == ".index" else index.write_bytes(b"")
        for clean in (False, True, True):
            fill(filler)
            served.start()
            assert read(partition) == shown
            assert served.status(partition)["offline"] is None
            if clean:
                served.stop()
            else:
                served.kill()
        # What is removed makes room for one or the other.
        assert NOT_KNOWN in {path.stat().st_size for path in aborting}
        served.start()
        assert read(partition) == shown
        filler.unlink()
        append(partition / "log.txt", b"with room\n")
        assert read(partition) == shown + b"with room\n"
        assert served.stop() == 0
        subprocess.run(
            [sys.executable, "-m", "topicfs.mountd.cli", "verify", str(served.backing)],
            check=True,
            capture_output=True,
        )
        served.start()
        assert read(partition) == shown + b"with room\n"
