"""The server of ``covey view``: who may ask, hostile requests, streams, and its end."""

import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, urlencode

import nbclient
import nbformat
import numpy as np
import pytest
from view_data import SCRIPT, Client, write_birds

import covey
from covey.cli import INTERRUPTED, main
from covey.errors import DatasetError, PlanError
from covey.view import View, server
from covey.view.embeddings import Embeddings
from covey.view.server import POSTS, ROUTES, to_json
from covey.view.session import RequestError, Session, arguments

SOURCE = Path(covey.__file__).parent
PAGE = SOURCE / "view/page"
TIMEOUT_S = 20


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    return write_birds(tmp_path_factory.mktemp("view") / "birds")


@pytest.fixture(scope="module")
def view(birds):
    session = Session.of_path(birds)
    vectors = np.random.default_rng(0).standard_normal((120, 8)).astype(np.float32)
    session.embeddings = Embeddings.of(session, vectors)
    with View(session) as running:
        yield running


def token_of(view):
    return view.url.partition("token=")[2]


def ask(view, target="/", method="GET", body=None, **headers):
    """Return a response to a request on a connection of its own, and its content."""
    given = {"Host": f"127.0.0.1:{view.port}", "Cookie": f"covey-{view.port}={token_of(view)}"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", view.port, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in given.items():
            if value is not None:
                connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        response.content = response.read()
        return response


# Who may ask.


def test_the_token_of_the_url_is_exchanged_for_a_cookie(view):
    answer = ask(view, f"/?token={token_of(view)}", Cookie=None)
    assert (answer.status, answer.content) == (200, (PAGE / "index.html").read_bytes())
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert ask(view, "/api/overview", Cookie=cookie.partition(";")[0]).status == 200
    assert ask(view, Cookie=f"a=b; theme={{}}; {cookie.partition(';')[0]}").status == 200


@pytest.mark.parametrize("target", ["/", "/app.js", "/api/overview", "/api/nothing", "/?token="])
def test_a_request_without_the_token_is_refused(view, target):
    port = view.port
    for cookie in (None, "", "covey=1", f"covey-{port}=", f"covey-{port}=x", f"covey-{port + 1}=x"):
        answer = ask(view, target, Cookie=cookie)
        assert answer.status == 403
        assert b"token" in answer.content
        assert "Set-Cookie" not in answer.headers


def test_a_wrong_token_is_refused(view):
    token = token_of(view)
    for wrong in ("x", token[:-1], token + "a", token.swapcase(), "%00", "é", "é" * 43):
        assert ask(view, f"/?token={quote(wrong)}").status == 403


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "LOCALHOST", "[::1]:{port}", "localhost:9000", "gpu01.cluster"]
)
def test_any_host_is_accepted_with_the_token_or_the_cookie(view, host):
    """Of another site, which DNS resolves to this machine, a browser sends neither of them."""
    host = host.format(port=view.port)
    assert ask(view, "/api/overview", Host=host).status == 200
    assert ask(view, f"/?token={token_of(view)}", Host=host, Cookie=None).status == 200
    for target in ("/", "/app.js", "/api/overview", "/?token=x"):
        assert ask(view, target, Host=host, Cookie=None).status == 403
    assert ask(view, "/api/overview", Host=host, Origin=f"http://{host}").status == 200
    assert ask(view, "/api/overview", Host=host, Origin="http://localhost:1").status == 403


def test_requests_of_other_sites_are_refused(view):
    for other in ("null", "http://evil.example", "http://127.0.0.1:1"):
        for method, body in (("GET", None), ("POST", b"{}")):
            assert ask(view, "/api/state", method, body, Origin=other).status == 403
    navigation = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    for site in ("same-site", "cross-site", "x"):
        assert ask(view, "/api/overview", Sec_Fetch_Site=site).status == 403
        assert ask(view, "/api/overview", Sec_Fetch_Site=site, **navigation).status == 403
        assert ask(view, Sec_Fetch_Site=site, **navigation).status == 200
    for site in ("same-origin", "none"):
        assert ask(view, "/api/overview", Sec_Fetch_Site=site).status == 200


@pytest.mark.parametrize("target", ["/", "/api/overview", "/nothing", "/?token=x", "/api/find"])
def test_headers(view, target):
    headers = ask(view, target).headers
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers
    assert "Server" not in headers


def test_responses_are_sent_at_once(view):
    """Without the delay of Nagle's algorithm, of 40 ms for each response."""
    assert view._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_methods(view):
    head = ask(view, "/", "HEAD")
    assert (head.status, head.content) == (200, b"")
    for method in ("OPTIONS", "TRACE", "PUT", "DELETE", "PATCH", "GETX"):
        answer = ask(view, "/", method, X_Secret="secret")
        assert answer.status == 405
        assert b"secret" not in answer.content
    assert ask(view, "/api/overview", "POST", b"{}").status == 405
    assert ask(view, "/api/state").status == 405


# Hostile requests.


def test_bytes_that_are_not_http(view):
    """Bytes that are not valid requests, or parts of valid ones; a request is never two."""
    rng = random.Random(18)
    good = (
        f"GET /icon.svg HTTP/1.1\r\nHost: a\r\nCookie: covey-{view.port}={token_of(view)}\r\n\r\n"
    )
    for number in range(100):
        data = bytearray(good.encode())
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        connection = socket.create_connection(("127.0.0.1", view.port), timeout=TIMEOUT_S)
        with connection, contextlib.suppress(ConnectionError):
            connection.sendall(bytes(data) if number % 2 else rng.randbytes(300))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
    smuggled = good.replace("Host: a", "Host: a\r\nContent-Length: 5\r\nContent-Length: 6")
    with socket.create_connection(("127.0.0.1", view.port), timeout=TIMEOUT_S) as connection:
        connection.sendall((smuggled + good).encode())
        assert connection.recv(12) == b"HTTP/1.1 400"
    assert ask(view, "/api/overview").status == 200


VALUES = [
    "", "0", "1", "7", "-1", "120", "1e9", "1000000000000", "9223372036854775808", "0.5", "nan",
    "inf", "00", "0x1", "1_0", "\u0661", "train", "test", "empty", "train[:3]", "nope", "owl",
    "photo", "caption", "song", "notes", "curve", "species", "photo/x", "split", "independent",
    "sqrt", "repeat", "all", "0,1", "0,", ",", "0,-1", "0,99999", "0," * 300, "null", "true", "[]",
    "{}", "[[]]", '[["caption", "contains", "a"]]', '[["weight", "less", "x"]]', '[["a", 1, null]]',
    '[[["a"], {}, []]]', "[" * 10_000, "../../etc/passwd", "file:///etc/passwd", "%2e%2e%2f",
    "\x00", "\r\nSet-Cookie: a=b", SCRIPT, "'", "\u202e", "\U0001d518", "a" * 5000, "224", "32x32",
]  # fmt: skip

# Values with which a request is valid as far as possible, so that the next check is reached.
VALID = {
    "split": ["train", "test", "empty"], "id": ["0", "5"], "ids": ["0,1,2"], "class": ["0", "5"],
    "feature": ["photo", "caption", "song", "weight", "curve"], "step": ["0", "1000000"],
    "where": ['[["caption", "contains", "a"]]', '[["eggs", "less", "3"], ["weight", "nan", null]]'],
    "limit": ["10"], "rank": ["0"], "k": ["4"], "side": ["64"], "rows": ["3"], "cursor": ["3"],
    "classes_per_batch": ["2", "3"], "examples_per_class": ["2"], "image_size": ["24"],
    "select": ["photo", "caption", "curve"], "world_size": ["1", "2"], "seed": ["7"],
    "mode": ["split", "independent"], "plan": ["balanced", "shuffled", "sequential"],
    "remainder": ["keep", "fill"], "state": ["0" * 32], "small_classes": ["drop"],
}  # fmt: skip

PIECES = [
    "/", "..", "%2e%2e", "%2f", "page", "index.html", "app.js", "api", "secret.txt", "%00", "\\",
    "~", "//", ".", "etc", "passwd", "?", "&", "=", "%", "%zz", "#", ";", "@", "%c0%ae", "*",
    "dataset_info.json", "server.py", "token", "a" * 300,
]  # fmt: skip

SECRET = "Zq7-secret-of-a-file"


def random_target(rng):
    """Return a URL path and query: of a route, of a file, or of anything."""
    if rng.random() < 0.8:
        query = {
            name: rng.choice(values if rng.random() < 0.75 else VALUES)
            for name, values in VALID.items()
            if rng.random() < 0.6
        }
        return f"/api/{rng.choice(sorted(ROUTES))}?{urlencode(query)}"
    return "/" + "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 9)))


@pytest.mark.parametrize("seed", range(2))
def test_fuzzed_requests(view, birds, capfd, monkeypatch, seed):
    """400 requests with the token in each of 2 tests: an answer, and never an internal error."""
    rng = random.Random(seed)
    (birds.parent / "secret.txt").write_text(SECRET)
    monkeypatch.chdir(birds.parent)
    statuses = set()
    for _ in range(400):
        answer = ask(view, random_target(rng))
        statuses.add(answer.status)
        assert answer.status != 500, answer.content
        assert SECRET.encode() not in answer.content
        assert b"root:x:0" not in answer.content
        if answer.status >= 400:
            assert json.loads(answer.content)["error"]
    assert {200, 400, 404} <= statuses
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "body",
    [b"", b"NaN", b"[1, Infinity]", b"\xff", b"[" * 200_000, b"{'a': 1}", b"null", b'{"label": 7}'],
)
@pytest.mark.parametrize("name", POSTS)
def test_bodies_that_are_not_valid(view, name, body):
    answer = ask(view, f"/api/{name}", "POST", body)
    assert answer.status == 400
    assert json.loads(answer.content)["error"]


def test_parallel_clients(view):
    targets = ["/", "/app.js", "/api/overview", "/api/find?split=train&limit=5",
               "/api/examples?split=train&ids=1,2,3", "/api/classes?split=test",
               "/api/image?split=train&id=3&feature=photo&side=32"]  # fmt: skip
    expected = [ask(view, target).content for target in targets]
    with ThreadPoolExecutor(30) as pool:
        found = list(pool.map(lambda target: ask(view, target).content, targets * 20))
    assert found == expected * 20


# Parameters and JSON.


def test_parameters_have_the_types_of_a_function():
    def route(n: int, flag: bool = False, name: str | None = None, class_: int | None = None):
        pass

    query = {"n": "7", "flag": "1", "class": "3", "name": ""}
    assert arguments(route, None, query) == {"n": 7, "flag": True, "class_": 3}
    for wrong in ({}, {"n": "1.5"}, {"n": "-1"}, {"n": "1" * 30}, {"n": "\u0661"}):
        with pytest.raises(RequestError):
            arguments(route, None, wrong)
    with pytest.raises(RequestError, match="flag is '2'; must be one of 0, 1"):
        arguments(route, None, {"n": "1", "flag": "2"})


def test_json_has_values_that_javascript_represents():
    content = {
        "nan": float("nan"), "inf": [np.float32("inf")], "large": 2**60, "exact": 2**53,
        "flag": np.bool_(True), "bytes": b"\xff", 3: (1, np.int8(2)), "names": ["a", "b"],
    }  # fmt: skip
    assert to_json(content) == {
        "nan": None, "inf": [None], "large": str(2**60), "exact": 2**53, "flag": True,
        "bytes": "\ufffd", "3": [1, 2], "names": ["a", "b"],
    }  # fmt: skip


# Streams.


def endless(session: Session):
    """Yield lines, and note when it ends."""
    try:
        number = 0
        while True:
            session.title = str(number)
            yield {"number": number}
            time.sleep(0.01)
            number += 1
    finally:
        session.title = "ended"


def failing(session: Session):
    yield {"number": 0}
    raise PlanError("the plan is gone")


def test_a_stream_ends_when_the_client_disconnects(birds, monkeypatch):
    monkeypatch.setitem(ROUTES, "endless", endless)
    session = Session.of_path(birds)
    with View(session) as view:
        client = Client(view)
        with client.opener.open(f"{client.base}api/endless", timeout=TIMEOUT_S) as stream:
            assert stream.headers["Content-Type"] == "application/x-ndjson"
            assert json.loads(stream.readline()) == {"number": 0}
            assert json.loads(stream.readline()) == {"number": 1}
        deadline = time.monotonic() + TIMEOUT_S
        while session.title != "ended":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        begin = time.monotonic()
        stream = client.opener.open(f"{client.base}api/endless", timeout=TIMEOUT_S)
        stream.readline()
    stream.close()
    assert time.monotonic() - begin < TIMEOUT_S  # close() does not wait for a stream


def test_an_error_of_a_stream_is_its_last_line(birds, monkeypatch):
    monkeypatch.setitem(ROUTES, "failing", failing)
    with View(Session.of_path(birds)) as view:
        lines = Client(view).lines("failing")
    assert lines == [{"number": 0}, {"error": "the plan is gone", "type": "PlanError"}]


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


def fetch(url):
    """Return the status and the headers of a page that is requested without a cookie."""
    found = re.fullmatch(r"http://([^/]*):(\d+)(/.*)", url.strip())
    connection = http.client.HTTPConnection(found[1], int(found[2]), timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("GET", found[3])
        response = connection.getresponse()
        response.read()
        return response.status, response.headers


def test_ctrl_c_frees_the_port_at_once(birds):
    with running(birds, "--no-browser") as (process, line):
        url = line.removesuffix("\n")
        port, _ = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{43})", url).groups()
        kept = http.client.HTTPConnection("127.0.0.1", int(port), timeout=TIMEOUT_S)
        with contextlib.closing(kept):
            kept.request("GET", url[url.index("/?") :])
            assert kept.getresponse().status == 200
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=TIMEOUT_S)  # the client is still connected
        tunnel = f"ssh -N -L {port}:localhost:{port} {socket.gethostname()}\n"
        assert err.startswith("covey: to open it on another machine")
        assert err.endswith(f"{tunnel}covey: interrupted\n")
        assert (process.returncode, out) == (INTERRUPTED, "")
        socket.create_server(("127.0.0.1", int(port))).close()


def test_the_browser_is_opened_with_a_token_for_one_request(birds, tmp_path):
    """All users of a machine see the command line of the browser."""
    browser, opened = tmp_path / "browser", tmp_path / "url"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.part\nmv {opened}.part {opened}\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    with running(birds, BROWSER=f"{browser} %s") as (_, line):
        deadline = time.monotonic() + TIMEOUT_S
        while not opened.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        url = opened.read_text()
        assert url != line.strip()
        assert url.partition("?")[0] == line.partition("?")[0]
        assert [fetch(url)[0] for _ in range(2)] == [200, 403]
        assert fetch(line)[0] == 200


def test_without_a_display_the_url_is_printed(birds):
    environment = {"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": ""}
    with running(birds, **environment) as (process, line):
        assert line.startswith("http://")
        assert "ssh -N -L" in process.stderr.readline()
        assert "open the URL" in process.stderr.readline()


def test_host_warns(birds):
    with running(birds, "--host", "0.0.0.0", "--no-browser") as (process, line):
        assert line.startswith("http://localhost:")
        assert "warning: other machines can connect to 0.0.0.0" in process.stderr.readline()
        # Only pages of this machine may embed it, and this one is not of this machine alone.
        status, headers = fetch(line)
        assert status == 200
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


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
    assert str(tmp_path / "nothing") in error(tmp_path / "nothing")
    np.save(tmp_path / "few.npy", np.zeros((3, 4), np.float32))
    assert "3 rows" in error(birds, "--embeddings", tmp_path / "few.npy")
    assert "nothing.npy" in error(birds, "--embeddings", tmp_path / "nothing.npy")


def test_without_its_packages_the_view_says_what_to_install(birds, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(DatasetError, match=r"pip install 'covey\[view\]'$"):
        View(Session.of_path(birds))


def test_ipv6(birds):
    try:
        view = View(Session.of_path(birds), host="::1")
    except DatasetError:
        pytest.skip("this machine has no IPv6")
    with view:
        assert view.url.startswith(f"http://[::1]:{view.port}/?token=")


# Python.


def test_a_view_of_a_dataset_and_of_a_loader(birds):
    with covey.open(birds, split="train") as ds:
        loader = ds.batches(2, 3, seed=5, select="caption")
        state = loader.state_dict()
        vectors = np.random.default_rng(0).random((120, 3), np.float32)
        for source in (ds, loader):
            with source.view(browser=False, embeddings=vectors) as view:
                assert repr(view) == f"<covey.view.View: {view.url}>"
                overview = Client(view).json("overview")
                assert [each["records"] for each in overview["splits"]] == [120]
                assert (overview["loader"] is None) == (source is ds)
                assert overview["embeddings"]["points"] == 120
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", view.port))
            view.close()
        assert len(ds[0]) == 8  # still open
        assert loader.state_dict() == state
        with pytest.raises(PlanError, match="raw records"):
            ds.raw.batches(loader.plan).view(browser=False)


def test_a_process_with_a_view_ends(birds):
    code = (
        f"import covey, urllib.request; ds = covey.open({str(birds)!r}, split='train')\n"
        "view = ds.view(browser=False)\nprint(urllib.request.urlopen(view.url).status)"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.stderr, found.returncode) == ("200\n", "", 0)


def test_a_forked_child_does_not_hold_the_port(birds, run):
    """It has neither the thread nor the connections of the server."""
    run(fork_and_use_the_port_again, birds)


def fork_and_use_the_port_again(birds):
    view = covey.open(birds, split="test").view(browser=False)
    kept = http.client.HTTPConnection("127.0.0.1", view.port, timeout=TIMEOUT_S)
    kept.request("GET", f"/?token={token_of(view)}")
    kept.getresponse().read()
    is_forked, forked = os.pipe()
    end, ends = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(TIMEOUT_S)
        view.close()
        os.write(forked, b"x")
        os.close(ends)
        os.read(end, 1)
        os._exit(0)
    assert os.read(is_forked, 1) == b"x"
    assert ask(view, "/api/overview").status == 200  # the view of the parent is open
    view.close()
    assert kept.sock.recv(1) == b""  # the child does not hold the connection
    with covey.open(birds, split="test").view(browser=False, port=view.port) as again:
        assert again.port == view.port
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
        "import urllib.request\n"
        "page = urllib.request.urlopen(view.url)\n"
        "print(page.status, page.headers['Content-Security-Policy'])\n"
        "view.close()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, kernel_name="covey-view", timeout=120).execute()
    shown = notebook.cells[0].outputs[-1]["data"]["text/html"]
    source = re.search(r'<iframe src="([^"]*)" title="covey view"', shown)[1]
    assert re.fullmatch(r"http://localhost:\d+/\?token=[\w-]{43}", source)
    printed = notebook.cells[1].outputs[-1]["text"]
    assert printed.startswith("200 ")
    assert "frame-ancestors http://localhost:* http://127.0.0.1:*" in printed
    assert not (tmp_path / "opened").exists()


# The files of the page.


def page_files():
    return {file.relative_to(PAGE).as_posix() for file in PAGE.rglob("*") if file.is_file()}


def test_the_files_of_the_page(view):
    shown = {each for each in page_files() if Path(each).suffix in (".js", ".css", ".html", ".svg")}
    assert set(server.load_page()) == {"/", *(f"/{name}" for name in shown)}
    for name in shown:
        answer = ask(view, f"/{name}")
        assert (answer.status, answer.content) == (200, (PAGE / name).read_bytes())
    assert ask(view, "/app.js").headers["Content-Type"] == "text/javascript; charset=utf-8"


def test_the_page_loads_nothing_else():
    """No inline scripts and styles, which the policy forbids, and no URL of another server."""
    for name in page_files():
        text = (PAGE / name).read_text()
        if name.startswith("vendor/"):
            continue
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
        names = [name for name in wheel.namelist() if name.startswith("covey/view/page/")]
    assert {name.removeprefix("covey/view/page/") for name in names} == page_files()
