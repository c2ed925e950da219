"""Interfaces of other libraries."""
