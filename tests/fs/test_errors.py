"""The errno of each error, and how it is told."""

from __future__ import annotations

import errno
import inspect
import logging

import pytest

from topicfs.engine import errors as engine
from topicfs.fs import errors
from topicfs.fs.errors import ANSWERS, Loudness, answer, errno_of

# Of calls that the mount does not make: from a user's hand they would be a bug, and are told as one.
NOT_FOR_USERS: set[type[BaseException]] = {
    engine.EngineError,
    errors.FileSystemError,
    engine.CleaningAbortedError,
    engine.OffsetsOutOfOrderError,
    engine.UnexpectedAppendOffsetError,
    engine.InvalidTransactionStateError,
    engine.TransactionCoordinatorFencedError,
    engine.InvalidOffsetError,
    engine.OffsetOverflowError,
    engine.IndexFullError,
    engine.RollError,
    engine.StoreLockedError,
    engine.NoStoreError,
    engine.NewerLayoutError,
    engine.TooFewDescriptorsError,
    engine.InconsistentTopicIdError,
}


def _classes(module: object) -> list[type[BaseException]]:
    found = [kind for _, kind in inspect.getmembers(module, inspect.isclass)]
    return [kind for kind in found if issubclass(kind, engine.EngineError)]


def _in_order(kinds: set[type[BaseException]]) -> list[type[BaseException]]:
    """Errors by their names: the workers of a run must all find its tests in one order."""
    return sorted(kinds, key=lambda kind: (kind.__module__, kind.__name__))


@pytest.mark.parametrize("kind", _in_order({*_classes(engine), *_classes(errors)} - NOT_FOR_USERS))
def test_every_error_that_a_user_can_cause_has_a_row(kind: type[BaseException]) -> None:
    assert any(parent in ANSWERS for parent in kind.__mro__ if parent is not BaseException)


@pytest.mark.parametrize("kind", _in_order(NOT_FOR_USERS))
def test_an_error_that_no_user_can_cause_is_told_as_a_bug(kind: type[BaseException]) -> None:
    error = kind("words", 0, 0) if kind is engine.UnexpectedAppendOffsetError else kind("words")
    assert answer(error) == errors.Answer(errno.EIO, Loudness.UNKNOWN)


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (errors.NotFoundError("x"), errno.ENOENT),
        (engine.OffsetOutOfRangeError("x"), errno.ENOENT),
        (engine.PartitionExistsError("x"), errno.EEXIST),
        (errors.AppendOnlyError("x"), errno.EPERM),
        (errors.NotSupportedError("x"), errno.EPERM),
        (errors.BadInputError("x"), errno.EINVAL),
        (engine.InvalidTimestampError("x"), errno.EINVAL),
        (engine.RecordTooLargeError("x"), errno.EMSGSIZE),
        (errors.EmptyBatchError("x"), errno.ENODATA),
        (errors.NoAttributeError("x"), errno.ENODATA),
        (errors.TryAgainError("x"), errno.EINTR),
        (InterruptedError(), errno.EINTR),
        (engine.CorruptIndexError("x"), errno.EIO),
        (MemoryError(), errno.ENOMEM),
        (ZeroDivisionError("x"), errno.EIO),
        (KeyboardInterrupt(), errno.EIO),
    ],
)
def test_an_error_becomes_the_errno_of_its_class_or_its_nearest_parent(
    error: BaseException, number: int
) -> None:
    assert answer(error).errno == number


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.EACCES])
def test_what_the_backing_directory_lacks_is_passed_on(number: int) -> None:
    assert answer(OSError(number, "words")).errno == number


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EBADF, errno.EINVAL, errno.EISDIR, None])
def test_what_is_wrong_with_a_backing_file_is_an_io_error(number: int | None) -> None:
    error = OSError(number, "words") if number else OSError("words")
    assert answer(error) == errors.Answer(errno.EIO, Loudness.WRONG)


@pytest.mark.parametrize(
    ("error", "level", "traceback"),
    [
        (errors.NotFoundError("words"), None, False),
        (errors.BadInputError("words"), logging.INFO, False),
        (engine.CorruptBatchError("words"), logging.ERROR, False),
        (ZeroDivisionError("words"), logging.ERROR, True),
    ],
)
def test_the_log_is_told_as_loudly_as_the_row_says(
    error: BaseException, level: int | None, traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    errno_of(error, "write", "/orders-0/log.jsonl")
    if level is None:
        assert not caplog.records
    else:
        (record,) = caplog.records
        assert record.levelno == level
        assert record.getMessage().startswith("write '/orders-0/log.jsonl': E")
        assert record.getMessage().endswith(": words")
        assert bool(record.exc_info) == traceback
