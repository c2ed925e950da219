"""Conversion between covey's features and the ``features.json`` of TFDS, without TFDS.

A feature that TFDS does not have is written as the closest one that it can read:

==================================  ===============================================================
covey                               TFDS
==================================  ===============================================================
``str``, one or a list of them      ``Text``, ``Sequence(Text)``; in more dimensions, string tensor
``Image``, other than 1, 3 or 4     ``Image`` of an unknown number of channels, without the format
channels, or JPEG of uint16         where TFDS does not support it
``Sparse``                          a dict of its values and indices, each a sequence
raw uint32                          byte strings: TensorFlow does not decode it
                                    (with several unknown dimensions a dict of shape and value)
a default, shape known              an optional tensor; a missing value reads as TFDS' default, the
                                    lowest number or ``b""``. A ``ClassLabel`` becomes int64, an
                                    ``Image`` and raw numbers become byte strings
a default, shape unknown            the same without it; a missing value reads as empty
``Steps``                           omitted: TFDS reads the context of a SequenceExample only
class names that a file with one    omitted; the number of classes is kept
name per line cannot hold
==================================  ===============================================================

In the other direction, everything that TFDS stores in TFRecords can be read. A feature that covey
does not have is read as the values that are stored:

==================================  ===============================================================
TFDS                                covey
==================================  ===============================================================
``Sequence``, ``Dataset``           a first dimension; nested ones ``Ragged``; of a dict, a dict
classes in them                     int64
images in them, ``Video``           encoded images, as byte strings
``LabeledImage``                    ``Image``; the names for its pixels are dropped
``Image`` of float32                ``Image`` of its bytes, 4 channels of uint8
``Image`` of four dimensions        the encoded file, as a byte string
``Audio(lazy_decode=True)``         the encoded file, as a byte string
``Text`` with an encoder            its int64 values
float64 in nested sequences         float32, as it is stored
raw bfloat16, complex               uint16 of the same bits; float32 or float64 with a last
                                    dimension of 2: ``.view()`` restores the dtype
other raw dtypes                    byte strings
raw tensors in nested sequences,    byte strings (with several unknown dimensions a dict of shape
or of unknown shape in a sequence   and value)
lists of an unknown shape in a      concatenated, which TFDS itself does not read (if nested, a
sequence                            dict of their values and row lengths)
user-defined classes                as they are saved: a tensor, a sequence, an image, ...
==================================  ===============================================================
"""

from covey.filenames import FEATURES_FILE
from covey.schema.tfds_read import features_from_tfds
from covey.schema.tfds_write import features_to_tfds

__all__ = ["FEATURES_FILE", "features_from_tfds", "features_to_tfds"]
