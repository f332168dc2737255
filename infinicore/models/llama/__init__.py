"""The Llama family: Llama, Mistral, Qwen2 and Qwen3 are one decoder with switches."""
