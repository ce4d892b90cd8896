"""Benchmarks of speculative decoding that are tests: is the output exactly the target's, and is it faster?

A scenario becomes a workload of token ids, an engine turns it into generations, a verdict says whether every emitted
token is the target's own greedy choice, measurements are taken from the same generations, and pytest-benchmark keeps
them.
"""

__version__ = "0.1.0"
