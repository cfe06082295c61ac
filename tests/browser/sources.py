"""Loads of models from other servers, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.browser.chat import Chat
from tests.browser.origin import Origin
from tests.tiny import TINY

DATA = TINY.read_bytes()
NONE = "model=none/manifest.json&device=cpu&context=512"  # the page itself loads nothing
Serve = Callable[..., Origin]


def load(chat: Chat, model: str, **options: Any) -> str:
    """The code of the error, or "loaded"."""
    outcome: str = chat.page.evaluate(
        """async (options) => {
          const failed = ({code, message, hint}) => {
            window.why = `${message} ${hint}`;
            return code;
          };
          return octavo.load(options).then(() => 'loaded', failed);
        }""",
        {"model": model, **options},
    )
    return outcome


# The SHA-256 of all shards that are kept, one after the other.
KEPT_HASH = """async () => {
  const cache = await caches.open('octavo-models');
  const urls = (await cache.keys()).map(({url}) => url).filter((url) => url.endsWith('.bin'));
  const parts = urls.sort().map(async (url) => (await cache.match(url)).blob());
  const bytes = await new Blob(await Promise.all(parts)).arrayBuffer();
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('');
}"""
