"""Floods that ask nothing of their receiver: ports/examples/blast sends, bench.deaf counts."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import deaf
from lab.net import Failed
from lab.programs import example
from lab.wire import UDP_FRAME_BYTES
from lab.workload import GRACE_S, LINGER_S, Flow, FlowResult, Guest

#: The payload of the shortest Ethernet frame: 64 bytes with headers and FCS.
SMALL_PAYLOAD_BYTES = 64 - UDP_FRAME_BYTES
#: The payload of a frame that fills an MTU of 1500 bytes.
FULL_PAYLOAD_BYTES = 1518 - UDP_FRAME_BYTES

_ROOT = Path(__file__).resolve().parents[1]


class Flood(Flow):
    """UDP datagrams of `payload_bytes`, unpaced or at `payload_bps`. With `segment_bytes` each
    message leaves as one segmentation-offloaded frame of such segments."""

    def __init__(
        self,
        name: str,
        src: str,
        dst: str,
        payload_bytes: int = SMALL_PAYLOAD_BYTES,
        payload_bps: int | None = None,
        segment_bytes: int | None = None,
    ) -> None:
        super().__init__(name, src, dst)
        self.payload_bytes = payload_bytes
        rate = "max" if payload_bps is None else str(payload_bps)
        self._options = ["--length", str(payload_bytes), "--rate", rate]
        if segment_bytes is not None:
            self._options += ["--gso", str(segment_bytes)]

    def begin(self, src: Guest, dst: Guest, port: int, seconds: int) -> None:
        self._seconds = seconds
        python = ("env", f"PYTHONPATH={_ROOT}", sys.executable, "-m", "bench.deaf")
        receiver = dst.namespace.spawn(
            f"deaf-{self.name}",
            *(*python, "--port", str(port), "--seconds", str(seconds + LINGER_S)),
            stdout=subprocess.PIPE,
        )
        receiver.wait_for(lambda: deaf.READY in receiver.output(), "a bound socket")
        self._receiver = receiver
        self._sender = src.namespace.spawn(
            f"flood-{self.name}",
            *(example("blast"), "send", "--to", f"{dst.address}:{port}"),
            *(*self._options, "--seconds", str(seconds)),
            stdout=subprocess.PIPE,
        )

    def end(self) -> FlowResult:
        sent = self._json(self._report(self._sender, self._seconds + GRACE_S))
        got = self._json(self._report(self._receiver, GRACE_S))
        rows = [
            (t0, t1, float((n1 - n0) * self.payload_bytes))
            for (t0, n0), (t1, n1) in itertools.pairwise(got["rows"])
        ]
        return FlowResult(self.name, rows, sent)

    def _json(self, text: str) -> dict[str, Any]:
        try:
            report: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError as error:
            raise Failed(f"flow {self.name}: no report but {text[-300:]!r}") from error
        return report
