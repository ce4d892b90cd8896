"""NVIDIA Dynamo on one machine: a frontend and one vLLM worker, all on the loopback address, as one command.

    python launch.py --port N --metrics-port M --model FOLDER [options of dynamo.vllm …]

Both find each other through files in a folder of their own. It ends when the frontend ends, or when the worker gives up
by itself; a worker that is killed does not end it, as it would not in a cluster. What is left is ended with the group.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time

HOST = "127.0.0.1"
PORTS = range(30000, 32000)
PLANES = (
    "DYN_TCP_RPC_HOST",
    "DYN_EVENT_PLANE_HOST",
    "DYN_TCP_RESPONSE_STREAM_HOST",
    "DYN_HTTP_RPC_HOST",
    "DYN_SYSTEM_HOST",
    "VLLM_HOST_IP",
)
FILES = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")


def free_port() -> str:
    """A port on which nobody listens now. Dynamo refuses those from 49152 on, which a system likes to give."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return str(port)
    raise SystemExit(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")


def main() -> int:
    """Start both, and wait for the frontend."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", required=True)
    parser.add_argument("--metrics-port", required=True)
    parser.add_argument("--model", required=True)
    options, rest = parser.parse_known_args()
    shared = {
        "DYN_LOG": "warn",
        **os.environ,
        **dict.fromkeys(PLANES, HOST),
        "DYN_FILE_KV": tempfile.mkdtemp(prefix="dynamo-"),
        "DYN_TCP_RPC_PORT": "0",
        "DYN_FORWARDPASS_METRIC_PORT": free_port(),
        "HF_HUB_OFFLINE": "1",
    }
    worker = ["-m", "dynamo.vllm", "--model", options.model, "--enforce-eager", *FILES, *rest]
    works = subprocess.Popen([sys.executable, *worker], env={**shared, "DYN_SYSTEM_PORT": options.metrics_port})
    frontend = ["-m", "dynamo.frontend", "--http-host", HOST, "--http-port", options.port, *FILES]
    answers = subprocess.Popen([sys.executable, *frontend], env=shared)
    while answers.poll() is None and (works.poll() or 0) <= 0:
        time.sleep(0.5)
    return answers.poll() or works.poll() or 0


if __name__ == "__main__":
    sys.exit(main())
