"""The client, the leader and the controller's threads, against stubs: what a real API server cannot be made to do."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml
from lightkube.config.client_adapter import BearerTokenFileAuth

from firewall_cleanup.exposure.client import ApiError, Client, ClusterConfigError, Unreachable, WatchEvent
from firewall_cleanup.exposure.controller import ControllerSettings, ExposureController
from firewall_cleanup.exposure.interrupt import Stopped, stop_by_signal, stoppable
from firewall_cleanup.exposure.leader import Leader, unique_identity


@attrs.define
class Answer:
    status_code: int
    body: Any

    @property
    def text(self) -> str:
        return json.dumps(self.body)


@attrs.define
class Http:
    """Gives one answer after the other, and keeps what was asked for."""

    answers: list[Answer]
    asked: list[dict[str, Any]] = attrs.field(factory=list)

    def request(self, method: str, path: str, *, params: dict[str, Any], **_more: Any) -> Answer:
        self.asked.append(dict(params))
        return self.answers.pop(0)


def page(more: str, *names: str) -> Answer:
    items = [{"metadata": {"name": each}} for each in names]
    return Answer(200, {"kind": "NodeList", "apiVersion": "v1", "metadata": {"continue": more}, "items": items})


def test_all_pages_of_a_list_are_read() -> None:
    http = Http([page("1", "a", "b"), page("2", "c"), page("", "d")])
    found = Client(http, "https://x").list("/api/v1/nodes")
    assert [each["metadata"]["name"] for each in found] == ["a", "b", "c", "d"]
    assert {each["kind"] for each in found} == {"Node"}
    assert [each.get("continue") for each in http.asked] == [None, "1", "2"]


def test_a_refusal_has_the_same_words_each_time() -> None:
    """It goes into the status: other words are a change, which is an event, which calls for the next try."""
    said = "Post https://w: read tcp 10.0.0.1:{}->[fd00::1]:443: connection reset by peer"
    texts = set()
    for port in (40001, 40002):
        with pytest.raises(ApiError) as caught:
            Client(Http([Answer(500, {"message": said.format(port)})]), "https://x").get("/x")
        texts.add(str(caught.value))
    assert texts == {said.replace(":{}", "")}


def test_pages_that_are_too_old_are_read_from_the_start() -> None:
    gone = Answer(410, {"reason": "Expired", "message": "The provided continue parameter is too old"})
    http = Http([page("1", "a"), gone, page("1", "x"), page("", "y")])
    found = Client(http, "https://x").list("/api/v1/nodes")
    assert [each["metadata"]["name"] for each in found] == ["x", "y"]
    assert [each.get("continue") for each in http.asked] == [None, "1", None, "1"]


# credentials that fail while it runs


def client(folder: Path, user: dict[str, Any]) -> Client:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return Client.open(folder / "kubeconfig")


@pytest.mark.parametrize(
    "printed",
    ["no JSON", "[]", "{}", '{"status": {}}', '{"status": null}', r"\0377"],
    ids=["text", "list", "nothing", "no token", "null", "no text"],
)
def test_a_plugin_that_gives_no_token(tmp_path: Path, printed: str) -> None:
    """As one that gives a certificate, which is not known here."""
    plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "printf", "args": ["%b", printed]}
    found = client(tmp_path, {"exec": plugin})
    for ask in (lambda: found.get("/version"), found.check_ready, lambda: list(found.watch("/version", None, 1))):
        with pytest.raises(ClusterConfigError, match=r"^https://127\.0\.0\.1:1: what the kubeconfig names"):
            ask()
    found.close()


def test_a_token_that_cannot_be_read_for_a_moment(tmp_path: Path) -> None:
    found = client(tmp_path, {"token": "x"})
    found._http.auth = BearerTokenFileAuth(str(tmp_path))  # a folder: an OSError even for root
    for ask in (lambda: found.get("/version"), found.check_ready, lambda: list(found.watch("/version", None, 1))):
        with pytest.raises(Unreachable, match="Is a directory"):
            ask()
    found.close()


# the Lease


@attrs.define
class LeaseClient:
    """A Lease in memory. `before` is called in the middle of each write of the leader's own thread."""

    lease: dict[str, Any] | None = None
    before: Callable[[], None] = lambda: None

    def get(self, path: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = json.loads(json.dumps(self.lease))
        return found

    def replace(self, path: str, body: dict[str, Any]) -> None:
        if threading.current_thread().name == "lease":
            self.before()
        self.lease = body

    def create(self, path: str, body: dict[str, Any]) -> None:
        self.replace(path, body)


def lease_of(holder: str) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}}


def leader(client: Any, **more: Any) -> Leader:
    return Leader(client, "kube-system", "lease", "a", retry=0.01, **more)


def test_a_lease_is_given_up_after_the_last_try() -> None:
    """A try that is under way while it stops must not take it again afterwards."""
    trying, given_up = threading.Event(), threading.Event()

    def slow() -> None:
        trying.set()
        assert found._stop.wait(10)
        given_up.wait(0.2)  # which it is not while this try is under way

    class Watched(LeaseClient):
        def replace(self, path: str, body: dict[str, Any]) -> None:
            super().replace(path, body)
            if body["spec"]["holderIdentity"] == "":
                given_up.set()

    stub = Watched(lease_of("a"), slow)
    found = leader(stub)
    found._renewed = float("inf")  # it holds it
    thread = found.start()
    assert trying.wait(10)
    found.stop()
    thread.join(10)
    assert (stub.lease or {})["spec"]["holderIdentity"] == ""
    assert not found.held()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PermissionError("token"), 1),
        (KeyError("spec"), 1),
        (ApiError(403, "Forbidden", "forbidden"), 1),
        (ApiError(409, "Conflict", "another was faster"), 0),
    ],
)
def test_no_error_ends_the_leader(error: Exception, told: int, caplog: pytest.LogCaptureFixture) -> None:
    """It leads when that is over; and it is told once what keeps it from that."""
    caplog.set_level(logging.INFO)
    led = threading.Event()

    class Failing(LeaseClient):
        left = 3

        def get(self, path: str) -> dict[str, Any] | None:
            if Failing.left:
                Failing.left -= 1
                raise error
            return super().get(path)

    found = leader(Failing(lease_of("")), changed=led.set)
    thread = found.start()
    assert led.wait(10)
    assert (thread.is_alive(), found.held()) == (True, True)
    found.stop()
    assert caplog.text.count("the lease kube-system/lease: ") == told


def test_two_instances_have_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers of one image, in the network of hosts that are all called the same."""
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    first, second = unique_identity(), unique_identity()
    assert first != second
    assert first.startswith("localhost_")


# the controller


class Stub:
    """A Client whose watches are given, one after the other."""

    def __init__(self, *watches: Callable[[], Iterator[WatchEvent]]) -> None:
        self.watches = list(watches)

    def watch(self, path: str, labels: Any, seconds: int) -> Iterator[WatchEvent]:
        return self.watches.pop(0)()


class NoTime(threading.Event):
    """Waits for nothing."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def controller(*watches: Callable[[], Iterator[WatchEvent]]) -> ExposureController:
    found = ExposureController(Stub(*watches), ControllerSettings())  # type: ignore[arg-type]
    found._stop = NoTime()
    return found


@pytest.mark.parametrize("error", [Unreachable("away"), ApiError(500, "x", "y"), KeyError("odd"), RuntimeError("z")])
def test_a_watch_goes_on_and_calls_for_a_pass_after_it_broke(error: Exception) -> None:
    """What happened while it was away was told by no event."""
    due: list[bool] = []

    def breaking() -> Iterator[WatchEvent]:
        yield WatchEvent("OPEN")
        found._due.clear()
        raise error

    def opening() -> Iterator[WatchEvent]:
        yield WatchEvent("OPEN")
        due.append(found._due.is_set())
        found._stop.set()

    found = controller(breaking, opening)
    found._watch("/x", {})
    assert due == [True]


def test_a_thread_that_has_ended_is_no_health() -> None:
    found = controller()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="lease")
    thread.start()
    found.threads.append(thread)
    assert found.health()[0]
    end.set()
    thread.join()
    well, told = found.health()
    assert (well, told["trouble"]) == (False, "threads have ended: lease")


def test_a_pass_that_fails_oddly_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    trouble: list[str | None] = []

    def run_pass(self: ExposureController) -> float:
        trouble.append(self._trouble)
        if len(trouble) == 2:
            self.stop()
            return 0.0
        raise KeyError("odd")

    monkeypatch.setattr(ExposureController, "run_pass", run_pass)
    found = controller()
    monkeypatch.setattr(ExposureController, "_watched", lambda _self: [])
    found._due = NoTime()
    found.run()
    assert trouble == [None, "unexpected KeyError: 'odd'"]


@attrs.define
class Waits:
    """An Event that notes how long it was waited for, and is set after so many waits."""

    most: int
    waits: list[float] = attrs.field(factory=list)

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return self.is_set()

    def is_set(self) -> bool:
        return len(self.waits) >= self.most


def test_after_a_refusal_no_event_begins_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be what the pass itself wrote into the status; otherwise each pass would call for the next."""
    passes: list[int] = []

    def run_pass(self: ExposureController) -> float:
        passes.append(len(waits.waits))
        self._refused = {"x": "refused"} if len(passes) < 3 else {}
        self._due.set()
        return 5.0

    monkeypatch.setattr(ExposureController, "run_pass", run_pass)
    monkeypatch.setattr(ExposureController, "_watched", lambda _self: [])
    found = controller()
    waits = Waits(6)
    found._stop = waits  # type: ignore[assignment]
    found.run()
    assert waits.waits == [0.1, 2.0, 0.1, 2.0, 0.1, 0.1]
    assert passes == [1, 3, 5]


def test_an_error_that_nobody_thought_of_is_logged_whole_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run_pass(self: ExposureController) -> float:
        raise KeyError("odd")

    monkeypatch.setattr(ExposureController, "run_pass", run_pass)
    monkeypatch.setattr(ExposureController, "_watched", lambda _self: [])
    caplog.set_level(logging.INFO)
    found = controller()
    found._stop, found._due = Waits(4), NoTime()  # type: ignore[assignment]
    found.run()
    assert [bool(each.exc_info) for each in caplog.records] == [True]
    assert caplog.messages == ["no pass: unexpected KeyError: 'odd'; tried again in 1.0 s"]


def test_a_second_signal_ends_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one lets it end by itself; nothing takes the second one for an error."""

    def run_pass(_self: ExposureController) -> float:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        return 0.0

    monkeypatch.setattr(ExposureController, "run_pass", run_pass)
    monkeypatch.setattr(ExposureController, "_watched", lambda _self: [])
    found = ExposureController(Stub(), ControllerSettings())  # type: ignore[arg-type]
    with pytest.raises(Stopped), stoppable(), stop_by_signal(found.stop):
        found.run()


def test_a_signal_while_the_kubeconfig_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "firewall_cleanup.exposure.client.KubeConfig.from_file", lambda _file: signal.raise_signal(signal.SIGTERM)
    )
    with pytest.raises(Stopped), stoppable():
        Client.open("kubeconfig")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_takes_no_lock_that_the_main_thread_has(number: int) -> None:
    """It comes while the loop works with the Event that it waits for, whose lock is taken then."""
    found = ExposureController(Stub(), ControllerSettings())  # type: ignore[arg-type]
    before = signal.getsignal(number)
    with stop_by_signal(found.stop):
        with found._due._cond, found._stop._cond:  # type: ignore[attr-defined]
            signal.raise_signal(number)
        assert found._due.wait(10)
    assert signal.getsignal(number) is before
