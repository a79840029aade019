"""A daemon that starts beside a stray file in a VDE directory: who may plug in there may leave one.

The first daemon makes the directory, somebody leaves a file in it, the daemon ends; the next one
must serve all who have nothing to do with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.net import Failed, Lab
from lab.report import Claim, at_least
from lab.switches.levada import Levada, toml_table
from lab.topology import Endpoint, Host, Tenant, Topology

#: The other tenant, whose two endpoints ping each other.
TOPOLOGY = Topology(
    (Tenant("other"),),
    tuple(Endpoint(f"other{n}", "other", "host") for n in range(2)),
    (Host("host", 1_000_000_000),),
)
_NAME = "oops"


@dataclass(frozen=True)
class Starts:
    """What became of the second daemon."""

    is_ready: bool
    #: What it said where it is not.
    told: str

    def __str__(self) -> str:
        return "the daemon starts" if self.is_ready else f"it does not start: {self.told}"


class BesidePlugs(Levada):
    """A host with a tap of each of the other tenant's endpoints, and a VDE plug of one more."""

    def configuration(self) -> str:
        directory = self.lab.dir / "plugs"
        plug = {"name": "plug", "port": f"vde://{directory}"}
        tenant = toml_table("[switch.tenant]", name="member")
        tables = [tenant, toml_table("[switch.tenant.endpoint]", **plug)]
        return "\n".join([super().configuration(), *tables])

    def start_again(self) -> None:
        """Leaves a file in the directory, ends the daemon, and starts the next one."""
        (self.lab.dir / "plugs" / _NAME).write_text("")
        self.daemon.stop(grace_s=self.stop_grace_s)
        self.processes.clear()
        self.daemon = self._begin(label="levada-again")
        self._meet()


def play(lab: Lab) -> Starts:
    """Starts, ends, and starts again."""
    switch = BesidePlugs(lab, TOPOLOGY)
    with switch.running():
        try:
            switch.start_again()
        except Failed as error:
            return Starts(False, str(error).strip().splitlines()[-1])
    return Starts(True, "")


def claims(starts: Starts) -> list[Claim]:
    """That it starts, and that the others reach each other."""
    return [at_least("stray file: the daemon starts for the others", starts.is_ready, "", 1)]
