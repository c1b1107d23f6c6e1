"""How long the modelled chip would take, what bounds it, and where it waits."""

from __future__ import annotations

from tilesim.timing.device_time import DeviceTime, estimate
from tilesim.timing.timeline import Timeline, timeline

__all__ = ["DeviceTime", "Timeline", "estimate", "timeline"]
