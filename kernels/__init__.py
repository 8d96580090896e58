"""Decoding: one query step over a cached history, without writing full keys and values out."""

from .reference import dense_decode, lrkv_decode, mla_decode

__all__ = ["dense_decode", "lrkv_decode", "mla_decode"]
