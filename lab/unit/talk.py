"""TCP connections between network namespaces of the guest, for `lab/run systemd`: `serve` answers,
`open` opens a connection each and asks by it again and again, and says in a file how each fares.

    talk.py serve PORT NAMESPACE...
    talk.py open FILE NAMESPACE ADDRESS:PORT=COUNT...

The file has a line for each address: connections, those that have ended, and the answers that the
one with fewest has had. It runs on the guest's own Python, of which only the standard library is
there.
"""

import os
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import cast

_PAUSE_S = 0.1
_CLONE_NEWNET = 0x40000000


def enter(namespace: str) -> None:
    """From here on sockets are of a namespace."""
    with Path(f"/run/netns/{namespace}").open("rb") as file:
        os.setns(file.fileno(), _CLONE_NEWNET)  # type: ignore[attr-defined, unused-ignore]


def serve(port: int, namespaces: list[str]) -> None:
    """Answers what comes with the same."""
    selector = selectors.DefaultSelector()
    for namespace in namespaces:
        enter(namespace)
        listener = socket.create_server(("0.0.0.0", port))
        selector.register(listener, selectors.EVENT_READ, True)
    while True:
        for key, _ in selector.select():
            talker = cast(socket.socket, key.fileobj)
            if key.data:
                selector.register(talker.accept()[0], selectors.EVENT_READ, False)
                continue
            try:
                asked = talker.recv(4096)
            except OSError:
                asked = b""
            if asked:
                talker.send(asked)
            else:
                selector.unregister(talker)
                talker.close()


def keep_open(path: str, namespace: str, wanted: list[str]) -> None:
    """Opens connections, and asks by each once it has been answered."""
    enter(namespace)
    selector = selectors.DefaultSelector()
    answers: dict[str, list[int]] = {}
    ended: dict[str, int] = {}
    for one in wanted:
        address, _, count = one.partition("=")
        host, _, port = address.partition(":")
        answers[address], ended[address] = [0] * int(count), 0
        for number in range(int(count)):
            talker = socket.create_connection((host, int(port)), timeout=60)
            talker.setblocking(False)
            talker.send(b"x")
            selector.register(talker, selectors.EVENT_READ, (address, number))
    while True:
        time.sleep(_PAUSE_S)
        for key, _ in selector.select(0):
            address, number = key.data
            talker = cast(socket.socket, key.fileobj)
            try:
                is_open = bool(talker.recv(4096)) and talker.send(b"x") > 0
            except OSError:
                is_open = False
            if is_open:
                answers[address][number] += 1
            else:
                ended[address] += 1
                selector.unregister(talker)
        lines = [f"{a} {len(all_)} {ended[a]} {min(all_)}" for a, all_ in answers.items()]
        new = Path(f"{path}.new")
        new.write_text("\n".join(lines) + "\n")
        new.replace(path)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]), sys.argv[3:])
    keep_open(sys.argv[2], sys.argv[3], sys.argv[4:])
