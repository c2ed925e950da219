// How encoded images become arrays, as Python has it.
#pragma once

#include "../image.h"
#include "support.h"

namespace covey {

struct PyImageSpec {
  ImageSpec spec;
};

}  // namespace covey
