"""Meshes, collectives and parallel layers over MPI: reserved, and empty in this version."""

if __name__ != "infinicore.distributed":
    raise ImportError("this package is `infinicore.distributed`; import it by that name")
