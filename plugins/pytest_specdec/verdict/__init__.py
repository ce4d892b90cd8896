"""Verdicts: is every emitted token the target's own greedy choice?"""
