"""Write manifest.json anew, and print the hash of it that headwise is to be given."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

ROOT = Path(__file__).parent / "headwise_companions"


def entry(path: Path) -> dict[str, object]:
    content = path.read_bytes()
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


manifest = {path.relative_to(ROOT).as_posix(): entry(path) for path in sorted(ROOT.glob("smollm2-*/*"))}
text = json.dumps(manifest, indent=1) + "\n"
(ROOT / "manifest.json").write_bytes(text.encode())
print(hashlib.sha256(text.encode()).hexdigest())
