// The part of an image that a result shows, as a function of (seed, batch, row, view). The results
// must never change: published seeds depend on them.
#pragma once

#include "image.h"

namespace covey {

struct Framing {
  Box box;
  bool is_flipped = false;
};

// Chooses the box of one view of an image.
//
// A random box is that of torchvision's RandomResizedCrop: ten attempts at an area that is uniform
// in `scale` and an aspect ratio whose logarithm is uniform, then a central box.
Framing choose_framing(const ImageSpec& spec, ImageSize image, const RowKey& key,
                       std::size_t view) noexcept;

}  // namespace covey
