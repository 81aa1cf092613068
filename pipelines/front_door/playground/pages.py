"""Serves the playground: one page without a build step and without anything from elsewhere."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

_FOLDER = Path(__file__).parent
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

FILES = {
    "/": ("index.html", "text/html"),
    "/playground.css": ("playground.css", "text/css"),
    "/playground.js": ("playground.js", "text/javascript"),
}
"""Path -> file and type."""


async def show_file(request: web.Request) -> web.Response:
    """Return the file of a path of ``FILES``."""
    name, kind = FILES[request.path]
    text = (_FOLDER / name).read_text(encoding="utf-8")
    return web.Response(text=text, content_type=kind, charset="utf-8", headers=_HEADERS)
