"""GuideLLM as a program: for each line "RATE COUNT" it sends COUNT requests at RATE a second.

    python guidellm_bench.py URL

The environment variable GUIDELLM names its command, which lives in an environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from pytest_specdec.models import resolve

URL = sys.argv[1]
MOST = 200_000


def send(rate: float, count: int, folder: Path, tokenizer: str) -> None:
    """One run of its command."""
    told = {
        "--backend": f"kind=openai_http,target={URL},model=answering",
        "--profile": f"kind=constant,rate={rate}",
        "--constraint": f"kind=max_requests,count={count}",
        "--tokenizer": f"kind=hf_auto,model={tokenizer}",
        "--data": f"kind=json_file,path={folder / 'prompts.jsonl'}",
        "--output": f"kind=json,path={folder / 'report.json'}",
    }
    options = [part for pair in told.items() for part in pair]
    subprocess.run(
        [os.environ["GUIDELLM"], "run", *options, "--disable-console"], check=True, stdout=subprocess.DEVNULL
    )


def main() -> None:
    """Obey until standard input ends."""
    folder = Path(tempfile.mkdtemp())
    (folder / "prompts.jsonl").write_text(f"{json.dumps({'prompt': 't5'})}\n" * MOST)
    obey = partial(send, folder=folder, tokenizer=resolve("constructed:tiny", cache=None))
    print("ready", flush=True)
    for line in sys.stdin:
        obey(float(line.split()[0]), int(line.split()[1]))
        print("done", flush=True)


if __name__ == "__main__":
    main()
