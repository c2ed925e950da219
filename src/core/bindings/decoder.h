// The decoder as Python has it.
#pragma once

#include "../decode.h"
#include "columns.h"
#include "records.h"

namespace covey {

class PyDecoder {
 public:
  explicit PyDecoder(const std::vector<ColumnSpec>& specs);

  nb::list decode(nb::list records, nb::list dense) const;
  nb::list decode_buffers(nb::list buffers, nb::handle sources, ArrayArg<std::uint64_t> offsets,
                         ArrayArg<std::uint64_t> lengths, int check, nb::list dense) const;

  const Decoder& decoder() const noexcept { return decoder_; }
  bool is_one_int64(std::size_t column) const noexcept;

  // Decodes records whose memory the caller keeps alive; `dense` has an array for every column of
  // fixed numbers. Afterwards `also(out, fault)`, without the GIL, may replace the fault.
  template <class Also>
  nb::list run(const std::vector<Bytes>& records, Check check, nb::list dense, Also also) const {
    std::vector<ColumnOut> out(decoder_.columns().size());
    const std::vector<View> views = prepare(records.size(), dense, out);
    Fault fault;
    {
      const GilReleased released;
      fault = also(out, decoder_.decode(records, check, out));
    }
    raise_if(fault);
    return grown(out);
  }

 private:
  std::vector<View> prepare(std::size_t rows, nb::list dense, std::vector<ColumnOut>& out) const;
  static nb::list grown(std::vector<ColumnOut>& out);

  Decoder decoder_;
};

Check parse_check(int check);

}  // namespace covey
