"""The undo round trip over parts of a node and of its neighbours in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import ALL, clean
from test_kernel_laws import few, load, nodes
from test_undo import backup, put_back, same, wrong

from firewall_cleanup import Controller
from firewall_cleanup.testing.namespaces import Sandbox

pytestmark = [pytest.mark.namespace, pytest.mark.property]

runs = st.one_of(st.just([ALL]), st.permutations(list(Controller)).map(lambda order: [[one] for one in order]))


@few
@given(scene=nodes, seed=st.integers(0, 10**6), selections=runs)
def test_clean_and_restore_give_the_state_from_before(scene, seed, selections):
    """In one run or in several; and a second restore changes nothing."""
    with Sandbox() as sandbox:
        before = load(sandbox, scene, seed)
        for controllers in selections:
            clean(sandbox, controllers, backup=backup(sandbox))
        assert sandbox.state() != before
        assert wrong(put_back(sandbox)) == []
        assert same(sandbox, before)
        again = put_back(sandbox)
        assert (wrong(again), again.changed) == ([], False)
        assert same(sandbox, before)
