"""For mkdocs: the pages lie in the site as they do in the repository, so that one link holds in both."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "examples", "scenarios")
LINKS = tempfile.TemporaryDirectory(prefix="pages-")
for name in PAGES:
    Path(LINKS.name, name).symlink_to(ROOT / name)


def on_config(config: Any) -> Any:
    """Read pages from a folder of links to them, which goes when mkdocs ends."""
    config.docs_dir = LINKS.name
    return config
