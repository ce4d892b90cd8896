"""Verdicts: is the output the target's own, token by token, or in distribution?"""
