"""Each peer carries traffic between all endpoints of a topology and vanishes afterwards."""

from __future__ import annotations

import itertools
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lab.net import NETNS_DIR, Lab, Namespace, missing_tools
from lab.programs import Missing, program
from lab.switches import Bridge, Htb, Levada, LevadaVde, Ovs, Rigid, Switch, Vde
from lab.switches.bridge import UPLINK
from lab.topology import Endpoint, Host, Tenant, Topology
from lab.workload import TcpFlow

MBIT = 1_000_000

TOPOLOGY = Topology(
    tenants=(Tenant("red", weight=1), Tenant("blue", weight=3)),
    endpoints=(
        Endpoint("red1", "red", "h1"),
        Endpoint("blue1", "blue", "h1"),
        Endpoint("red2", "red", "h2"),
        Endpoint("blue2", "blue", "h2"),
    ),
    hosts=(Host("h1", 100 * MBIT), Host("h2", 100 * MBIT)),
)
THREE_HOSTS = Topology(
    tenants=(Tenant("red", guarantee_bps=30 * MBIT), Tenant("blue", limit_bps=50 * MBIT)),
    endpoints=(
        Endpoint("red1", "red", "h1"),
        Endpoint("red2", "red", "h2"),
        Endpoint("blue1", "blue", "h1"),
        Endpoint("blue3", "blue", "h3"),
    ),
    hosts=(Host("h1", 100 * MBIT), Host("h2", 100 * MBIT), Host("h3", 100 * MBIT, isolates=False)),
)


def levada_is_built() -> bool:
    try:
        program()
    except Missing:
        return False
    return True


def available(kind: type[Switch]) -> bool:
    return not missing_tools(kind.tools) and (levada_is_built() or not issubclass(kind, Levada))


def goodputs(switch: Switch, pairs: dict[str, tuple[str, str]]) -> dict[str, float]:
    """Mbit/s of TCP from each pair, all at once, over two seconds of each while all of them run.
    As they begin one after the other, together they may seem to get a little more than there is.
    Four connections each: one that a busy machine held up finds its rate again in seconds only."""
    flows = [TcpFlow(name, src, dst, streams=4) for name, (src, dst) in pairs.items()]
    for port, flow in enumerate(flows, start=5201):
        flow.begin(switch.guests[flow.src], switch.guests[flow.dst], port, 4)
    return {flow.name: flow.end().goodput_bps(1, 3) / 1e6 for flow in flows}


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("kind", [Vde, Bridge, Htb, Rigid, Ovs, Levada, LevadaVde])
@pytest.mark.parametrize("topology", [TOPOLOGY, THREE_HOSTS], ids=["two-hosts", "three-hosts"])
def test_every_peer_carries_every_tenant(kind: type[Switch], topology: Topology) -> None:
    if not available(kind):
        pytest.skip(f"{kind.name} is not installed")
    with Lab() as lab:
        switch = kind(lab, topology)
        with switch.running():
            red = [e for e in topology.endpoints if e.tenant == "red"]
            out = switch.guests[red[0].name].namespace.run(
                "ping", "-n", "-c2", "-i0.1", "-w10", topology.address(red[1])
            )
            assert "2 received" in out
            assert switch.processes or isinstance(switch, Bridge), "only the kernel has no process"
        assert [p.name for p in NETNS_DIR.glob(f"{lab.tag}-*")] == []


#: A link without a rate carries some Gbit/s. One with 100 Mbit/s seems to carry more on a busy
#: machine, where receivers' seconds do not begin at once, and what had to wait comes in one.
SLACK = 2.0


@pytest.mark.root
@needs_root
def test_htb_has_a_class_for_each_tenant_in_both_directions() -> None:
    """What the classes promise is what the kernel says of them, and each tenant's packets are
    counted in its own. How well HTB shares by them is the kernel's matter, and the machine's."""
    pairs = {"red": ("red1", "red2"), "blue": ("blue1", "blue2")}
    with Lab() as lab:
        for kind, ceils in ((Htb, (100, 100)), (Rigid, (25, 75))):
            switch = kind(lab, TOPOLOGY)
            with switch.running():
                got = goodputs(switch, pairs)
                assert all(0 < got[name] < SLACK * 100 for name in pairs)
                for host, (device, share) in itertools.product(
                    ("h1", "h2"), ((UPLINK, 1.0), ("ifb0", 0.98))
                ):
                    red, blue = classes(switch, host, device)
                    rates = [25 * share, 75 * share]
                    assert [red["rate"], blue["rate"]] == pytest.approx(rates, rel=1e-3)
                    ceilings = [share * ceil for ceil in ceils]
                    assert [red["ceil"], blue["ceil"]] == pytest.approx(ceilings, rel=1e-3)
                    assert red["packets"] > 0
                    assert blue["packets"] > 0


@pytest.mark.root
@needs_root
def test_the_bridge_holds_the_links_rate() -> None:
    with Lab() as lab:
        best_effort = Bridge(lab, TOPOLOGY)
        with best_effort.running():
            got = goodputs(best_effort, {"red": ("red1", "red2"), "blue": ("blue1", "blue2")})
            assert 0 < got["blue"] + got["red"] < SLACK * 100


def classes(switch: Switch, host: str, device: str) -> list[dict[str, float]]:
    """Rate and ceiling in Mbit/s and packets of the classes of red and blue on a device of a host,
    as tc-htb(8) shows them (it has no JSON for them in Debian 12)."""
    space = Namespace(switch.lab, f"{switch.lab.tag}-host-{host}")
    shown = space.tc(f"-s class show dev {device}")
    unit = {"K": 1e-3, "M": 1.0, "G": 1e3, "": 1e-6}
    found = []
    for number in (10, 11):
        text = shown.split(f"class htb 1:{number} ")[1].split("class htb")[0]
        numbers = dict[str, float]()
        for key in ("rate", "ceil"):
            value = re.search(rf"\b{key} ([\d.]+)([KMG]?)bit", text)
            assert value, text
            numbers[key] = float(value[1]) * unit[value[2]]
        packets = re.search(r"Sent \d+ bytes (\d+) pkt", text)
        assert packets, text
        found.append(numbers | {"packets": float(packets[1])})
    return found


def configuration(topology: Topology, order: str = "fair") -> Any:  # noqa: ANN401 - TOML is of any shape
    lab = Lab()  # not entered: nothing is made
    switch = Levada(lab, topology, order)
    switch.guests = {e.name: _Nowhere(e.name) for e in topology.endpoints}  # type: ignore[misc]
    return tomllib.loads(switch.configuration())


class _Nowhere:
    """A guest whose namespace is only a name."""

    def __init__(self, name: str) -> None:
        self.namespace = self
        self.name = f"ns-{name}"


def test_levada_configuration_of_two_hosts() -> None:
    config = configuration(TOPOLOGY, order="wf2q")
    h1, h2 = config["switch"]
    assert h1["uplink"] == {
        "port": "link://fabric/a",
        "rate": {"egress": "100000000 bit/s", "ingress": "100000000 bit/s"},
        "mtu": 1500,
    }
    assert h2["uplink"]["port"] == "link://fabric/b"
    assert h1["order"] == "wf2q"
    assert [(t["name"], t["vlan"], t["weight"]) for t in h1["tenant"]] == [
        ("red", 10, 1),
        ("blue", 20, 3),
    ]
    (endpoint,) = h2["tenant"][1]["endpoint"]
    assert endpoint["port"] == "tap://blue2"
    assert endpoint["netns"] == "ns-blue2"
    assert endpoint["mac"] == "02:00:00:00:02:02"
    assert endpoint["address"] == ["10.2.0.2/24"]


def test_levada_configuration_of_three_hosts_has_a_fabric() -> None:
    config = configuration(THREE_HOSTS)
    h1, _, h3, fabric = config["switch"]
    assert h1["tenant"][0]["guarantee"] == "30000000 bit/s"
    assert "limit" not in h3["tenant"][0], "h3 does nothing for its tenants"
    assert "uplink" not in fabric
    ports = fabric["tenant"][0]["endpoint"]
    assert [p["port"] for p in ports] == ["link://h1/b", "link://h2/b", "link://h3/b"]
    assert all(p["trunk"] is True for p in ports)
    assert [link["name"] for link in config["link"]] == ["h1", "h2", "h3"]


def test_a_missing_program_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVADA", "/nowhere/levada")
    with pytest.raises(Missing, match=r"/nowhere/levada.*cargo build --release"):
        program()
    assert not Path("/nowhere").exists()
