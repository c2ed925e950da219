// Where records lie: bytes objects, or places in buffers.
#pragma once

#include <vector>

#include "../frames.h"
#include "support.h"

namespace covey {

struct Records {
  std::vector<Bytes> bytes;
  std::vector<View> views;  // keep them alive
};

Records from_list(nb::list list);

// Checks that every place lies in its buffer, with `header` bytes before and `footer` after it.
Records from_buffers(nb::list buffers, nb::handle sources, ArrayArg<std::uint64_t> offsets,
                     ArrayArg<std::uint64_t> lengths, std::size_t header, std::size_t footer);

// (data, offsets, lengths)
inline nb::tuple to_tuple(Frames&& frames) {
  return nb::make_tuple(to_numpy(std::move(frames.data)), to_numpy(std::move(frames.offsets)),
                        to_numpy(std::move(frames.lengths)));
}

}  // namespace covey
