"""Messages arrive whole, in order, until the other end is gone."""

import socket

from autobyte.scheduler.engines.lines import Line


def test_messages_arrive_until_the_other_end_is_gone() -> None:
    near, far = map(Line, socket.socketpair())
    near.tell("push", 7, -3)
    near.tell("gone", "server", 1)
    near.sock.sendall(b'["torn')
    near.close()
    assert list(far.messages()) == [["push", 7, -3], ["gone", "server", 1]]
    far.close()


def test_nobody_minds_telling_one_that_is_gone() -> None:
    near, far = map(Line, socket.socketpair())
    far.close()
    near.tell("push", 7)
    near.tell("push", 8)
    near.close()
