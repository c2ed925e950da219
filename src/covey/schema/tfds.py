"""Between covey's features and the ``features.json`` of TFDS, without TFDS.

Where TFDS has no such kind, it is given the nearest thing that it can read:

==================================  ===============================================================
covey                               TFDS
==================================  ===============================================================
``str``, one or a list of them      ``Text``, ``Sequence(Text)``; in more dimensions, string tensor
``Image``, other than 1, 3 or 4     ``Image`` of an unknown number of channels; the format is left
channels, or JPEG of uint16         out where TFDS has no such images
``Sparse``                          a dict of its values and indices, each a sequence
uint32 stored as memory             byte strings: TensorFlow does not decode it
                                    (with several unknown dimensions a dict of shape and value)
a default, shape known              an optional tensor; what is missing reads as TFDS' own default,
                                    the lowest number or ``b""``. A ``ClassLabel`` becomes int64, an
                                    ``Image`` and numbers stored as memory become byte strings
a default, shape unknown            the same without it; what is missing reads as empty
``Steps``                           left out: TFDS reads the context of a SequenceExample only
names of classes that a file with   left out, the number of classes stays
a line for each cannot hold
==================================  ===============================================================

The other way, everything that TFDS stores in TFRecords can be read. What covey has no kind for is
read as what it is stored as:

==================================  ===============================================================
TFDS                                covey
==================================  ===============================================================
``Sequence``, ``Dataset``           a first dimension; nested ones ``Ragged``; of a dict, a dict
classes in them                     int64
images in them, ``Video``           encoded images, as byte strings
``LabeledImage``                    ``Image``; the names for its pixels are dropped
``Image`` of float32                ``Image`` of its memory, 4 channels of uint8
``Image`` of four dimensions        the encoded file, as a byte string
``Audio(lazy_decode=True)``         the encoded file, as a byte string
``Text`` with an encoder            its int64 numbers
float64 in nested sequences         float32, which is all that is stored
bfloat16, complex, as memory        uint16 of the same bits; float32 or float64 with a last
                                    dimension of 2: ``.view()`` makes it what it was
memory of other dtypes              byte strings
memory in nested sequences, or of   byte strings (with several unknown dimensions a dict of shape
an unknown shape in a sequence      and value)
lists of an unknown shape in a      one after the other, which TFDS itself does not read (nested, a
sequence                            dict of their values and row lengths)
a class of the user's own           what it is saved as: a tensor, a sequence, an image, ...
==================================  ===============================================================
"""

from covey.filenames import FEATURES_FILE
from covey.schema.tfds_read import features_from_tfds
from covey.schema.tfds_write import features_to_tfds

__all__ = ["FEATURES_FILE", "features_from_tfds", "features_to_tfds"]
