"""Ops that InfiniCore's programs import by the path of their module."""
