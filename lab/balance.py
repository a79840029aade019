"""Web servers, httperf, load averages and the arithmetic of a shared link: what experiments on
services have in common.

Apache runs as the published experiments had it: prefork, 150 workers. In namespaces all servers
share one /proc/loadavg, so each server's load is worked out from its own processes by the kernel's
rule (kernel/sched/loadavg.c): every 5 s the mean of 1 minute moves to the number of tasks that
run or sleep uninterruptibly, by 164/2048.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.net import Failed, Lab, Namespace, Process, run

#: Bytes of payload in a full segment with timestamps, and of its frame on the wire.
SEGMENT_PAYLOAD = 1448
SEGMENT_WIRE = 1448 + 52 + 14 + 24
#: The published servers' workers.
WORKERS = 150
#: The kernel's LOAD_FREQ and EXP_1 (include/linux/sched/loadavg.h).
LOAD_EVERY_S = 5.0
LOAD_KEEPS = 1884 / 2048
#: httperf's time-out for a connection, in seconds; a failed one counts as long.
TIMEOUT_S = 10
#: A run of httperf is given up after this.
LONGEST_S = 120

_APACHE = """\
ServerRoot "{home}"
ServerName {name}
PidFile "{home}/apache.pid"
ErrorLog "{home}/error.log"
LogLevel error
Listen 80
LoadModule mpm_prefork_module /usr/lib/apache2/modules/mod_mpm_prefork.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
StartServers {workers}
MinSpareServers {workers}
MaxSpareServers {workers}
ServerLimit {workers}
MaxRequestWorkers {workers}
ListenBacklog 511
KeepAlive On
MaxKeepAliveRequests 0
User www-data
Group www-data
DocumentRoot "{root}"
<Directory "{root}">
Require all granted
EnableSendfile On
</Directory>
"""

_HAPROXY = """\
defaults
    mode tcp
    timeout connect 10s
    timeout client 120s
    timeout server 120s
    maxconn 4096
frontend web
    bind :80
    default_backend web
backend web
    balance {policy}
{servers}
"""


_NGINX = """\
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
worker_processes 1;
pid {home}/nginx.pid;
error_log {home}/nginx.log error;
events {{ worker_connections 4096; }}
stream {{
    upstream web {{
        least_conn;
{servers}
    }}
    server {{
        listen 80 backlog=511;
        proxy_pass web;
        proxy_connect_timeout 10s;
        proxy_timeout 120s;
    }}
}}
"""


def write_files(root: Path, size: int) -> None:
    """The documents: one file of `size` bytes, `/object`, readable for Apache's user."""
    root.mkdir(exist_ok=True)
    (root / "object").write_bytes(bytes(size))
    for path in (root.parent, root):
        path.chmod(0o755)


def apache(lab: Lab, host: Namespace, name: str, root: Path) -> Process:
    """A web server in a namespace; ready when it listens."""
    home = lab.dir / name
    home.mkdir(exist_ok=True)
    config = home / "apache.conf"
    text = _APACHE.format(home=home, name=name, root=root, workers=WORKERS)
    config.write_text(text)
    process = host.spawn(name, "apache2", "-f", str(config), "-DFOREGROUND")
    process.wait_for(lambda: listens(host, 80), "listening")
    return process


def haproxy(lab: Lab, host: Namespace, servers: list[str], policy: str) -> Process:
    """HAProxy in a namespace, in front of the servers."""
    lines = [f"    server s{n} {address}:80" for n, address in enumerate(servers)]
    config = lab.dir / f"haproxy-{policy.partition('(')[0]}.cfg"
    config.write_text(_HAPROXY.format(policy=policy, servers="\n".join(lines)))
    process = host.spawn("haproxy", "haproxy", "-db", "-q", "-f", str(config))
    process.wait_for(lambda: listens(host, 80), "listening")
    return process


def nginx(lab: Lab, host: Namespace, servers: list[str]) -> Process:
    """nginx in a namespace, in front of the servers; who has the fewest connections is next."""
    lines = [f"        server {address}:80;" for address in servers]
    config = lab.dir / "nginx.conf"
    config.write_text(_NGINX.format(home=lab.dir, servers="\n".join(lines)))
    process = host.spawn("nginx", "nginx", "-c", str(config), "-e", str(lab.dir / "nginx.log"))
    process.wait_for(lambda: listens(host, 80), "listening")
    return process


def numgen(host: Namespace, address: str, servers: list[str]) -> Callable[[], object]:
    """nftables in the client's namespace sends each new connection to `address` to the next server;
    what is returned takes that away."""
    targets = ", ".join(f"{n} : {server}" for n, server in enumerate(servers))
    choice = f"numgen inc mod {len(servers)} map {{ {targets} }}"
    rule = f"ip daddr {address} tcp dport 80 dnat to {choice}"
    hook = "type nat hook output priority -100"
    rules = f"table ip lb {{\n chain out {{\n {hook};\n {rule}\n }}\n}}"
    host.run("nft", rules)
    return lambda: host.run("nft", "delete table ip lb")


def listens(host: Namespace, port: int) -> bool:
    """Whether somebody listens at a TCP port in a namespace."""
    return f":{port} " in host.run("ss", "-Hltn")


@dataclass(frozen=True)
class Calls:
    """What httperf said of a run: times in milliseconds."""

    connections: int
    #: Those with all of their answers.
    answered: int
    mean_ms: float
    median_ms: float
    max_ms: float
    failures: dict[str, int]
    replies_bad: int
    seconds: float
    #: How many connections took how long, of those with an answer: time (rounded down), count.
    times: list[tuple[int, int]]

    @property
    def failed(self) -> int:
        """Connections that lack an answer, whatever the reason."""
        return self.connections - self.answered

    @property
    def honest_mean_ms(self) -> float:
        """The mean where a failed connection counts as the time-out. httperf leaves it out."""
        total = self.mean_ms * self.answered + 1000 * TIMEOUT_S * self.failed
        return total / max(1, self.connections)

    @property
    def honest_times(self) -> list[tuple[int, int]]:
        """The times where a failed connection counts as the time-out. Which of those that had some
        answer failed is not said: the quickest are taken for them."""
        twice = sum(count for _, count in self.times) + self.failed - self.connections
        kept = []
        for time, count in self.times:
            out = min(count, max(0, twice))
            twice -= out
            kept.append((time, count - out))
        return [*kept, (1000 * TIMEOUT_S, self.failed)]


#: The names of httperf's two lines of errors.
_ERRORS = ("client-timo", "socket-timo", "connrefused", "connreset")
_MORE_ERRORS = ("fd-unavail", "addrunavail", "ftab-full", "other")


def httperf(
    client: Namespace,
    address: str,
    connections: int,
    rate: float,
    calls: int = 1,
) -> Calls:
    """A run of httperf from a namespace: so many connections, so many a second, evenly spaced, of
    so many requests one after the other."""
    command = ["ip", "netns", "exec", client.name, "httperf", "--hog", "--verbose", "--verbose"]
    command += ["--server", address, "--port", "80", "--uri", "/object"]
    command += ["--num-calls", str(calls), "--timeout", str(TIMEOUT_S)]
    command += ["--num-conns", str(connections), "--rate", f"{rate:g}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LONGEST_S
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"httperf did not end in {LONGEST_S} s") from error
    if done.returncode != 0:
        raise Failed(f"httperf: status {done.returncode}: {done.stderr.strip()[-500:]}")
    return parse(done.stdout, calls)


def parse(text: str, calls: int = 1) -> Calls:
    """Reads httperf's summary (httperf(1), OUTPUT) of connections of `calls` requests each."""

    def numbers(line: str) -> list[float]:
        found = re.search(rf"^{re.escape(line)}(.*)$", text, re.MULTILINE)
        if found is None:
            raise Failed(f"httperf said nothing of {line!r}:\n{text[-500:]}")
        return [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", found.group(1))]

    total = numbers("Total: connections")
    times = numbers("Connection time [ms]: min")
    status = numbers("Reply status:")
    errors = dict(zip(_ERRORS, numbers("Errors: total")[1:], strict=True))
    errors |= dict(zip(_MORE_ERRORS, numbers("Errors: fd-unavail"), strict=True))
    # "1xx=0 2xx=100 ..": each name has a digit of its own before the count.
    good, replies = int(status[3]), int(sum(status[1::2]))
    connections = int(total[0])
    # An error ends a connection and all that it still lacked; each answer that is missing beyond
    # those is taken for another connection.
    failures = int(sum(errors.values()))
    missing = connections * calls - good
    failed = min(connections, failures + max(0, missing - failures * calls))
    lifetimes = text.partition("Connection lifetime histogram")[2].partition("\n\n")[0]
    bins = re.findall(r"^ +([\d.]+) (\d+)$", lifetimes, re.MULTILINE)
    return Calls(
        connections=connections,
        answered=connections - failed,
        mean_ms=times[1],
        median_ms=times[3],
        max_ms=times[2],
        failures={name: int(count) for name, count in errors.items() if count},
        replies_bad=replies - good,
        seconds=total[-1],
        # Each is of 1 ms, and called by its middle.
        times=[(math.floor(float(middle)), int(count)) for middle, count in bins],
    )


def capacity_per_s(link_bps: float, size: int, calls: int = 1) -> float:
    """Connections a second, of `calls` answers of `size` bytes each, that a link of so many wire
    bits a second can carry."""
    wire = calls * (size + 300) / SEGMENT_PAYLOAD * SEGMENT_WIRE
    return link_bps / 8 / wire


def shared_times_s(connections: int, rate: float, capacity: float) -> list[float]:
    """The times that evenly spaced equal transfers take at best over one link that they share
    alike, in their order: what no choice of a server can better, where the link is what is short.
    `capacity` in transfers a second."""
    done, at = 0.0, 0.0
    times: list[float] = []
    waiting: list[tuple[float, float]] = []  # the link's work for each when it ends, its arrival

    def advance(until: float) -> None:
        nonlocal done, at
        while waiting:
            end, arrived = waiting[0]
            ends_at = at + (end - done) * len(waiting) / capacity
            if ends_at > until:
                break
            done, at = end, ends_at
            heapq.heappop(waiting)
            times.append(at - arrived)
        if waiting:
            done += (until - at) * capacity / len(waiting)
        at = until

    for n in range(connections):
        advance(n / rate)
        heapq.heappush(waiting, (done + 1.0, at))
    while waiting:
        end, arrived = heapq.heappop(waiting)
        at += (end - done) * (len(waiting) + 1) / capacity
        done = end
        times.append(at - arrived)
    return times


class Loads:
    """Each server's 1-minute load average, by the kernel's rule, told to whoever balances."""

    def __init__(self, servers: dict[str, Process], tell: Callable[[str, float], object]) -> None:
        self._servers = servers
        self._tell = tell
        self.loads = dict.fromkeys(servers, 0.0)
        self._over = threading.Event()

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """They are told every 5 s meanwhile."""
        thread = threading.Thread(target=self._work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _work(self) -> None:
        while not self._over.wait(LOAD_EVERY_S):
            for name, process in self._servers.items():
                active = sum(_state(pid) in "RD" for pid in _family(process.pid))
                load = self.loads[name] * LOAD_KEEPS + active * (1 - LOAD_KEEPS)
                self.loads[name] = load
                # A daemon that is ending hears nothing.
                with contextlib.suppress(Failed):
                    self._tell(name, load)


def _family(pid: int) -> list[int]:
    children = run("ps", "-o", "pid=", "--ppid", str(pid), check=False).split()
    return [pid, *map(int, children)]


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return "Z"
