"""Measures how a server answers many users at once, and how fast a model is without one."""
