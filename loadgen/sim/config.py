"""Placeholder until the simulator's settings move here from its scheduler and server (same names)."""

import msgspec


class SimConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str = "sim"


class SimFaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    error_rate: float = 0.0
