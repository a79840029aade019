"""Replays the transfers of MapReduce jobs over real TCP: `python -m lab.shuffle --help`.

A tool of its own: it needs Linux, Python and, where endpoints are network namespaces, root; nothing
else of the lab. What a job is and the floor below which no network can play it is in `job`, where
jobs come from in `mremu` (traces) and `generate` (from a seed), when what begins in `progress`
(without I/O or clock), and the sockets are in `replay`.
"""
