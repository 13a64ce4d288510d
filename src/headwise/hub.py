"""Whether the hub answers, asked once and briefly.

Its client tries every file of a model again and again, with ten seconds for each; a hub that accepts connections and
says nothing would hold a program up for many minutes, even where a cached copy of everything is there. By hand, because
huggingface_hub limits each request (HF_HUB_ETAG_TIMEOUT); the files themselves are fetched and cached by it.
"""

from __future__ import annotations

import logging
from functools import cache

SECONDS = 5.0
"""How long the hub may take to say anything at all."""

log = logging.getLogger("headwise")


@cache
def hub_is_silent() -> bool:
    """Whether the hub was asked and said nothing. With HF_HUB_OFFLINE nobody asks: its client knows what to do."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
        return False
    except Exception as error:  # of whichever client the library uses: no name, no route, no word
        log.warning(
            "the hub (%s) does not answer (%s); cached copies are used",
            constants.ENDPOINT,
            type(error).__name__,
        )
        # Not every call inside transformers hands on "local files only"; with this none asks, for this process's life.
        constants.HF_HUB_OFFLINE = True
        return True
