"""datum's writer, under the name of its module: ``from covey.writer import TFRecordWriter``."""

from covey.compat.datum import CountWarning, Serializer, TFRecordWriter

__all__ = ["CountWarning", "Serializer", "TFRecordWriter"]
