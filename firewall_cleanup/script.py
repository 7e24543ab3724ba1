"""A plan as a POSIX shell script of standard commands, for a machine where nothing can be installed. Pure.

The script names every object, looks whether it is there before it removes it, and goes on after what it cannot
remove. Its functions are in the files of `shell`; a script has those that it needs.
"""

from __future__ import annotations

import importlib.resources
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ._version import __version__
from .model import (
    Address,
    Backend,
    Family,
    FouPort,
    IpvsService,
    Item,
    Link,
    PolicyRule,
    Route,
    Rule,
    TableChange,
    TableKey,
)
from .ownership import Claims, RuleClaim
from .plan import Plan
from .plan_text import left_lines
from .report import CleanupReport, Status, describe
from .rules import render, tokenize
from .words import count, escape
from .writers_text import boot_lines, writer_lines

__all__ = ["script"]

_HEAD = """\
#!/bin/sh
# Removes from this machine what {components} left in the kernel, and nothing else: {size}.
# Made by firewall-cleanup {version}. Run it as root, in the network namespace that the plan is of: sh FILE
# The plan is of one moment: the less time has passed since, the better. It may be run again, also after a kill.
# Exit status: 0 all of it is gone, 1 something is left, 2 nothing was done: a program is missing, or a right.
#
# Every iptables table is changed in one commit. Its other rules keep their counters; the policies of the built-in
# chains of a legacy table begin to count at zero, as after every command of iptables-legacy.
# shellcheck disable=SC2016,SC2317 # nothing in comments of rules is for the shell; not every plan needs all functions
set -eu
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin
LC_ALL=C
export PATH LC_ALL
"""
_WAIT = "# Seconds to wait for the xtables lock, each time.\nwait={}\n"

_PROGRAMS = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
_FLAGS = {Family.IPV4: "-4", Family.IPV6: "-6"}
_ROUTE_TYPES = {1: "unicast", 2: "local", 6: "blackhole", 7: "unreachable", 8: "prohibit"}
# The files of functions.
_PARTS = ("always", "iptables", "nft", "ipset", "ipvs", "ip")
# A name that stands in a list, one a line; those of the components are all of this kind.
_NAME = re.compile(r"[!-~]+")
_END = "END"


def script(reports: Iterable[CleanupReport], *, wait: float = 30.0) -> str:
    """Return a script that does what dry runs planned, in the order of a cleanup.

    It needs `iptables` of the backends, `nft`, `ipset`, `ipvsadm` and iproute2, as far as the plan has to do with
    them. What the plan leaves stays; the script names it in comments, and then ends with status 1, as the cleanup
    would, unless it is kept for somebody else. Undecodable bytes are surrogate escapes, as in `os.fsdecode`.

    Args:
        reports: reports of dry runs, one for each component.
        wait: seconds to wait for the xtables lock, for each command.

    Raises:
        ValueError: a report is not one of a dry run.

    """
    reports = tuple(reports)
    if not all(report.dry_run for report in reports):
        raise ValueError("reports: expected those of dry runs")
    parts: set[str] = {"always"}
    needs: set[str] = set()
    starts: set[str] = set()
    body: list[str] = []
    for report in reports:
        plan = _Script(report)
        body += plan.lines()
        parts |= plan.parts
        needs |= plan.needs
        starts |= plan.starts
    planned = sum(o.status is Status.PLANNED for report in reports for o in report.outcomes)
    unfinished = sum(len(report.residue) + len(report.gaps) for report in reports)
    head = _HEAD.format(
        components=", ".join(dict.fromkeys(escape(report.component) for report in reports)) or "nothing",
        size=count(planned, "object"),
        version=__version__,
    )
    main = [*sorted(needs), "begin", *sorted(starts), *body, f"finish {unfinished}"]
    return "\n".join(
        (
            head,
            *([_WAIT.format(max(int(wait), 1))] if "iptables" in parts else []),
            *(_functions(name) for name in _PARTS if name in parts),
            "# Nothing is done before the whole script was read.",
            "main() {",
            *main,
            "}\n",
            'main "$@"',
            *_stays(reports),
            "",
        )
    )


def _functions(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("shell", f"{name}.sh").read_text("utf-8")


def _words(*words: object) -> str:
    return " ".join(shlex.quote(str(word)) for word in words)


def _comment(text: str) -> str:
    return f"# {escape(text)}".rstrip()


def _list(command: str, names: Iterable[str]) -> Iterator[str]:
    """Yield a command with a list of names as its input."""
    names = tuple(names)
    if not names:
        return
    for name in names:
        if name == _END or not all(map(_NAME.fullmatch, name.split(" "))):
            raise ValueError(f"{name!r}: not a name that a component gives")
    yield f"{command} <<'{_END}'"
    yield from names
    yield _END


class _Script:
    """The part of a script that does one plan.

    `parts` of the functions, lines that check what it `needs`, and those with which it `starts` are gathered.
    """

    def __init__(self, report: CleanupReport) -> None:
        self.plan = Plan(report.here, report.left)
        self.claims: Claims = report.here
        self.services = self.plan.services()
        self.parts: set[str] = set()
        self.needs: set[str] = set()
        self.starts: set[str] = set()

    def lines(self) -> Iterator[str]:
        """Yield the commands, in the order of a run."""
        yield from self._services()
        change = self.plan.nft_change()
        for table in change.tables:
            yield from self._table(table)
        if change.native_tables:
            self._need("nft", "need nft")
            yield _comment("nftables")
            yield from _list("nft_tables", (f"{table.family} {table.name}" for table in change.native_tables))
        for key in self.plan.legacy_keys():
            yield from self._table(self.plan.table_change(key))
        yield from self._sets()
        yield from self._items()

    def _need(self, part: str, line: str) -> None:
        self.parts.add(part)
        self.needs.add(line)

    def _proving(self, proves: bool) -> str:
        """Return what stands before a command that removes what proves services: they must have gone."""
        return "proves " if proves and self.services else ""

    def _services(self) -> Iterator[str]:
        if not self.services:
            return
        self._need("ipvs", "need ipvsadm")
        self._need("ip", "need_ip")  # tells what kube-proxy serves
        self.starts.add("list_services")
        yield _comment("IPVS")
        for service in self.services:
            place = "first" if self.claims.items[service].first else "last"
            yield f"service {place} {_words(*_service_words(service))}"

    def _table(self, change: TableChange) -> Iterator[str]:
        key = change.key
        program = _PROGRAMS[key.family]
        self._need("iptables", f"need_iptables {program} {key.backend.value}")
        yield _comment(f"iptables {key.family.value} {key.backend.value}, table {key.name}")
        yield f"table {_words(program, key.backend.value, key.name)}"
        gone = set(change.delete)
        yield from _list("chains", change.delete)
        yield from _list("emptied", (name for name in change.flush if name not in gone))
        claims = {id(claim.rule): claim for claim in self.claims.rules.get(key, {}).values()}
        counts = Counter(self._rule_line(key, rule, claims[id(rule)]) for rule in change.rules)
        for (before, words), number in counts.items():
            yield f"{before} {number} {words}" if words else before
        yield "commit"

    def _rule_line(self, key: TableKey, rule: Rule, claim: RuleClaim) -> tuple[str, str]:
        """Return the command that removes a rule: what stands before and after the number of such rules."""
        proves = self._proving(claim.proves_services)
        target = rule.target.name if claim.evidence == "jump" else ""
        text = render(rule)
        if rule.opaque and rule.text is None:
            if target and key.backend is Backend.NFT:
                self._need("iptables", "need nft")
                return f"{proves}jump_by_nft {_words(target)}", _words(rule.chain)
            # iptables could not print it, and without its words it cannot be told from others.
            return f"unnamed {_words(target, rule.chain, text)}", ""
        words = [word for word, _quoted in tokenize(text)][2:]
        command = f"jump {_words(target)}" if target else "rule"
        using = "".join(f"using {_words(name)} " for name in sorted(rule.sets))
        if using:
            self._need("iptables", "need ipset")
            self.starts.add("list_sets")
        return f"{proves}{using}{command}", _words(rule.chain, *words)

    def _sets(self) -> Iterator[str]:
        names = self.plan.set_names()
        if not names:
            return
        self._need("ipset", "need ipset")
        yield _comment("ipset")
        run: list[str] = []
        for name in names:
            if run and self._before_set(run[0]) != self._before_set(name):
                yield from _list(f"{self._before_set(run[0])}sets", run)
                run = []
            run.append(name)
        yield from _list(f"{self._before_set(run[0])}sets", run)

    def _before_set(self, name: str) -> str:
        return self._proving(self.claims.sets[name].proves_services)

    def _items(self) -> Iterator[str]:
        items = self.plan.items()
        if not items:
            return
        self._need("ip", "need_ip")
        yield _comment("policy rules, routes, ports, addresses, links")
        for item in items:
            yield self._proving(self.claims.items[item].proves_services) + _words(*self._item_words(item))

    def _item_words(self, item: Item) -> Sequence[object]:
        if isinstance(item, PolicyRule):
            mark = "" if item.mark is None else f" fwmark {item.mark:#x}"
            selection = f"from {_host(item.source, item.family) if item.source else 'all'}{mark}"
            return "policy_rule", _FLAGS[item.family], item.priority, item.table, selection
        if isinstance(item, Route):
            way = [*(["via", item.gateway] if item.gateway else []), *(["dev", item.device] if item.device else [])]
            kind = _ROUTE_TYPES.get(item.type, str(item.type))
            words = ("route", _FLAGS[item.family], kind, item.destination, item.table, item.protocol, item.metric)
            return *words, *way
        if isinstance(item, FouPort):
            return "fou_port", item.port, *(["-6"] if item.family is Family.IPV6 else [])
        if isinstance(item, Address):
            return "address", _FLAGS[item.family], item.address, item.link
        if isinstance(item, Link):
            asked = bool(self.claims.items[item].ports)
            return "link", item.name, item.kind, item.encap_port, "attached" if asked else "alone"
        raise TypeError(describe(item))  # pragma: no cover - services are not among them


def _service_words(service: IpvsService) -> Sequence[object]:
    if service.mark:
        return "-f", service.mark, *(["-6"] if service.family is Family.IPV6 else [])
    flag = {"tcp": "-t", "udp": "-u"}.get(service.protocol, f"--{service.protocol}-service")
    host = service.address if service.family is Family.IPV4 else f"[{service.address}]"
    return flag, f"{host}:{service.port}"


def _host(network: str, family: Family) -> str:
    """Return a network as `ip` prints it: one address has no length."""
    return network.removesuffix(f"/{family.bits}")


def _stays(reports: Iterable[CleanupReport]) -> Iterator[str]:
    """Yield comments: what stays and why, what could not be looked at, and who writes it again."""
    for report in reports:
        staying = [outcome for outcome in report.remaining if outcome.status is not Status.PLANNED]
        if staying:
            yield _comment(f"{report.component}: stays, and why")
            yield from (_comment(line.plain) for line in left_lines(staying, fold=False))
        if report.gaps:
            yield _comment(f"{report.component}: not examined")
            for gap in report.gaps:
                words = (gap.family and gap.family.value, gap.backend and gap.backend.value, gap.table)
                yield _comment(f"  {' '.join(word for word in words if word) or gap.subsystem}: {gap.reason}")
        if report.notes:
            yield _comment("not removed by this script")
            yield from (_comment(f"  {note}") for note in report.notes)
        yield from (_comment(line.plain) for line in (*writer_lines(report), *boot_lines(report, verbose=True)))
