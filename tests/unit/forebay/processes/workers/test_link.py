import json
import socket
import threading

from forebay.processes.link import SupervisorLink, refusal_in


def test_what_a_worker_says_is_one_object_per_line() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = SupervisorLink(descriptor=theirs.fileno())

        link.ready({"broker_id": 3})
        link.refused("no\nroom")
        received = ours.recv(1000)

    assert [json.loads(line) for line in received.splitlines()] == [{"ready": {"broker_id": 3}}, {"refused": "no\nroom"}]
    assert refusal_in(received) == "no\nroom"
    assert refusal_in(b"") == ""


def test_the_end_of_the_supervisor_is_noticed_and_words_to_it_are_lost() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        link = SupervisorLink(descriptor=theirs.fileno())
        gone = threading.Event()
        link.watch(gone.set)
        before = gone.is_set()

        ours.close()
        noticed = gone.wait(25)
        link.ready({})

    assert (before, noticed) == (False, True)
