"""`fs/SEMANTICS.md`: settings and the start offset."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from shlex import quote

import pytest
from daemon_mount import DaemonMount, append, fill, full_disk, opened, refused
from entries import commands, letters, read
from shell import output, run

pytest_plugins = ["shared_mount"]

APPEND = os.O_WRONLY | os.O_APPEND


def config_of(mount: DaemonMount, partition: Path) -> Path:
    return commands(mount, partition)[0]


def settings(config: Path) -> dict[str, tuple[str, str]]:
    """Value and source of each setting."""
    found = {}
    for line in config.read_text().splitlines():
        if not line.startswith("#"):
            setting, _, source = line.partition(" # ")
            name, _, value = setting.partition("=")
            found[name] = (value.strip(), source)
    return found


def own(config: Path) -> dict[str, str]:
    """The topic's own values."""
    return {name: value for name, (value, source) in settings(config).items() if source == "topic"}


def reason(config: Path) -> str | None:
    """Why lines were last refused."""
    last = config.read_text().splitlines()[-1]
    return last if last.startswith("# refused at ") else None


def test_ways_to_write(mount: DaemonMount) -> None:
    """W1. Lines that are written to `topics/<topic>/config` and to `start` are done, by `>`, by `>>` and at
    any position alike; neither is removed, renamed, or cut to another length than 0.
    """
    partition = letters(mount, "ways")
    config, start = commands(mount, partition)
    output("echo segment.ms=1001 > config; echo segment.bytes=2000000 >> config", config.parent)
    output("echo segment.index.bytes=1003 | tee config", config.parent)
    with opened(config, os.O_RDWR) as file:
        before = os.pread(file, 1 << 20, 0)
        assert os.pwrite(file, b"retention.ms=1004\nretention", 5000) == 27
        assert os.pwrite(file, b".bytes=1005\n", 0) == 12
        assert os.pread(file, 1 << 20, 0) == before
    assert own(config) == {
        "segment.ms": "1001",
        "segment.bytes": "2000000",
        "segment.index.bytes": "1003",
        "retention.ms": "1004",
        "retention.bytes": "1005",
    }
    output("echo 1 > start; echo 2 >> start", partition)
    assert start.read_bytes() == b"2\n"
    for path in (config, start):
        held = path.read_bytes()
        os.truncate(path, 0)
        with opened(path, os.O_RDWR | os.O_TRUNC) as file:
            os.ftruncate(file, 0)
            with refused(errno.EPERM):
                os.ftruncate(file, 1)
        for refusal in (
            lambda path=path: os.truncate(path, 1),
            lambda path=path: os.unlink(path),
            lambda path=path: os.rename(path, path.with_name("other")),
        ):
            with refused(errno.EPERM):
                refusal()
        assert path.read_bytes() == held


def test_settings_hold_at_once(mount: DaemonMount) -> None:
    """W2. `name=value` is the topic's own setting from then on, without a restart, also for files that are
    open, once the lines that wait in them are appended; settings that are not named stay.
    """
    partition = mount.new("at-once")
    config = config_of(mount, partition)
    with opened(partition / "log.txt", APPEND) as file:
        os.write(file, b"x" * 2000 + b"\n")
        os.fsync(file)
        append(config, b"max.message.bytes=1000\n")
        with refused(errno.EMSGSIZE):
            os.write(file, b"x" * 2000 + b"\n")
        os.write(file, b"no key\n")
        os.fsync(file)
        append(config, b"cleanup.policy=compact\n")
        with refused(errno.EINVAL):
            os.write(file, b"no key\n")
    assert own(config) == {"cleanup.policy": "compact", "max.message.bytes": "1000"}
    append(config, b"max.message.bytes=3000\n")
    append(partition / "log.tsv", b"k\t" + b"y" * 2000 + b"\n")
    assert own(config) == {"cleanup.policy": "compact", "max.message.bytes": "3000"}


def test_bad_settings(mount: DaemonMount) -> None:
    """W3. The lines of one open file are done together, each write at once: where one names no setting,
    has a value that is not allowed, is no `name=value` or is above 16 KiB, the write is EINVAL, what
    was written through that open file before is taken back, save for what an fsync came behind, and
    nothing more is taken through it; `config` ends with the reason until a setting is accepted.
    """
    config = config_of(mount, mount.new("bad-settings"))
    append(config, b"retention.ms=5000\n")
    held = config.read_bytes()
    bad = {
        b"retention.mss=1": "did you mean retention.ms?",
        b"retention.ms=never": "found 'never'",
        b"retention.ms=9223372036854775808": "64 bits",
        b"log.retention.ms=1": "it is retention.ms",
        b"cleanup.policy=shred": "found 'shred'",
        b"min.compaction.lag.ms=2\nmax.compaction.lag.ms=1": "expected at most",
        b"retention.ms=never\nretention.ms=1": "found 'never'",
        b"retention.ms 1": "expected name=value",
        b"=1": "expected name=value",
        b"retention.ms=1\xff": "expected UTF-8",
        b"# " + b"x" * 17000: "expected at most 16384",
    }
    for lines, words in bad.items():
        with opened(config, APPEND) as file, refused(errno.EINVAL):
            os.write(file, b"segment.ms=1000\n" + lines + b"\nsegment.bytes=2000000\n")
        told = reason(config)
        assert told is not None
        assert words in told, told
        assert words in mount.said()
        assert config.read_bytes().startswith(held)
        assert own(config) == {"retention.ms": "5000"}
    with opened(config, APPEND) as file, refused(errno.EINVAL):
        for _ in range(20):
            os.write(file, b"x" * 1000)
    # bash makes a write of each line, and goes on after one that fails; other programs make one of all.
    for shell in ("bash", "dash", "sh"):
        for lines in (r"segment.ms=1000\nsegment.bytes=xx\n", r"segment.bytes=xx\nsegment.ms=1000\n"):
            for command in (f"printf '{lines}'", rf"printf '{lines}' | cat"):
                assert run(f"{shell} -c {quote(command + ' > config')}", config.parent).returncode
                assert own(config) == {"retention.ms": "5000"}
    with opened(config, APPEND) as file:
        os.write(file, b"segment.ms=1000\n")
        os.fsync(file)
        os.write(file, b"segment.bytes=2000000\n")
        assert own(config) == {"retention.ms": "5000", "segment.bytes": "2000000", "segment.ms": "1000"}
        for line in (b"segment.ms=x\n", b"segment.ms=2000\n"):
            with refused(errno.EINVAL):
                os.write(file, line)
    assert own(config) == {"retention.ms": "5000", "segment.ms": "1000"}
    append(config, b"segment.ms=default\n")
    with opened(config, APPEND) as file, refused(errno.EINVAL):
        os.write(file, b"segment.ms=x\n")
    append(config, b"# nothing\n\n")
    assert reason(config) is not None
    append(config, b"max.compaction.lag.ms=1\nmin.compaction.lag.ms=1\n")
    assert reason(config) is None
    assert own(config) == {
        "max.compaction.lag.ms": "1",
        "min.compaction.lag.ms": "1",
        "retention.ms": "5000",
    }


def test_back_to_the_default(mount: DaemonMount) -> None:
    """W4. `name=default`, and `name=` where no text is no value, takes the topic's own value away;
    `cleanup.policy=` keeps everything.
    """
    config = config_of(mount, mount.new("back"))
    before = config.read_bytes()
    append(config, b"retention.ms=5000\nsegment.ms=6000\ncompression.type=gzip\ncleanup.policy=\n")
    assert settings(config)["cleanup.policy"] == ("", "topic")
    append(config, b"retention.ms=default\nsegment.ms=\ncompression.type =\n")
    assert own(config) == {"cleanup.policy": ""}
    append(config, b"cleanup.policy=default\nsegment.bytes=default\n")
    assert config.read_bytes() == before
    with refused(errno.EINVAL):
        append(config, b"no.such=default\n")


def test_written_back(mount: DaemonMount, tmp_path: Path) -> None:
    """W5. What `config` gives changes nothing when it is written back; blank lines and what follows a `#`,
    at the beginning or after a blank, mean nothing.
    """
    config = config_of(mount, mount.new("written-back"))
    append(config, b"retention.ms=5000\n")
    file = mount.backing / "topics/written-back.properties"
    for _ in range(2):
        held, stored = settings(config), file.read_bytes()
        shutil.copyfile(config, tmp_path / "copy")
        shutil.copyfile(tmp_path / "copy", config)
        assert settings(config) == held
        assert file.read_bytes() == stored
        with opened(config, APPEND) as descriptor, refused(errno.EINVAL):
            os.write(descriptor, b"no setting\n")
    copy = (tmp_path / "copy").read_text()
    segment = settings(config)["segment.ms"][0]
    (tmp_path / "copy").write_text(copy.replace(f"segment.ms={segment} ", "segment.ms=7000 "))
    shutil.copyfile(tmp_path / "copy", config)
    assert own(config) == {"retention.ms": "5000", "segment.ms": "7000"}
    append(config, b"\n  # retention.ms=1\n#retention.ms=2\r\n \t\n retention.ms = 8000\t# 9000\r\n")
    assert own(config) == {"retention.ms": "8000", "segment.ms": "7000"}


def test_lines_without_a_newline(mount: DaemonMount) -> None:
    """W6. A last line without a newline is done at close, which gives its error."""
    partition = letters(mount, "no-newline")
    config, start = commands(mount, partition)
    append(config, b"retention.ms=5000\nsegment.ms=6000")
    append(start, b"1")
    assert own(config) == {"retention.ms": "5000", "segment.ms": "6000"}
    assert start.read_bytes() == b"1\n"
    for path, line in ((config, b"retention.ms=x"), (start, b"99")):
        file = os.open(path, APPEND)
        assert os.write(file, line) == len(line)
        with refused(errno.EINVAL):
            os.close(file)
    # The end of a child in the middle of a line closes a copy of the descriptor.
    assert run("(printf segment.; /bin/true; printf 'ms=7000\\n') > config", config.parent).returncode == 0
    assert own(config) == {"retention.ms": "5000", "segment.ms": "7000"}
    assert start.read_bytes() == b"1\n"


def test_the_start_offset(mount: DaemonMount) -> None:
    """W7. `start` gives the start offset; a larger number deletes the records below it, a smaller one
    changes nothing, and `-1` deletes all that are committed. So does a copy over it, which nothing tells from
    `>`: `cp -r one-0/. other-0/` deletes what lies in `other-0` below the start offset of `one-0`, and no
    undelete brings it back.
    """
    partition = letters(mount)
    start = partition / "start"
    assert start.read_bytes() == b"0\n"
    for written, now, left in ((b"1", 1, b"b\nc\n"), (b"0", 1, b"b\nc\n"), (b" 2 ", 2, b"c\n")):
        append(start, written + b"\n")
        assert start.read_bytes() == b"%d\n" % now
        assert mount.status(partition)["start_offset"] == now
        assert (partition / "offset/0-.txt").read_bytes() == left
    append(start, b"-1\n")
    assert start.read_bytes() == b"3\n"
    assert read(partition) == b""
    append(partition / "log.txt", b"d\n")
    assert (partition / "offset/3").read_bytes() == b"d"
    for copy in ("cp -r", "cp -a"):
        one, other = letters(mount), letters(mount)
        append(one / "start", b"2\n")
        done = run(f"{copy} {one.name}/. {other.name}/", mount.path)
        assert b"log.txt': Operation not permitted" in done.stderr
        assert read(other) == b"c\n"
        append(one / "start", b"0\n")
        run(f"{copy} {other.name}/. {one.name}/", mount.path)
        assert read(one) == b"c\n"


def test_bad_start_offsets(mount: DaemonMount) -> None:
    """W8. What is not one number, or one above the high watermark, is EINVAL, and nothing more is taken
    through that open file; where `cleanup.policy` has no `delete` it is EPERM; the reason is in
    `status.json`.
    """
    partition = letters(mount)
    bad = {
        b"4": "the high watermark 3",
        b"-2": "expected 0 to",
        b"x": "found 'x'",
        b"": "found ''",
        b"1 2": "found '1 2'",
        b"1\n2": "2 lines",
        b"1.0": "found '1.0'",
        b"9" * 5000: "5000 characters",
        b"9" * 17000: "expected at most 16384",
        b"\xff": "expected UTF-8",
    }
    for line, words in bad.items():
        with opened(partition / "start", APPEND) as file:
            for written in (line, b"1"):
                with refused(errno.EINVAL):
                    os.write(file, written + b"\n")
                if written == line:
                    assert words in mount.status(partition)["last_refusal"]["reason"]
    assert (partition / "start").read_bytes() == b"0\n"
    assert read(partition) == b"a\nb\nc\n"
    compacted = letters(mount, "compacted")
    with opened(compacted / "start", APPEND) as file, refused(errno.EPERM):
        os.write(file, b"1\n")
    assert "cleanup.policy" in mount.status(compacted)["last_refusal"]["reason"]
    assert read(compacted) == b"a\nb\nc\n"


def test_views_of_deleted_records(mount: DaemonMount) -> None:
    """W9. What is opened after that begins at the start offset; what was open goes on as S3 says."""
    partition = letters(mount)
    names = ("log.txt", "offset/0-.txt", "time/last-1h.txt")
    held = [os.open(partition / name, os.O_RDONLY) for name in names]
    append(partition / "start", b"1\n")
    for name in names[1:]:
        assert (partition / name).read_bytes() == b"b\nc\n"
    assert read(partition) == b"b\nc\n"
    with refused(errno.ENOENT):
        (partition / "offset/0").stat()
    for file in held:
        assert os.pread(file, 2, 2) == b"b\n"
        os.close(file)


def test_after_a_crash(tmp_path: Path) -> None:
    """W10. Settings and start offset are on disk when the write returns, and there after `kill -9` of the
    daemon.
    """
    mount = DaemonMount(tmp_path)
    try:
        mount.start()
        with mount.watched():
            partition = letters(mount)
            config, start = commands(mount, partition)
            append(config, b"retention.ms=5000\n")
            file = os.open(start, os.O_WRONLY)
            os.write(file, b"2\n")
            checkpoint = mount.backing / "logs/log-start-offset-checkpoint"
            assert checkpoint.read_text() == f"0\n1\n{partition.name.replace('-', ' ')} 2\n"
            assert (mount.backing / "topics/plain.properties").read_text() == "retention.ms=5000\n"
            os.close(file)
            output("printf segment.ms=6000 > config", config.parent)
            mount.kill()
            mount.start()
            assert own(config) == {"retention.ms": "5000", "segment.ms": "6000"}
            assert start.read_bytes() == b"2\n"
            assert read(partition) == b"c\n"
            output("printf 3 > start", partition)
            mount.kill()
            mount.start()
            assert start.read_bytes() == b"3\n"
            assert read(partition) == b""
        assert mount.stop() == 0
        assert mount.alarms() == []
    finally:
        mount.clear()


def test_editors(mount: DaemonMount) -> None:
    """W11. A program that saves by a new file and a rename, as `sed -i` does, is refused with EPERM and
    changes nothing; one that writes the file itself, as ed does, can edit `config`.
    """
    partition = letters(mount, "edited")
    config, start = commands(mount, partition)
    append(config, b"retention.ms=5000\n")
    for path in (config, start):
        done = run(f"sed -i s/[05]/1/ {path.name}", path.parent)
        assert done.returncode
        assert b"Operation not permitted" in done.stderr
        with refused(errno.EPERM):
            os.open(path.with_name("new"), os.O_WRONLY | os.O_CREAT)
    assert own(config) == {"retention.ms": "5000"}
    assert start.read_bytes() == b"0\n"
    # As vim and ed do it.
    whole = config.read_text().replace("=5000 ", "=5001 ")
    config.write_text(whole)
    assert own(config) == {"retention.ms": "5001"}
    if shutil.which("ed") is None:
        pytest.skip("ed is not here")
    script = b",s/retention.ms=5001/retention.ms=5002/\nw\nq\n"
    subprocess.run(["ed", "-s", config], input=script, check=True, capture_output=True)
    assert own(config) == {"retention.ms": "5002"}


def test_control_writes_on_a_full_disk(tmp_path: Path) -> None:
    """W12. Where a setting, a start offset, a partition or a topic cannot be written down, as on a full disk,
    the call fails, and nothing is changed.
    """
    with full_disk(tmp_path, "24m") as (mount, filler):
        partition = letters(mount, "t")
        config, start = commands(mount, partition)
        append(config, b"retention.ms=5000000\n")
        mount.expect("No space left")
        mount.expect("left over")
        fill(filler)
        for command in ("echo -1 > start", "echo 2 >> start"):
            done = run(command, partition)
            assert done.returncode
            assert b"No space left" in done.stderr
        for command in ("echo segment.ms=7000 > config", "echo retention.ms=7000000 >> config"):
            assert run(command, config.parent).returncode
        for made in (mount / "t-7", mount / "topics" / "new"):
            with refused(errno.ENOSPC):
                made.mkdir()
            assert not made.exists()
        assert start.read_bytes() == b"0\n"
        assert read(partition) == b"a\nb\nc\n"
        assert own(config) == {"retention.ms": "5000000"}
        mount.kill()
        filler.unlink()
        mount.start()
        assert start.read_bytes() == b"0\n"
        assert read(partition) == b"a\nb\nc\n"
        assert own(config) == {"retention.ms": "5000000"}
        assert not (mount / "t-7").exists()
        assert not (mount / "topics" / "new").exists()
        append(start, b"-1\n")
        assert start.read_bytes() == b"3\n"
