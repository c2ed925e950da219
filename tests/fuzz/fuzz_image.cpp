// Hostile bytes for the decoders of images. They must not crash, leak, or take long, and their
// results must be consistent:
//
//   - the header and the decoder agree on the size and the channels;
//   - every byte of a result is written, and none after it;
//   - results do not depend on the images that the same decoder has decoded before;
//   - a box of a partial decode equals the same box of a full decode.
//
// An input is four bytes that choose the options, and the image:
//
//   u8 channels, crop and flags | u8 more flags and seed | u8 height | u8 width | the image
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../native/wire_bytes.h"
#include "image_decoder.h"
#include "image_header.h"
#include "image_reader.h"

namespace covey::testing {
namespace {

constexpr std::uint64_t kMaxPixels = 1 << 16;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz_image: %s\n", what);
  std::abort();
}

struct Options {
  ImageSpec spec;
  RowKey key;
};

Options options_of(const std::uint8_t* bytes, const std::optional<ImageHeader>& header) {
  Options options;
  ImageSpec& spec = options.spec;
  constexpr std::size_t kChannels[] = {3, 1, 4, 2};
  spec.channels = kChannels[bytes[0] & 3];
  spec.crop = static_cast<Crop>(bytes[0] >> 2 & 3);
  spec.is_deep = (bytes[0] & 16) != 0;
  spec.fast = (bytes[0] & 32) != 0;
  spec.flip = (bytes[0] & 64) != 0;
  spec.orient = (bytes[0] & 128) != 0;
  spec.views = (bytes[1] & 1) != 0 ? 2 : 1;
  spec.as_stored = (bytes[1] & 2) != 0;
  options.key = {bytes[1], 7, bytes[2]};
  spec.size = {bytes[2] % 64 + 1U, bytes[3] % 64 + 1U};
  if ((bytes[1] & 4) != 0 || spec.crop == Crop::none) {  // the size of the image
    const std::uint64_t pixels = header ? std::uint64_t{header->height} * header->width : 0;
    if (pixels != 0 && pixels <= kMaxPixels) {
      spec.size = {header->height, header->width};
      if (spec.orient && header->orientation >= 5) std::swap(spec.size.height, spec.size.width);
    }
  }
  spec.scale = {0.02, 1};
  spec.ratio = {0.3, 3};
  spec.max_pixels = kMaxPixels;
  return options;
}

struct Outcome {
  ImageFault fault;
  std::vector<std::string> views;
};

using Memory = std::vector<std::unique_ptr<std::uint8_t[]>>;

// Memory of the exact size, with other content than the result has by chance.
std::vector<std::uint8_t*> allocate(const ImageSpec& spec, Memory& memory, std::uint8_t fill) {
  std::vector<std::uint8_t*> out;
  for (std::size_t view = 0; view < spec.views; ++view) {
    memory.push_back(std::make_unique<std::uint8_t[]>(spec.bytes()));
    std::memset(memory.back().get(), fill, spec.bytes());
    out.push_back(memory.back().get());
  }
  return out;
}

Outcome outcome_of(const ImageSpec& spec, const ImageFault& fault,
                   const std::vector<std::uint8_t*>& out) {
  Outcome outcome{fault, {}};
  for (const std::uint8_t* view : out) outcome.views.push_back(text({view, view + spec.bytes()}));
  return outcome;
}

Outcome decode(ImageDecoder& decoder, const ImageSpec& spec, Bytes data, const RowKey& key,
               std::uint8_t fill) {
  Memory memory;
  const std::vector<std::uint8_t*> out = allocate(spec, memory, fill);
  const ImageFault fault = decoder.decode(spec, data, key, out.data());
  return outcome_of(spec, fault, out);
}

Outcome frame(const ImageSpec& spec, const std::string& pixels, ImageSize size, const RowKey& key) {
  Memory memory;
  const std::vector<std::uint8_t*> out = allocate(spec, memory, 0x33);
  const Exact exact(pixels);
  ImageDecoder decoder;
  const ImageFault fault = decoder.frame(spec, exact.bytes().begin, size, key, out.data());
  return outcome_of(spec, fault, out);
}

bool same(const Outcome& a, const Outcome& b) {
  if (a.fault || b.fault) {
    return a.fault.code == b.fault.code && a.fault.size == b.fault.size &&
           a.fault.channels == b.fault.channels && a.fault.message == b.fault.message;
  }
  return a.views == b.views;
}

void check_header(Bytes data, const std::optional<ImageHeader>& header) {
  for (const auto& reader : {make_jpeg_reader(), make_png_reader()}) {
    if (reader == nullptr) continue;
    const bool is_jpeg = data.size() >= 3 && std::memcmp(data.begin, "\xff\xd8\xff", 3) == 0;
    const bool is_png = data.size() >= 8 && std::memcmp(data.begin, "\x89PNG\r\n\x1a\n", 8) == 0;
    if (!is_jpeg && !is_png) return;
    const bool failed = static_cast<bool>(reader->open(data));
    if (!failed && header) {
      expect(reader->size() == ImageSize{header->height, header->width}, "sizes differ");
      const bool is_cmyk = header->format == ImageFormat::jpeg && header->channels == 4;
      expect(reader->channels() == (is_cmyk ? 3U : header->channels), "channels differ");
    }
    // An image that is decoded has a header, from which the loader knows its size.
    expect(failed || header.has_value(), "an image without a header is opened");
    reader->close();
  }
}

// Cropping and resizing the complete image, and its partial decode, give the same result.
void check_boxes(const Options& options, Bytes data, ImageSize size, const Outcome& found) {
  if (options.spec.orient || options.spec.fast) return;
  ImageSpec full = options.spec;
  full.crop = Crop::none;
  full.size = size;
  full.views = 1;
  full.flip = false;
  ImageDecoder decoder;
  const Outcome whole = decode(decoder, full, data, options.key, 0x99);
  if (whole.fault) return;  // corrupt data outside of the boxes
  const Outcome framed = frame(options.spec, whole.views[0], size, options.key);
  expect(same(framed, found), "the boxes of partial and full decodes differ");
}

void check_image(const std::uint8_t* bytes, std::size_t count) {
  if (count < 4) return;
  const Exact image({reinterpret_cast<const char*>(bytes + 4), count - 4});
  const Bytes data = image.bytes();
  const std::optional<ImageHeader> header = read_image_header(data);
  check_header(data, header);
  const Options options = options_of(bytes, header);
  ImageDecoder fresh;
  const Outcome first = decode(fresh, options.spec, data, options.key, 0xaa);
  const Outcome again = decode(fresh, options.spec, data, options.key, 0x55);
  expect(same(first, again), "a second decode differs");
  const Outcome later = decode(ImageDecoder::of_thread(), options.spec, data, options.key, 0x66);
  expect(same(first, later), "the result depends on earlier images");
  if (!first.fault && header) {
    check_boxes(options, data, {header->height, header->width}, first);
  }
}

}  // namespace
}  // namespace covey::testing

#if defined(COVEY_REPLAY)

// The native tests replay the corpora of two fuzz targets.
extern "C" int replay_image(const std::uint8_t* data, std::size_t size) {
  covey::testing::check_image(data, size);
  return 0;
}

#else

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  covey::testing::check_image(data, size);
  return 0;
}

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

// Without valid checksums, no mutated PNG would reach the decoder. Every fourth input keeps its
// checksums.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, most);
  if (seed % 4 == 0 || size < 12 || std::memcmp(data + 4, "\x89PNG\r\n\x1a\n", 8) != 0) return size;
  for (std::size_t at = 12; size - at >= 12;) {
    const std::size_t length = std::size_t{data[at]} << 24 | std::size_t{data[at + 1]} << 16 |
                               std::size_t{data[at + 2]} << 8 | data[at + 3];
    if (length > size - at - 12) break;
    std::uint32_t crc = ~std::uint32_t{0};
    std::uint8_t* const end = data + at + 8 + length;
    for (const std::uint8_t* byte = data + at + 4; byte != end; ++byte) {
      crc ^= *byte;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320U : 0U);
    }
    for (int i = 0; i < 4; ++i) end[i] = static_cast<std::uint8_t>(~crc >> (24 - 8 * i));
    at += 12 + length;
  }
  return size;
}

#endif
