"""Public names of the package, and the modules that define them.

``__init__.py`` reads this list, and imports a name when it is used.
"""

from covey import adapters as adapters
from covey import arrays as arrays
from covey import augmenters as augmenters
from covey import classes as classes
from covey import engines as engines
from covey import errors as errors
from covey import metrics as metrics
from covey import plan as plan
from covey import reading as reading
from covey import results as results
from covey import samplers as samplers
from covey import sources as sources
from covey import tfrecord as tfrecord
from covey import writer as writer
from covey.dataset.dataset import Dataset as Dataset
from covey.dataset.open import open as open
from covey.errors import CoveyError as CoveyError
from covey.loader import Loader as Loader
from covey.maintenance.build_index import build_index as build_index
from covey.maintenance.info import info as info
from covey.maintenance.repair import repair as repair
from covey.maintenance.verify import verify as verify
from covey.schema.audio import Audio as Audio
from covey.schema.features import Features as Features
from covey.schema.images import Image as Image
from covey.schema.tensor import Steps as Steps
from covey.schema.tensor import Tensor as Tensor
from covey.schema.types import ClassLabel as ClassLabel
from covey.schema.types import Feature as Feature
from covey.schema.types import Ragged as Ragged
from covey.schema.types import Sparse as Sparse
from covey.tfrecord.reader import RecordReader as RecordReader
from covey.tfrecord.writer import RecordWriter as RecordWriter
from covey.view.media import show as show
from covey.writing.hold_out import HoldOut as HoldOut
from covey.writing.parts import commit as commit
from covey.writing.write import write as write

__version__: str
