// Records that Python passes: bytes objects, or ranges of buffers.
#pragma once

#include <vector>

#include "../frames.h"
#include "support.h"

namespace covey {

struct Records {
  std::vector<Bytes> bytes;
  std::vector<View> views;  // keep the memory alive
};

Records from_list(nb::list list);

// Checks that every record is inside its buffer, with `header` bytes before and `footer` after it.
Records from_buffers(nb::list buffers, nb::handle sources, ArrayArg<std::uint64_t> offsets,
                     ArrayArg<std::uint64_t> lengths, std::size_t header, std::size_t footer);

// (data, offsets, lengths)
inline nb::tuple to_tuple(Frames&& frames) {
  return nb::make_tuple(to_numpy(std::move(frames.data)), to_numpy(std::move(frames.offsets)),
                        to_numpy(std::move(frames.lengths)));
}

}  // namespace covey
