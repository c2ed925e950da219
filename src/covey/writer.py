"""datum's writer: ``from covey.writer import TFRecordWriter``."""

from covey.compat.datum import CountWarning, Serializer, TFRecordWriter

__all__ = ["CountWarning", "Serializer", "TFRecordWriter"]
