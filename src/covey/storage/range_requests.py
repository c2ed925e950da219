"""Calls that read files, and check that the response is complete and of the expected state."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from covey.errors import FileChangedError, StorageError
from covey.storage.base import Stat
from covey.storage.errors import TruncatedResponseError
from covey.storage.filesystem import Call, is_http

_CHUNK_BYTES = 1 << 20

# The fields of fsspec's info() that identify a state of a file, the most reliable first.
_VERSION_FIELDS = (
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


def version_of(info: Mapping[str, Any]) -> str:
    """Return the version of a file from fsspec's info; "" if it has none."""
    return next((str(info[key]) for key in _VERSION_FIELDS if info.get(key)), "")


def info_call(path: str, method: str = "info", **options: Any) -> Call:
    """Return the call of fsspec's ``info``, or a similar method, without its cache of listings."""

    async def call(driver: Any) -> Any:
        driver.invalidate_cache()
        return await getattr(driver, f"_{method}")(path, **options)

    return call


def unchanged_call(path: str, expected: Stat) -> Call:
    """Return the call that raises FileChangedError unless a file is in the expected state."""

    async def call(driver: Any) -> None:
        info = await info_call(path)(driver)
        size, version = info.get("size"), version_of(info)
        changed = version and expected.version and version != expected.version
        if changed or (size is not None and size != expected.size):
            raise FileChangedError()

    return call


def range_call(path: str, begin: int, end: int, expected: Stat, *, check: bool = False) -> Call:
    """Return the call that reads a range of a file; None if the server ignores ranges.

    Args:
        path: The file in the filesystem.
        begin: The first byte.
        end: The byte after the last one.
        expected: The state of the file.
        check: Whether to check afterwards that the file is in that state.
    """

    async def call(driver: Any) -> bytes | None:
        if is_http(driver):
            data = await _read_http(driver, path, begin, end, expected.size)
            if data is None:
                return None
        else:
            data = await driver._cat_file(path, start=begin, end=end)
            if len(data) == expected.size:  # the driver ignores ranges
                data = data[begin:end]
        if check or len(data) != end - begin:
            await unchanged_call(path, expected)(driver)
        if len(data) != end - begin:
            raise TruncatedResponseError(f"{len(data)} of {end - begin} bytes were received")
        return bytes(data)

    return call


def check_size(size: int | None, path: str, limit: int) -> None:
    """Raise StorageError if a file is too large to be read into memory."""
    if size is not None and size > limit:
        raise StorageError(
            f"the file has {size:,} bytes or more; must be at most {limit:,}", path=path
        )


def read_call(path: str, name: str, limit: int) -> Call:
    """Return the call that reads a small file.

    Args:
        path: The file in the filesystem.
        name: The file in messages.
        limit: The maximum size in bytes. HTTP responses are not read beyond it; the size of other
            files is checked before.
    """

    async def call(driver: Any) -> bytes:
        if not is_http(driver):
            data: bytes = await driver._cat_file(path)
            return data
        chunks = bytearray()
        async with await _request_http(driver, path) as response:
            check_size(response.content_length, name, limit)
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                chunks += chunk
                check_size(len(chunks), name, limit)
        return bytes(chunks)

    return call


def download_call(path: str, target: str, expected: Stat | None) -> Call:
    """Return the call that copies a file to a local path.

    Args:
        path: The file in the filesystem.
        target: The local path.
        expected: The state of the file; None if its size is unknown.
    """

    async def call(driver: Any) -> None:
        await driver._get_file(path, target)
        if expected is not None:
            await unchanged_call(path, expected)(driver)
            if os.path.getsize(target) != expected.size:
                raise TruncatedResponseError(f"{os.path.getsize(target)} bytes were received")

    return call


# fsspec's HTTP driver reads any body to its end, and does not return status and headers. A server
# that ignores ranges would fill the memory, and a range other than the requested one is not noticed.


async def _read_http(driver: Any, url: str, begin: int, end: int, size: int) -> bytes | None:
    headers = {"Range": f"bytes={begin}-{end - 1}"}
    async with await _request_http(driver, url, headers) as response:
        if response.status != 206 and end - begin < size:
            return None
        found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        if found is not None and int(found[1]) != begin:
            raise TruncatedResponseError(f"bytes from {found[1]} were received, not from {begin}")
        data: bytes = await response.read()
        return data


async def _request_http(driver: Any, url: str, headers: Mapping[str, str] | None = None) -> Any:
    session = await driver.set_session()
    options = dict(driver.kwargs)
    headers = {**options.pop("headers", {}), **(headers or {})}
    response = await session.get(driver.encode_url(url), headers=headers, **options)
    try:
        response.raise_for_status()
    except BaseException:
        response.close()
        raise
    return response
