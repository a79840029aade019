"""Levada and its peers behind one interface: the same endpoints, the same addresses.

vde      plain vde_switch, one a host, joined by a cable
bridge   Linux bridge: best effort
htb      the bridge with HTB classes that borrow, on egress and, through IFB, on ingress
rigid    the same without borrowing
ovs      Open vSwitch's userspace datapath; `OvsBalanced` under a controller of services
levada   `levada run`; `OneHost` is one host of it and a bare network outside, `LevadaVde` has
         the endpoints plugged in through its VDE control sockets, `LevadaCluster` a daemon for
         each host
"""

from lab.switches.base import Switch
from lab.switches.bridge import Bridge, Htb, Rigid
from lab.switches.levada import Levada
from lab.switches.levada_cluster import LevadaCluster
from lab.switches.levada_vde import LevadaVde, LevadaVdeUnpaced
from lab.switches.one_host import OneHost
from lab.switches.ovs import Ovs
from lab.switches.ovs_balanced import OvsBalanced
from lab.switches.vde import Vde

__all__ = [
    "Bridge",
    "Htb",
    "Levada",
    "LevadaCluster",
    "LevadaVde",
    "LevadaVdeUnpaced",
    "OneHost",
    "Ovs",
    "OvsBalanced",
    "Rigid",
    "Switch",
    "Vde",
]
