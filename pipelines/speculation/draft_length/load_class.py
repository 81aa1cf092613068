"""Groups numbers of concurrent requests for which speculation costs and gains about the same."""

from __future__ import annotations


def load_class(num_requests: int) -> int:
    """Return the class of a load: one request, two, three to five, six to ten, eleven to 21, and so on.

    Usual numbers of requests are powers of two. From four on they lie inside of their classes, so that a
    request that ends before the next one begins changes nothing.
    """
    return (3 * num_requests // 2).bit_length()
