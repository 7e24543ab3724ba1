"""What was found and done for service addresses: one outcome per address, one for the device."""

from __future__ import annotations

import enum
from typing import Any

import attrs

from .model import Family

__all__ = ["AddressOutcome", "AddressStatus", "DeviceStatus", "ServiceAddressReport"]


class AddressStatus(enum.Enum):
    """What became of an address: first what `ensure_service_address` says, then what its undoing says, or both."""

    PRESENT = "present"
    ADDED = "added"
    REPAIRED = "repaired"
    REMOVED = "removed"
    ABSENT = "absent"
    FOREIGN = "foreign"
    FAILED = "failed"


class DeviceStatus(enum.Enum):
    """What became of the device. `IN_USE`: we made it, and it stays, because others put addresses on it."""

    PRESENT = "present"
    CREATED = "created"
    REPAIRED = "repaired"
    REMOVED = "removed"
    ABSENT = "absent"
    IN_USE = "in-use"
    FAILED = "failed"


@attrs.frozen
class AddressOutcome:
    """What became of one address.

    `changes` are the single things that were done, in their order; `notes` what a person should know though the state
    is as wanted; `reason` is why it is not, None unless `status` is `FAILED`.
    """

    family: Family
    address: str
    status: AddressStatus
    reason: str | None = None
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON has it."""
        return {
            "family": self.family.value,
            "address": self.address,
            "status": self.status.value,
            "reason": self.reason,
            "changes": list(self.changes),
            "notes": list(self.notes),
        }


@attrs.frozen
class ServiceAddressReport:
    """The result of ensuring or removing service addresses.

    `device_status` and `device_reason` are about the device; its trouble makes every address that needs it fail too.
    """

    device: str
    device_status: DeviceStatus
    addresses: tuple[AddressOutcome, ...]
    device_reason: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the state is as wanted."""
        device = self.device_status not in {DeviceStatus.FAILED, DeviceStatus.IN_USE}
        return device and all(outcome.status is not AddressStatus.FAILED for outcome in self.addresses)

    @property
    def changed(self) -> bool:
        """Whether anything was changed."""
        unchanged = {DeviceStatus.PRESENT, DeviceStatus.ABSENT, DeviceStatus.IN_USE, DeviceStatus.FAILED}
        return self.device_status not in unchanged or any(outcome.changes for outcome in self.addresses)

    @property
    def exit_code(self) -> int:
        """0 if the state is as wanted, 1 if not."""
        return int(not self.ok)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the state is not as wanted, each reason once with what it is about."""
        found = [] if self.device_reason is None else [f"{self.device}: {self.device_reason}"]
        return (
            *found,
            *(
                f"{outcome.address} on {self.device}: {outcome.reason}"
                for outcome in self.addresses
                if outcome.reason is not None and outcome.reason != self.device_reason
            ),
        )

    @property
    def said(self) -> tuple[object, ...]:
        """What a person is told of a state that was not changed: a loop tells it once."""
        return self.ok, self.problems, self.notes, *(outcome.notes for outcome in self.addresses)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it; `version` changes when a reader must."""
        return {
            "version": 1,
            "ok": self.ok,
            "changed": self.changed,
            "device": {
                "name": self.device,
                "status": self.device_status.value,
                "reason": self.device_reason,
                "notes": list(self.notes),
            },
            "addresses": [outcome.to_dict() for outcome in self.addresses],
        }
