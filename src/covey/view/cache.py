"""A cache of responses that is bounded by their size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

from covey.view.messages import Response


class ByteCache:
    """Responses with LRU eviction; used by all threads of a server.

    Args:
        max_bytes: Maximum size of all bodies.

    >>> cache = ByteCache(10)
    >>> cache.put("owl", Response(bytes(6), "image/png"))
    >>> cache.put("wren", Response(bytes(6), "image/png"))
    >>> cache.get("owl") is None, cache.get("wren") is None
    (True, False)
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._stored: OrderedDict[Hashable, Response] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Response | None:
        """Return the response of a key; None if it is not stored."""
        with self._lock:
            found = self._stored.get(key)
            if found is not None:
                self._stored.move_to_end(key)
            return found

    def put(self, key: Hashable, response: Response) -> None:
        """Store a response, unless it is larger than the cache."""
        size = len(response.body)
        if size > self._max_bytes:
            return
        with self._lock:
            previous = self._stored.pop(key, None)
            self._bytes += size - (0 if previous is None else len(previous.body))
            self._stored[key] = response
            while self._bytes > self._max_bytes:
                _, evicted = self._stored.popitem(last=False)
                self._bytes -= len(evicted.body)
