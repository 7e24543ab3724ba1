"""The demonstration: a node that ran kube-router, in a network namespace that is thrown away afterwards.

`examples/demo` installs what is missing and starts this. Exit status: 0 it went as promised, 1 it did not, 3 this
user may not make such a namespace.
"""

from __future__ import annotations

import argparse
import difflib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from firewall_cleanup import Backend, Family
from firewall_cleanup.testing.foreign import foreign_nft, foreign_rules, foreign_sets, interleave
from firewall_cleanup.testing.namespaces import NotAvailable, Sandbox, State
from firewall_cleanup.testing.node import Node

BACKENDS = {"nft": (Backend.NFT,), "legacy": (Backend.LEGACY,), "both": (Backend.NFT, Backend.LEGACY)}
NODE = Node(default_deny=True)
OLDER = Node(nft_netpol=True)  # before, this node had its network policies in nftables
_WIDTH = 112


def fill(sandbox: Sandbox, backends: Sequence[Backend], *, kube_router: bool = True) -> State:
    """Load Docker, ufw, firewalld, kube-proxy and so on, with kube-router between them unless told otherwise."""
    sandbox.load_sets((NODE.ipsets() + NODE.temporary_sets() if kube_router else "") + foreign_sets())
    sandbox.load_tables((OLDER.nft_tables() if kube_router else "") + foreign_nft())
    for backend in backends:
        for family in Family:
            rules = foreign_rules(family.value, backend.value)
            if kube_router:
                rules = interleave(NODE.iptables_save(family.value), rules)
            sandbox.load_rules(rules, family, backend)
    return sandbox.state()


def show(state: State) -> None:
    """Print how much there is: chains and rules by tool and table, sets, native tables."""
    for tool, text in state.rules.items():
        chains, rules, table = Counter[str](), Counter[str](), ""
        for line in text.splitlines():
            if line.startswith("*"):
                table = line[1:]
            elif line.startswith(":"):
                chains[table] += 1
            elif line.startswith("["):
                rules[table] += 1
        if chains:
            tables = ", ".join(f"{table} {chains[table]}/{rules[table]}" for table in chains)
            print(f"  {tool:<21} {tables}  (chains/rules)")
    for family, inet in ((Family.IPV4, " inet "), (Family.IPV6, " inet6 ")):
        found = [line for line in state.sets.splitlines() if line.startswith("create ") and inet in line]
        print(f"  ipsets, {family.value:<13} {len(found)}")
    names = [line.split()[1:3] for line in state.native.splitlines() if line.startswith("table ")]
    for label, name in zip(("nftables", *[""] * len(names)), names, strict=False):
        print(f"  {label:<21} {' '.join(name)}")


def short(lines: Iterable[str]) -> Iterator[str]:
    """Cut lines to fit a terminal, but not the evidence at their end."""
    for line in lines:
        text, mark, evidence = line.partition("  [")
        room = _WIDTH - len(mark + evidence)
        yield (text if len(text) <= room else f"{text[: room - 1]}…") + mark + evidence


def fold(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, but of items, which are indented by six, only the first with each kind of evidence."""
    kinds = Counter[str]()
    for line in (*lines, ""):
        if line.startswith("      "):
            kind = " ".join(line.partition("  [")[2].split()[:2])
            kinds[kind] += 1
            if kinds[kind] == 1:
                yield line
            continue
        if kinds.total() > len(kinds):
            yield f"      … {kinds.total() - len(kinds)} more"
        kinds.clear()
        if line:
            yield line


def say(title: str) -> None:
    """Print a heading."""
    print(f"\n== {title}", flush=True)


def run(sandbox: Sandbox, *options: str) -> None:
    """Run the command inside the namespace and print what it prints, long lists folded."""
    print(f"$ firewall-cleanup {' '.join(options)}", flush=True)
    done = sandbox.run([sys.executable, "-m", "firewall_cleanup", *options], check=False)
    for line in (*short(fold(done.stdout.splitlines())), *done.stderr.splitlines()):
        print(f"  {line}")
    if done.returncode:
        raise SystemExit(f"it ended with status {done.returncode}")


def compare(after: State, expected: State) -> bool:
    """Print the differences, part by part, and return whether there are none."""
    parts = {
        **{f"{tool} -c": (expected.rules[tool], after.rules[tool]) for tool in expected.rules},
        "ipset save": (expected.sets, after.sets),
        "nftables": (expected.native, after.native),
    }
    same = True
    for name, (wanted, found) in parts.items():
        if not wanted and not found:
            continue
        lines = wanted.splitlines()
        difference = list(difflib.unified_diff(lines, found.splitlines(), "never", "cleaned", lineterm="", n=1))
        print(f"  {name:<24} {'DIFFERENT' if difference else f'identical, {len(lines)} lines'}")
        for line in difference:
            print(f"    {line}")
        same = same and not difference
    return same


def demonstrate(backends: Sequence[Backend]) -> bool:
    """Fill, look, clean, look again, compare; return whether the rest is the same."""
    with Sandbox() as sandbox:
        say("A throw-away network namespace: kube-router's state between that of others, IPv4 and IPv6")
        before = fill(sandbox, backends)
        show(before)
        print("  Some of it:")
        rules = [line for line in before.lines(backends[0]) if " -A FORWARD " in line]
        first = next(i for i, line in enumerate(rules) if line.endswith("-j KUBE-ROUTER-FORWARD"))
        for line in short(rules[max(first - 2, 0) : first + 3]):
            print(f"    {line}")

        say("What would be removed")
        run(sandbox, "--cleanup-config", "--dry-run")
        if sandbox.state() != before:
            raise SystemExit("the dry run has changed something")

        say("Remove it, and say why each object is kube-router's")
        run(sandbox, "--cleanup-config", "-v")

        say("Afterwards")
        after = sandbox.state()
        show(after)

        say("Compared with a namespace that never had kube-router: rules, their order and counters, sets, tables")
        with Sandbox() as other:
            same = compare(after, fill(other, backends, kube_router=False))

        say("A second run")
        run(sandbox, "--cleanup-config")
        same = same and sandbox.state() == after
    say("The namespaces are gone. " + ("All of kube-router's state was removed, nothing else." if same else "FAILED"))
    return same


def main() -> int:
    """Run the demonstration and return the exit status."""
    parser = argparse.ArgumentParser(prog="examples/demo", description=__doc__, allow_abbrev=False)
    parser.add_argument("--backend", choices=BACKENDS, default="nft", help="which iptables the node used")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return 0 if demonstrate(BACKENDS[args.backend]) else 1
    except KeyboardInterrupt:
        say("Stopped. The namespaces are gone.")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # whoever read this has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except NotAvailable as reason:
        print(f"demo: {reason}", file=sys.stderr)
    except subprocess.CalledProcessError as error:
        print(f"demo: this kernel or user cannot load the node: {error.stderr.strip()}", file=sys.stderr)
    return 1 if os.geteuid() == 0 else 3


if __name__ == "__main__":
    sys.exit(main())
