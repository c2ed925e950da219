"""examples (being written)."""

from __future__ import annotations

from covey.view.server import Handler

ROUTES: dict[str, Handler] = {}
