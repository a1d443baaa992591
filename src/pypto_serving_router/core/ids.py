"""The names things go by."""

from typing import NewType

HostId = NewType("HostId", str)
"""A machine the router may launch on: the `name` of a `hosts` entry."""

SlotId = NewType("SlotId", str)
"""One device group of a host: `<host>-d<first device>`."""

ReplicaId = NewType("ReplicaId", str)
"""One replica in the routing table: its `name`, or the id of the slot it was launched on."""

SessionId = NewType("SessionId", str)
"""One conversation."""
