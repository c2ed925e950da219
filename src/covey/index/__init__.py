"""The index of a split: the place, the length and the class of every record."""

from covey.index.about import BY_FILE, About
from covey.index.reading import Index, array_limits, read_about, read_index
from covey.index.rows import (
    CLASS_DTYPE,
    IndexWriter,
    class_table,
    index_names,
    number_dtype,
    row_dtype,
    sort_by_class,
    write_classes,
)

__all__ = [
    "BY_FILE",
    "CLASS_DTYPE",
    "About",
    "Index",
    "IndexWriter",
    "array_limits",
    "class_table",
    "index_names",
    "number_dtype",
    "read_about",
    "read_index",
    "row_dtype",
    "sort_by_class",
    "write_classes",
]
