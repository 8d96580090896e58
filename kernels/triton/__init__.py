"""The fused decode step in Triton. Importing this folder does not import Triton; `launch` does."""
