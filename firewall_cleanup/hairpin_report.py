"""What became of the hairpin mode of ports: one outcome per port, or per reason why there is none."""

from __future__ import annotations

import enum
from typing import Any

import attrs

__all__ = ["HairpinOutcome", "HairpinReport", "HairpinStatus"]


class HairpinStatus(enum.Enum):
    """What became of one port, or why there is none."""

    ENABLED = "enabled"
    """It was off, and this call turned it on and noted that."""

    ON = "already-on"
    PUT_BACK = "put-back"
    """It was turned on by an earlier call, and is off again."""

    PLANNED = "planned"
    """It would be put back (dry run)."""

    HOST_NETWORK = "host-network"
    """The pod is in the network namespace of the node: there is no port, and none is needed."""

    ELSEWHERE = "elsewhere"
    """The endpoint is not on this node."""

    GONE = "gone"
    """The port was found, and went away meanwhile."""

    JOINS = "joins-bridges"
    """Both ends of the link are ports on this node: it joins two bridges, leads to no pod, and is left alone."""

    NOT_FOUND = "not-found"
    """There is no such interface, process, namespace or endpoint."""

    NO_BRIDGE = "no-bridge"
    """There is no such bridge, or the link of this name is none."""

    NOT_A_PORT = "not-a-port"
    NOT_VETH = "not-veth"
    AMBIGUOUS = "ambiguous"
    """Several pods have the address."""

    DENIED = "denied"
    FAILED = "failed"

    @property
    def ok(self) -> bool:
        """Whether the state is as wanted, or nothing was to be done."""
        return self in _GOOD


_GOOD = frozenset(
    {
        HairpinStatus.ENABLED,
        HairpinStatus.ON,
        HairpinStatus.PUT_BACK,
        HairpinStatus.PLANNED,
        HairpinStatus.HOST_NETWORK,
        HairpinStatus.ELSEWHERE,
        HairpinStatus.GONE,
        HairpinStatus.JOINS,
    }
)
_CHANGED = frozenset({HairpinStatus.ENABLED, HairpinStatus.PUT_BACK})


@attrs.frozen
class HairpinOutcome:
    """What became of one port; of a target without one, `interface` is None, and `reason` says more."""

    status: HairpinStatus
    interface: str | None = None
    """The name of the port in the namespace of the bridge."""

    index: int | None = None
    bridge: str | None = None
    pod_interface: str | None = None
    """The name of the other end in its own namespace, if that may be asked for."""

    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON has it."""
        return {
            "status": self.status.value,
            "interface": self.interface,
            "index": self.index,
            "bridge": self.bridge,
            "pod_interface": self.pod_interface,
            "reason": self.reason,
        }


@attrs.frozen
class HairpinReport:
    """The result of `ensure_hairpin` or `undo_hairpin`. `target` is what was asked for, in words."""

    target: str
    outcomes: tuple[HairpinOutcome, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the state is as wanted."""
        return all(outcome.status.ok for outcome in self.outcomes)

    @property
    def changed(self) -> bool:
        """Whether anything was changed."""
        return any(outcome.status in _CHANGED for outcome in self.outcomes)

    @property
    def exit_code(self) -> int:
        """0 if the state is as wanted, else 1."""
        return int(not self.ok)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it; documented in docs/json.md, `version` changes when a reader must."""
        return {
            "version": 1,
            "target": self.target,
            "ok": self.ok,
            "changed": self.changed,
            "outcomes": [outcome.to_dict() for outcome in self.outcomes],
        }
