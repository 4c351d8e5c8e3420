"""Rollout generation: measure how hard agent tasks are for one frozen model, and keep everything it said."""

__version__ = "0.1.0"
