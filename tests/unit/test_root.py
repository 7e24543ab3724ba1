"""Another root: links in it stay in it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firewall_cleanup import RootError, check
from firewall_cleanup.handlers._root import Root, names_in


def test_links_lead_to_where_they_would_lead_inside(tmp_path: Path) -> None:
    outside, inside = tmp_path / "secret", tmp_path / "root"
    outside.write_text("outside")
    (inside / "etc/iptables").mkdir(parents=True)
    (inside / "secret").write_text("inside")
    links = {"absolute": "/secret", "up": "../../../../secret", "long": "/etc/iptables/absolute", "out": str(outside)}
    for name, target in links.items():
        (inside / "etc/iptables" / name).symlink_to(target)
    (inside / "etc/folder").symlink_to("/etc/iptables")
    with Root(inside) as root:
        assert [root.read(f"/etc/iptables/{name}") for name in ("absolute", "up", "long")] == ["inside"] * 3
        assert root.read("/etc/folder/./../iptables//up") == "inside"
        assert root.glob("/etc/folder/a*") == ["/etc/folder/absolute"]
        assert not root.exists("/etc/iptables/out")
        assert root.shown("/etc/x") == f"{inside}/etc/x"


def test_a_folder_by_any_name_can_be_listed(tmp_path: Path) -> None:
    """Also one that is reached last by a dot, two of them, or the root itself: by itself or at the end of a link."""
    (tmp_path / "etc/ipset.d/in").mkdir(parents=True)
    (tmp_path / "etc/ipset.d/a.set").write_text("x")
    links = {
        "dot": "ipset.d/.",
        "up": "ipset.d/in/..",
        "root": "/",
        "self": ".",
        "slash": "ipset.d/",
        "far": "/../..",
    }
    for name, target in links.items():
        (tmp_path / "etc" / name).symlink_to(target)
    (tmp_path / "etc/again").symlink_to("up")
    (tmp_path / "etc/both").symlink_to("self/root/etc/self/dot")
    folder, root_folder, etc = ["a.set", "in"], ["etc"], sorted([*links, "again", "both", "ipset.d"])
    paths = {
        **dict.fromkeys(("etc/dot", "etc/up", "etc/slash", "etc/again", "etc/both", "/etc/ipset.d/in/.."), folder),
        **dict.fromkeys(("etc/dot/", "etc/up/.", "etc//ipset.d/./", "/etc/ipset.d"), folder),
        **dict.fromkeys(("etc/root", "etc/far", "", "/", ".", "..", "/..", "etc/..", "etc/self/.."), root_folder),
        **dict.fromkeys(("etc/self", "etc/ipset.d/..", "etc/."), etc),
    }
    with Root(tmp_path) as root:
        for path, expected in paths.items():
            descriptor = root.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                assert sorted(names_in(descriptor)) == expected, path
                assert not os.get_inheritable(descriptor)
            finally:
                os.close(descriptor)
        assert root.glob("/etc/up/*.set") == ["/etc/up/a.set"]
        assert root.glob("/etc/self/*.d") == ["/etc/self/ipset.d"]
        with pytest.raises(OSError, match="regular"):
            root.read("/etc/self")


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    with Root(tmp_path) as root:
        for name in ("pipe", "a", "folder", "device", "none", "pipe/none"):
            with pytest.raises(OSError, match=r"regular|links|directory"):
                root.read(name)
        with pytest.raises(OSError, match="links"):
            root.exists("a")


@pytest.mark.parametrize("path", ["/no/such/root", "/dev/null", "a\0b", ""])
def test_what_is_no_root(path: str) -> None:
    with pytest.raises(RootError, match=r"root.*: .*; give the folder"):
        check(root=path)


NAMES = st.sampled_from(["a", "b", "c", "..", "."])
PATHS = st.lists(NAMES, min_size=1, max_size=5).map("/".join)
TARGETS = PATHS | PATHS.map("/{}".format) | st.just("/proc/self/root/etc")


@pytest.mark.property
@given(st.dictionaries(PATHS, TARGETS | st.none(), max_size=8), PATHS)
def test_nothing_outside_is_ever_opened(tree: dict[str, str | None], path: str) -> None:
    """Whatever links there are: what is opened is below the root, or the root itself."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(os.path.realpath(name)) / "x/y/root"
        base.mkdir(parents=True)
        for place, target in tree.items():
            there = Path(os.path.normpath(f"/{place}"))
            file = base / there.relative_to("/")
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.mkdir() if target is None else file.symlink_to(target)
            except OSError:
                continue
        with Root(base) as root:
            try:
                descriptor = root.open(path)
            except OSError:
                return
            try:
                opened = Path(f"/proc/self/fd/{descriptor}").readlink()
            finally:
                os.close(descriptor)
        assert opened == base or base in opened.parents
        shutil.rmtree(base)
