"""Files of a component: found line by line, and no trouble where one may not look."""

from __future__ import annotations

from pathlib import Path

import pytest

from firewall_cleanup.components.kube_router_host import FILES
from firewall_cleanup.handlers._root import Root
from firewall_cleanup.handlers.files import find_traces


def test_whole_lines_and_files_are_found(tmp_path: Path) -> None:
    tables = tmp_path / "etc/iproute2/rt_tables"
    tables.parent.mkdir(parents=True)
    tables.write_text("255 local\n77\tkube-router\n# 78 kube-router-dsr\n779 external_ip\n")
    conf = tmp_path / "etc/cni/net.d/10-kuberouter.conflist"
    conf.parent.mkdir(parents=True)
    conf.touch()
    lines = list(find_traces(FILES, Root(tmp_path)))

    assert [line.split(": ")[0] for line in lines] == [f"{tables}:2", str(conf)]
    assert tables.read_text().startswith("255")


def test_a_folder_that_may_not_be_searched_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Root, path: str, flags: int = 0) -> int:
        raise PermissionError(13, "no", path)

    monkeypatch.setattr(Root, "open", refuse)

    assert list(find_traces(FILES, Root(tmp_path))) == []
