"""PipeQueue: messages from one process to one other, in order, without locks."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import struct
from multiprocessing.connection import wait

import pytest

from shmppo.errors import EnvError
from shmppo.lockstep.mailbox import Failed, PipeQueue, Ready, WakeUp
from shmppo.lockstep.pool import Collect
from shmppo.lockstep.worker_processes import start_context


@pytest.fixture
def one() -> PipeQueue:
    return PipeQueue(multiprocessing)


def test_messages_come_in_order(one: PipeQueue) -> None:
    assert not one.has_message()
    sent = [WakeUp(), Ready((3, 4)), Failed("other", "text", "traceback"), Collect(2)]
    for message in sent:
        one.put(message)
    for message in sent:
        assert one.has_message()
        assert one.get() == message
    assert not one.has_message()
    one.close()


def test_a_process_can_wait_for_the_reader(one: PipeQueue) -> None:
    assert wait([one.reader], timeout=0) == []
    one.put(WakeUp())
    assert wait([one.reader], timeout=5) == [one.reader]
    one.close()


def test_a_closed_queue_raises(one: PipeQueue) -> None:
    one.close()
    with pytest.raises(OSError, match="closed"):
        one.put(WakeUp())
    with pytest.raises(OSError, match="closed"):
        one.get()
    one.close()  # twice is safe


@pytest.mark.parametrize(("written", "error"), [(b"", EOFError), (struct.pack("!i", 100) + b"abc", OSError)])
def test_a_message_of_a_writer_that_died_is_an_error(one: PipeQueue, written: bytes, error: type[Exception]) -> None:
    os.write(one._writer.fileno(), written)
    one._writer.close()
    with pytest.raises(error):
        one.get()
    one.close()


def test_the_longest_message_is_one_atomic_write(one: PipeQueue) -> None:
    """Then a worker that is killed leaves a whole message or none. The limits count bytes, not characters."""
    one.put(Failed.of(EnvError(10**9, "m…" * 2000, details="…t" * 2000)))
    sent = os.read(one.reader.fileno(), 2 * 4096)
    assert len(sent) <= 4096
    failed = pickle.loads(sent[4:])
    assert failed.message.startswith("m…m…")
    assert failed.details.endswith("…t…t")
    assert len(failed.message) > 400
    assert len(failed.details) > 1300
    one.close()


def answer_in_order(questions: PipeQueue, answers: PipeQueue) -> None:
    for _ in range(100):
        answers.put(questions.get() + 1)


def test_messages_between_processes() -> None:
    context = start_context()
    questions, answers = PipeQueue(context), PipeQueue(context)
    process = context.Process(target=answer_in_order, args=(questions, answers), daemon=True)
    process.start()
    for number in range(100):
        questions.put(number)
    assert [answers.get() for _ in range(100)] == list(range(1, 101))
    process.join(10)
    assert process.exitcode == 0
    questions.close()
    answers.close()
