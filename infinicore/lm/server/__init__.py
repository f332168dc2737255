"""The server: OpenAI's API over an engine in a process of its own. `infinicore serve` runs it; see docs/serving.md."""
