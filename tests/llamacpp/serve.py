"""llama.cpp's own HTTP server, which the package xllamacpp has, on one checkpoint or two, in float32 throughout.

    python serve.py --port N --model FOLDER [--draft FOLDER] [--method draft-simple] [--gamma N] [--accept RATE,RATE,…]

`--accept` is llama.cpp's synthetic acceptance: drafts are accepted at these rates by position, whatever the target
says. It listens on the loopback address until it is ended.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
from pathlib import Path

import xllamacpp
from as_gguf import write_gguf

FLOAT32 = xllamacpp.ggml_type.GGML_TYPE_F32
TURNS = 4  # requests that are answered at once; more wait
LOOKED_UP = 3  # tokens that a lookup in the prompt compares


def main() -> None:
    """Convert, load and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--method", default="none")
    parser.add_argument("--gamma", type=int, default=0)
    parser.add_argument("--accept", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = xllamacpp.Server(parameters(options, Path(folder)))  # its files are mapped, so they may go
    print(f"listening on {server.listening_address}", flush=True)
    signal.pause()


def parameters(options: argparse.Namespace, folder: Path) -> xllamacpp.CommonParams:
    """llama.cpp's parameters, with checkpoints written to the folder as it opens them."""
    asked = xllamacpp.CommonParams()
    asked.model.path = converted(options.model, folder / "target.gguf")
    asked.model_alias = {str(options.model)}
    asked.port, asked.endpoint_metrics, asked.ui = options.port, True, False
    asked.n_parallel, asked.n_ctx = TURNS, TURNS * options.context
    asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = 1
    asked.cache_type_k = asked.cache_type_v = FLOAT32
    asked.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it computes in float16
    speculate(asked.speculative, options, folder)
    return asked


def speculate(asked: xllamacpp.CommonParamsSpeculative, options: argparse.Namespace, folder: Path) -> None:
    """Its part that says how it drafts."""
    kind = options.method.upper().replace("-", "_")
    asked.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{kind}")]
    asked.draft.n_max = asked.ngram_simple.size_m = options.gamma
    asked.ngram_simple.size_n = LOOKED_UP
    asked.synth_rates = [float(rate) for rate in options.accept.split(",") if rate]
    if options.draft:
        asked.draft.mparams.path = converted(options.draft, folder / "draft.gguf")
        asked.draft.cache_type_k = asked.draft.cache_type_v = FLOAT32


def converted(checkpoint: Path, file: Path) -> str:
    """The path of the file, written."""
    write_gguf(checkpoint, file)
    return str(file)


if __name__ == "__main__":
    main()
