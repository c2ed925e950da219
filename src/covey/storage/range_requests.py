"""Asking for ranges of a file, and making sure that the answer is one, and of the same file.

Drivers hide what a server really said. Where it says which state of a file its bytes are of, which
is with HTTP and S3, it is asked directly.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from typing import Any

from covey.errors import FileChangedError, StorageError
from covey.storage.base import Stat
from covey.storage.errors import TruncatedResponseError
from covey.storage.filesystem import Call, RemoteFilesystem, RequestExecutor, named

_PIECE_BYTES = 1 << 20

# Raises StorageError if a number of bytes, which may be unknown, is too large.
_Check = Callable[[int | None], None]

# What drivers call it, the surest first.
_VERSIONS = (
    "ETag",
    "etag",
    "generation",
    "md5Hash",
    "checksum",
    "sha",
    "blob_id",
    "mtime",
    "LastModified",
    "last_modified",
    "Last-Modified",
    "updated",
    "modified",
    "modify",
    "modificationTime",
    "created",
)


class RangeNotSupportedError(Exception):
    """A server answers with the whole file, whatever part of it is asked for."""


def version_of(info: Mapping[str, Any]) -> str:
    """What tells one state of a file from another, as its driver says."""
    return next((str(info[key]) for key in _VERSIONS if info.get(key)), "")


def range_call(path: str, begin: int, end: int, expected: Stat) -> Call:
    """The call that reads a range of a file, if it still is in the expected state."""

    def call(filesystem: Any) -> Any:
        if _is_http(filesystem):
            return _http_range(filesystem, path, begin, end, expected)
        if _is_s3(filesystem):
            return _s3_range(filesystem, path, begin, end, expected)
        got = named("cat_file", path, start=begin, end=end)(filesystem)
        if inspect.isawaitable(got):
            return _any_range(filesystem, got, path, begin, end, expected)
        data = _cut(got, begin, end, expected)
        if len(data) != end - begin:
            raise _wrong(data, end - begin, filesystem.info(path), expected)
        return data

    return call


def whole_call(path: str, name: str, limit: int) -> Call:
    """Return the call that reads a whole small file, and raises StorageError if it is larger.

    Args:
        path: The file in the filesystem.
        name: The file in messages.
        limit: The most bytes that it may have. No more are held.
    """

    def check(size: int | None) -> None:
        if size is not None and size > limit:
            raise StorageError(
                f"it has {size:,} bytes or more; must be at most {limit:,}", path=name
            )

    def call(filesystem: Any) -> Any:
        if _is_http(filesystem):
            return _http_whole(filesystem, path, check)
        if _is_s3(filesystem):
            return _s3_whole(filesystem, path, check)
        info, read = named("info", path), named("cat_file", path)
        found = info(filesystem)
        if inspect.isawaitable(found):
            return _any_whole(found, lambda: read(filesystem), check)
        check(found.get("size"))
        return read(filesystem)

    return call


def tells_state(connection: RemoteFilesystem) -> bool:
    """Whether answers say which state of the file they are of."""
    filesystem = connection.filesystem
    return _is_http(filesystem) or _is_s3(filesystem)


def can_compare(connection: RemoteFilesystem) -> bool:
    """Whether a file can be written on the condition that it has not changed."""
    return _is_s3(connection.filesystem)


class Body:
    """The whole of a file of HTTP, as its bytes arrive.

    Args:
        connection: To the filesystem.
        path: Of the file in it.
        expected: The state that it must be in, if that is known.
    """

    def __init__(
        self, connection: RemoteFilesystem, path: str, expected: Stat | None = None
    ) -> None:
        self._launcher = RequestExecutor(connection)
        self._expected = expected
        self._answer: Any = self._launcher.start(lambda fs: _http_get(fs, path, {})).result()
        self.position = 0
        try:
            if expected is not None:
                _check_http(self._answer, 0, expected)
        except BaseException:
            self.close()
            raise

    def read(self, most: int) -> bytes:
        """Some of the next bytes; none at the end."""
        data: bytes = self._launcher.start(lambda _: self._answer.content.read(most)).result()
        if not data and self._expected is not None and self.position < self._expected.size:
            raise TruncatedResponseError(f"{self.position} bytes came of {self._expected.size}")
        self.position += len(data)
        return data

    def close(self) -> None:
        """Hang up."""
        self._launcher.close()
        self._launcher.start(lambda _: _hang_up(self._answer)).result()


def measure(connection: RemoteFilesystem, path: str, version: str) -> Stat:
    """The state of a file whose server does not say how long it is: all of it is read."""
    content = hashlib.sha256()
    with closing(Body(connection, path)) as body:
        while data := body.read(_PIECE_BYTES):
            content.update(data)
        return Stat(body.position, version or content.hexdigest())


async def _hang_up(answer: Any) -> None:
    answer.close()


def _is_http(filesystem: Any) -> bool:
    module = sys.modules.get("fsspec.implementations.http")
    return module is not None and issubclass(type(filesystem), module.HTTPFileSystem)


def _is_s3(filesystem: Any) -> bool:
    return type(filesystem).__module__.split(".")[0] == "s3fs"


async def _http_get(filesystem: Any, url: str, headers: Mapping[str, str]) -> Any:
    session = await filesystem.set_session()
    options = dict(filesystem.kwargs)
    # Compressed on the way, a range would be of something else.
    headers = {**options.pop("headers", {}), "Accept-Encoding": "identity", **headers}
    answer = await session.get(filesystem.encode_url(url), headers=headers, **options)
    try:
        answer.raise_for_status()
    except BaseException:
        answer.close()
        raise
    return answer


def _check_http(answer: Any, begin: int, expected: Stat) -> None:
    found = {name: answer.headers.get(name) for name in ("ETag", "Last-Modified")}
    given = answer.headers.get("Content-Range", "") if answer.status == 206 else ""
    _check_state(version_of(found), _size_in(given, begin, expected), expected)


def _size_in(content_range: str, begin: int, expected: Stat) -> int:
    """How long the whole file is of which a part has come."""
    given = re.match(r"bytes (\d+)-\d+/(\d+)$", content_range)
    if given is None:
        return expected.size
    if int(given[1]) != begin:
        raise TruncatedResponseError(f"bytes from {given[1]} came, not from {begin}")
    return int(given[2])


async def _http_range(filesystem: Any, url: str, begin: int, end: int, expected: Stat) -> bytes:
    answer = await _http_get(filesystem, url, {"Range": f"bytes={begin}-{end - 1}"})
    try:
        _check_http(answer, begin, expected)
        if answer.status != 206 and end - begin < expected.size:
            raise RangeNotSupportedError
        return _check_length(await answer.read(), end - begin)
    finally:
        answer.close()


async def _http_whole(filesystem: Any, url: str, check: _Check) -> bytes:
    async with await _http_get(filesystem, url, {}) as answer:
        check(answer.content_length)
        data = bytearray()
        async for piece in answer.content.iter_chunked(_PIECE_BYTES):
            data += piece
            check(len(data))
        return bytes(data)


async def _any_whole(
    info: Awaitable[Mapping[str, Any]], read: Callable[[], Awaitable[bytes]], check: _Check
) -> bytes:
    check((await info).get("size"))
    return await read()


def _no_check(size: int | None) -> None:
    """Accept any size."""


async def _s3_get(
    filesystem: Any, path: str, check: _Check = _no_check, **options: str
) -> tuple[bytes, Any]:
    bucket, key, version = filesystem.split_path(path)
    if version:
        options["VersionId"] = version
    answer = await filesystem._call_s3("get_object", Bucket=bucket, Key=key, **options)
    try:
        check(answer["ContentLength"])
        data = await answer["Body"].read()
    finally:
        answer["Body"].close()
    return _check_length(data, answer["ContentLength"]), answer


async def _s3_range(filesystem: Any, path: str, begin: int, end: int, expected: Stat) -> bytes:
    data, answer = await _s3_get(filesystem, path, Range=f"bytes={begin}-{end - 1}")
    size = _size_in(answer.get("ContentRange", ""), begin, expected)
    _check_state(version_of(answer), size, expected)
    return _check_length(data, end - begin)


async def _s3_whole(filesystem: Any, path: str, check: _Check) -> bytes:
    data, _ = await _s3_get(filesystem, path, check)
    return data


async def _any_range(
    filesystem: Any, got: Awaitable[bytes], path: str, begin: int, end: int, expected: Stat
) -> bytes:
    data = _cut(await got, begin, end, expected)
    if len(data) != end - begin:
        raise _wrong(data, end - begin, await filesystem._info(path), expected)
    return data


def _cut(data: bytes, begin: int, end: int, expected: Stat) -> bytes:
    """What was asked for, though all of the file may have come."""
    return data[begin:end] if len(data) == expected.size else data


def _wrong(data: bytes, wanted: int, info: Mapping[str, Any], expected: Stat) -> OSError:
    """Why an answer has the wrong length: the connection, or another file."""
    if Stat(info["size"], version_of(info)) != expected:
        return FileChangedError()
    return TruncatedResponseError(f"{len(data)} bytes came of {wanted}")


def _check_length(data: bytes, expected: int) -> bytes:
    if len(data) != expected:
        raise TruncatedResponseError(f"{len(data)} bytes came of {expected}")
    return data


def _check_state(version: str, size: int, expected: Stat) -> None:
    if size != expected.size or (version and expected.version and version != expected.version):
        raise FileChangedError(f"{size} bytes, {version!r} instead of {expected}")
