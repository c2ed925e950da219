#include "../image_header.h"

#include "support.h"

namespace covey {

void register_image_header(nb::module_& m) {
  m.def(
      "image_header",
      [](nb::handle data) -> nb::object {
        const View view(data);
        const auto header = read_image_header({view.data(), view.data() + view.size()});
        if (!header) return nb::none();
        return nb::make_tuple(name_of(header->format), header->height, header->width,
                              header->channels, header->bits, header->orientation);
      },
      nb::arg("data"),
      nb::sig("def image_header(data: Buffer) -> tuple[str, int, int, int, int, int] | None"),
      "Return (format, height, width, channels, bits, EXIF orientation) of an encoded image, or "
      "None if the bytes are not a JPEG, PNG, GIF, BMP or WebP image.");
}

}  // namespace covey
