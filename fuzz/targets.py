"""Every campaign."""

from __future__ import annotations

from fuzz import client, fleet, replica, session, slotctl, state

TARGETS = {module.TARGET.name: module.TARGET for module in (client, replica, fleet, state, session, slotctl)}
