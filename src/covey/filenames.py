"""Names of the files of a dataset.

::

    birds-train.tfrecord-00000-of-00002                             TFDS' default template
    birds-train.20261116T095012-3f9a2c1b.tfrecord-00000-of-00002    a version with a token
    birds-train.20261116T095012-3f9a2c1b.index.json                 an index file of it
    birds-train-00000-of-00002-b47931a1e918.index.json              an index file of one shard
    birds-train-00000-of-00002.idx                                  DALI's index file of one shard
    .covey-train.partial                                            staging directory of a split
    .covey-old/birds-train.old-record-00000-of-00002                a shard of a replaced version

A version of a split that replaces another one, and every version behind a URL, has a token in its
template. No two versions share a token, so that their files exist side by side.

Files beside shards that are not shards never match ``*.tfrecord*`` and ``*.tfrec*``, because other
readers find shards by these patterns.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import posixpath
import re
import time
from collections.abc import Iterable, Sequence

from covey.errors import FormatError
from covey.untrusted import brief, check_name, check_path

# Shards whose names contain their number and count.
_NUMBERED = re.compile(
    r"(?P<before>.*[-_.])(?P<number>[0-9]{1,9})-of-(?P<count>[0-9]{1,9})(?P<after>[^/]*)"
)
_MAX_MISSING = 100

INFO_FILE = "dataset_info.json"
FEATURES_FILE = "features.json"
SHARD_INFO_FILE = "shard_info.json"
"""File in which datum's reader finds the shards of all splits."""
ENTRIES_FILE = "datum_to_type_and_shape_mapping.json"
"""File in which datum's reader finds the features of all splits."""
LABELS_SUFFIX = ".labels.txt"

OLD_DIRECTORY = ".covey-old"
"""Directory in a local dataset that has the files of replaced versions, for open readers."""

FILE_FORMAT = "tfrecord"
DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
SHARD_VARIABLES = ("{SHARD_X_OF_Y}", "{SHARD_INDEX}")
"""Template variables that differ between the shards of a split."""

# A UTC time and 32 random bits.
_TOKEN_TIME = "%Y%m%dT%H%M%S"
_TOKEN = r"[0-9]{8}T[0-9]{6}-[0-9a-f]{8}"
_VERSIONED_TEMPLATE = re.compile(
    rf"\{{DATASET\}}-\{{SPLIT\}}\.({_TOKEN})\.\{{FILEFORMAT\}}-\{{SHARD_X_OF_Y\}}"
)
_VERSION_FILE = re.compile(
    rf"(?P<dataset_split>.+?)(?:\.(?P<token>{_TOKEN}))?"
    rf"(?:\.{FILE_FORMAT}-(?P<shard>\d{{5,}})-of-(?P<count>\d{{5,}})"
    r"|\.index\.json|\.(?:index|by_class|classes)\.npy)"
)
_VARIABLE = re.compile(r"\{([^{}]*)\}")
_MAX_TEMPLATE_CHARACTERS = 1000
_STAGING = re.compile(r"\.covey-[\w-]+\.partial")

# Files of other writers.
_RECORDS = r"\.(?:tfrecords?|tfrec)"
_COMPRESSED = r"\.(?:gz|gzip|zlib|z)"
_RECORD_FILE = re.compile(rf"{_RECORDS}(?:[-.]?\d+(?:-of-\d+)?)?(?:{_COMPRESSED})?$", re.IGNORECASE)
_RECORD_STEM = re.compile(rf"{_RECORDS}(?:[-.].*)?$", re.IGNORECASE)
_RECORD_SUFFIXES = re.compile(
    rf"(?:[-_.]\d+-of-\d+)?(?:(?:{_RECORDS}|{_COMPRESSED})(?:[-_.]?\d+-of-\d+)?)*$", re.IGNORECASE
)
_SIDECAR_SUFFIXES = (".npy", ".json", ".txt", ".idx")
_RECORDS_ANYWHERE = re.compile(r"\.tfrec(?:ords?)?", re.IGNORECASE)
# The stem of a sidecar file is at most 4 bytes per character, and a suffix follows.
_MAX_STEM_CHARACTERS = 48


# Templates and tokens.


def fill_template(template: str, dataset: str, split: str, shard: int, shards: int) -> str:
    """Return the name of a shard, which never leads out of the dataset directory.

    Raises:
        FormatError: If the template, or the name of the dataset or split, is invalid.

    >>> fill_template(DEFAULT_TEMPLATE, "birds", "train", 0, 8)
    'birds-train.tfrecord-00000-of-00008'
    """
    digits = max(5, len(str(shards)))
    index, count = f"{shard:0{digits}}", f"{shards:0{digits}}"
    values = {
        "DATASET": dataset,
        "SPLIT": split,
        "FILEFORMAT": FILE_FORMAT,
        "SHARD_INDEX": index,
        "NUM_SHARDS": count,
        "SHARD_X_OF_Y": f"{index}-of-{count}",
    }
    if not isinstance(template, str):
        raise FormatError(f"template {brief(template)} is not a string with {{VARIABLES}}")
    _check_template(template, tuple(values))
    check_name(dataset, "the name of a dataset")
    filled = _VARIABLE.sub(lambda match: values[match[1]], template)
    check_path(filled, f"template {template[:60]!r}: a part of the path")
    return filled


@functools.lru_cache(16)  # called for each shard
def _check_template(template: str, values: Sequence[str]) -> None:
    if set("{}") & set(_VARIABLE.sub("", template)):
        raise FormatError(f"template {brief(template)} is not a string with {{VARIABLES}}")
    if len(template) > _MAX_TEMPLATE_CHARACTERS:
        raise FormatError(
            f"the template has {len(template):,} characters; must have at most "
            f"{_MAX_TEMPLATE_CHARACTERS:,}"
        )
    for variable in _VARIABLE.findall(template):
        if variable not in values:
            raise FormatError(
                f"template {template[:60]!r} has the unknown variable {variable[:60]!r}; "
                f"supported variables: {', '.join(values)}"
            )


def new_token() -> str:
    """Return a token that no other version of a split has."""
    return f"{time.strftime(_TOKEN_TIME, time.gmtime())}-{os.urandom(4).hex()}"


def token_time(token: str) -> float:
    """Return the time at which a token was created, in seconds since the epoch."""
    from calendar import timegm

    try:
        return timegm(time.strptime(token.partition("-")[0], _TOKEN_TIME))
    except ValueError:  # digits that are not a date
        return 0.0


def versioned_template(token: str) -> str:
    """Return the template of the file names of one version of a split."""
    return f"{{DATASET}}-{{SPLIT}}.{token}.{{FILEFORMAT}}-{{SHARD_X_OF_Y}}"


def template_token(template: str) -> str | None:
    """Return the token of a template; None if it has none."""
    found = _VERSIONED_TEMPLATE.fullmatch(template)
    return None if found is None else found[1]


# Shards and index files of covey.


def parse_version_file(name: str, dataset: str, split: str) -> tuple[bool, str | None]:
    """Return whether a name belongs to a shard or an index file of a split, and its token.

    >>> parse_version_file("birds-train.tfrecord-00000-of-00001", "birds", "train")
    (True, None)
    >>> parse_version_file("birds-test.index.json", "birds", "train")
    (False, None)
    """
    found = _VERSION_FILE.fullmatch(name)
    if found is None or found["dataset_split"] != f"{dataset}-{split}":
        return False, None
    return True, found["token"]


def split_of_version_file(name: str, dataset: str) -> str | None:
    """Return the split of a shard or an index file of a dataset; None for any other file."""
    found = _VERSION_FILE.fullmatch(name)
    if found is None or not found["dataset_split"].startswith(f"{dataset}-"):
        return None
    return found["dataset_split"][len(dataset) + 1 :]


def shard_of_version_file(name: str) -> tuple[int, int] | None:
    """Return the index of a shard and the number of shards; None for an index file."""
    found = _VERSION_FILE.fullmatch(name)
    if found is None or found["shard"] is None:
        return None
    return int(found["shard"]), int(found["count"])


def is_version_file(name: str) -> bool:
    """Return whether a name belongs to a shard or an index file of any split."""
    return _VERSION_FILE.fullmatch(name) is not None


def has_token(name: str) -> bool:
    """Return whether a name belongs to a shard or an index file with a token."""
    found = _VERSION_FILE.fullmatch(name)
    return found is not None and found["token"] is not None


def newest_versions(names: Iterable[str]) -> list[str]:
    """Return the names of the newest version of each split, if ``dataset_info.json`` is missing.

    >>> newest_versions(["b-x.index.json", "b-x.20261116T095012-3f9a2c1b.index.json"])
    ['b-x.20261116T095012-3f9a2c1b.index.json']
    """
    listed = [(name, _VERSION_FILE.fullmatch(name)) for name in names]
    newest: dict[str, str] = {}
    for _, found in listed:
        if found is not None:
            split, token = found["dataset_split"], found["token"] or ""
            newest[split] = max(token, newest.get(split, ""))
    return [
        name
        for name, found in listed
        if found is None or (found["token"] or "") == newest[found["dataset_split"]]
    ]


def is_sidecar(name: str) -> bool:
    """Return whether a file describes the features of all splits."""
    return name in (FEATURES_FILE, ENTRIES_FILE) or name.endswith(LABELS_SUFFIX)


def staging_name(split: str) -> str:
    """Return the name of the directory that a split is written into."""
    return f".covey-{split}.partial"


def is_staging(name: str) -> bool:
    """Return whether a name belongs to a staging directory."""
    return _STAGING.fullmatch(name) is not None


# Files of replaced versions.


def old_name(name: str) -> str:
    """Return the name in ``OLD_DIRECTORY`` of a file of a replaced version.

    Some patterns match hidden directories, as in ``Path.rglob``.

    >>> old_name("birds-train.tfrecord-00000-of-00002")
    'birds-train.old-record-00000-of-00002'
    """
    return name.replace(".tfrec", ".old-rec")


def name_of_old(name: str) -> str:
    """Return the name of which :func:`old_name` made this one."""
    return name.replace(".old-rec", ".tfrec")


def find_moved(path: str) -> str:
    """Return the path of a local file of a dataset, which a write may have moved."""
    if os.path.lexists(path):
        return path
    directory, name = os.path.split(path)
    moved = os.path.join(directory, OLD_DIRECTORY, old_name(name))
    return moved if os.path.lexists(moved) else path


# Files of any writer.


def is_record_file(name: str) -> bool:
    """Return whether a name has a suffix of TFRecord files.

    >>> is_record_file("a.tfrecord-00000-of-00002"), is_record_file("a.tfrec.gz")
    (True, True)
    """
    return _RECORD_FILE.search(name) is not None


def has_sidecar_suffix(name: str) -> bool:
    """Return whether a name has a suffix of files that are stored beside shards."""
    return name.lower().endswith(_SIDECAR_SUFFIXES)


def record_file_stem(name: str) -> str | None:
    """Return the part of the name of a shard before its suffix; None for any other file.

    >>> record_file_stem("birds-train.tfrecord-00000-of-00008"), record_file_stem("x.tfrecord.idx")
    ('birds-train', None)
    """
    found = _RECORD_STEM.search(name)
    return None if found is None or has_sidecar_suffix(name) else name[: found.start()]


def strip_record_suffixes(name: str) -> str:
    """Return the name of a shard without its format, compression and index.

    >>> strip_record_suffixes("sea/gull-00001-of-00004.tfrec.gz")
    'sea/gull'
    """
    return _RECORD_SUFFIXES.sub("", name) or name


def sidecar_stem(name: str) -> str:
    """Return a name without any suffix of TFRecord files, for a sidecar file.

    >>> sidecar_stem("birds-train.tfrecord-00000-of-00008"), sidecar_stem("birds-train")
    ('birds-train-00000-of-00008', 'birds-train')
    """
    directory, base = posixpath.split(name)
    while (shorter := _RECORDS_ANYWHERE.sub("", base)) != base:
        base = shorter
    return posixpath.join(directory, base)


def unique_sidecar_stem(names: Sequence[str]) -> str:
    """Return the start of the name of a sidecar file of these shards, and of no others.

    >>> unique_sidecar_stem(["birds.tfrecord"]), unique_sidecar_stem(["birds.tfrec"])
    ('birds-30fb7dd06235', 'birds-346cb2211503')
    """
    import hashlib

    digest = hashlib.blake2b("\0".join(names).encode(errors="surrogatepass"), digest_size=6)
    stem = sidecar_stem(posixpath.basename(names[0])) if len(names) == 1 else ""
    return f"{stem[:_MAX_STEM_CHARACTERS] or 'covey'}-{digest.hexdigest()}"


def label_file(path: tuple[str, ...]) -> str | None:
    """Return TFDS' name of the file with the class names of a feature; None if it is not valid.

    >>> label_file(("bird", "species"))
    'bird-species.labels.txt'
    """
    name = "-".join(part.replace("/", ".") for part in path) + LABELS_SUFFIX
    try:
        check_name(name, "the name of a file")
    except FormatError:
        return None
    return name


def find_missing(names: Sequence[str], pattern: str = "*") -> tuple[str, ...]:
    """Return the shards that do not exist although the names of others count them.

    Args:
        names: The shards that exist.
        pattern: The pattern that the names of missing shards must match.

    >>> find_missing(["a-00000-of-00003.tfrecord", "a-00002-of-00003.tfrecord"])
    ('a-00001-of-00003.tfrecord',)
    """
    present: dict[tuple[str, int, str, str], set[int]] = {}
    for name in names:
        found = _NUMBERED.fullmatch(name)
        if found is not None:
            key = found["before"], len(found["number"]), found["count"], found["after"]
            present.setdefault(key, set()).add(int(found["number"]))
    missing: list[str] = []
    for (before, digits, count, after), numbers in sorted(present.items()):
        for number in range(int(count)):
            if number not in numbers:
                name = f"{before}{number:0{digits}}-of-{count}{after}"
                if fnmatch.fnmatchcase(posixpath.basename(name), pattern):
                    missing.append(name)
            if len(missing) >= _MAX_MISSING or number > len(numbers) + _MAX_MISSING:
                break
    return tuple(missing[:_MAX_MISSING])
