// Decodes RGB PNG files of equal size on one thread: png SECONDS FILE... Prints JSON, images/s.
//
// Each library verifies the CRC of every chunk. "unchecked Adler" skips the second checksum, of
// the zlib stream, which both libraries can do without.
#include <png.h>
#include <spng.h>

#include <chrono>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using Bytes = std::vector<unsigned char>;

struct Source {
  const unsigned char* at;
  size_t left;
};

void read_png(png_structp png, png_bytep out, size_t count) {
  auto* source = static_cast<Source*>(png_get_io_ptr(png));
  if (count > source->left) png_error(png, "truncated");
  std::memcpy(out, source->at, count);
  source->at += count;
  source->left -= count;
}

bool with_libpng(const Bytes& data, Bytes& out, bool adler) {
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  if (setjmp(png_jmpbuf(png))) {
    png_destroy_read_struct(&png, &info, nullptr);
    return false;
  }
  Source source{data.data(), data.size()};
  png_set_read_fn(png, &source, read_png);
  if (!adler) png_set_option(png, PNG_IGNORE_ADLER32, PNG_OPTION_ON);
  png_read_info(png, info);
  const size_t row = png_get_rowbytes(png, info);
  const size_t height = png_get_image_height(png, info);
  out.resize(row * height);
  for (size_t y = 0; y < height; ++y) png_read_row(png, out.data() + y * row, nullptr);
  png_read_end(png, nullptr);
  png_destroy_read_struct(&png, &info, nullptr);
  return true;
}

bool with_spng(const Bytes& data, Bytes& out, bool adler) {
  spng_ctx* context = spng_ctx_new(adler ? 0 : SPNG_CTX_IGNORE_ADLER32);
  size_t size = 0;
  bool good = spng_set_png_buffer(context, data.data(), data.size()) == 0 &&
              spng_decoded_image_size(context, SPNG_FMT_RGB8, &size) == 0;
  if (good) {
    out.resize(size);
    good = spng_decode_image(context, out.data(), size, SPNG_FMT_RGB8, 0) == 0 &&
           spng_decode_chunks(context) == 0;
  }
  spng_ctx_free(context);
  return good;
}

}  // namespace

int main(int count, char** arguments) {
  const double seconds = std::atof(arguments[1]);
  std::vector<Bytes> files;
  for (int i = 2; i < count; ++i) {
    std::ifstream file(arguments[i], std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  struct Side {
    const char* name;
    bool (*decode)(const Bytes&, Bytes&, bool);
    bool adler;
    double best_time = 0;
    size_t images = 0;
  };
  Side sides[] = {{"libpng", with_libpng, true},
                  {"libpng, unchecked Adler", with_libpng, false},
                  {"libspng", with_spng, true},
                  {"libspng, unchecked Adler", with_spng, false}};
  Bytes first, out;
  for (const auto& file : files) {
    if (!with_libpng(file, first, true)) return 1;
    for (const auto& side : sides)
      if (!side.decode(file, out, side.adler) || out != first) return 2;
  }
  // In turn, a tenth of the time each, so that noise affects all sides alike.
  for (int round = 0; round < 10; ++round)
    for (auto& side : sides) {
      const auto start = std::chrono::steady_clock::now();
      double passed = 0;
      size_t images = 0;
      while (passed < seconds / 10) {
        for (const auto& file : files) side.decode(file, out, side.adler);
        images += files.size();
        passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
      side.best_time += passed;
      side.images += images;
    }
  std::printf("{");
  for (const auto& side : sides)
    std::printf("%s\"%s\": %.0f", &side == sides ? "" : ", ", side.name,
                side.images / side.best_time);
  std::printf("}\n");
}
