"""Exchange of tensors with NumPy, torch and everything that speaks DLPack."""
