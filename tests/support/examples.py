"""How many examples Hypothesis tries: a third in each run, all of them in ``make test-all``."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

FULL = "full"
"""The profile of Hypothesis that tries all of them."""

_SHARE_BY_DAY = 3


def examples(number: int, **options: Any) -> settings:
    """Return the settings of a test that tries ``number`` examples under the profile ``full``."""
    is_full = settings.get_current_profile_name() == FULL
    return settings(max_examples=number if is_full else max(number // _SHARE_BY_DAY, 10), **options)
