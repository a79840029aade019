"""The experiments that `lab/run` knows: name on the command line, and module.

A module has `SUMMARY`, a line, and `run(lab, quick, out) -> Report`, which may leave plots in
`out`. One with several parts names them in `PARTS`; its `run` takes `only`, one of them, too.
Adding one is adding a line here.
"""

EXPERIMENTS = {
    "attacks": "lab.experiments.attacks",
    "bond-cost": "lab.experiments.bond_cost",
    "bonding": "lab.experiments.bonding",
    "bystander": "lab.experiments.bystander",
    "convergence": "lab.experiments.convergence",
    "convergence-live": "lab.experiments.convergence_live",
    "fs-vde": "lab.experiments.fs_vde",
    "fs-vde-vde": "lab.experiments.fs_vde_vde",
    "gatekeeper-fig5": "lab.experiments.gatekeeper_fig5",
    "gatekeeper-fig6": "lab.experiments.gatekeeper_fig6",
    "gatekeeper-fig7": "lab.experiments.gatekeeper_fig7",
    "gatekeeper-one-host": "lab.experiments.gatekeeper_one_host",
    "lacp-vm": "lab.experiments.lacp_vm",
    "lb-churn": "lab.experiments.lb_churn",
    "lb-failover": "lab.experiments.lb_failover",
    "lb-fig2": "lab.experiments.lb_fig2",
    "lb-fig3": "lab.experiments.lb_fig3",
    "lb-fig4": "lab.experiments.lb_fig4",
    "lb-fig5": "lab.experiments.lb_fig5",
    "lb-herd": "lab.experiments.lb_herd",
    "lb-hold": "lab.experiments.lb_hold",
    "lb-mixed": "lab.experiments.lb_mixed",
    "lb-published": "lab.experiments.lb_published",
    "lb-rate": "lab.experiments.lb_rate",
    "lb-refused": "lab.experiments.lb_refused",
    "openflow-rate": "lab.experiments.openflow_rate",
    "other-receivers": "lab.experiments.other_receivers",
    "own-traffic": "lab.experiments.own_traffic",
    "queue-size": "lab.experiments.queue_size",
    "reload": "lab.experiments.reload",
    "restart": "lab.experiments.restart",
    "scale": "lab.experiments.scale",
    "systemd": "lab.experiments.systemd",
    "vcc-cheat": "lab.experiments.vcc_cheat",
    "vcc-cost": "lab.experiments.vcc_cost",
    "vcc-fig1": "lab.experiments.vcc_fig1",
    "vcc-incast": "lab.experiments.vcc_incast",
    "vcc-unfair": "lab.experiments.vcc_unfair",
    "vm": "lab.experiments.vm",
    "vm-hostile": "lab.experiments.vm_hostile",
}
