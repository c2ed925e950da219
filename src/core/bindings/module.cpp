// covey._core: the table of contents of the native module.
#include "support.h"

NB_MODULE(_core, m) {
  m.doc() = "The hot loops of covey: checksums, frames, and tf.train.Example by the column.";
  // Objects may outlive the module at process exit, for example in a traceback.
  nb::set_leak_warnings(false);
  covey::register_fault(m);
  covey::register_crc32c(m);
  covey::register_frames(m);
  covey::register_hash(m);
  covey::register_image_header(m);
  covey::register_images(m);
  covey::register_mapping(m);
  covey::register_columns(m);
  covey::register_encoder(m);
  covey::register_examples(m);
  covey::register_decoder(m);
  covey::register_classes(m);
  covey::register_rowcheck(m);
  covey::register_plan(m);
  covey::register_gather(m);
  covey::register_prefetcher(m);
  covey::register_survey(m);
}
