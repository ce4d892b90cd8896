"""The one error of this package's rooms: a model that was asked for cannot be had."""

from pytest_specdec.errors import ConfigurationError


class ModelError(ConfigurationError):
    """A model reference is wrong, or its model cannot be made here: the message names the piece and the remedy."""
