"""Items of sources."""

from covey import errors


def read(source):
    """The items; an error as its line, or position, and its reason."""
    return [
        (item.line or item.record, item.reason) if isinstance(item, errors.SourceError) else item
        for item in source.examples
    ]
