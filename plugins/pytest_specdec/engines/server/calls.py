"""Single calls beside the load: what a server is, what it counted, how it rates. One question, one answer."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_specdec.errors import EngineError

SHOWN = 300


@dataclass(frozen=True)
class Calls:
    """The server at `url`; no proxy stands between, as for the load."""

    url: str
    timeout: float
    headers: Mapping[str, str] = field(default_factory=dict)

    def text(self, path: str, body: Mapping[str, Any] | None = None, timeout: float | None = None) -> str:
        """The answer's text. Raises EngineError with the server's words."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **self.headers})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout or self.timeout) as answer:
                return str(answer.read().decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            words = error.read().decode("utf-8", "replace")[:SHOWN]
            raise EngineError(f"{self.url}{path}: HTTP {error.code}: {words}") from None
        except (OSError, urllib.error.URLError) as error:
            raise EngineError(f"{self.url}{path}: {getattr(error, 'reason', error)}") from None

    def json(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer as JSON. Raises EngineError."""
        text = self.text(path, body)
        try:
            return json.loads(text)
        except ValueError:
            raise EngineError(f"{self.url}{path}: not JSON: {text[:SHOWN]}") from None

    def answers(self, path: str, timeout: float) -> bool:
        """Whether this path answers at all, and well."""
        try:
            self.text(path, timeout=timeout)
        except EngineError:
            return False
        return True
