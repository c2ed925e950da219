"""The server of ``covey view``: who may ask, hostile requests, many clients, and its end."""

import contextlib
import http.client
import itertools
import json
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, urlencode

import nbclient
import nbformat
import numpy as np
import pytest
from view_data import SCRIPT, write_birds

import covey
from covey.cli import INTERRUPTED, main
from covey.errors import DatasetError, PlanError
from covey.view import POSTS, ROUTES, View
from covey.view.messages import Query, RequestError, Response, json_response
from covey.view.requests import MAX_BODY_BYTES, MAX_HEAD_BYTES, Receiver
from covey.view.server import MAX_RUNNING, Server, load_page
from covey.view.session import Session

SOURCE = Path(covey.__file__).parent
TIMEOUT_S = 20


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    return write_birds(tmp_path_factory.mktemp("view") / "birds")


@pytest.fixture(scope="module")
def view(birds, tmp_path_factory):
    file = tmp_path_factory.mktemp("embeddings") / "train.npy"
    np.save(file, np.random.default_rng(0).standard_normal((120, 8)).astype(np.float32))
    session = Session.of_path(birds)
    session.embeddings = covey.view.embeddings.Embeddings.of(session, str(file))
    with View(session) as running:
        yield running


class Client:
    """A connection that has the cookie."""

    def __init__(self, view, host="127.0.0.1"):
        self.host = f"{host}:{view.port}"
        self.cookie = f"covey-{view.port}={token_of(view)}"
        self.connection = http.client.HTTPConnection("127.0.0.1", view.port, timeout=TIMEOUT_S)

    def ask(self, method, target, body=None, **headers):
        """Return a response, whose body was read."""
        given = {"Host": self.host, "Cookie": self.cookie}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in given.items():
            if value is not None:
                self.connection.putheader(name, value)
        if body is not None:
            self.connection.putheader("Content-Length", str(len(body)))
        self.connection.endheaders(body)
        response = self.connection.getresponse()
        response.content = response.read()
        return response

    def get(self, target, **headers):
        return self.ask("GET", target, **headers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()


def get(view, target):
    """Return a response on a new connection."""
    with Client(view) as client:
        return client.get(target)


@pytest.fixture
def client(view):
    with Client(view) as found:
        yield found


def token_of(view):
    return view.url.partition("token=")[2]


def exchange(port, data, *, half_close=True):
    """Send bytes; return all bytes that the server sends before it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                received += part
    return received


def responses(data):
    """Parse consecutive responses strictly; return (status, headers, body) of each."""
    found = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        assert end, head
        line, *lines = head.decode("ascii").split("\r\n")
        status = re.fullmatch(r"HTTP/1\.1 (\d{3}) [A-Za-z' -]+", line)
        assert status, line
        headers = {}
        for each in lines:
            name, colon, value = each.partition(": ")
            assert colon, each
            assert name.lower() not in headers
            headers[name.lower()] = value
        if status[1] == "100":
            continue
        size = int(headers["content-length"])
        assert len(data) >= size
        found.append((int(status[1]), headers, data[:size]))
        data = data[size:]
    return found


def request(view, target="/", *, method="GET", body=b"", **headers):
    """Return the bytes of a request."""
    given = {"Host": f"127.0.0.1:{view.port}", "Cookie": f"covey-{view.port}={token_of(view)}"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
    return "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""]).encode("latin-1") + body


@contextlib.contextmanager
def closing(server):
    """Close a server that no view has."""
    yield server
    server.server_close()
    server.session.close()


# Who may ask.


def test_the_token_of_the_url_is_exchanged_for_a_cookie(view, client):
    answer = client.get(f"/?token={token_of(view)}", Cookie=None)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    page = client.get("/", Cookie=cookie.partition(";")[0])
    assert page.status == 200
    assert page.content == (SOURCE / "view/page/index.html").read_bytes()


@pytest.mark.parametrize("target", ["/", "/app.js", "/api/overview", "/api/nothing", "/?token="])
def test_a_request_without_the_token_is_refused(view, client, target):
    port = view.port
    for cookie in (None, "", "covey=1", f"covey-{port}=", f"covey-{port}=x", f"covey-{port + 1}=x"):
        client.connection.close()
        answer = client.get(target, Cookie=cookie)
        assert answer.status == 403
        assert b"token" in answer.content
        assert "Set-Cookie" not in answer.headers


def test_a_wrong_token_is_refused(view, client):
    token = token_of(view)
    for wrong in ("x", token[:-1], token + "a", token.swapcase(), "%00", "é", "é" * 43):
        client.connection.close()
        answer = client.get(f"/?token={quote(wrong)}")
        assert answer.status == 403
    assert client.ask("POST", f"/api/state?token={token}", b"{}").status == 403


def test_cookies_of_other_servers_do_not_matter(view, client):
    own = client.cookie
    name = f"covey-{view.port}"
    for cookie in (
        f'a=b; theme={{"x": [1, 2]}}; {own}',
        f"{name}=of-another-path; {own}",
        f"=; ;;{own};",
        f'broken="; {own}',
    ):
        assert client.get("/api/overview", Cookie=cookie).status == 200


@pytest.mark.parametrize(
    ("host", "is_valid"),
    [
        ("127.0.0.1:{port}", True),
        ("LOCALHOST:{port}", True),
        ("[::1]:{port}", True),
        ("localhost:9000", True),  # through ssh -L 9000:localhost:PORT
        ("localhost", True),
        ("gpu01.cluster", True),
        ("evil.example:{port}", True),
        ("192.168.0.1:{port}", True),
        (None, False),
        ("", False),
        ("evil.example@127.0.0.1:{port}", False),
        ("127.0.0.1:{port}@evil.example", False),
        ("127.0.0.1:{port}/", False),
        ("127.0.0.1:{port}#", False),
        ("127.0.0.1:0{port}x", False),
        ("[::1:{port}", False),
    ],
)
def test_any_host_is_accepted_with_the_token_or_the_cookie(view, client, host, is_valid):
    """Of another site, which DNS resolves to this machine, a browser sends neither of them."""
    header = host if host is None else host.format(port=view.port)

    def status(target, **headers):
        client.connection.close()
        return client.get(target, Host=header, **headers).status

    assert status("/api/overview") == (200 if is_valid else 400)
    assert status(f"/?token={token_of(view)}", Cookie=None) == (303 if is_valid else 400)
    for target in ("/", "/app.js", "/api/overview", "/?token=x"):
        assert status(target, Cookie=None) == (403 if is_valid else 400)
    if is_valid:
        assert status("/api/overview", Origin=f"http://{header}") == 200
        assert status("/api/overview", Origin="http://localhost:1") == 403


def test_requests_of_other_sites_are_refused(view, client):
    own = f"http://127.0.0.1:{view.port}"
    assert client.get("/api/overview", Origin=own).status == 200
    for other in (
        "null",
        "http://evil.example",
        f"https://127.0.0.1:{view.port}",
        "http://127.0.0.1:1",
    ):
        for method, body in (("GET", None), ("POST", b"{}")):
            client.connection.close()
            assert client.ask(method, "/api/state", body, Origin=other).status == 403
    navigation = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    for site in ("same-site", "cross-site", "x"):
        client.connection.close()
        assert client.get("/api/overview", Sec_Fetch_Site=site).status == 403
        client.connection.close()
        assert client.get("/api/overview", Sec_Fetch_Site=site, **navigation).status == 403
        client.connection.close()
        assert client.get("/", Sec_Fetch_Site=site, **navigation).status == 200
    for site in ("same-origin", "none"):
        assert client.get("/api/overview", Sec_Fetch_Site=site).status == 200
    # A cookie that is set by a redirect of another site is not sent.
    answer = client.get(
        f"/?token={token_of(view)}", Sec_Fetch_Site="cross-site", Cookie=None, **navigation
    )
    assert answer.status == 200
    assert b'http-equiv="refresh"' in answer.content
    assert token_of(view).encode() not in answer.content


def test_headers(view, client):
    for target, status in (
        ("/", 200),
        ("/api/overview", 200),
        ("/nothing", 404),
        ("/?token=x", 403),
    ):
        answer = client.get(target)
        assert answer.status == status
        headers = answer.headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
        assert "Server" not in headers
        assert "no-" in headers["Cache-Control"]
        client.connection.close()


def test_fixed_responses_have_a_tag(client):
    first = client.get("/app.js")
    tag = first.headers["ETag"]
    again = client.get("/app.js", If_None_Match=tag)
    assert (again.status, again.content, again.headers["ETag"]) == (304, b"", tag)
    assert client.get("/dom.js", If_None_Match=tag).status == 200
    assert "ETag" not in client.get("/api/overview").headers


def test_methods(view, client):
    page = client.get("/")
    head = client.ask("HEAD", "/")
    assert (head.status, head.content) == (200, b"")
    assert head.headers["Content-Length"] == page.headers["Content-Length"]
    for method in ("OPTIONS", "TRACE", "PUT", "DELETE", "PATCH", "CONNECT", "GETX", "PRI"):
        client.connection.close()
        answer = client.ask(method, "/", Access_Control_Request_Method="GET", X_Secret="secret")
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, POST")
        assert b"secret" not in answer.content
    for method, target in (
        ("POST", "/api/overview"),
        ("GET", "/api/state"),
        ("HEAD", "/api/state"),
    ):
        client.connection.close()
        body = b"{}" if method == "POST" else None
        assert client.ask(method, target, body).status == 405
    assert client.ask("POST", "/app.js", b"{}").status == 404


@pytest.mark.parametrize("shown_as", ["document", "iframe"])
def test_a_page_without_a_cookie_is_an_error_in_html(client, shown_as):
    answer = client.get("/", Cookie=None, Sec_Fetch_Dest=shown_as)
    assert (answer.status, answer.headers["Content-Type"]) == (403, "text/html; charset=utf-8")
    assert b"it has a token</p>" in answer.content
    client.connection.close()
    assert client.get("/", Cookie=None).headers["Content-Type"] == "application/json"


# The bytes of requests.


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Content-Length: 5\r\nContent-Length: 6", 400),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", 501),
        ("Transfer-Encoding: chunked", 501),
        ("transfer-encoding : chunked", 400),
        ("Content-Length : 5", 400),
        ("Content-Length:\t5", 200),
        ("Content-Length: +5", 411),
        ("Content-Length: -5", 411),
        ("Content-Length: 5, 5", 411),
        ("Content-Length: 0x5", 411),
        ("Content-Length: 5_0", 411),
        ("Content-Length: \u0665".encode().decode("latin-1"), 411),
        (f"Content-Length: {MAX_BODY_BYTES + 1}", 413),
        ("Content-Length: 99999999999999999999", 411),
        ("X: a\r\n folded", 400),
        ("X: a\x00b", 400),
        ("X: a\rb", 400),
        ("X: a\nTransfer-Encoding: chunked", 400),
        ("no colon", 400),
        (": no name", 400),
        ("Host: evil.example", 400),
        ("Cookie: a=b", 400),
        ("Expect: 100-continue\r\nContent-Length: 5", 200),
    ],
)
def test_a_request_has_one_end(view, headers, status):
    """What follows a request that is not valid is never answered as another request."""
    next_request = request(view, "/icon.svg")
    smuggled = request(view, "/api/state", method="POST", X="1").replace(
        b"X: 1", headers.encode("latin-1")
    )
    text = json.dumps({"text": "x"}).encode()[:5]
    found = responses(exchange(view.port, smuggled + text + next_request))
    if status == 200:  # the body is not valid JSON, the connection continues
        assert [each[0] for each in found] == [400, 200]
    else:
        assert [each[0] for each in found] == [status]
        assert found[0][1]["connection"] == "close"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_get_request_has_no_body(view, method):
    body = request(view, "/icon.svg")
    data = exchange(
        view.port, request(view, method=method, body=body, Content_Length=str(len(body)))
    )
    head, _, rest = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"HTTP/1.1" not in rest
    assert [each[0] for each in responses(exchange(view.port, request(view, "/") * 3))] == [200] * 3


def test_lines_and_versions(view):
    good = request(view, "/icon.svg")
    cases = {
        good: 200,
        good.replace(b"HTTP/1.1", b"HTTP/1.0"): 200,
        good.replace(b"HTTP/1.1", b"HTTP/2.0"): 400,
        good.replace(b" HTTP/1.1", b""): 400,
        good.replace(b"GET ", b"GET  "): 400,
        good.replace(b"GET ", b"get "): 400,
        good.replace(b"/icon", b"/ icon"): 400,
        good.replace(b"/icon", b"/\xe9icon"): 400,
        good.replace(b"/icon", b"http://evil.example/icon"): 404,
        good.replace(b"/icon", b"//icon"): 404,
        good.replace(b"/icon", b"/./icon"): 404,
        good.replace(b"/icon", b"/%69con"): 404,
        b"\r\n" + good: 400,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc": 400,
        b"SSH-2.0-OpenSSH\r\n\r\n": 400,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": 400,
        good.replace(b"\r\n\r\n", b"\r\nX: " + b"a" * (MAX_HEAD_BYTES - 400) + b"\r\n\r\n"): 200,
        good.replace(b"\r\n\r\n", b"\r\nX: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n"): 431,
        good.replace(b"\r\n\r\n", b"\r\nX: a" * MAX_HEAD_BYTES + b"\r\n\r\n"): 431,
        good.replace(b"/icon.svg", b"/?" + b"a" * MAX_HEAD_BYTES): 431,
    }
    for data, status in cases.items():
        assert [each[0] for each in responses(exchange(view.port, data))] == [status], data[:80]
    assert exchange(view.port, b"") == exchange(view.port, good[:-2]) == b""


def test_a_body_that_ends_early(view):
    data = request(view, "/api/state", method="POST", body=b"{}", Content_Length="100")
    assert exchange(view.port, data) == b""


def test_the_connection_continues_after_errors_of_parameters(client):
    for target in ("/nothing", "/api/find?limit=x", "/api/find?split=nope", "/api/image?id=x"):
        answer = client.get(target)
        assert answer.status in (400, 404)
        assert json.loads(answer.content)["error"]
        assert client.connection.sock is not None
    assert client.get("/api/overview").status == 200


def test_slow_clients_are_disconnected():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        receiver = Receiver(ours, idle_timeout=0.2, read_timeout=0.3)
        with pytest.raises(TimeoutError):  # silent
            receiver.head()
        done = threading.Event()

        def drip():
            while not done.wait(0.02):
                theirs.sendall(b"G")

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(TimeoutError):  # never silent for long
            receiver.head()
        done.set()
        thread.join()
        with pytest.raises(TimeoutError):
            receiver.body(1000)


def test_waiting_connections_make_room_for_others(birds):
    limit = 8
    session = Session.of_path(birds)
    with closing(Server(session, ROUTES, max_connections=limit)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        lines = f"Host: localhost:{server.port}\r\nCookie: {server.cookie}={server.token}"
        data = f"GET /icon.svg HTTP/1.1\r\n{lines}\r\n\r\n".encode()
        others = []
        try:
            for number in range(5 * limit):
                each = socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)
                each.sendall(b"GET / HT"[: number % 8])
                others.append(each)
                if number % limit == 0:
                    assert responses(exchange(server.port, data))[0][0] == 200
        finally:
            for each in others:
                each.close()
        assert responses(exchange(server.port, data))[0][0] == 200
        server.shutdown()


def test_slow_requests_do_not_delay_others(birds):
    is_released = threading.Event()

    def slow(session, query):
        assert is_released.wait(TIMEOUT_S)
        return Response(b"", "text/plain")

    session = Session.of_path(birds)
    routes = {"/api/slow": slow, "/api/fast": lambda session, query: Response(b"", "text/plain")}
    with closing(Server(session, routes, slow=frozenset({"/api/slow"}))) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        lines = f"Host: localhost:{server.port}\r\nCookie: {server.cookie}={server.token}"

        def status(path):
            data = f"GET {path} HTTP/1.1\r\n{lines}\r\n\r\n".encode()
            return responses(exchange(server.port, data))[0][0]

        with ThreadPoolExecutor(2 * MAX_RUNNING) as executor:
            waiting = [executor.submit(status, "/api/slow") for _ in range(2 * MAX_RUNNING)]
            try:
                assert status("/api/fast") == 200
                assert not any(each.done() for each in waiting)
            finally:
                is_released.set()
            assert {each.result() for each in waiting} == {200}
        server.shutdown()


def test_300_connections(view, client):
    """More connections than the limit: all of them were accepted once, the last ones live."""
    others = [socket.create_connection(("127.0.0.1", view.port)) for _ in range(300)]
    try:
        assert client.get("/api/overview").status == 200
        others[-1].settimeout(TIMEOUT_S)
        others[-1].sendall(request(view, "/icon.svg", Connection="close"))
        assert others[-1].recv(12) == b"HTTP/1.1 200"
    finally:
        for each in others:
            each.close()


# Fuzzing.

VALUES = [
    "", "0", "1", "2", "7", "-1", "119", "120", "1e9", "1000000000000", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "0.5", "nan", "inf", "-0", "00", "0x1", "1_0",
    "\u0661", "train", "test", "empty", "train[:3]", "train+test", "nope", "owl", "photo",
    "caption", "song", "notes", "weight", "eggs", "curve", "species", "photo/x", "id", "largest",
    "smallest", "contains", "equals", "less", "greater", "nan", "split", "independent", "sqrt",
    "size", "repeat", "all", "0,1", "1,2,3", "0,", ",", "0,-1", "0,99999", "0," * 3000, "null",
    "None", "true", "[]", "{}", '{"a": 1}', "../../etc/passwd", "/etc/passwd", "file:///etc/passwd",
    "..\\..\\secret.txt", "%2e%2e%2f", "\x00", "a\x00b", "\r\nSet-Cookie: a=b", SCRIPT, "'", '"',
    "\u202e", "é", "\U0001d518", "a" * 5000, "*", "?", "224", "128,128", "32x32",
]  # fmt: skip

PARAMETERS = [
    "split", "id", "ids", "class", "feature", "op", "value", "cursor", "limit", "side",
    "offset", "step", "rank", "row", "view", "until", "from", "k", "seed",
    "classes_per_batch", "examples_per_class", "small_classes", "class_weights", "world_size",
    "total_examples_per_class", "mode", "image_size", "crop", "flip", "views", "select", "token",
    "plan", "weights", "remainder", "batch_size", "steps_per_epoch", "unknown", "",
]  # fmt: skip

# Values with which a request is valid as far as possible, so that the next check is reached.
VALID = {
    "split": ["train", "test", "empty"], "id": ["0", "5"], "ids": ["0,1,2"], "class": ["0", "5"],
    "feature": ["photo", "caption", "song", "notes", "weight", "curve"], "step": ["0", "1000000"],
    "op": ["contains", "equals", "less", "greater", "nan"],
    "limit": ["10"], "rank": ["0"], "row": ["0"], "view": ["0"], "k": ["4"], "side": ["64"],
    "classes_per_batch": ["2", "3"], "examples_per_class": ["2"], "image_size": ["24"],
    "select": ["photo", "caption", "curve"], "world_size": ["1", "2"], "value": ["a", "3"],
    "offset": ["0"],
    "mode": ["split", "independent"], "until": ["100"], "from": ["0"], "seed": ["7"],
}  # fmt: skip

PIECES = [
    "/", "..", "%2e%2e", "%2f", "page", "index.html", "app.js", "api", "secret.txt", "%00", "\\",
    "~", "//", ".", "etc", "passwd", "?", "&", "=", "%", "%zz", "#", ";", "é", "@", "%c0%ae", "*",
    "dataset_info.json", "server.py", "__init__.py", "token", "a" * 300,
]  # fmt: skip

SECRET = "Zq7-secret-of-a-file"


def random_target(rng):
    """Return a URL path and query: of a route, of a file, or of anything."""
    kind = rng.random()
    if kind < 0.7:
        path = rng.choice(sorted(ROUTES))
        names = rng.sample(PARAMETERS, rng.randrange(8)) if rng.random() < 0.3 else [
            name for name in VALID if rng.random() < 0.8
        ]  # fmt: skip
        query = {
            name: rng.choice(VALID[name] if name in VALID and rng.random() < 0.75 else VALUES)
            for name in names
        }
        query.pop("token", None)
        return f"{path}?{urlencode(query)}"
    text = "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 9)))
    return "/" + text if kind < 0.95 else text


def check_response(status, headers, body):
    assert status != 500, body
    assert status in (200, 206, 303, 304, 400, 403, 404, 405, 411, 413, 415, 431, 501), body
    assert b"Traceback" not in body
    assert SECRET.encode() not in body
    assert b"root:x:0" not in body
    if status >= 400:
        assert headers["content-type"] == "application/json"
        assert json.loads(body)["error"]


@pytest.mark.parametrize("seed", range(2))
def test_fuzzed_requests(view, client, birds, capfd, monkeypatch, seed):
    """700 requests with the token in each of 2 tests: an answer, and never an internal error."""
    rng = random.Random(seed)
    (birds.parent / "secret.txt").write_text(SECRET)
    monkeypatch.chdir(birds.parent)
    statuses = set()
    for _ in range(700):
        target = random_target(rng)
        is_post = target.partition("?")[0] in POSTS and rng.random() < 0.9
        method = "POST" if is_post else rng.choice(["GET"] * 8 + ["HEAD", "POST", "OPTIONS"])
        body = random_body(rng) if method == "POST" else b""
        extra = {"Content_Length": str(len(body))} if method == "POST" else {}
        data = request(view, target.encode().decode("latin-1"), method=method, body=body, **extra)
        found = exchange(view.port, data) if rng.random() < 0.1 else ask(client, data, method)
        if method == "HEAD":
            assert found.startswith(b"HTTP/1.1 ")
            assert not found.startswith(b"HTTP/1.1 500")
            continue
        (answer,) = responses(found)
        check_response(*answer)
        statuses.add(answer[0])
    assert {200, 400, 404} <= statuses
    assert get(view, "/api/overview").status == 200
    assert capfd.readouterr().err == ""


def ask(client, data, method):
    """Send the bytes of a request on a connection that is used again; return the response."""
    if client.connection.sock is None:
        client.connection.connect()
    connection = client.connection.sock
    connection.sendall(data)
    received = b""
    while b"\r\n\r\n" not in received:
        received += (part := connection.recv(1 << 16))
        assert part, received
    head, _, body = received.partition(b"\r\n\r\n")
    size = int(re.search(rb"(?i)content-length: (\d+)", head)[1]) if method != "HEAD" else 0
    while len(body) < size:
        body += (part := connection.recv(1 << 16))
        assert part
    if b"Connection: close" in head:
        client.connection.close()
    return head + b"\r\n\r\n" + body


WRONG = [
    0, -1, 1, 2.5, 1e400, 2**70, True, None, "", "x", "\ud800", [], [[0, "AAAA"]], {}, {"a": {}},
]  # fmt: skip


def random_body(rng):
    """Return the body of a POST request: the state of a loader, with wrong values."""
    plan = {"kind": rng.choice(["balanced", "shuffled", "sequential"]), "seed": 7, "batch_size": 8}
    plan |= {"classes_per_batch": 2, "examples_per_class": 2, "classes": 5, "examples": 100}
    content = {"format": 1, "batch": 3, "plan": plan, "weights": []}
    for each in (content, plan):
        while rng.random() < 0.4:
            each[rng.choice(sorted(each))] = rng.choice(WRONG)
        if rng.random() < 0.2:
            each.pop(rng.choice(sorted(each)))
    text = json.dumps(content)
    kind = rng.random()
    if kind < 0.1:
        text = text[: rng.randrange(len(text))]
    elif kind < 0.2:
        text = rng.choice(["NaN", "[1e999]", "null", "7", '"x"', "[" * 100_000, "9" * 10_000])
    return b"\xff\xfe" + text.encode() if kind > 0.97 else text.encode()


def test_fuzzed_bytes(view, capfd):
    """600 connections with bytes that are not valid requests, or parts of valid ones."""
    rng = random.Random(18)
    good = request(view, "/api/overview", X="1")
    for number in range(600):
        kind = number % 4
        if kind == 0:
            data = rng.randbytes(rng.randrange(1, 400))
        elif kind == 1:  # some bytes differ
            data = bytearray(good)
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        elif kind == 2:  # lines in another order, repeated or cut
            lines = good.split(b"\r\n")
            rng.shuffle(lines)
            data = rng.choice([b"\r\n", b"\n", b"\r"]).join(lines * rng.randrange(1, 3))
        else:
            data = good[: rng.randrange(len(good))] + rng.randbytes(rng.randrange(60))
        for answer in responses(exchange(view.port, bytes(data))):
            check_response(*answer)
    assert get(view, "/api/overview").status == 200
    assert capfd.readouterr().err == ""


def test_50_parallel_clients(view):
    targets = ["/", "/app.js", "/api/overview", "/api/find?split=train&limit=5",
               "/api/examples?split=train&ids=1,2,3", "/api/classes?split=test",
               "/api/image?split=train&id=3&feature=photo&side=32"]  # fmt: skip
    expected = {target: get(view, target).content for target in targets}

    def run(number):
        with Client(view) as client:
            for target in itertools.islice(itertools.cycle(targets), number % 7, number % 7 + 14):
                answer = client.get(target)
                assert answer.status == 200
                assert answer.content == expected[target]
        return 14

    with ThreadPoolExecutor(50) as pool:
        assert sum(pool.map(run, range(50))) == 700


# Messages.


@pytest.mark.parametrize(
    ("text", "ask"),
    [
        ("a=1&a=2", lambda query: query),
        ("&".join(f"a{n}=1" for n in range(100)), lambda query: query),
        ("a=%ff", lambda query: query),
        ("a=" + "x" * 30_000, lambda query: query.string("a")),
        ("a=1.5", lambda query: query.integer("a")),
        ("a=-1", lambda query: query.integer("a")),
        ("a=1" + "0" * 30, lambda query: query.integer("a")),
        ("a=%D9%A1", lambda query: query.integer("a")),
        ("a=2", lambda query: query.flag("a")),
        ("a=x", lambda query: query.choice("a", ("y", "z"))),
        ("a=1,7", lambda query: query.ids("a", 7)),
        ("a=1,,2", lambda query: query.ids("a", 7)),
        ("", lambda query: query.string("a")),
    ],
)
def test_parameters_that_are_not_valid(text, ask):
    with pytest.raises(RequestError):
        ask(Query(text))


@pytest.mark.parametrize(
    "body", [b"", b"NaN", b"[1, Infinity]", b"\xff", b"[" * 200_000, b"{'a': 1}"]
)
def test_bodies_that_are_not_valid(body):
    with pytest.raises(RequestError):
        Query("", body).json()


def test_json_has_values_that_javascript_represents():
    content = {
        "nan": float("nan"), "inf": [np.float32("inf")], "large": 2**60, "exact": 2**53,
        "flag": np.bool_(True), "surrogate": "\ud800", "bytes": b"\xff", 3: (1, np.int8(2)),
    }  # fmt: skip
    assert json.loads(json_response(content).body) == {
        "nan": None, "inf": [None], "large": str(2**60), "exact": 2**53, "flag": True,
        "surrogate": "?", "bytes": "\ufffd", "3": [1, 2],
    }  # fmt: skip


# The command.


@contextlib.contextmanager
def running(*arguments, **environment):
    """Run ``covey view`` in a process; yield it and the URL."""
    # A process that a shell runs in the background ignores SIGINT.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from covey.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "view", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_frees_the_port_at_once(birds):
    with running(birds, "--no-browser") as (process, line):
        url = line.removesuffix("\n")
        port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{43})", url).groups()
        lines = f"Host: 127.0.0.1:{port}\r\nCookie: covey-{port}={token}"
        data = f"GET /api/overview HTTP/1.1\r\n{lines}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", int(port)), timeout=TIMEOUT_S) as kept:
            kept.sendall(data)
            assert kept.recv(12) == b"HTTP/1.1 200"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=TIMEOUT_S)  # the client is still connected
        tunnel = f"ssh -N -L {port}:localhost:{port} {socket.gethostname()}\n"
        assert err.startswith("covey: to open it on another machine")
        assert err.endswith(f"{tunnel}covey: interrupted\n")
        assert (process.returncode, out) == (INTERRUPTED, "")
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", int(port)))
            again.listen()


def test_the_browser_is_opened_with_a_token_for_one_request(birds, tmp_path):
    """All users of a machine see the command line of the browser."""
    browser, opened = tmp_path / "browser", tmp_path / "url"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.part\nmv {opened}.part {opened}\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    with running(birds, BROWSER=f"{browser} %s") as (process, line):
        deadline = time.monotonic() + TIMEOUT_S
        while not opened.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        url = opened.read_text()
        assert url != line.strip()
        assert url.partition("?")[0] == line.partition("?")[0]
        port = int(re.search(r":(\d+)/", url)[1])
        head = f"Host: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
        ask = f"GET /{url.partition('/?')[2] and '?' + url.partition('/?')[2]} HTTP/1.1\r\n{head}"
        first, second = (responses(exchange(port, ask.encode()))[0] for _ in range(2))
        assert (first[0], second[0]) == (303, 403)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=TIMEOUT_S)[1].endswith("covey: interrupted\n")


def test_without_a_display_the_url_is_printed(birds):
    environment = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": ""}
    with running(birds, **environment) as (process, line):
        assert line.startswith("http://")
        assert "ssh -N -L" in process.stderr.readline()
        assert "open the URL" in process.stderr.readline()


def test_errors_of_the_command(birds, view, capsys, tmp_path):
    def error(*arguments):
        assert main(["view", *map(str, arguments), "--no-browser"]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        return err

    assert "a port that is not in use, or 0 for any" in error(birds, "--port", view.port)
    assert "must be an integer from 0 to 65535" in error(birds, "--port", 70000)
    assert "there is no split 'nope'" in error(birds, "--split", "nope")
    assert "nope" in error(birds, "--label", "nope")
    assert "cannot bind to 192.0.2.1" in error(birds, "--host", "192.0.2.1")
    assert "cannot bind to no.such.host.invalid" in error(birds, "--host", "no.such.host.invalid")
    assert str(tmp_path / "nothing") in error(tmp_path / "nothing")
    np.save(tmp_path / "few.npy", np.zeros((3, 4), np.float32))
    assert "3 rows" in error(birds, "--embeddings", tmp_path / "few.npy")
    assert "nothing.npy" in error(birds, "--embeddings", tmp_path / "nothing.npy")


def test_host_warns(birds):
    with running(birds, "--host", "0.0.0.0", "--no-browser") as (process, line):
        assert line.startswith("http://localhost:")
        assert "warning: other machines can connect to 0.0.0.0" in process.stderr.readline()
        port = int(re.search(r":(\d+)/", line)[1])
        token = line.strip().partition("token=")[2]
        own, address = socket.gethostname(), "203.0.113.7"
        for host in (own, address):
            data = f"GET /?token={token} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
            assert responses(exchange(port, data.encode()))[0][0] == 303
        # Only pages of this machine may embed it, and this one is not of this machine alone.
        data = f"GET /?token={token} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n"
        policy = responses(exchange(port, data.encode()))[0][1]["content-security-policy"]
        assert "frame-ancestors 'none'" in policy


def test_ipv6(birds):
    try:
        session = Session.of_path(birds)
        server = Server(session, ROUTES, host="::1")
    except DatasetError:
        pytest.skip("this machine has no IPv6")
    with closing(server):
        assert server.url().startswith(f"http://[::1]:{server.port}/?token=")


# Python.


def test_a_view_of_a_dataset_and_of_a_loader(birds):
    with covey.open(birds, split="train") as ds:
        loader = ds.batches(2, 3, seed=5, select="caption")
        state = loader.state_dict()
        for source in (ds, loader):
            with source.view(browser=False) as view:
                assert repr(view) == f"<covey.view.View: {view.url}>"
                answer = get(view, "/api/overview")
                assert answer.status == 200
                overview = json.loads(answer.content)
                assert [each["records"] for each in overview["splits"]] == [120]
                assert (overview["loader"] is None) == (source is ds)
                port = view.port
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            view.close()
        assert len(ds[0]) == 8  # still open
        assert loader.state_dict() == state
        with pytest.raises(PlanError, match="raw records"):
            ds.raw.batches(loader.plan).view(browser=False)


def test_a_closed_view_answers_no_request(birds):
    view = covey.open(birds, split="test").view(browser=False)
    with Client(view) as client:
        assert client.get("/api/overview").status == 200
        view.close()
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            client.get("/api/overview")


def test_a_view_has_embeddings(birds):
    with covey.open(birds, split="test") as ds:
        vectors = np.random.default_rng(0).random((24, 3), np.float32)
        with ds.view(browser=False, embeddings=vectors) as view:
            overview = json.loads(get(view, "/api/overview").content)
        assert overview["embeddings"]["points"] == 24


def test_a_forked_child_closes_a_view(birds, run):
    """It has neither the thread nor the connections of the server."""
    run(fork_and_close, birds)


def fork_and_close(birds):
    with covey.open(birds, split="test").view(browser=False) as view, Client(view) as client:
        assert client.get("/api/overview").status == 200
        child = os.fork()
        if child == 0:
            signal.alarm(TIMEOUT_S)
            view.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert client.get("/api/overview").status == 200


def test_a_forked_child_does_not_hold_the_port(birds, run):
    run(fork_and_use_the_port_again, birds)


def fork_and_use_the_port_again(birds):
    view = covey.open(birds, split="test").view(browser=False)
    port = view.port
    is_forked, forked = os.pipe()
    end, ends = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(forked, b"x")  # the hooks of the fork have run
        os.close(ends)
        os.read(end, 1)
        os._exit(0)
    assert os.read(is_forked, 1) == b"x"
    view.close()
    with covey.open(birds, split="test").view(browser=False, port=port) as again:
        assert again.port == port
    os.close(ends)
    assert os.waitpid(child, 0)[1] == 0


def test_notebook(birds, tmp_path, monkeypatch):
    """A view is displayed as an iframe of the same site; no browser is opened."""
    kernel = tmp_path / "kernels" / "covey-view"
    kernel.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": "covey-view", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("BROWSER", f"touch {tmp_path}/opened %s")
    cells = [
        f"import covey\nview = covey.open({str(birds)!r}, split='train').view()\nview",
        "import http.cookiejar, urllib.request\n"
        "cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())\n"
        "opener = urllib.request.build_opener(cookies)\n"
        "page = opener.open(view.url)\n"
        "print(page.status, page.url, page.headers['Content-Security-Policy'])\n"
        "view.close()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, kernel_name="covey-view", timeout=120).execute()
    shown = notebook.cells[0].outputs[-1]["data"]["text/html"]
    source = re.search(r'<iframe src="([^"]*)" title="covey view"', shown)[1]
    assert re.fullmatch(r"http://localhost:\d+/\?token=[\w-]{43}", source)
    printed = notebook.cells[1].outputs[-1]["text"]
    assert printed.startswith("200 http://127.0.0.1:")
    assert "token" not in printed
    assert "frame-ancestors http://localhost:* http://127.0.0.1:*" in printed
    assert not (tmp_path / "opened").exists()


# The files of the page.


def page_files():
    return {file.name for file in (SOURCE / "view/page").iterdir()}


def test_the_files_of_the_page(client):
    page = load_page()
    assert {path for path in page if path != "/"} == {f"/{name}" for name in page_files()}
    for name in page_files():
        answer = client.get(f"/{name}")
        assert (answer.status, answer.content) == (200, (SOURCE / "view/page" / name).read_bytes())
    script = client.get("/app.js").headers["Content-Type"]
    assert script == "text/javascript; charset=utf-8"


def test_the_page_loads_nothing_else():
    """No inline scripts and styles, which the policy forbids, and no URL of another server."""
    for name in page_files():
        text = (SOURCE / "view/page" / name).read_text()
        assert not re.search(r"(?<!xmlns=\")https?://(?!www\.w3\.org)", text), name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text
        ), name
        if name.endswith(".html"):
            assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]* src=)", text)


def test_the_wheel_has_the_page(tmp_path):
    """Without the native core, which takes minutes to build."""
    root = SOURCE.parents[1]
    command = [sys.executable, "-m", "pip", "wheel", str(root), "--no-build-isolation", "--no-deps",
               "--config-settings=wheel.cmake=false", "-q", "-w", str(tmp_path)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        packed = {
            name.removeprefix("covey/view/page/")
            for name in wheel.namelist()
            if name.startswith("covey/view/page/")
        }
    assert packed == page_files()
