"""Benchmarks: `infinicore perf compare` measures ours, the installed peers and the machine's limits in turn."""
